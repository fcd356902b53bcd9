"""Checks that the records of a run were not altered after its server wrote them.

The ledger is a chain of hashed rows: changing a row changes the hash of the last row (the head). The server
signs the head, and the manifest, which has the hashes of all other files. A valid signature proves that the
owner of the key wrote these records, not who the owner is: only if the auditor gives the server's public key,
records that were rewritten and signed with another key are detected. If the key was derived from
`insecure_seed`, anyone can sign, and a signature proves nothing.

The records are also compared with each other: the scenario must have the digest that was signed, `run.json`
must say what follows from scenario and ledger (`run_claims`), and the privacy costs in `spend.json` must be
possible for the sums in the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from secagg.errors import LedgerError
from secagg.hashing import digest
from secagg.ledger import Reading, read_ledger
from secagg.noise.zcdp_cost import rho_of
from sims.audit.audit_result import Integrity
from sims.audit.ledger_files import file_problems
from sims.audit.ledger_vs_sum_log import MatchedSum, Records, reconciled
from sims.audit.run_claims import impossible_claims, misstatements
from sims.audit.run_files import Evidence, Row
from sims.config_problems import ConfigError
from sims.records.ledger_signature import AlteredLedger, Verified, read_heads, text_of_heads, verify
from sims.records.manifest import check_ledger
from sims.records.run_file_names import LEDGER, LEDGER_HEAD, MANIFEST, RUN, SUMS
from sims.scenario.settings import insecure_server
from sims.text_format import counted

_FINGERPRINT = 16  # characters: few enough for a person to compare


@dataclass(frozen=True)
class Examined:
    """The result of `examined`: the ledger, the sums of the run, and whether the records are unaltered."""

    reading: Reading | None  # the ledger; None if there is none, or if it cannot be read
    records: Records  # the sums of the ledger and of the log, matched with each other
    integrity: Integrity


def examined(evidence: Evidence, server_key: bytes | None) -> Examined:
    """Check a run's manifest, ledger, signatures and other files. Altered records are reported in the result;
    no error is raised. `server_key` is the public key that must have signed; None accepts any key."""
    problems = list(evidence.files.altered.values())
    reading = signed = None
    if not evidence.is_plain:
        reading = _read(evidence, problems)
        signed = None if reading is None else _signed(evidence, reading, problems)
        foreign = signed is not None and server_key is not None and signed.keys[-1] != server_key
        reading = None if signed is None or foreign else reading
    records = reconciled(evidence, reading)
    problems += [*records.problems, *misstatements(evidence), *impossible_spends(evidence, records)]
    remarks = [*_remarks(evidence, records, signed, server_key), *evidence.files.remarks]
    if signed is not None and signed.unsigned:
        late = f"the last {counted(signed.unsigned, 'row')} of the ledger came after the last signature"
        (problems if evidence.finished else remarks).append(late)
    problems += impossible_claims(evidence, reading, None if signed is None else signed.keys[-1])
    key = _key(evidence, signed)
    problems += [*_wrong_keys(evidence, signed, server_key), *_other_run(evidence)]
    manifest = evidence.files.manifest
    integrity = Integrity(
        rows=None if reading is None else len(reading.rows),
        head=None if reading is None else reading.head.hash.hex(),
        key=None if key is None else key.hex(),
        fingerprint=None if key is None else fingerprint(key),
        expected=None if server_key is None else key == server_key,
        problems=tuple(problems),
        remarks=tuple(remarks),
        lost=records.lost,
        files=None if manifest is None else len(manifest.files) + len(manifest.growing),
        in_use=evidence.files.in_use,
        withheld=tuple(sorted(evidence.withheld)),
        unsigned=evidence.files.unsigned or _came_later(evidence, reading, signed),
    )
    return Examined(reading, records, integrity)


def _came_later(evidence: Evidence, reading: Reading | None, signed: Verified | None) -> bool:
    """Return whether the ledger has rows that came after its signature, or after the manifest."""
    manifest = evidence.files.manifest
    if reading is None or signed is None:
        return False
    return signed.unsigned > 0 or (manifest is not None and check_ledger(manifest, reading.rows) > 0)


def _key(evidence: Evidence, signed: Verified | None) -> bytes | None:
    """Return the key that signed the records; None if nothing is signed."""
    manifest = evidence.files.manifest
    if manifest is not None and manifest.key is not None:
        return manifest.key
    return None if signed is None else signed.keys[-1]


def _other_run(evidence: Evidence) -> Iterator[str]:
    """Yield a sentence for everything that the manifest says otherwise than the `run.json` that it lists."""
    manifest, path = evidence.files.manifest, evidence.directory / MANIFEST
    if manifest is None or RUN not in evidence.files.settled or RUN in evidence.withheld:
        return
    for name, own in (("digest", manifest.run), ("status", manifest.status)):
        if evidence.run.get(name) != own:
            yield f"{path} was altered, or {RUN} was: they disagree on the {name} of the run"


def _wrong_keys(evidence: Evidence, signed: Verified | None, server_key: bytes | None) -> Iterator[str]:
    """Yield a sentence for everything that another key has signed, or none."""
    manifest = evidence.files.manifest
    head = None if signed is None else signed.keys[-1]
    if server_key is not None:
        if head is not None and head != server_key:
            yield (
                f"the ledger was signed by the key {head.hex()}, not by {server_key.hex()} as it should be"
            )
        if manifest is not None and manifest.key is not None and manifest.key != server_key:
            yield (
                f"{evidence.directory / MANIFEST} was signed by the key {manifest.key.hex()}, not by "
                f"{server_key.hex()} as it should be"
            )
        if manifest is not None and manifest.key is None:
            yield f"{evidence.directory / MANIFEST} is not signed, so the server's key proves nothing"
        if manifest is None and head is None and evidence.is_plain:
            yield "there is no ledger that the server's key could have signed"
    if manifest is None or head is None:
        return
    # A process that was killed while it wrote may have left the ledger's signature of an earlier key.
    if manifest.key != head and LEDGER_HEAD in evidence.files.settled:
        yield f"{LEDGER_HEAD} and {MANIFEST} are signed by different keys"


def fingerprint(key: bytes) -> str:
    """Return a short digest of a public key, in hex, for people to compare."""
    return digest("fingerprint of a server's key", key).hex()[:_FINGERPRINT]


def _read(evidence: Evidence, problems: list[str]) -> Reading | None:
    """Return the run's ledger, or None if it is missing or damaged. Append what is wrong to `problems`."""
    path = evidence.directory / LEDGER
    if not path.exists():
        problems.append(f"{path} is missing: nothing proves what was released")
        return None
    problems += file_problems(path)
    try:
        return read_ledger(path)
    except LedgerError as error:
        problems.append(f"the ledger is damaged, or was altered: {error}")
        return None


