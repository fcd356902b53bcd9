"""Federated averaging, with a proximal pull (FedProx) or without; and no federation at all.

"Communication-Efficient Learning of Deep Networks from Decentralized Data", "Federated Optimization in
Heterogeneous Networks".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from numpy.typing import ArrayLike

from protocols import checks
from protocols.algorithm import Algorithm, ClientRound, ModelState, NoMemory, Sum
from protocols.averaging import Averaging
from protocols.learner import Learner, Steering
from protocols.record import Vector, as_vector
from protocols.vocabulary import Outcome, Query, Round
from secagg.spec import SumSpec


@dataclass(frozen=True)
class Update(Query):
    """How would you change this model?"""

    kind: ClassVar[str] = "update"
    model: Vector


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm[ModelState, NoMemory]):
    """Clients train from the common model; it moves by the mean of their updates.

    `clip`      largest norm of an update.
    `weighted`  whether clients count by their samples, up to `cap`, or all the same.
    `mu`        proximal pull towards the common model; above 0 this is FedProx.
    """

    clip: float | None = None
    weighted: bool = True
    cap: int = 1000
    mu: float = 0.0
    bits: int = 32

    def check(self) -> None:
        checks.real("mu", self.mu, 0)
        self.averaging  # noqa: B018  # raises what is wrong with the bounds

    @cached_property
    def averaging(self) -> Averaging:
        cap = self.cap if self.weighted else 1
        return Averaging(dim=self.dim, clients=self.clients, clip=self.clip, cap=cap, bits=self.bits)

    def sums(self) -> tuple[Sum, ...]:
        reveals = "the sum of the clients' updates" + (", and of their samples" if self.weighted else "")
        return (Sum(query=Update, spec=SumSpec(parts=self.averaging.parts()), reveals=reveals),)

    def start(self, model: Vector) -> ModelState:
        return ModelState(as_vector(model))

    def model(self, state: ModelState) -> Vector:
        return state.model

    def round(self, state: ModelState) -> Round[ModelState]:
        total = yield Update(state.model)
        return Outcome(ModelState(as_vector(state.model + self.averaging.mean(total))))

    def client(self, learner: Learner, memory: NoMemory) -> FedAvgClient:  # noqa: ARG002
        return FedAvgClient(self, learner)


class FedAvgClient(ClientRound[NoMemory]):
    def __init__(self, algorithm: FedAvg, learner: Learner) -> None:
        self._algorithm = algorithm
        self._learner = learner

    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        assert isinstance(query, Update)
        steering = Steering(pull=self._algorithm.mu, anchor=query.model)
        update = self._learner.train(query.model, steering) - query.model
        return self._algorithm.averaging.contribution(update, self._learner.samples)

    def memory(self) -> NoMemory:
        return NoMemory()


@dataclass(frozen=True)
class OwnModel:
    """A model that a client has trained for itself; None before the first time."""

    model: Vector | None = None


@dataclass(frozen=True, kw_only=True)
class LocalTraining(Algorithm[ModelState, OwnModel]):
    """Every client trains alone, from a common start. There is no sum, and a server learns nothing."""

    memory_type: ClassVar[type] = OwnModel

    initial: Vector | None = field(default=None, compare=False)

    def sums(self) -> tuple[Sum, ...]:
        return ()

    def start(self, model: Vector) -> ModelState:
        return ModelState(as_vector(model))

    def model(self, state: ModelState) -> Vector:
        return state.model

    def round(self, state: ModelState) -> Round[ModelState]:
        yield from ()  # nothing is ever asked
        return Outcome(state)

    def client(self, learner: Learner, memory: OwnModel) -> LocalClient:
        return LocalClient(learner, self._own(memory))

    def personal(self, memory: OwnModel, model: Vector, learner: Learner) -> Vector:  # noqa: ARG002
        return model if memory.model is None else memory.model

    def _own(self, memory: OwnModel) -> Vector:
        if memory.model is not None:
            return memory.model
        return as_vector([0.0] * self.dim if self.initial is None else self.initial)


class LocalClient(ClientRound[OwnModel]):
    def __init__(self, learner: Learner, start: Vector) -> None:
        self._learner = learner
        self._start = start

    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        raise AssertionError(f"nobody asks anything of a client that works alone, not even {query}")

    def memory(self) -> OwnModel:
        return OwnModel(as_vector(self._learner.train(self._start)))
