"""Robust aggregates of the clients' vectors, such as geometric medians, by an iteration with a sum per step.

In a sum, clients add bounded functions of their vectors (see `influence_functions`). All sums of an iteration
form a group: clients require the same clients in every sum. If a client drops out, the iteration ends early.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from protocols import checks
from protocols.accelerated_median_steps import PlainStepping, Stepping, fast_stepping
from protocols.algorithm import Sum
from protocols.influence_functions import Influence
from protocols.rounds import Query, Steps
from protocols.serialisation import Vector, as_vector
from secagg.errors import CohortChanged, ParameterError, TooFewClients
from secagg.sum_spec import MAX_TIMES, Part, SumSpec, Values

GROUP: Final = "vectors"


@dataclass(frozen=True)
class Residuals(Query):
    """Asks for each client's influence: a bounded function of its vector minus `point`. At a round's first
    query, clients train their vector from `point`. `step` numbers the queries of a round from 0."""

    kind: ClassVar[str] = "residuals"
    point: Vector
    step: int


class StopReason(StrEnum):
    """Why the iteration of a robust aggregation ended."""

    TOLERANCE = "the last step was within the tolerance"
    STEPS = "all steps were taken"
    COHORT = "a client left"
    FEW = "too few clients stayed"


@dataclass(frozen=True)
class AggregationResult:
    """The final point of an aggregation, the number of sums that it took, and why it stopped."""

    point: Vector
    sums: int
    stop: StopReason


@dataclass(frozen=True)
class Layer:
    """The coordinates with indices `start` <= i < `stop`, and the influence function that aggregates them."""

    start: int
    stop: int
    influence: Influence


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """A robust aggregation of vectors: its settings, a client's contribution, and the server's iteration.

    `layers`     consecutive pieces of the vector, each with its own influence function.
    `steps`      largest number of sums.
    `tolerance`  a step that moves the point by no more than this is the last one.
    `fast`       whether steps are extrapolated from the results of earlier ones.

    A fast step may be wrong, which only the next sum shows. So the iteration ends by `tolerance` only if a
    plain step (sum of influences / sum of weights) is within it, too. If a fast iteration ends otherwise, its
    result is not the last point, but a plain step from the point where the sum of influences was shortest.
    Only coordinate medians end at their last point: their fast steps stay in a bracket around the median.
    """

    layers: tuple[Layer, ...]
    clients: int
    steps: int
    tolerance: float = 0.0
    fast: bool = False

    def __post_init__(self) -> None:
        checks.whole("steps", self.steps, 1, MAX_TIMES)
        checks.real("tolerance", self.tolerance, 0)
        edges = [0, *(edge for layer in self.layers for edge in (layer.start, layer.stop))]
        if (
            not self.layers
            or any(a != b for a, b in list(pairwise(edges))[::2])
            or any(layer.start >= layer.stop for layer in self.layers)
        ):
            raise ParameterError(
                "layers must follow each other without a gap, from coordinate 0 on", parameter="layers"
            )
        if len({layer.influence.promise for layer in self.layers}) > 1:
            raise ParameterError(
                "layers are one sum: its noise is planned for all of them alike, or for none"
            )

    @property
    def sum(self) -> Sum:
        parts = tuple(part for number, _ in enumerate(self.layers) for part in self._parts(number))
        reveals = "; ".join(dict.fromkeys(layer.influence.reveals for layer in self.layers))
        promise = self.layers[0].influence.promise
        spec = SumSpec(parts=parts, times=self.steps, group=GROUP, promise=promise)
        where = "at one point" if self.steps == 1 else f"at up to {self.steps} points"
        return Sum(query=Residuals, spec=spec, reveals=f"{where}, {reveals}", needed=1)

    def _parts(self, number: int) -> tuple[Part, ...]:
        layer = self.layers[number]
        return layer.influence.parts(f"layer{number}", layer.stop - layer.start, self.clients)

    # --- a client's side ---

    def contribution(self, vector: Vector, point: Vector, share: float) -> Mapping[str, ArrayLike]:
        """Return, by part name, what a client with weight `share` (0 to 1) adds to the sum at `point`."""
        values: dict[str, ArrayLike] = {}
        residual = vector - point
        for number, layer in enumerate(self.layers):
            own = layer.influence.contribution(residual[layer.start : layer.stop], share)
            values |= {part.name: value for part, value in zip(self._parts(number), own, strict=True)}
        return values

    # --- the server's side ---

    def run(self, start: Vector, *, first: int = 0) -> Steps[AggregationResult]:
        """Iterate from `start`: yield a query for each sum, and return the result. `first` is the number of
        the first query, for rounds with earlier sums. If clients drop out after the iteration's first sum, it
        ends early. Other failures of a sum raise `SumFailed`."""
        point, walks = start, [_Walk(layer, self._stepping(layer, start)) for layer in self.layers]
        for number in range(self.steps):
            try:
                total = yield Residuals(as_vector(point), first + number)
            except (CohortChanged, TooFewClients) as failure:
                if not number:
                    raise
                stop = StopReason.COHORT if isinstance(failure, CohortChanged) else StopReason.FEW
                return AggregationResult(self._resort(walks), number, stop)
            for place, walk in enumerate(walks):
                walk.step(tuple(total[part.name] for part in self._parts(place)), total.count, self.clients)
            before, point = point, as_vector(np.concatenate([walk.point for walk in walks]))
            moved = float(np.linalg.norm(point - before))
            if max(moved, math.hypot(*(walk.plain_move for walk in walks))) <= self.tolerance:
                return AggregationResult(point, number + 1, StopReason.TOLERANCE)
        return AggregationResult(self._resort(walks), self.steps, StopReason.STEPS)

    def _resort(self, walks: list[_Walk]) -> Vector:
        return as_vector(np.concatenate([walk.resort for walk in walks]))

    def _stepping(self, layer: Layer, start: Vector) -> Stepping:
        piece, influence = start[layer.start : layer.stop], layer.influence
        rounding = influence.rounding(self.clients)
        if self.fast:
            return fast_stepping(piece, per_coordinate=influence.per_coordinate, rounding=rounding)
        return PlainStepping(piece, rounding=rounding)


class _Walk:
    """The iteration for the coordinates of one layer.

    `point`       these coordinates of the next query's point.
    `plain_move`  the length of a plain step from the last sum's point, even if it was not taken.
    `resort`      these coordinates of the result if the tolerance is not reached.
    """

    def __init__(self, layer: Layer, stepping: Stepping) -> None:
        self._influence = layer.influence
        self._stepping = stepping
        self._least = math.inf
        self.point = self.resort = stepping.point
        self.plain_move = math.inf

    def step(self, totals: tuple[Values, ...], count: int, clients: int) -> None:
        """Take one step from `point`, given the totals of the layer's parts there over `count` clients.
        `clients`, the largest number possible, decides which totals may be mere rounding errors."""
        influence, weight = self._influence.read(totals, count)
        influence = self._influence.without_rounding(influence, clients)
        plain = PlainStepping(self.point, rounding=self._influence.rounding(clients)).next(influence, weight)
        self.plain_move = float(np.linalg.norm(plain - self.point))
        self.point = self._stepping.next(influence, weight)
        # A fast step may be wrong, except for coordinate medians, whose points stay in a bracket.
        if isinstance(self._stepping, PlainStepping) or self._influence.per_coordinate:
            self.resort = self.point
        elif (pull := float(np.linalg.norm(influence))) < self._least:
            self.resort, self._least = plain, pull
