"""Per-FedAvg: averaging of models that each client adapts by one gradient step.

"Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning Approach",
Algorithm 1, in its first-order form: second derivatives are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from numpy.typing import ArrayLike

from protocols import checks
from protocols.algorithm import NoMemory, TrainingClient
from protocols.averaging import AveragingAlgorithm, Update
from protocols.learner import Learner
from protocols.parameter_fields import parameter
from protocols.rounds import Query
from protocols.serialisation import Vector


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(AveragingAlgorithm[NoMemory]):
    """Per-FedAvg. A local step computes an adapted model by one gradient step on one batch, and the gradient
    at the adapted model on the next batch. It applies that gradient to the model before the adaptation. A
    client's personal model is the common one after one adapting step. Clients keep no memory."""

    alpha: float = parameter(
        0.03, "rate of the adapting step; with 0 this is federated averaging at rate `beta`"
    )
    beta: float = parameter(0.003, "rate of the local steps")
    steps: int | None = parameter(None, "local steps of a round; as many as the learner takes by default")

    def check(self) -> None:
        super().check()
        checks.real("alpha", self.alpha, 0)
        checks.positive("beta", self.beta)
        if self.steps is not None:
            checks.whole("steps", self.steps, 1)

    def client(self, learner: Learner, memory: NoMemory) -> PerFedAvgClient:
        return PerFedAvgClient(self, learner, memory)

    def personal(self, memory: NoMemory, model: Vector, learner: Learner) -> Vector:  # noqa: ARG002
        return self.adapted(model, learner)

    def adapted(self, model: Vector, learner: Learner) -> Vector:
        """Return `model` after one gradient step with rate `alpha` on the learner's next batch."""
        return model - self.alpha * learner.gradient(model)


class PerFedAvgClient(TrainingClient[PerFedAvg, NoMemory]):
    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        assert isinstance(query, Update)
        algorithm, learner, model = self._algorithm, self._learner, query.model
        for _ in range(learner.steps if algorithm.steps is None else algorithm.steps):
            model = model - algorithm.beta * learner.gradient(algorithm.adapted(model, learner))
        return algorithm.averaging.contribution(model - query.model, learner.samples)