def _signed(evidence: Evidence, reading: Reading, problems: list[str]) -> Verified | None:
    """Return who signed the ledger; None if a signature is missing or wrong. Add problems to `problems`."""
    run, manifest = evidence.directory, evidence.files.manifest
    try:
        heads = read_heads(run)
        as_written = (run / LEDGER_HEAD).read_bytes() == text_of_heads(heads)
        if not as_written and LEDGER_HEAD not in evidence.files.altered:
            problems.append(f"{run / LEDGER_HEAD} was altered: it is not as it was written")
        found = verify(run, reading.rows, digest=str(evidence.run.get("digest", "")))
        if manifest is not None:
            check_ledger(manifest, reading.rows)
        return found
    except AlteredLedger as error:
        problems.append(f"the ledger's signature does not hold: {error}")
    except ConfigError as error:
        problems.append(f"nothing vouches for the ledger: {error}")
    return None


def _remarks(
    evidence: Evidence, records: Records, signed: Verified | None, server_key: bytes | None
) -> Iterator[str]:
    manifest, key = evidence.files.manifest, _key(evidence, signed)
    if key is not None and server_key is None:
        yield (
            "the signature holds, but it does not prove whose key it is: compare its fingerprint with the "
            "server's, or give the server's public key with --server-key; otherwise rewritten records could "
            "have been signed with another key"
        )
    if manifest is not None and manifest.key is None:
        yield (
            "no server with a key has signed these files: they agree with their manifest, but anybody may "
            "have written both"
        )
    elif manifest is not None:
        yield "the signature covers the ledger, the settings and, by their hashes, all files of the run"
    elif MANIFEST not in evidence.files.altered:
        yield (
            "there is no manifest, as an earlier version wrote the run: "
            + ("nothing is signed" if evidence.is_plain else "only the ledger and the settings are signed")
            + "; metrics, times and canaries are unproven, and anybody may have edited them"
        )
    if evidence.is_plain:
        yield "a plain channel keeps no ledger: what was released is what sums.jsonl says"
    if key is not None and _is_public_key(key, evidence):
        yield "the key that signed follows from insecure_seed: anyone with the seed can sign other records"
    if signed is not None and (keys := len(set(signed.keys))) > 1:
        yield f"{keys} keys have signed: the run went on with another one after it was stopped"
    if records.lost and SUMS not in evidence.withheld:
        verb = "is" if records.lost == 1 else "are"
        yield (
            f"{counted(records.lost, 'sum')} of rounds that were cut off {verb} in the ledger alone: what "
            "was released then counts, though nothing came of it, and its bytes were not counted"
        )
    if not evidence.finished:
        yield f"the run is {evidence.run['status']}: this is what there is so far"


