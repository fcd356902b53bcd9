"""Simplicial-FL, or Delta-FL: trains the model for the clients with the largest losses (the tail).

"A Superquantile Approach to Federated Learning with Heterogeneous Devices", "Federated Learning with
Superquantile Aggregation for Heterogeneous Data"; the private variant as in "Differentially Private Federated
Quantiles with the Distributed Discrete Gaussian Mechanism".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from protocols import checks
from protocols.algorithm import LEAST_WEIGHT, Algorithm, ModelState, NoMemory, Sum, TrainingClient
from protocols.averaging import UPDATE, WEIGHT, clipped
from protocols.histogram_quantiles import tail_size
from protocols.learner import Learner
from protocols.parameter_fields import CAP_MEANING, parameter
from protocols.privacy_budget import HistogramBudget, PrivacyBudget
from protocols.rounds import Fact, Outcome, Query, Round
from protocols.serialisation import Vector, as_vector
from protocols.superquantile_formulas import WHOLE_COHORT, LossTail, TailRule, TailThreshold
from secagg.errors import ParameterError
from secagg.noise.part_plan import Plan
from secagg.noise.vector_calibration import calibrate_vector
from secagg.sum_spec import L2, Count, LInf, Part, SumSpec, Total, bits_for_cohort

HISTOGRAM: Final = "losses"
_WEIGHT_BITS: Final = 64  # bits of the sum of weights, by which the server divides the sum of updates


@dataclass(frozen=True)
class LossHistogram(Query):
    """Asks each client to count itself, or its samples, in the bin of `model`'s loss on its data."""

    kind: ClassVar[str] = "losses"
    model: Vector


@dataclass(frozen=True)
class TailUpdate(Query):
    """Asks for each client's update of `model`, times a weight. The weight follows from the client's loss and
    from `level` and `share`, which say where the tail of the largest losses begins (see `TailThreshold`)."""

    kind: ClassVar[str] = "tail"
    model: Vector
    level: float
    share: float

    @property
    def cut(self) -> TailThreshold:
        return TailThreshold(self.level, self.share)


