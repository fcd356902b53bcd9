"""Training of each client alone, and the personal model that clients of several algorithms keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from numpy.typing import ArrayLike

from protocols.algorithm import Algorithm, ClientRound, ModelState, Sum
from protocols.learner import Learner
from protocols.queries import Outcome, Query, Round
from protocols.serialisation import Vector, as_vector


@dataclass(frozen=True, repr=False)  # it is private
class OwnModel:
    """A client's memory: the personal model that it has trained; None before its first round."""

    model: Vector | None = None


class KeepsOwnModel:
    """A mixin for algorithms whose clients keep an `OwnModel` from round to round."""

    memory_type: ClassVar[type] = OwnModel

    def personal(self, memory: OwnModel, model: Vector, learner: Learner) -> Vector:  # noqa: ARG002
        """Return the client's own model, or the common one, `model`, if the client has none."""
        return model if memory.model is None else memory.model


@dataclass(frozen=True, kw_only=True)
class LocalTraining(KeepsOwnModel, Algorithm[ModelState, OwnModel]):
    """Every client trains alone, at first from `initial`. Without sums, the server learns nothing."""

    initial: Vector | None = field(default=None, compare=False)

    def sums(self) -> tuple[Sum, ...]:
        return ()

    def round(self, state: ModelState) -> Round[ModelState]:
        yield from ()  # nothing is ever asked
        return Outcome(state)

    def client(self, learner: Learner, memory: OwnModel) -> LocalClient:
        return LocalClient(learner, self._own(memory))

    def _own(self, memory: OwnModel) -> Vector:
        if memory.model is not None:
            return memory.model
        return as_vector([0.0] * self.dim if self.initial is None else self.initial)


class LocalClient(ClientRound[OwnModel]):
    def __init__(self, learner: Learner, start: Vector) -> None:
        self._learner = learner
        self._start = start
        self._trained: OwnModel | None = None

    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        raise AssertionError(f"a client that trains alone gets no queries, but got {query}")

    def memory(self) -> OwnModel:
        if self._trained is None:  # train once: saving a client calls this again
            self._trained = OwnModel(as_vector(self._learner.train(self._start)))
        return self._trained
