"""Federated averaging ("Communication-Efficient Learning of Deep Networks from Decentralized Data") and
FedProx ("Federated Optimization in Heterogeneous Networks")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from numpy.typing import ArrayLike

from protocols import checks
from protocols.algorithm import NoMemory, TrainingClient
from protocols.averaging import AveragingAlgorithm, Update
from protocols.learner import Learner, Steering
from protocols.parameter_fields import parameter
from protocols.rounds import Query


@dataclass(frozen=True, kw_only=True)
class FedAvg(AveragingAlgorithm[NoMemory]):
    """Federated averaging or FedProx: clients train from the common model, which moves by the mean update."""

    mu: float = parameter(0.0, "proximal pull towards the common model; above 0 this is FedProx")

    def check(self) -> None:
        super().check()
        checks.real("mu", self.mu, 0)

    def client(self, learner: Learner, memory: NoMemory) -> FedAvgClient:
        return FedAvgClient(self, learner, memory)


class FedAvgClient(TrainingClient[FedAvg, NoMemory]):
    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        assert isinstance(query, Update)
        steering = Steering(pull=self._algorithm.mu, anchor=query.model)
        update = self._learner.train(query.model, steering) - query.model
        return self._algorithm.averaging.contribution(update, self._learner.samples)
