"""Finds lost sums: sums that were asked after the last checkpoint, in a round that was interrupted. Clients
that are restored from the checkpoint have no record of them, but the server may know the totals. So a resumed
run charges the clients for these sums again, and skips their rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from protocols.algorithm import AnyAlgorithm
from protocols.run import Run
from secagg.client_budget import sum_charge
from secagg.client_memory import AnswerEntry
from secagg.noise.zcdp_cost import Adjacency
from sims.coordination.run_writer import RunWriter


def lost_sums(writer: RunWriter, algorithms: Mapping[str, AnyAlgorithm]) -> dict[str, list[AnswerEntry]]:
    """Return the sums that were asked after the last checkpoint, by part of the run ("training" or "tail").
    They are read from the ledger if there is one, otherwise from `sums.jsonl`."""
    found: dict[str, list[AnswerEntry]] = {part: [] for part in algorithms}
    entries = _noted(writer, algorithms) if writer.ledger is not None else _logged(writer, algorithms)
    for part, entry in entries:
        found[part].append(entry)
    return found


def _noted(writer: RunWriter, algorithms: Mapping[str, AnyAlgorithm]) -> Iterator[tuple[str, AnswerEntry]]:
    """Yield (part of the run, sum) for each sum that was asked after the last checkpoint, from the ledger."""
    parts = {
        (kind, spec.digest.hex()): part
        for part, each in algorithms.items()
        for kind, spec in (each.table or {}).items()
    }
    for row in writer.lost_rows():
        body = row.body
        if body["entry"] == "asked":
            part = parts[body["kind"], body["spec"]]
            yield (
                part,
                _entry(
                    algorithms[part],
                    body["kind"],
                    body["round"],
                    body["charge"],
                    Adjacency(body["adjacency"]),
                ),
            )


def _logged(writer: RunWriter, algorithms: Mapping[str, AnyAlgorithm]) -> Iterator[tuple[str, AnswerEntry]]:
    for record in writer.lost_sums():
        if record.index is not None:
            algorithm = algorithms[record.part]
            assert algorithm.table is not None  # There was a query.
            spec, adjacency = algorithm.table[record.kind], Adjacency.ZERO_OUT
            charge = sum_charge(spec, roster=record.invited, adjacency=adjacency)
            yield record.part, _entry(algorithm, record.kind, record.round, charge, adjacency)


def _entry(
    algorithm: AnyAlgorithm, kind: str, round_number: int, charge: int | None, adjacency: Adjacency
) -> AnswerEntry:
    assert algorithm.table is not None  # There was a query.
    return AnswerEntry(
        group=algorithm.table.group_of(kind),
        round_number=round_number,
        content=b"",  # unknown, and not needed because its round is not repeated
        charge=charge,
        adjacency=adjacency,
    )


def leave_out(run: Run[Any], lost: list[AnswerEntry]) -> None:
    """Advance the round number of `run` past the `lost` sums. The rounds that it skips count as failed."""
    last = max((entry.round_number for entry in lost), default=-1)
    while run.round_info.number <= last:
        run.round_info = run.round_info.next(completed=False)
