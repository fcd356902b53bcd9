"""Whether the records of a run are what its server wrote.

The ledger is a chain of hashes, so that no row can be changed without changing all that follow; its head is
signed. A signature proves that the holder of a key vouches for the ledger. Whose key it is, it does not say:
an auditor who knows the server's key from elsewhere gives it, and then a ledger that was written anew and
signed by somebody else is noticed, too. A key that follows from insecure_seed is everybody's, and its
signature proves nothing. What is not in the ledger is not signed: see `sims.audit.statements`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from secagg.errors import LedgerError
from secagg.hashing import digest
from secagg.ledger import Reading, read_ledger
from sims.audit.audit import Integrity
from sims.audit.evidence import HEAD, LEDGER, SEAL, Evidence
from sims.audit.records import Records, reconciled
from sims.audit.statements import impossible_spends, misstatements, settings_of
from sims.deploy.problems import ConfigError
from sims.records import RunDirectory
from sims.records.signing import AlteredLedger, Verified, read_heads, verify
from sims.scenario.seed import insecure_server
from sims.words import counted

_FINGERPRINT = 16  # characters; as many as a person compares


@dataclass(frozen=True)
class Examined:
    """The ledger, if there is one that can be read, everything beside it, and what was found wrong."""

    reading: Reading | None
    records: Records
    integrity: Integrity


def examined(evidence: Evidence, server_key: bytes | None) -> Examined:
    """Never raises for what was altered: that is a finding."""
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
    """A short form of a public key that two people can compare."""
    return digest("fingerprint of a server's key", key).hex()[:_FINGERPRINT]


def _plain(evidence: Evidence, server_key: bytes | None) -> Examined:
    remark = "a plain channel keeps no ledger: nothing vouches for what sums.jsonl says"
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
    path = evidence.directory / LEDGER
    if not path.exists():
        problems.append(f"{path} is missing: nothing proves what was released")
        return None
    if not (evidence.directory / SEAL).exists():
        problems.append(f"{evidence.directory / SEAL} is missing: the end of the ledger may be missing, too")
    try:
        return read_ledger(path)
    except LedgerError as error:
        problems.append(f"the ledger is damaged, or was altered: {error}")
        return None


def _signed(evidence: Evidence, reading: Reading, problems: list[str]) -> Verified | None:
    run = evidence.directory
    try:
        if not _is_as_written(run):
            problems.append(f"{run / HEAD} was altered: it is not as it was written")
        return verify(run, reading.rows, digest=str(evidence.run.get("digest", "")))
    except AlteredLedger as error:
        problems.append(f"the ledger's signature does not hold: {error}")
    except ConfigError as error:
        problems.append(f"nothing vouches for the ledger: {error}")
    return None


def _is_as_written(run: RunDirectory) -> bool:
    """A text that means the same, such as one with other spaces, is not what was written, either."""
    *earlier, last = read_heads(run)
    content = {**last.body(), "earlier": [each.body() for each in earlier]}
    return (run / HEAD).read_bytes() == json.dumps(content, indent=1).encode() + b"\n"


def _remarks(
    evidence: Evidence, records: Records, signed: Verified | None, server_key: bytes | None
) -> Iterator[str]:
    if signed is not None and server_key is None:
        yield (
            "the signature holds, but whose key it is, only you can know: compare its fingerprint with the "
            "server's, or give the server's public key with --server-key; without, somebody who rewrote the "
            "whole ledger could have signed it with another key"
        )
    if signed is not None:
        yield (
            "the signature covers the ledger and, by their digest, the settings; sums.jsonl, spend.json and "
            "run.json have to fit to these; what else they say is not signed, nor are metrics and canaries"
        )
    if signed is not None and _is_everybodys(signed.keys[-1], evidence):
        yield "the key that signed follows from insecure_seed: anybody who has it can sign another ledger"
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


def _is_everybodys(key: bytes, evidence: Evidence) -> bool:
    settings = settings_of(evidence)
    return settings is not None and settings.seeded and key == insecure_server(settings.seed).public
