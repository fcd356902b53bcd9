"""Training of each client alone, without any sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from numpy.typing import ArrayLike

from protocols.algorithm import Algorithm, ClientRound, ModelState, Sum
from protocols.learner import Learner
from protocols.personal_model import KeepsOwnModel, OwnModel
from protocols.rounds import Outcome, Query, Round
from protocols.serialisation import Vector, as_vector


@dataclass(frozen=True, kw_only=True)
class LocalTraining(KeepsOwnModel, Algorithm[ModelState, OwnModel]):
    """Every client trains alone, at first from `initial` (None: zeros). The server learns nothing."""

    initial: Vector | None = field(default=None, compare=False)

    def sums(self) -> tuple[Sum, ...]:
        return ()

    def round(self, state: ModelState) -> Round[ModelState]:
        yield from ()  # nothing is ever asked
        return Outcome(state)

    def client(self, learner: Learner, memory: OwnModel) -> LocalClient:
        if memory.model is not None:
            return LocalClient(learner, memory.model)
        return LocalClient(learner, as_vector([0.0] * self.dim if self.initial is None else self.initial))


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
