"""Who was lost on the way: drop-outs by stage, clients that refused, sums that came to nothing."""

from __future__ import annotations

from collections.abc import Iterator

from secagg.thresholds import Trust
from sims.audit.audit import Failed, Losses, Missed, Refused
from sims.audit.evidence import Evidence
from sims.records.sums import SessionRecord, SumRecord


def losses(evidence: Evidence) -> Losses:
    signed = not evidence.is_plain and Trust.parse(evidence.run["trust"]) is Trust.MALICIOUS
    return Losses(
        missed=(*_in_set_up(evidence), *_in_sums(evidence, signed=signed)),
        refused=tuple(_refused(evidence)),
        failed=tuple(_failed(evidence)),
    )


def _in_set_up(evidence: Evidence) -> Iterator[Missed]:
    for row in evidence.sessions:
        advertised, dealt = (row.frames_up.get(stage, 0) for stage in ("advertise", "share"))
        yield from _missed(row, "", "advertise", row.members - advertised)
        yield from _missed(row, "", "share", advertised - dealt)


def _in_sums(evidence: Evidence, *, signed: bool) -> Iterator[Missed]:
    for row in evidence.sums:
        yield from _missed(row, row.kind, "mask", row.invited - row.masked)
        stayed = row.masked
        if signed and "confirm" in row.frames_down:
            confirmed = row.frames_up.get("confirm", 0)
            yield from _missed(row, row.kind, "confirm", stayed - confirmed)
            stayed = confirmed
        if row.count is not None or "reveal" in row.frames_down:
            yield from _missed(row, row.kind, "reveal", stayed - row.revealed)


def _missed(row: SessionRecord | SumRecord, kind: str, stage: str, clients: int) -> Iterator[Missed]:
    if clients > 0:
        yield Missed(round=row.training_round, kind=kind, stage=stage, clients=clients)


def _refused(evidence: Evidence) -> Iterator[Refused]:
    for row in evidence.sums:
        for member, error, sentence in row.refusals:
            yield Refused(
                round=row.training_round, kind=row.kind, member=member, error=error, sentence=sentence
            )


def _failed(evidence: Evidence) -> Iterator[Failed]:
    for session in evidence.sessions:
        if session.failure is not None:
            yield Failed(round=session.training_round, kind="", why=session.failure)
    for row in evidence.sums:
        if row.failure is not None:
            yield Failed(round=row.training_round, kind=row.kind, why=row.failure)
