"""AFL: minimises the loss of the worst mixture of all clients; the server sees no client's weight or loss.

"Agnostic Federated Learning". With the loss F_i(w) of client i, the objective is min over w, max over lambda
in the simplex, of the sum of all lambda_i F_i(w). In the paper the server updates lambda from the clients'
losses, so it sees them. Here every client keeps its own lambda_i and multiplies it by exp(step * F_i). Of the
losses, the server learns only the sum of these products, by which the clients divide in the next round. This
is mirror ascent on the simplex instead of projected ascent, with the same saddle point.

If a client is missing, the round is repeated. Two totals for the same model, one with that client and one
without it, would show what the client sent. So every round begins with a sum that only counts clients. It is
in one group with the main sum, whose total is revealed only if all clients are in both sums.
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
from protocols.algorithm import LEAST_WEIGHT, Algorithm, Sum, TrainingClient
from protocols.averaging import UPDATE, WeightedMean, clipped
from protocols.learner import Learner
from protocols.parameter_fields import BITS_MEANING, parameter
from protocols.rounds import Outcome, Query, Round
from protocols.serialisation import Vector, as_vector
from secagg.errors import SERVER, CorruptTotal, MalformedMessage, ParameterError, TooFewClients
from secagg.sum_spec import Count, LInf, Part, SumSpec, bits_for_cohort

GROUP: Final = "everybody"
PRESENT: Final = "present"
WEIGHT: Final = "lambda"
NEXT: Final = "next"
_BITS: Final = 64  # bits of the sums of weights, by which the server divides all other totals


@dataclass(frozen=True)
class Presence(Query):
    """Asks each client to add 1 to a sum, which then shows how many clients are present."""

    kind: ClassVar[str] = "presence"


@dataclass(frozen=True)
class Mixed(Query):
    """Asks each client for its update of `model` times its weight in the mixture of all losses, for this
    weight, and for its next weight. Before that, clients divide their weights by `normaliser`, the sum of all
    weights after the last round."""

    kind: ClassVar[str] = "mixed"
    model: Vector
    normaliser: float


@dataclass(frozen=True)
class MixtureState:
    """The server's state: the last model, the sum of the clients' latest weights (`normaliser`), by which
    they divide them in the next round, and the mean of the models of all `rounds` rounds (`average`)."""

    model: Vector
    normaliser: float
    average: Vector
    rounds: int


@dataclass(frozen=True, repr=False)  # it is private
class MixtureWeight:
    """A client's memory: its weight in the mixture of losses, before division by the sum of all weights."""

    value: float


