"""Compares a run's bytes with the prediction and with plain federated averaging, and fits their growth.
`growth` fits the formula `a m log2 m + b m d` to the bytes of a round, for m clients and d model parameters.
It holds on a ring, where each client sends shares to about log m others. On the complete graph, the bytes of
shares grow with m^2, so the fit has a large error."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from sims.audit.audit_result import ByteGrowth, ByteTraffic, StageBytes
from sims.audit.expected_bytes import STAGES, Expected, ExpectedSum, set_up, sizes_of
from sims.audit.ledger_vs_sum_log import Records
from sims.audit.run_files import Evidence
from sims.records.sum_records import TRAINING, SumRecord, TrafficCounts

_PARAMETER: Final = 4  # bytes of a parameter in plain federated averaging
_MOST_SHOWN: Final = 20  # differences that are listed


@dataclass
class _ByteComparison:
    """Adds up the measured and the expected bytes of set-ups and sums, by direction (up or down) and stage.
    `unknown` has the pairs (direction, stage) that cannot be predicted; `wrong` counts mismatches."""

    measured: dict[str, Counter[str]] = field(default_factory=lambda: {"up": Counter(), "down": Counter()})
    frames: dict[str, Counter[str]] = field(default_factory=lambda: {"up": Counter(), "down": Counter()})
    expected: dict[str, Counter[str]] = field(default_factory=lambda: {"up": Counter(), "down": Counter()})
    unknown: set[tuple[str, str]] = field(default_factory=set)
    compared: int = 0
    exact: int = 0
    differences: list[str] = field(default_factory=list)
    wrong: int = 0

    def add(self, name: str, row: TrafficCounts, expected: Mapping[str, Expected]) -> None:
        """Add the traffic `row` of the set-up or sum `name`, and compare it with the `expected` bytes."""
        found = list(self._compared(name, row, expected))
        self.compared += 1
        self.exact += not found
        self.differences += found

    def _compared(self, name: str, row: TrafficCounts, expected: Mapping[str, Expected]) -> Iterator[str]:
        for direction in ("up", "down"):
            measured = row.bytes_up if direction == "up" else row.bytes_down
            self.measured[direction].update(measured)
            self.frames[direction].update(row.frames_up if direction == "up" else row.frames_down)
            for stage in STAGES:
                yield from self._stage(
                    name, direction, stage, measured.get(stage, 0), expected[direction].get(stage, 0)
                )

    def _stage(
        self, name: str, direction: str, stage: str, measured: int, expected: int | None
    ) -> Iterator[str]:
        if expected is None:
            self.unknown.add((direction, stage))
            if measured:
                yield (
                    f"{name}: {measured:,} bytes {direction} ({stage}), which cannot be predicted: it "
                    "failed, or clients were lost during it"
                )
            return
        self.expected[direction][stage] += expected
        if measured != expected:
            self.wrong += 1
            yield f"{name}: {measured:,} bytes {direction} ({stage}), but the protocol says {expected:,}"

    def stages(self) -> Iterator[StageBytes]:
        for stage in STAGES:
            if any(
                self.measured[direction][stage] or self.expected[direction][stage]
                for direction in ("up", "down")
            ):
                yield StageBytes(
                    stage=stage,
                    up=self.measured["up"][stage],
                    expected_up=self._expected("up", stage),
                    down=self.measured["down"][stage],
                    expected_down=self._expected("down", stage),
                    frames_up=self.frames["up"][stage],
                    frames_down=self.frames["down"][stage],
                )

    def _expected(self, direction: str, stage: str) -> int | None:
        return None if (direction, stage) in self.unknown else self.expected[direction][stage]


def traffic(evidence: Evidence, records: Records) -> ByteTraffic | None:
    """Return the measured and predicted bytes of the run; None if it computed its sums without messages."""
    if evidence.is_plain:
        return None
    comparison, trust = _ByteComparison(), str(evidence.run["trust"])
    sessions = {row.session: row for row in evidence.sessions}
    agreement = str(evidence.run["key_agreement"])
    sizes = {number: sizes_of(row, trust, agreement) for number, row in sessions.items()}
    for number, row in sessions.items():
        up, down = set_up(row, sizes[number])
        comparison.add(f"set-up of session {number}", row, {"up": up, "down": down})
    for entry in records.entries:
        if entry.asked is None or entry.logged is None or entry.logged.session not in sizes:
            continue
        one = ExpectedSum(entry.asked, entry.logged, sizes[entry.logged.session])
        name = f"{entry.kind} in round {entry.round}"
        comparison.add(name, entry.logged, {"up": one.up(), "down": one.down()})
    return _traffic(evidence, comparison, _loads(evidence))


def _traffic(evidence: Evidence, comparison: _ByteComparison, loads: Iterable[Load]) -> ByteTraffic:
    up, down = (sum(comparison.measured[direction].values()) for direction in ("up", "down"))
    clients = max(int(evidence.run["per_round"]), 1)
    rounds = {row.training_round for row in evidence.sums if row.part == TRAINING}
    plain = float(_PARAMETER * evidence.run["dim"] * len(rounds))
    shown = comparison.differences[:_MOST_SHOWN]
    if len(comparison.differences) > _MOST_SHOWN:
        shown.append(f"and {len(comparison.differences) - _MOST_SHOWN} more")
    return ByteTraffic(
        stages=tuple(comparison.stages()),
        sums=comparison.compared,
        exact=comparison.exact,
        differences=tuple(shown),
        up=up,
        down=down,
        up_per_client=up / clients,
        down_per_client=down / clients,
        fedavg_up=plain,
        fedavg_down=plain,
        growth=growth(loads),
        wrong=comparison.wrong,
    )


def _loads(evidence: Evidence) -> Iterator[Load]:
    """Yield each training session's mean bytes per round, including those of set-up and failed sums."""
    by_session: dict[int, list[SumRecord]] = {}
    for row in evidence.sums:
        by_session.setdefault(row.session, []).append(row)
    for session in evidence.sessions:
        if session.part != TRAINING:
            continue
        rows = by_session.get(session.session, [])
        rounds = len({row.round for row in rows})
        total = session.total_bytes + sum(row.total_bytes for row in rows)
        if rounds:
            yield Load(session.members, int(evidence.run["dim"]), total / rounds)


