"""Per-FedAvg: a common model from which one step on a client's own data goes far.

"Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning Approach",
Algorithm 1, in its first-order form: second derivatives are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from numpy.typing import ArrayLike

from protocols import checks
from protocols.algorithm import ClientRound, NoMemory
from protocols.averaged import Averaged, Update
from protocols.learner import Learner
from protocols.record import Vector
from protocols.vocabulary import Query


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(Averaged[NoMemory]):
    """Every local step looks ahead: it adapts the model by one step on one batch, takes the gradient there on
    the next batch, and applies it to the model as it was. A personal model is the common one after one
    adapting step on the client's training data; nobody keeps anything.

    `alpha`  rate of the adapting step; with 0 this is federated averaging at rate `beta`.
    `beta`   rate of the local steps.
    `steps`  local steps of a round; as many as the learner takes by default.
    """

    alpha: float = 0.03
    beta: float = 0.003
    steps: int | None = None

    def check(self) -> None:
        super().check()
        checks.real("alpha", self.alpha, 0)
        checks.positive("beta", self.beta)
        if self.steps is not None:
            checks.whole("steps", self.steps, 1)

    def client(self, learner: Learner, memory: NoMemory) -> PerFedAvgClient:  # noqa: ARG002
        return PerFedAvgClient(self, learner)

    def personal(self, memory: NoMemory, model: Vector, learner: Learner) -> Vector:  # noqa: ARG002
        return self.adapted(model, learner)

    def adapted(self, model: Vector, learner: Learner) -> Vector:
        """`model` after one step on the learner's next batch."""
        return model - self.alpha * learner.gradient(model)


class PerFedAvgClient(ClientRound[NoMemory]):
    def __init__(self, algorithm: PerFedAvg, learner: Learner) -> None:
        self._algorithm = algorithm
        self._learner = learner

    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        assert isinstance(query, Update)
        algorithm, learner, model = self._algorithm, self._learner, query.model
        for _ in range(learner.steps if algorithm.steps is None else algorithm.steps):
            model = model - algorithm.beta * learner.gradient(algorithm.adapted(model, learner))
        return algorithm.averaging.contribution(model - query.model, learner.samples)
