"""Checks that the records of a run were not altered after its server wrote them. The ledger is a chain of
hashed rows: changing a row changes the hash of the last row (the head). The server signs the head. A valid
signature proves that the owner of the key signed this ledger, not who the owner is. If the auditor gives the
server's public key, a ledger that was rewritten and signed with another key is detected. If the key was
derived from `insecure_seed`, anyone can sign, and a signature proves nothing. The signature covers only the
rows of the ledger and the digest of the settings. So it is also checked that the scenario file has this
digest, that `run.json` agrees with the scenario, and that the privacy costs in `spend.json` are possible for
the sums in the ledger."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from protocols.evaluation import ErrorHistogram
from secagg.errors import LedgerError
from secagg.hashing import digest
from secagg.ledger import Reading, read_ledger
from secagg.noise.zcdp_cost import rho_of
from sims.audit.audit_result import Integrity
from sims.audit.ledger_vs_sum_log import MatchedSum, Records, reconciled
from sims.audit.run_files import Evidence, Row
from sims.config_problems import ConfigError, toml_tables
from sims.records import RunDirectory
from sims.records.ledger_signature import AlteredLedger, Verified, read_heads, verify
from sims.records.run_directory import SERVED
from sims.records.run_file_names import LEDGER, LEDGER_HEAD, LEDGER_SEAL, SCENARIO
from sims.scenario.loading_and_variants import Variant
from sims.scenario.settings import Settings, insecure_seed, insecure_server
from sims.text_format import counted

_FINGERPRINT = 16  # characters: few enough for a person to compare


@dataclass(frozen=True)
class Examined:
    """The result of `examined`: the ledger, the sums of the run, and whether the records are unaltered."""

    reading: Reading | None  # the ledger; None if there is none, or if it cannot be read
    records: Records  # the sums of the ledger and of the log, matched with each other
    integrity: Integrity


def examined(evidence: Evidence, server_key: bytes | None) -> Examined:
    """Check a run's ledger, its signature and the other files. Altered records are reported in the result; no
    error is raised. `server_key` is the public key that must have signed the ledger; None accepts any key."""
    if evidence.is_plain:
        return _plain(evidence, server_key)
    problems: list[str] = []
    reading = _read(evidence, problems)
    signed = None if reading is None else _signed(evidence, reading, problems)
    records = reconciled(evidence, reading)
    problems += [*records.problems, *misstatements(evidence), *impossible_spends(evidence, records)]
    remarks = list(_remarks(evidence, records, signed, server_key))
    if reading is not None and signed is not None and signed.unsigned:
        late = f"the last {counted(signed.unsigned, 'row')} of the ledger came after the last signature"
        (problems if evidence.finished else remarks).append(late)
    key = None if signed is None else signed.keys[-1]
    if server_key is not None and key is not None and key != server_key:
        problems.append(
            f"the ledger was signed by the key {key.hex()}, not by {server_key.hex()} as it should be"
        )
    integrity = Integrity(
        rows=None if reading is None else len(reading.rows),
        head=None if reading is None else reading.head.hash.hex(),
        key=None if key is None else key.hex(),
        fingerprint=None if key is None else fingerprint(key),
        expected=None if server_key is None else key == server_key,
        problems=tuple(problems),
        remarks=tuple(remarks),
        lost=records.lost,
    )
    return Examined(reading, records, integrity)


def fingerprint(key: bytes) -> str:
    """Return a short digest of a public key, in hex, for people to compare."""
    return digest("fingerprint of a server's key", key).hex()[:_FINGERPRINT]


def _plain(evidence: Evidence, server_key: bytes | None) -> Examined:
    remark = "a plain channel keeps no ledger: sums.jsonl is unsigned"
    problems = list(misstatements(evidence))
    if server_key is not None:
        problems.append("there is no ledger that the server's key could have signed")
    integrity = Integrity(
        rows=None,
        head=None,
        key=None,
        fingerprint=None,
        expected=None if server_key is None else False,
        problems=tuple(problems),
        remarks=(remark,),
    )
    return Examined(None, reconciled(evidence, None), integrity)


def _read(evidence: Evidence, problems: list[str]) -> Reading | None:
    """Return the run's ledger, or None if it is missing or damaged. Append what is wrong to `problems`."""
    path = evidence.directory / LEDGER
    if not path.exists():
        problems.append(f"{path} is missing: nothing proves what was released")
        return None
    if not (evidence.directory / LEDGER_SEAL).exists():
        problems.append(
            f"{evidence.directory / LEDGER_SEAL} is missing: the end of the ledger may be missing, too"
        )
    try:
        return read_ledger(path)
    except LedgerError as error:
        problems.append(f"the ledger is damaged, or was altered: {error}")
        return None


