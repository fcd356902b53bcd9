"""APFL: a personal model that mixes the common model with one that the client trains for itself.

"Adaptive Personalized Federated Learning", Algorithm 1, in the form that mixes parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from protocols import checks
from protocols.algorithm import TrainingClient
from protocols.averaging import AveragingAlgorithm, Update
from protocols.learner import Learner
from protocols.parameter_fields import parameter
from protocols.rounds import Query
from protocols.serialisation import Vector, as_vector

_SHRINKING: Final = 0.02  # decay of alpha, as in the released code


@dataclass(frozen=True, repr=False)  # it is private
class Mixture:
    """A client's memory: its own model v, and alpha, the share of v in its mixture; both None at first."""

    own: Vector | None = None
    alpha: float | None = None

    def mixed(self, common: Vector) -> Vector:
        if self.own is None or self.alpha is None:
            return common
        return self.alpha * self.own + (1 - self.alpha) * common


@dataclass(frozen=True, kw_only=True)
class APFL(AveragingAlgorithm[Mixture]):
    """A client's personal model is the mixture alpha * v + (1 - alpha) * w of its own model v and the common
    model w. Each local step moves the client's copy of w by the gradient at w, as in federated averaging, and
    v by alpha times the gradient at the mixture. Only the change of w is sent, never v or alpha."""

    memory_type: ClassVar[type] = Mixture

    weighted: bool = parameter(False, "the paper's mean counts all clients the same")
    alpha: float = parameter(0.5, "the part of v in the mixture: 0 is federated averaging, 1 training alone")
    adaptive: bool = parameter(
        False,
        "whether each client also moves its alpha, once in a round and within 0 to 1: alpha <- alpha "
        "- rate * (<v - w, g> + 0.02 * alpha) with the mixed gradient g = alpha * gradient(v) + (1 - "
        "alpha) * gradient(w)",
    )

    def check(self) -> None:
        super().check()
        checks.real("alpha", self.alpha, 0, 1)

    def client(self, learner: Learner, memory: Mixture) -> APFLClient:
        return APFLClient(self, learner, memory)

    def personal(self, memory: Mixture, model: Vector, learner: Learner) -> Vector:  # noqa: ARG002
        return memory.mixed(model)


class APFLClient(TrainingClient[APFL, Mixture]):
    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        assert isinstance(query, Update)
        learner, common = self._learner, query.model
        own = query.model if self._memory.own is None else self._memory.own
        alpha = self._next_alpha(own, common)
        for _ in range(learner.steps):
            mixed = Mixture(own, alpha).mixed(common)
            own = own - learner.rate * alpha * learner.gradient(mixed)
            common = common - learner.rate * learner.gradient(common)
        self._memory = Mixture(as_vector(own), alpha)
        return self._algorithm.averaging.contribution(common - query.model, learner.samples)

    def _next_alpha(self, own: Vector, common: Vector) -> float:
        alpha = self._algorithm.alpha if self._memory.alpha is None else self._memory.alpha
        if not self._algorithm.adaptive:
            return alpha
        gradient = alpha * self._learner.gradient(own) + (1 - alpha) * self._learner.gradient(common)
        slope = float(np.dot(own - common, gradient)) + _SHRINKING * alpha
        return min(max(alpha - self._learner.rate * slope, 0.0), 1.0)
