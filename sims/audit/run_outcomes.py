"""Collects a run's outcomes: accuracy, drop-outs, refusals, and failed sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from secagg.hybrid_keys import KeyAgreement
from secagg.trust_levels import Trust
from sims.audit.audit_result import (
    Achieved,
    ClientDropouts,
    ClientExclusion,
    ClientLosses,
    ClientRefusal,
    CutShort,
    FailedSum,
    GroupSteps,
    SumKind,
)
from sims.audit.ledger_vs_sum_log import MatchedSum, Records
from sims.audit.run_files import Evidence, Row
from sims.records.sum_records import SessionRecord, SumRecord

# The first of these measures that exists is reported. The benign ones exist if some clients attack.
_MEASURED: Final = ("common_benign", "common", "personal_benign", "personal")


def achieved(evidence: Evidence) -> Achieved:
    """Return the accuracy and errors at the last measurement (of a served run, only the accuracy over all
    samples), and the run's completed rounds and duration."""
    last: Row = next((row["measured"] for row in reversed(evidence.metrics) if row.get("measured")), {})
    own: Row = next((last[name] for name in _MEASURED if name in last), {})
    return Achieved(
        accuracy=own.get("mean_accuracy", own.get("pooled_accuracy")),
        error_90=own.get("error_90"),
        worst_tenth=own.get("worst_tenth"),
        completed=sum(bool(row.get("completed")) for row in evidence.metrics if row.get("round", 0) > 0),
        seconds=float((evidence.run.get("seconds") or {}).get("wall", 0.0)),
    )


def tail(evidence: Evidence) -> Mapping[str, Any]:
    """Return the last private histogram of clients' error rates in the metrics; empty if there is none."""
    return next((row["tail"] for row in reversed(evidence.metrics) if row.get("tail")), {})


def losses(evidence: Evidence) -> ClientLosses:
    """Return the drop-outs, refusals, exclusions and failed sums that the log `sums.jsonl` records."""
    signed = not evidence.is_plain and Trust.parse(evidence.run["trust"]) is Trust.MALICIOUS
    return ClientLosses(
        missed=(*_in_set_up(evidence), *_in_sums(evidence, signed=signed)),
        refused=tuple(_refused(evidence)),
        excluded=tuple(_excluded(evidence)),
        failed=tuple(_failed(evidence)),
    )


def _in_set_up(evidence: Evidence) -> Iterator[ClientDropouts]:
    hybrid = KeyAgreement.parse(evidence.run["key_agreement"]) is KeyAgreement.HYBRID
    for row in evidence.sessions:
        advertised, dealt = (row.frames_up.get(stage, 0) for stage in ("advertise", "share"))
        yield from _missed(row, "", "advertise", row.members - advertised)
        yield from _missed(row, "", "share", advertised - dealt)
        if hybrid:
            silent = sum(clients - deposited for _dealt, clients, deposited in row.exchanged)
            yield from _missed(row, "", "deposit", silent)


def _in_sums(evidence: Evidence, *, signed: bool) -> Iterator[ClientDropouts]:
    for row in evidence.sums:
        yield from _missed(row, row.kind, "mask", row.invited - row.masked)
        stayed = row.masked
        if signed and "confirm" in row.frames_down:
            confirmed = row.frames_up.get("confirm", 0)
            yield from _missed(row, row.kind, "confirm", stayed - confirmed)
            stayed = confirmed
        if row.count is not None or "reveal" in row.frames_down:
            yield from _missed(row, row.kind, "reveal", stayed - row.revealed)


def _missed(row: SessionRecord | SumRecord, kind: str, stage: str, clients: int) -> Iterator[ClientDropouts]:
    if clients > 0:
        yield ClientDropouts(round=row.training_round, kind=kind, stage=stage, clients=clients)


def _refused(evidence: Evidence) -> Iterator[ClientRefusal]:
    for row in evidence.sums:
        for member, error, sentence in row.refusals:
            yield ClientRefusal(
                round=row.training_round, kind=row.kind, member=member, error=error, sentence=sentence
            )


def _excluded(evidence: Evidence) -> Iterator[ClientExclusion]:
    rows: tuple[SessionRecord | SumRecord, ...] = (*evidence.sessions, *evidence.sums)
    for row in sorted(rows, key=lambda each: each.training_round):
        kind = row.kind if isinstance(row, SumRecord) else ""
        for member, error, sentence, barred in row.exclusions:
            yield ClientExclusion(
                round=row.training_round,
                kind=kind,
                member=member,
                error=error,
                sentence=sentence,
                barred=barred,
            )


def _failed(evidence: Evidence) -> Iterator[FailedSum]:
    for session in evidence.sessions:
        if session.failure is not None:
            yield FailedSum(round=session.training_round, kind="", why=session.failure)
    for row in evidence.sums:
        if row.failure is not None:
            yield FailedSum(round=row.training_round, kind=row.kind, why=row.failure)


def groups(evidence: Evidence, kinds: Iterable[SumKind], records: Records) -> tuple[GroupSteps, ...]:
    """Return how many sums of each group were released per round. A group's sums are over the same private
    vectors. Left out are groups of at most one sum per round, and sums that the training does not use."""
    members: dict[str, list[SumKind]] = {}
    for kind in kinds:
        if kind.times is not None and not kind.extra:
            members.setdefault(kind.group, []).append(kind)
    planned = {name: sum(kind.times or 0 for kind in own) for name, own in members.items()}
    return tuple(
        _group(name, planned[name], _rounds({kind.kind for kind in own}, records), evidence)
        for name, own in members.items()
        if planned[name] > 1
    )


def _rounds(kinds: set[str], records: Records) -> dict[int, list[MatchedSum]]:
    found: dict[int, list[MatchedSum]] = {}
    for entry in records.entries:
        if entry.kind in kinds and entry.logged is not None:
            found.setdefault(entry.round, []).append(entry)
    return found


def _group(name: str, planned: int, rounds: dict[int, list[MatchedSum]], evidence: Evidence) -> GroupSteps:
    achieved = {number: sum(each.contributors is not None for each in own) for number, own in rounds.items()}
    return GroupSteps(
        group=name,
        planned=planned,
        rounds=dict(sorted(Counter(achieved.values()).items(), reverse=True)),
        cut_short=tuple(_cut_short(rounds, achieved, evidence)),
    )


def _cut_short(
    rounds: dict[int, list[MatchedSum]], achieved: dict[int, int], evidence: Evidence
) -> Iterator[CutShort]:
    """Yield the rounds in which a sum of one group failed. `rounds` has the group's sums by round, `achieved`
    how many were released. A round with fewer sums because the algorithm converged is not included."""
    given_up = {row["round"]: row for row in evidence.metrics if not row.get("completed", True)}
    for number, own in rounds.items():
        failures = [entry.logged.failure for entry in own if entry.logged is not None]
        why = next((failure for failure in failures if failure is not None), None)
        if why is not None:
            lost = ", and the round was given up" if number in given_up else ""
            yield CutShort(round=number, steps=achieved[number], why=why + lost)