def _signed(evidence: Evidence, reading: Reading, problems: list[str]) -> Verified | None:
    """Return who signed the ledger; None if a signature is missing or wrong. Add problems to `problems`."""
    run = evidence.directory
    try:
        if not _is_as_written(run):
            problems.append(f"{run / LEDGER_HEAD} was altered: it is not as it was written")
        return verify(run, reading.rows, digest=str(evidence.run.get("digest", "")))
    except AlteredLedger as error:
        problems.append(f"the ledger's signature does not hold: {error}")
    except ConfigError as error:
        problems.append(f"nothing vouches for the ledger: {error}")
    return None


def _is_as_written(run: RunDirectory) -> bool:
    """Return whether the file of the ledger's signatures is byte for byte what this program would write."""
    *earlier, last = read_heads(run)
    content = {**last.body(), "earlier": [each.body() for each in earlier]}
    return (run / LEDGER_HEAD).read_bytes() == json.dumps(content, indent=1).encode() + b"\n"


def _remarks(
    evidence: Evidence, records: Records, signed: Verified | None, server_key: bytes | None
) -> Iterator[str]:
    if signed is not None and server_key is None:
        yield (
            "the signature holds, but it does not prove whose key it is: compare its fingerprint with the "
            "server's, or give the server's public key with --server-key; otherwise a rewritten ledger could "
            "have been signed with another key"
        )
    if signed is not None:
        yield (
            "the signature covers the ledger and, by their digest, the settings; sums.jsonl, spend.json and "
            "run.json have to fit to these; what else they say is not signed, nor are metrics and canaries"
        )
    if signed is not None and _is_public_key(signed.keys[-1], evidence):
        yield "the key that signed follows from insecure_seed: anyone with the seed can sign another ledger"
    if signed is not None and (keys := len(set(signed.keys))) > 1:
        yield f"{keys} keys have signed: the run went on with another one after it was stopped"
    if records.lost:
        verb = "is" if records.lost == 1 else "are"
        yield (
            f"{counted(records.lost, 'sum')} of rounds that were cut off {verb} in the ledger alone: what "
            "was released then counts, though nothing came of it, and its bytes were not counted"
        )
    if not evidence.finished:
        yield f"the run is {evidence.run['status']}: this is what there is so far"


def _is_public_key(key: bytes, evidence: Evidence) -> bool:
    settings = settings_of(evidence)
    return settings is not None and settings.seeded and key == insecure_server(settings.seed).public


_SAME: Final = 1e-6  # relative tolerance: clients add their costs as floats, in another order


def settings_of(evidence: Evidence) -> Settings | None:
    """Return the settings in the scenario file of the run; None if it is missing or cannot be parsed."""
    try:
        tables = toml_tables(evidence.directory / SCENARIO)
        return Settings.model_validate({name: each for name, each in tables.items() if name != "name"})
    except (ConfigError, ValidationError):
        return None


def misstatements(evidence: Evidence) -> Iterator[str]:
    """Yield a sentence for each claim of `run.json` that other files contradict, or that nothing proves."""
    settings, path = settings_of(evidence), evidence.directory / SCENARIO
    if evidence.is_plain:
        if (evidence.directory / LEDGER).exists():
            yield "run.json says that the channel was plain, which keeps no ledger, but there is one"
        if settings is not None and not settings.channel.is_plain:
            yield f"run.json says that the channel was plain, but {path} says {settings.channel.name}"
    elif settings is None:
        yield f"{path} is missing or not as it was written: nothing proves what the settings of the run were"
    elif Variant({}, settings).digest != evidence.run.get("digest"):
        yield f"{path} is not the scenario of the run that was signed: it was altered, or so was run.json"
    else:
        yield from _disagreements_with_scenario(evidence.run, settings)


def _disagreements_with_scenario(run: Row, settings: Settings) -> Iterator[str]:
    pairs: tuple[tuple[str, Any, Any], ...] = (
        ("the channel", run["channel"], SERVED if run["channel"] == SERVED else settings.channel.name),
        ("what was trusted", run["trust"], settings.channel.trust),
        ("the key agreement", run["key_agreement"], settings.channel.key_agreement),
        ("the number of rounds", run["rounds"], settings.rounds),
        ("the algorithm", run["algorithm"], settings.algorithm.name),
    )
    for what, claimed, own in pairs:
        if claimed != own:
            yield f"run.json and the scenario disagree on {what}: {claimed} and {own}"
    extra_kinds = {row["kind"] for row in run.get("sums") or () if row.get("extra")}
    if extra_kinds != (set() if settings.tail is None else {ErrorHistogram.kind}):
        sums = f"sums of {' and '.join(sorted(extra_kinds))} were" if extra_kinds else "nothing was"
        yield f"run.json says that {sums} asked beside the training; the scenario disagrees"
    if run.get("insecure_seed") != (insecure_seed(settings.seed).hex() if settings.seeded else None):
        says = "follow" if settings.seeded else "do not follow"
        yield f"by the scenario, keys and noise {says} from its insecure_seed, and run.json says otherwise"


# --- what clients have spent ---


def impossible_spends(evidence: Evidence, records: Records) -> Iterator[str]:
    """Yield a sentence if clients' privacy costs in `spend.json` are impossible, given the run's sums."""
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
