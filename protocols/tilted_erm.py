"""TERM, tilted empirical risk minimisation: clients are weighted by the exponential of their loss.

"Tilted Empirical Risk Minimization", with clients as groups. The objective is (1/t) log mean exp(t F_i) of
the clients' losses F_i: near the largest for large t, near the smallest for t far below 0, the mean at 0.

The weights exp(t F_i) are unbounded, but only their ratios matter. They are sent as exp(t (F_i - shift)),
where the shift is the tilted loss of the last round, so that they are 1 on average.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from protocols import checks
from protocols.algorithm import LEAST_WEIGHT, Algorithm, NoMemory, Sum, TrainingClient
from protocols.averaging import UPDATE, WeightedMean, clipped
from protocols.learner import Learner
from protocols.parameter_fields import BITS_MEANING, CAP_MEANING, parameter
from protocols.rounds import Outcome, Query, Round
from protocols.serialisation import Vector, as_vector
from secagg.errors import CorruptTotal, ParameterError
from secagg.sum_spec import LInf, Part, SumSpec

TILT: Final = "tilt"
_BITS: Final = 64  # bits of the sum of weights, by which the server divides the sum of updates


@dataclass(frozen=True)
class Tilted(Query):
    """Asks for each client's weight exp(t (loss - shift)), with tilt t, and its update times this weight."""

    kind: ClassVar[str] = "tilted"
    model: Vector
    shift: float


@dataclass(frozen=True)
class TiltedState:
    """The server's state: the model and `shift`, the last (1/t) log mean exp(t loss); at first `loss_cap`."""

    model: Vector
    shift: float


@dataclass(frozen=True, kw_only=True)
class TERM(Algorithm[TiltedState, NoMemory]):
    """Clients weight updates by exp(t * loss at the common model). The model moves by the weighted mean."""

    state_type: ClassVar[type] = TiltedState

    t: float = parameter(1.0, "the tilt; 0 is federated averaging")
    loss_cap: float | None = parameter(
        None, "largest loss that is told apart; a larger one counts as this. The shift begins here"
    )
    least: float = parameter(1e-4, "least weight of a client, where 1 is the average")
    most: float | None = parameter(
        None,
        "largest weight; by default the number of clients, more than which no weight can be. Weights "
        "at a limit change what is minimised, and the tilted loss that is reported. With `least` at a "
        "tenth of `most`, a malicious server cannot silence clients by a shift of its choice. In a "
        "round, the shift falls by log(1 / least) / t at most",
    )
    clip: float | None = parameter(None, "largest norm of an update")
    weighted: bool = parameter(True, "whether clients count by their samples, too, up to `cap`")
    cap: int = parameter(1000, CAP_MEANING)
    bits: int = parameter(48, BITS_MEANING)

    def check(self) -> None:
        checks.real("t", self.t, -math.inf)
        checks.bound("loss_cap", self.loss_cap, "the largest loss that a client may report, such as 10.0")
        checks.positive("least", self.least)
        checks.positive("most", self.largest)
        if not self.least < 1 < self.largest:
            raise ParameterError(
                "least must be below 1 and most above: the average weight is 1", parameter="least"
            )
        self.averaging  # noqa: B018  # raises if the other bounds are invalid

    @property
    def largest(self) -> float:
        """The largest weight of a client, where 1 is the average; by default `clients`, but at least 2."""
        return float(max(2, self.clients)) if self.most is None else self.most

    @cached_property
    def averaging(self) -> WeightedMean:
        cap = self.cap if self.weighted else 1
        return WeightedMean(dim=self.dim, clients=self.clients, clip=self.clip, cap=cap, bits=self.bits)

    def weight(self, loss: float, shift: float) -> float:
        """Return exp(t (min(loss, loss_cap) - shift)), limited to [least, largest], divided by `largest`."""
        assert self.loss_cap is not None
        exponent = self.t * (min(loss, self.loss_cap) - shift)
        return math.exp(min(max(exponent, math.log(self.least)), math.log(self.largest))) / self.largest

    def sums(self) -> tuple[Sum, ...]:
        update, *samples = self.averaging.parts()
        tilt = Part(name=TILT, size=1, bits=_BITS, bound=LInf(1.0))
        reveals = (
            "the sum of the clients' updates, weighted by exponentials of their losses, and of the weights"
        )
        return (
            Sum(
                query=Tilted,
                spec=SumSpec(parts=(update, tilt, *samples)),
                reveals=reveals + (", and of their samples" if self.weighted else ""),
                least_weight=self.least / self.largest if self.t else 1.0,
                remedy=f"set least to {LEAST_WEIGHT:g} of most or more, such as least=0.4 and most=4",
            ),
        )

    def start(self, model: Vector) -> TiltedState:
        assert self.loss_cap is not None
        return TiltedState(as_vector(model), float(self.loss_cap))

    def round(self, state: TiltedState) -> Round[TiltedState]:
        total = yield Tilted(state.model, state.shift)
        tilt, clients = float(total[TILT][0]), self.averaging.total_weight(total)
        if tilt <= 0 or clients <= 0:
            raise CorruptTotal("the weights of this sum's clients add up to nothing")
        model = as_vector(state.model + np.asarray(total[UPDATE], np.float64) / tilt)
        # (1/t) log mean exp(t F). If weights were at a limit, this is inexact, but better than the last
        # shift.
        shift = state.shift + math.log(tilt * self.largest / clients) / self.t if self.t else state.shift
        return Outcome(TiltedState(model, shift), {"tilted_loss": shift})

    def client(self, learner: Learner, memory: NoMemory) -> TERMClient:
        return TERMClient(self, learner, memory)


class TERMClient(TrainingClient[TERM, NoMemory]):
    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        assert isinstance(query, Tilted)
        learner, averaging = self._learner, self._algorithm.averaging
        weight = self._algorithm.weight(learner.loss(query.model), query.shift)
        update = clipped(learner.train(query.model) - query.model, averaging.limit)
        values = averaging.contribution(weight * update, learner.samples)
        return {**values, TILT: np.array([averaging.weight(learner.samples) * weight])}
