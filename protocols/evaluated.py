"""Evaluation beside any algorithm, after each of its rounds; or alone, of a model that stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from protocols.algorithm import Algorithm, ClientRound, ModelState, NoMemory, Sum, rho_of_round
from protocols.evaluation import Errors, Facts, Measures, Scores
from protocols.learner import Learner, Scored
from protocols.privacy import Privacy
from protocols.record import Vector
from protocols.vocabulary import Outcome, Query, Round
from secagg.errors import ParameterError, SumFailed
from secagg.spec import Table

S = TypeVar("S")
M = TypeVar("M")


class _Examined:
    """One client's score of the model that it was asked about last: two questions, one evaluation."""

    def __init__(self, measures: Measures, learner: Learner) -> None:
        self._measures = measures
        self._learner = learner
        self._known: tuple[Vector, Scored] | None = None

    def answer(self, query: Scores | Errors, model: Vector) -> Mapping[str, ArrayLike]:
        if self._known is None or not np.array_equal(self._known[0], model):
            self._known = model, self._learner.score(model)
        return self._measures.answer(query, self._known[1])


@dataclass(frozen=True, kw_only=True)
class Evaluation(Algorithm[ModelState, NoMemory]):
    """A model is evaluated, and stays as it is. What comes out is among the facts of the round.

    `measures`  what is asked. There are no personal models here.
    """

    measures: Measures

    def check(self) -> None:
        if self.measures.personal:
            raise ParameterError(
                "personal models belong to the algorithm that makes them: evaluate it with Evaluated"
            )

    @property
    def privacy(self) -> Privacy | None:
        return self.measures.privacy

    def sums(self) -> tuple[Sum, ...]:
        return self.measures.sums(self.clients)

    def round(self, state: ModelState) -> Round[ModelState]:
        facts: Facts = {}
        for steps in self.measures.steps(state.model):
            facts |= yield from steps
        return Outcome(state, facts)

    def client(self, learner: Learner, memory: NoMemory) -> EvaluationClient:  # noqa: ARG002
        return EvaluationClient(self, learner)


class EvaluationClient(ClientRound[NoMemory]):
    def __init__(self, algorithm: Evaluation, learner: Learner) -> None:
        self._examined = _Examined(algorithm.measures, learner)

    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        assert isinstance(query, Scores | Errors)
        return self._examined.answer(query, query.model)


@dataclass(frozen=True, kw_only=True)
class Evaluated(Algorithm[S, M], Generic[S, M]):
    """`algorithm`, whose model is evaluated after every round. What comes out is among the round's facts.

    If the evaluation fails, the round stands all the same, and its facts say so.

    `measures`  what is asked, of the common model or of each client's own.
    """

    dim: int = field(init=False)
    clients: int = field(init=False)
    algorithm: Algorithm[S, M]
    measures: Measures

    def __post_init__(self) -> None:
        for name in ("dim", "clients", "memory_type", "state_type", "needs_everybody"):
            object.__setattr__(self, name, getattr(self.algorithm, name))
        super().__post_init__()

    def check(self) -> None:
        own = {each.query.kind for each in self.measures.sums(self.clients)}
        if taken := own & {each.query.kind for each in self.algorithm.sums()}:
            raise ParameterError(f"the algorithm has sums of its own named {', '.join(sorted(taken))}")
        inner = [each.spec.is_private for each in self.algorithm.sums()]
        if inner and all(inner) != (self.measures.privacy is not None):
            raise ParameterError(
                "noise protects a client only if all its sums have it: give the algorithm and the measures a "
                "budget each, or neither"
            )

    @property
    def privacy(self) -> Privacy | None:
        """That of the evaluation, which the algorithm's own comes on top of."""
        return self.measures.privacy

    @cached_property
    def max_rho(self) -> float | None:
        if self.budget is None:
            return None
        evaluation = Table({each.query.kind: each.spec for each in self.measures.sums(self.clients)})
        own = self.budget.rounds * rho_of_round(evaluation, self.clients, self.budget)
        return own + (self.algorithm.max_rho or 0.0)

    def sums(self) -> tuple[Sum, ...]:
        measured = (replace(each, needed=0) for each in self.measures.sums(self.clients))
        return (*self.algorithm.sums(), *measured)

    def start(self, model: Vector) -> S:
        return self.algorithm.start(model)

    def model(self, state: S) -> Vector:
        return self.algorithm.model(state)

    def with_model(self, state: S, model: Vector) -> S:
        return self.algorithm.with_model(state, model)

    def round(self, state: S) -> Round[S]:
        outcome = yield from self.algorithm.round(state)
        facts: Facts = dict(outcome.facts)
        for steps in self.measures.steps(self.model(outcome.state)):
            try:
                facts |= yield from steps
            except SumFailed as failure:
                facts["evaluation"] = f"failed: {failure}"
        return Outcome(outcome.state, facts)

    def client(self, learner: Learner, memory: M) -> EvaluatedClient[M]:
        return EvaluatedClient(self, learner, memory)

    def first_memory(self) -> M:
        return self.algorithm.first_memory()

    def personal(self, memory: M, model: Vector, learner: Learner) -> Vector:
        return self.algorithm.personal(memory, model, learner)


class EvaluatedClient(ClientRound[M], Generic[M]):
    def __init__(self, algorithm: Evaluated[S, M], learner: Learner, memory: M) -> None:
        self._personal = algorithm.personal if algorithm.measures.personal else None
        self._learner = learner
        self._inner = algorithm.algorithm.client(learner, memory)
        self._examined = _Examined(algorithm.measures, learner)
        self._before = memory
        self._takes_part = not algorithm.algorithm.sums()
        self._after: M | None = None

    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        if isinstance(query, Scores | Errors):
            return self._examined.answer(query, self._own(query.model))
        self._takes_part, self._after = True, None
        return self._inner.answer(query)

    def memory(self) -> M:
        """What the algorithm's own round leaves, made once; nothing new for who only joined to evaluate."""
        if not self._takes_part:
            return self._before
        if self._after is None:
            self._after = self._inner.memory()
        return self._after

    def _own(self, model: Vector) -> Vector:
        return model if self._personal is None else self._personal(self.memory(), model, self._learner)