@dataclass(frozen=True)
class Load:
    """The mean bytes that all clients of a cohort together send and receive in one round."""

    clients: int
    dim: int  # number of model parameters
    bytes: float


def growth(loads: Iterable[Load]) -> ByteGrowth | None:
    """Fit the formula `a m log2 m + b m d` to the bytes of rounds with m clients and d model parameters.
    Return a, b and the largest relative error, or None if `loads` has fewer than two different m above 1."""
    means = _means(load for load in loads if load.clients > 1)
    if len({load.clients for load in means}) < 2:
        return None
    terms = np.array([[m.clients * math.log2(m.clients), m.clients * m.dim] for m in means], np.float64)
    measured = np.array([m.bytes for m in means])
    weights = 1 / measured  # so that the fit minimises relative errors
    found = np.linalg.lstsq(terms * weights[:, None], measured * weights, rcond=None)[0]
    errors = np.abs(terms @ found / measured - 1)
    return ByteGrowth(
        sizes=tuple(m.clients for m in means),
        dims=tuple(m.dim for m in means),
        log_coefficient=float(found[0]),
        size_coefficient=float(found[1]),
        worst=float(errors.max()),
    )


def _means(loads: Iterable[Load]) -> list[Load]:
    """Return one load for each pair of `clients` and `dim` in `loads`, with the mean of the pair's bytes."""
    found: dict[tuple[int, int], list[float]] = {}
    for load in loads:
        found.setdefault((load.clients, load.dim), []).append(load.bytes)
    return [Load(*size, sum(rows) / len(rows)) for size, rows in sorted(found.items())]