@dataclass(frozen=True, kw_only=True)
class SimplicialFL(Algorithm[ModelState, NoMemory]):
    """The server reads from a histogram of losses where the tail of the largest losses begins. The model
    moves by the mean update of the clients in this tail.

    `privacy` is a budget for noise, or None. The histogram gets the fraction `privacy.ratio` of it. With
    noise, weights are not summed, because their sum depends on the clients' losses and would need noise too.
    The sum of updates is divided by the tail's intended size, theta times the public number of clients.

    The quadratic term of the papers' objective, lambda / 2 |w|^2, is weight decay, a setting of the learner.
    Clients outside the tail also train. They send their update times `floor`, by default 0: no answer, or a
    fast one, would reveal a low loss.
    """

    budget_type: ClassVar[type[PrivacyBudget] | None] = HistogramBudget

    theta: float = parameter(
        0.5,
        "the part of all clients that is the tail. With 1, this is federated averaging, and no "
        "histogram is asked for",
    )
    clip: float | None = parameter(None, "largest norm of an update")
    loss_bound: float | None = parameter(None, "losses are clipped to it; the histogram reaches from 0 to it")
    bins: int = parameter(32, "of the histogram")
    rule: TailRule | str = parameter(
        TailRule.SHARE, 'who counts how much: "share", "indicator", "quadratic" or "entropic" (`TailRule`)'
    )
    nu: float | None = parameter(
        None, "of the smoothed rules: over which range of losses shares go from 0 to 1"
    )
    weighted: bool = parameter(
        False, "whether clients count by their samples, up to `cap`, in the quantile and in the mean"
    )
    cap: int = parameter(1000, CAP_MEANING)
    known_count: bool = parameter(
        True,
        "whether the quantile is read off with the number of clients, which is public, or with the "
        "histogram's own sum. They differ if the histogram has noise",
    )
    floor: float = parameter(
        0.0,
        "the weight of a client outside the tail, as a part of the weight inside. Above 0, the fixed "
        "point is that of a mixture: floor times the mean of all, and the rest the tail",
    )
    bits: int = parameter(
        32, "of every number of an update on the wire; with noise, as few as a fine grid needs"
    )
    privacy: HistogramBudget | None = None

    def check(self) -> None:
        self.tail  # noqa: B018  # raises if its parameters are invalid
        checks.bound("clip", self.clip, "the largest norm that an update may have, such as 10.0")
        checks.whole("cap", self.cap, 1, 1 << 32)
        checks.whole("bits", self.bits, 2, 64)
        checks.real("floor", self.floor, 0, 1)
        if self.privacy is not None:
            self.privacy.check_clients(self.clients)
            if self.weighted:
                raise ParameterError(
                    "with noise, all clients count the same: what the samples of a tail add up to would "
                    "need noise of its own. Set weighted to False",
                    parameter="weighted",
                )

    @cached_property
    def tail(self) -> LossTail:
        rule = TailRule.parse(self.rule)
        return LossTail(theta=self.theta, loss_bound=self.loss_bound, bins=self.bins, rule=rule, nu=self.nu)

    limit = checks.CheckedBound("clip")

    # --- sums ---

    @cached_property
    def histogram_noise(self) -> Plan | None:
        return None if self.privacy is None or self.tail.is_all else self.privacy.histogram(self.bins)

    @cached_property
    def update_noise(self) -> Plan | None:
        if self.privacy is None:
            return None
        goal = self.privacy.whole if self.tail.is_all else self.privacy.rest
        if goal is None:
            return None
        return calibrate_vector(promise=self.privacy.promise, goal=goal, size=self.dim, clip=self.limit)

    def sums(self) -> tuple[Sum, ...]:
        return (self._update_sum,) if self.tail.is_all else (self._histogram_sum, self._update_sum)

    @property
    def _histogram_sum(self) -> Sum:
        if (noise := self.histogram_noise) is not None:
            spec = SumSpec(parts=(noise.part(HISTOGRAM),), promise=noise.promise)
            reveals = "the number of clients in each bin of losses, with noise"
            return Sum(query=LossHistogram, spec=spec, reveals=reveals)
        count = Count(self._most_count, total=self._most_count)
        bits = bits_for_cohort(count, self.clients)
        spec = SumSpec(parts=(Part(name=HISTOGRAM, size=self.bins, bits=bits, bound=count),))
        what = "samples" if self.weighted else "clients"
        return Sum(query=LossHistogram, spec=spec, reveals=f"the number of {what} in each bin of losses")

    @property
    def _update_sum(self) -> Sum:
        least = 1.0 if self.tail.is_all else self.floor
        remedy = f"set floor to {LEAST_WEIGHT:g} or more, or add noise to every sum"
        if (noise := self.update_noise) is not None:
            spec = SumSpec(parts=(noise.part(UPDATE),), promise=noise.promise)
            reveals = "the sum of the updates of the tail, with noise"
        else:
            update = Part(name=UPDATE, size=self.dim, bits=self.bits, bound=L2(self.limit))
            weight = Part(name=WEIGHT, size=1, bits=_WEIGHT_BITS, bound=LInf(1.0))
            spec = SumSpec(parts=(update, weight))
            reveals = "the sum of the updates of the tail, and of its weights"
        return Sum(query=TailUpdate, spec=spec, reveals=reveals, least_weight=least, remedy=remedy)

    @property
    def _most_count(self) -> int:
        return self.cap if self.weighted else 1

    # --- the server's side ---

    def round(self, state: ModelState) -> Round[ModelState]:
        cut = WHOLE_COHORT
        if not self.tail.is_all:
            total = yield LossHistogram(state.model)
            try:
                count = total.count if self.known_count and not self.weighted else None
                cut = self.tail.cut(total[HISTOGRAM], count)
            except ValueError:
                return Outcome(state, {"stopped": "the histogram holds too little to find a tail"})
        total = yield TailUpdate(state.model, cut.level, cut.share)
        weight = self._weight(total)
        facts: dict[str, Fact] = {"threshold": cut.level, "share": cut.share, "tail": weight}
        if weight <= 0:
            return Outcome(state, facts | {"stopped": "nobody is in the tail"})
        return Outcome(ModelState(as_vector(state.model + self._mean(total))), facts)

    def _weight(self, total: Total) -> float:
        """Return the sum of the clients' weights, in clients or, if `weighted`, in samples. If updates have
        noise, no weights are sent: return the sum that `theta` and `floor` imply."""
        if self.update_noise is not None:
            return self.floor * total.count + (1 - self.floor) * tail_size(total.count, self.theta)
        return float(total[WEIGHT][0]) * self._most_count

    def _mean(self, total: Total) -> Vector:
        update = np.asarray(total[UPDATE], np.float64)
        if self.update_noise is not None:
            return update / self._weight(total)
        # If all weights are tiny, the sum is mostly rounding, so the mean is clipped: no true mean exceeds
        # the clip.
        return clipped(update / float(total[WEIGHT][0]), self.limit)

    def client(self, learner: Learner, memory: NoMemory) -> SimplicialClient:
        return SimplicialClient(self, learner, memory)


class SimplicialClient(TrainingClient[SimplicialFL, NoMemory]):
    _known: tuple[Vector, float] | None = None  # a model, and its loss

    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        if isinstance(query, LossHistogram):
            return {HISTOGRAM: self._histogram(query.model)}
        assert isinstance(query, TailUpdate)
        return self._update(query.model, self._weight(query.model, query.cut))

    def _histogram(self, model: Vector) -> ArrayLike:
        """Return the client's part of the histogram of losses: one count, or its number of samples, in the
        bin of its loss. If the loss is not finite, return NaNs, so that the client declines to answer."""
        loss, algorithm = self._loss(model), self._algorithm
        if not np.isfinite(loss):
            return np.full(algorithm.bins, np.nan)
        samples = min(self._learner.samples, algorithm.cap) if algorithm.weighted else 1
        return algorithm.tail.histogram(loss) * np.uint64(samples)

    def _update(self, model: Vector, weight: float) -> Mapping[str, ArrayLike]:
        update = clipped(self._learner.train(model) - model, self._algorithm.limit) * weight
        return {UPDATE: update} | ({} if self._algorithm.update_noise is not None else {WEIGHT: [weight]})

    def _weight(self, model: Vector, cut: TailThreshold) -> float:
        algorithm = self._algorithm
        loss = 0.0 if algorithm.tail.is_all else self._loss(model)
        if not np.isfinite(loss):
            return np.nan
        share = algorithm.floor + (1 - algorithm.floor) * algorithm.tail.share(loss, cut)
        return (
            share * min(self._learner.samples, algorithm.cap) / algorithm.cap if algorithm.weighted else share
        )

    def _loss(self, model: Vector) -> float:
        if self._known is None or not np.array_equal(self._known[0], model):
            self._known = model, self._learner.loss(model)
        return self._known[1]
