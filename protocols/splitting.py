"""Operator splitting: FedAvg, FedProx, FedSplit, FedPi and FedRP are settings of one scheme.

The scheme is (42)-(44) of the book chapter "A Unifying Framework for Federated Learning"; numbers below are
also its equations. Client i applies a map P (the proximal map of its loss, or gradient steps) at its point
u_i:

    z_i <- (1 - alpha) u_i + alpha P(u_i)
    w_i <- (1 - beta) z_i + beta mean(z)
    u_i <- (1 - gamma) u_i + gamma w_i

| setting                                      | map      | alpha | beta | gamma |
|----------------------------------------------|----------|-------|------|-------|
| FedAvg, forward-backward (13)                | gradient | 1     | 1    | 1     |
| FedProx, backward-backward (23)              | proximal | 1     | 1    | 1     |
| FedSplit, Peaceman-Rachford (27)             | proximal | 2     | 2    | 1     |
| FedPi, Douglas-Rachford (30)                 | proximal | 2     | 2    | 1/2   |
| FedRP, reflection-projection (37)            | proximal | 2     | 1    | 1     |
| reflected FedAvg (35): the mean is reflected | gradient | 1     | 2    | 1     |
| reflected FedProx (36)                       | proximal | 1     | 2    | 1     |

A round needs only the mean of the z_i, which is one secure sum. The u_i stay on their clients. If beta = 1,
all u_i are one common u. Clients send z_i minus a public vector (the last mean, or the common u). If the
difference is longer than `clip`, it is shortened, and the client continues with the z_i that it sent.

Participation. The mean is over the clients in the round's sum. A client that was not counted keeps its state,
and completes its last step with the next mean that it receives.

Acceleration. A round maps u_i to its image, the next u_i; the residual is u_i minus the image. With `memory`
= tau above 0, Anderson acceleration replaces the image by a weighted sum of the last tau + 1 images, which
are the window. The weights follow from the Gram matrix of the residuals. If u is common, the server computes
all of this alone. Otherwise the round's sum also contains the newest row of the Gram matrix over all clients
(see splitting_anderson.py), the next query carries the weights, and each client combines its own images.
Except for rounding, the result is that of one party with the states of all clients. If tau is 5 or more,
rounding errors can grow by a factor of a million without `regularisation`. A combination further than four
times `clip` from the last image comes from clipped residuals and is not used.

Only rounds of the same clients are combined. The server notices a change of the cohort by the number of
clients, or by a client that lacks rounds of the window. It then begins a new window with a plain step, and
needs the mean of the new clients' u_i for the Gram matrix. If gamma = 1, this is the mean of z in that round.
Otherwise the server waits one round, to see that the cohort stays, and spends one round in which clients send
u_i instead of z_i and do not train. So a cohort that always changes is never accelerated, but loses no
rounds. (If u is common, only a change of the number of clients is noticed.)

If gamma is not 1, clients send z_i - lean u_i after a combination. The factor lean (1 for FedPi) makes this
sum give the mean of the next u_i. An estimate from earlier sums would be inaccurate, because the weights of
each combination multiply its rounding error. The server adds lean times the mean of u_i to get the mean of z.
If the cohort has just changed, it uses the last cohort's mean of u_i, so its mean of z is slightly wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Final

import numpy as np

from protocols import checks
from protocols.algorithm import Algorithm, ClientRound, Sum
from protocols.anderson import Anderson
from protocols.averaging import WeightedMean
from protocols.learner import Learner
from protocols.parameter_fields import BITS_MEANING, CAP_MEANING, parameter
from protocols.query_encoding import LARGEST
from protocols.rounds import Fact, Outcome, Round
from protocols.serialisation import Vector, as_vector
from protocols.splitting_anderson import ASKED, GRAM, KNOWN, LOST, AndersonWindow, GramRow, completed
from protocols.splitting_clients import (
    AcceleratedClient,
    AcceleratedSplit,
    AtPoint,
    CommonClient,
    Split,
    SplitClient,
    SplittingMemory,
    leaning,
)
from protocols.splitting_formulas import ProximalSteps, SplittingScheme, StepSizes
from secagg.sum_spec import SumSpec, Total

_FEWEST_BITS: Final = 16
_BITS_TO_COMBINE: Final = 48
_WIDER: Final = 32.0  # factor of the unit of inner products after the cohort has changed
_FINEST: Final = 2.0**-44  # least unit, as a part of the clip: shorter residuals are mostly rounding
_FURTHEST: Final = 4.0  # largest distance of a combination from the last image, in clips
_ROW_REVEALS: Final = (
    ", and the sum of the inner products of each client's residual with those of its last rounds: the mean "
    "distance from a fixed point, and how straight the approach is; if gamma is not 1, also the sum of the "
    "clients' points u"
)


@dataclass(frozen=True)
class SplittingState:
    """The server's state. In a round, client i sends z_i, computed at its point u_i, and then moves u_i.

    `step`     number of completed rounds.
    `mean`     mean of all z in the last completed round: the common model.
    `point`    u, if all clients have one common point; otherwise the mean of their u_i.
    `average`  weighted average of `mean` over all rounds so far; the weights are the step sizes eta_t.
    `weight`   sum of these weights.
    `window`   data of the last rounds, for Anderson acceleration.
    """

    step: int
    mean: Vector
    point: Vector
    average: Vector
    weight: float
    window: AndersonWindow


@dataclass(frozen=True, kw_only=True)
class Splitting(Algorithm[SplittingState, SplittingMemory]):
    """Operator splitting. At its point u_i, client i sends z_i = (1 - alpha) u_i + alpha P(u_i), where P is a
    proximal map of its loss or gradient steps. Its next point is (1 - gamma) u_i + gamma ((1 - beta) z_i +
    beta m), where m is the mean of all z. This m is also the common model, unless `ergodic` is set."""

    memory_type: ClassVar[type] = SplittingMemory
    state_type: ClassVar[type] = SplittingState

    alpha: float = parameter(
        2.0, "how far beyond u_i towards its image z_i lies: 1 is the image, 2 a reflection"
    )
    beta: float = parameter(2.0, "how far beyond z_i towards the mean of all: 1 is the mean, 2 a reflection")
    gamma: float = parameter(1.0, "how much of the way there is gone")
    local_map: str = parameter(
        "proximal", 'what a client does: "proximal", or "gradient" for `steps` local steps of rate eta'
    )
    eta: float | None = parameter(
        None,
        "step size: of the proximal map, or the learning rate of gradient steps. It belongs to the "
        "learner's own loss, which is a mean over its samples",
    )
    summed: bool = parameter(
        False,
        "whether eta and rate belong to the sum over a client's samples instead, as the chapter has "
        "them: they are then multiplied by the number of its samples",
    )
    schedule: str = parameter(
        "constant",
        'of the step sizes: "constant", "log", "sqrt" or "linear" for eta / (1 + log10 t), eta / '
        'sqrt(t) and eta / t with t = 1, 2, ..., or "exponential", halved in every `period`',
    )
    period: int = parameter(500, "rounds after which an exponential step size is halved")
    steps: int | None = parameter(
        None,
        "local steps, for gradients and for proximal maps without a closed form; as many as the "
        "learner takes by default",
    )
    rate: float | None = parameter(
        None,
        "learning rate of local steps towards a proximal point, by default the learner's; it is never "
        "above eta",
    )
    exact: bool = parameter(True, "whether a closed form of the proximal map is used where there is one")
    start_at: str = parameter(
        "average",
        'where local steps towards a proximal point begin: "average", the last mean, or "point", '
        "the client's own u_i",
    )
    local_memory: int = parameter(
        0, "above 0, Anderson acceleration of these local steps by this number of pairs and one"
    )
    local_chunk: int = parameter(1, "local steps that are one application of the map that is accelerated")
    ergodic: bool = parameter(
        False, "whether the model is the average of all rounds' means, weighted by eta_t (Theorem 3)"
    )
    clip: float | None = parameter(
        None, "largest distance of a client's z from the public vector that it is sent relative to"
    )
    weighted: bool = parameter(False, "whether clients count by their samples, up to `cap`, or all the same")
    cap: int = parameter(1000, CAP_MEANING)
    bits: int = parameter(64, BITS_MEANING)
    memory: int = parameter(
        0, "tau, of Anderson acceleration: the last tau + 1 rounds are combined; 0 does without"
    )
    regularisation: float = parameter(
        0.0, "a ridge for the combination, relative to the Gram matrix's trace; 0 is the bare form"
    )
    damping: float = parameter(0.0, "which part of a plain step remains in a combination")
    safeguard: bool = parameter(False, "whether residuals have to fall for combinations to be used")
    patience: int = parameter(10, "how many combinations pass between two checks of the safeguard")

    def check(self) -> None:
        checks.bound("eta", self.eta, "the step size, such as 0.1")
        self.anderson  # noqa: B018  # raises if it is invalid, like the lines below
        checks.whole("bits", self.bits, _BITS_TO_COMBINE if self.memory else _FEWEST_BITS, 64)
        self.scheme  # noqa: B018
        self.averaging  # noqa: B018
        if self.memory and not self.scheme.is_common:
            self.gram  # noqa: B018

    @cached_property
    def anderson(self) -> Anderson:
        return Anderson(
            memory=self.memory,
            regularisation=self.regularisation,
            damping=self.damping,
            safeguard=self.safeguard,
            patience=self.patience,
        )

    @cached_property
    def gram(self) -> GramRow:
        return GramRow(memory=self.memory, clients=self.clients)

    @cached_property
    def scheme(self) -> SplittingScheme:
        assert self.eta is not None  # checked above
        steps = ProximalSteps(
            steps=self.steps,
            rate=self.rate,
            memory=self.local_memory,
            chunk=self.local_chunk,
            exact=self.exact,
        )
        return SplittingScheme(
            alpha=self.alpha,
            beta=self.beta,
            gamma=self.gamma,
            local_map=self.local_map,
            sizes=StepSizes(eta=self.eta, schedule=self.schedule, period=self.period),
            proximal=steps,
            start=self.start_at,
            summed=self.summed,
        )

    @cached_property
    def averaging(self) -> WeightedMean:
        cap = self.cap if self.weighted else 1
        return WeightedMean(dim=self.dim, clients=self.clients, clip=self.clip, cap=cap, bits=self.bits)

    def sums(self) -> tuple[Sum, ...]:
        samples = ", and of their samples" if self.weighted else ""
        reveals = f"the sum of the clients' relaxed models z{samples}"
        parts = self.averaging.parts()
        if self.scheme.is_common:
            return (Sum(query=AtPoint, spec=SumSpec(parts=parts), reveals=reveals),)
        if not self.memory:
            return (Sum(query=Split, spec=SumSpec(parts=parts), reveals=reveals),)
        spec = SumSpec(parts=(*parts, self.gram.part()))
        lengths = dict.fromkeys(("weights", "units"), self.memory + 1)
        return (
            Sum(
                query=AcceleratedSplit,
                spec=spec,
                reveals=reveals + _ROW_REVEALS,
                lengths=lengths,
                least_weight=0.0,  # a malicious server could send units and weights that no totals lead to
                remedy="set memory to 0",
            ),
        )

    def start(self, model: Vector) -> SplittingState:
        first = as_vector(model)
        unit = 0.0 if self.scheme.is_common else min(self.averaging.limit, LARGEST)
        return SplittingState(0, first, first, first, 0.0, AndersonWindow(unit=unit))

    def model(self, state: SplittingState) -> Vector:
        return state.average if self.ergodic else state.mean

    def round(self, state: SplittingState) -> Round[SplittingState]:
        if self.scheme.is_common:
            return (yield from self._common_round(state))
        if self.memory:
            return (yield from self._accelerated_round(state))
        total = yield Split(state.mean, state.step)
        mean = self._mean(state.mean, total)
        return self._outcome(state, mean, self.scheme.image_of_means(state.point, mean), state.window)

    def _common_round(self, state: SplittingState) -> Round[SplittingState]:
        total = yield AtPoint(state.point, state.step)
        mean = self._mean(state.point, total)
        image = self.scheme.image_of_means(state.point, mean)
        if not self.memory:
            return self._outcome(state, mean, image, state.window)
        window = state.window
        if window.count not in (0, total.count):
            window = window.restarted(total.count)
        residual = state.point - image
        row = np.array([residual @ each for each in (*window.kept(self.memory), residual)])
        window = window.advanced(self.anderson, row, residual, image, total.count).within(self._reach)
        return self._outcome(state, mean, window.point(), window)

    def _accelerated_round(self, state: SplittingState) -> Round[SplittingState]:
        window = state.window
        places = min(window.pairs, self.memory)
        measure = window.mean == ASKED
        weights = as_vector(window.weights) if window.weights else None
        units = window.units(self.memory, self._least_unit)
        query = AcceleratedSplit(state.mean, state.step, weights, places, units, measure=measure)
        total = yield query
        if measure:
            point = self._mean(state.mean, total)
            found = window.restarted(total.count, unit=window.unit)
            facts = {"moved": 0.0, "eta": self.scheme.sizes.at(state.step), "pairs": 0}
            return Outcome(replace(state, step=state.step + 1, point=point, window=found), facts)
        reference, scale = leaning(self.scheme, query, state.point)
        mean = as_vector(reference + scale * self.averaging.mean(total))
        if window.count not in (0, total.count) or total[GRAM][-1] < 0:
            return self._changed(state, mean, total.count)
        if window.mean == LOST:  # but the cohort is the same again
            image = self.scheme.image_of_means(state.point, mean)
            return self._outcome(state, mean, image, replace(window, mean=ASKED))
        window = self._with_row(state, mean, total)
        return self._outcome(state, mean, window.point(), window)

    def _changed(self, state: SplittingState, mean: Vector, count: int) -> Outcome[SplittingState]:
        """Return the outcome of a round with other clients than before: a step without acceleration, and a
        new window without rounds. Its field `mean` says whether the mean of the new clients' u_i is known."""
        unit = min(state.window.unit * _WIDER, LARGEST)
        is_known = self.gamma == 1 or (state.window.weights and self.scheme.lean)
        known = KNOWN if is_known else LOST
        image = self.scheme.image_of_means(state.point, mean)
        return self._outcome(state, mean, image, state.window.restarted(count, unit=unit, mean=known))

    def _with_row(self, state: SplittingState, mean: Vector, total: Total) -> AndersonWindow:
        """Return the window with this round added and `unit` set for the next. The round's row of the Gram
        matrix is decoded from `total` and corrected with `mean`: clients only guessed the mean of z."""
        window, weight = state.window, self.averaging.total_weight(total)
        units = window.units(self.memory, self._least_unit)
        entries = np.asarray(total[GRAM], np.float64) * units * (units[-1] / weight)
        change, apart = mean - window.centre(state.mean), state.point - mean
        row = completed(entries, window.kept(self.memory), change, apart, beta=self.beta, gamma=self.gamma)
        image = self.scheme.image_of_means(state.point, mean)
        window = window.advanced(self.anderson, row, state.point - image, image, total.count, mean=mean)
        window = window.within(self._reach)
        return replace(window, unit=min(float(window.lengths(self._least_unit)[-1]), LARGEST))

    @property
    def _reach(self) -> float:
        return self.averaging.limit * _FURTHEST

    @property
    def _least_unit(self) -> float:
        return self.averaging.limit * _FINEST

    def _mean(self, reference: Vector, total: Total) -> Vector:
        """Return the mean of the clients' vectors, from a total of their differences from `reference`."""
        return as_vector(reference + self.averaging.mean(total))

    def _outcome(
        self, state: SplittingState, mean: Vector, point: Vector, window: AndersonWindow
    ) -> Outcome[SplittingState]:
        eta = self.scheme.sizes.at(state.step)
        weight = state.weight + eta
        average = as_vector(state.average + eta / weight * (mean - state.average))
        facts: dict[str, Fact] = {"moved": float(np.linalg.norm(mean - state.mean)), "eta": eta}
        if self.memory:
            facts["pairs"] = window.pairs
        return Outcome(SplittingState(state.step + 1, mean, as_vector(point), average, weight, window), facts)

    def client(self, learner: Learner, memory: SplittingMemory) -> ClientRound[SplittingMemory]:
        if self.scheme.is_common:
            return CommonClient(self.scheme, self.averaging, learner)
        if self.memory:
            return AcceleratedClient(self.scheme, self.averaging, learner, memory, self.gram)
        return SplitClient(self.scheme, self.averaging, learner, memory)