@dataclass(frozen=True, kw_only=True)
class AFL(Algorithm[MixtureState, MixtureWeight]):
    """AFL: the common model moves by the weighted mean of the clients' updates, and a client's weight rises
    while its loss is above the loss of the others. Exactly `clients` clients must be in every sum. If one is
    missing, the round is given up, and every client keeps its weight."""

    memory_type: ClassVar[type] = MixtureWeight
    state_type: ClassVar[type] = MixtureState
    needs_all_clients: ClassVar[bool] = True

    step: float = parameter(0.1, "gamma_lambda, by which weights follow losses")
    loss_cap: float | None = parameter(None, "largest loss that is told apart; a larger one counts as this")
    floor: float = parameter(
        1e-9, "least weight of a client, so that one whose weight has vanished can come back"
    )
    clip: float | None = parameter(None, "largest norm of an update")
    averaged: bool = parameter(
        True, "whether the model is the mean of all rounds' models, as in the paper, or the last one"
    )
    bits: int = parameter(32, BITS_MEANING)

    def check(self) -> None:
        checks.positive("step", self.step)
        checks.bound("loss_cap", self.loss_cap, "the largest loss that a client may report, such as 10.0")
        checks.positive("floor", self.floor)
        checks.real("floor", self.floor, 0, 1 / self.clients)
        self.averaging  # noqa: B018  # raises if the other bounds are invalid

    @cached_property
    def averaging(self) -> WeightedMean:
        return WeightedMean(dim=self.dim, clients=self.clients, clip=self.clip, bits=self.bits)

    def raised(self, weight: float, loss: float) -> float:
        """Return a client's next weight: `weight` * exp(step * (min(loss, loss_cap) - loss_cap)). loss_cap is
        subtracted so that the result is at most `weight`, which bounds what the client sends."""
        assert self.loss_cap is not None
        return weight * math.exp(self.step * (min(loss, self.loss_cap) - self.loss_cap))

    def sums(self) -> tuple[Sum, ...]:
        here = Count(1)
        present = Part(name=PRESENT, size=1, bits=bits_for_cohort(here, self.clients), bound=here)
        numbers = tuple(Part(name=name, size=1, bits=_BITS, bound=LInf(1.0)) for name in (WEIGHT, NEXT))
        presence = SumSpec(parts=(present,), group=GROUP)
        return (
            Sum(query=Presence, spec=presence, reveals="the number of clients present"),
            Sum(
                query=Mixed,
                spec=SumSpec(parts=(*self.averaging.parts(), *numbers), group=GROUP),
                reveals="the sum of the clients' updates, each times its client's weight, and the sums of "
                "these weights and of the next ones, which grow exponentially with the loss",
                least_weight=self.floor,
                remedy=f"take at most {round(1 / LEAST_WEIGHT)} clients, whose weights add up to one, and "
                f"set floor to {LEAST_WEIGHT:g} or more",
            ),
        )

    def start(self, model: Vector) -> MixtureState:
        return MixtureState(as_vector(model), 1.0, as_vector(model), 0)

    def model(self, state: MixtureState) -> Vector:
        return state.average if self.averaged else state.model

    def with_model(self, state: MixtureState, model: Vector) -> MixtureState:
        if self.averaged:
            raise ParameterError(
                "set averaged to False: a mean of models cannot be moved from outside", parameter="averaged"
            )
        return super().with_model(state, model)

    def first_memory(self) -> MixtureWeight:
        return MixtureWeight(1 / self.clients)

    def round(self, state: MixtureState) -> Round[MixtureState]:
        present = yield Presence()
        if present.count != self.clients:
            raise TooFewClients.only(present.count, "are there, and weights are among all", self.clients)
        total = yield Mixed(state.model, state.normaliser)
        # Weights add up to one except for the floor, rounding, and a client that does not know that it was in
        # the last sum and kept its earlier weight.
        weight, normaliser = float(total[WEIGHT][0]), float(total[NEXT][0])
        if weight <= 0 or normaliser <= 0:
            raise CorruptTotal("the clients' weights add up to nothing")
        model = as_vector(state.model + np.asarray(total[UPDATE], np.float64) / weight)
        rounds = state.rounds + 1
        average = as_vector(state.average + (model - state.average) / rounds)
        # normaliser / weight is the mean of exp(step * (loss - loss_cap)) under the mixture. Its logarithm
        # gives an upper bound of the mean loss.
        assert self.loss_cap is not None
        loss = self.loss_cap + math.log(normaliser / weight) / self.step
        return Outcome(MixtureState(model, normaliser, average, rounds), {"mixture_loss": loss})

    def client(self, learner: Learner, memory: MixtureWeight) -> AFLClient:
        return AFLClient(self, learner, memory)


class AFLClient(TrainingClient[AFL, MixtureWeight]):
    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        if isinstance(query, Presence):
            return {PRESENT: np.ones(1, np.uint64)}
        assert isinstance(query, Mixed)
        algorithm, learner = self._algorithm, self._learner
        if query.normaliser <= 0:
            raise MalformedMessage(SERVER, "weights that add up to nothing")
        weight = min(max(self._memory.value / query.normaliser, algorithm.floor), 1.0)
        raised = algorithm.raised(weight, learner.loss(query.model))
        update = clipped(learner.train(query.model) - query.model, algorithm.averaging.limit)
        self._memory = MixtureWeight(raised)
        return {UPDATE: weight * update, WEIGHT: np.array([weight]), NEXT: np.array([raised])}
