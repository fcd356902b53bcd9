"""pFedMe: a common model, and personal models from the proximal operator of each client's loss.

"Personalized Federated Learning with Moreau Envelopes", Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from numpy.typing import ArrayLike

from protocols import checks
from protocols.algorithm import TrainingClient
from protocols.averaging import AveragingAlgorithm, Update
from protocols.learner import Learner, Steering
from protocols.parameter_fields import parameter
from protocols.personal_model import KeepsOwnModel, OwnModel
from protocols.rounds import Query
from protocols.serialisation import Vector, as_vector


@dataclass(frozen=True, kw_only=True)
class PFedMe(KeepsOwnModel, AveragingAlgorithm[OwnModel]):
    """The common model w minimises the mean of the clients' Moreau envelopes. The envelope of a loss f at w
    is the minimum over theta of f(theta) + pull / 2 * |theta - w|^2. Its theta is the personal model. In a
    round a client repeats `rounds` times: `steps` local steps on theta, which is pulled towards the client's
    copy w_i of the common model, and then w_i <- w_i - rate * pull * (w_i - theta)."""

    pull: float = parameter(15.0, "lambda of the paper")
    rounds: int = parameter(20, "R, local rounds")
    steps: int = parameter(5, "K, steps that approximate the proximal operator")
    rate: float = parameter(0.005, "eta, of the copy of the common model")
    personal_rate: float = parameter(
        0.1, "eta_p, of theta. The steps diverge if it is not below 2 / (pull + curvature of the loss)"
    )
    beta: float = parameter(1.0, "how far the common model moves towards the mean of the copies")
    decay: float = parameter(0.0, "weight decay of theta. The paper has none; its released code has 0.001")

    def check(self) -> None:
        super().check()
        checks.whole("rounds", self.rounds, 1)
        checks.whole("steps", self.steps, 1)
        for name in ("pull", "rate", "personal_rate", "beta"):
            checks.positive(name, getattr(self, name))
        checks.real("decay", self.decay, 0)

    @property
    def server_rate(self) -> float:
        return self.beta

    def client(self, learner: Learner, memory: OwnModel) -> PFedMeClient:
        return PFedMeClient(self, learner, memory)


class PFedMeClient(TrainingClient[PFedMe, OwnModel]):
    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        assert isinstance(query, Update)
        algorithm, copy, theta = self._algorithm, query.model, query.model
        for _ in range(algorithm.rounds):
            theta = self._towards(theta, copy)
            copy = copy - algorithm.rate * algorithm.pull * (copy - theta)
        self._memory = OwnModel(as_vector(theta))
        return algorithm.averaging.contribution(copy - query.model, self._learner.samples)

    def _towards(self, theta: Vector, copy: Vector) -> Vector:
        """Return `theta` after local steps on loss + pull / 2 |theta - copy|^2 + decay / 2 |theta|^2. The two
        squares are combined to one pull, towards a point between `copy` and zero."""
        algorithm = self._algorithm
        both = algorithm.pull + algorithm.decay
        steering = Steering(pull=both, anchor=copy * (algorithm.pull / both))
        return self._learner.train(theta, steering, steps=algorithm.steps, rate=algorithm.personal_rate)