def _is_public_key(key: bytes, evidence: Evidence) -> bool:
    settings = evidence.settings
    return settings is not None and settings.seeded and key == insecure_server(settings.seed).public


_SAME: Final = 1e-6  # relative tolerance: clients add their costs as floats, in another order


# --- what clients have spent ---


def impossible_spends(evidence: Evidence, records: Records) -> Iterator[str]:
    """Yield a sentence if clients' privacy costs in `spend.json` are impossible, given the run's sums."""
    if evidence.is_plain or RUN in evidence.withheld or SUMS in evidence.withheld:
        return  # the costs, the number of clients, or who was in the sums, are not known
    claimed = (evidence.spend or {}).get("clients") or {}
    if {"most", "least"} <= claimed.keys():
        entries = [entry for entry in records.entries if entry.asked is not None]
        yield from _impossible(claimed, entries, max(int(evidence.run["clients"]), 1))


def _impossible(claimed: Row, entries: Sequence[MatchedSum], clients: int) -> Iterator[str]:
    """Yield a sentence if the costs rho in `claimed`, of the clients that spent "most" and "least", are
    impossible: least > most, most > the cost of all `entries`, or most < the mean cost of all `clients`."""
    most, least = (float(claimed[which]["rho"]) for which in ("most", "least"))
    upper = sum(_rho(entry) for entry in entries)
    # Sums that are missing in the log may have been repeated from a seed, and must not count twice.
    known = [entry for entry in entries if entry.logged is not None]
    average = sum((entry.contributors or 0) * _rho(entry) for entry in known) / clients
    if not least <= most <= upper * (1 + _SAME):
        yield (
            f"spend.json cannot be right: it says that a client has spent rho {most:.4g}, and another "
            f"{least:.4g}, and all that was asked costs {upper:.4g}"
        )
    elif most < average * (1 - _SAME):
        yield (
            f"spend.json cannot be right: it says that no client has spent more than rho {most:.4g}, and "
            f"those who were in the sums have spent {average:.4g} on average"
        )


def _rho(entry: MatchedSum) -> float:
    assert entry.asked is not None  # checked by the caller
    return rho_of(entry.asked["charge"] or 0)
