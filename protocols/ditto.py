"""Ditto: a common model, and for each client a personal model that is pulled towards the common one.

"Ditto: Fair and Robust Federated Learning Through Personalization", Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from numpy.typing import ArrayLike

from protocols import checks
from protocols.algorithm import ModelState, Sum, TrainingClient
from protocols.averaging import AveragingAlgorithm, Update, share_of
from protocols.influence_functions import GeometricMedian
from protocols.iterative_aggregation import Aggregation, Layer, Residuals
from protocols.learner import Learner, Steering
from protocols.parameter_fields import parameter
from protocols.personal_model import KeepsOwnModel, OwnModel
from protocols.rounds import Fact, Outcome, Query, Round
from protocols.serialisation import Vector, as_vector
from secagg.errors import ParameterError
from secagg.sum_spec import MAX_TIMES


@dataclass(frozen=True, kw_only=True)
class Ditto(KeepsOwnModel, AveragingAlgorithm[OwnModel]):
    """The common model w is the mean, or with `robust` the geometric median, of models trained from it. A
    client also trains a personal model v, never sent: v <- v - rate * (gradient(v) + pull * (v - w))."""

    weighted: bool = parameter(False, "the paper's mean counts all clients the same")
    pull: float = parameter(
        1.0, "lambda of the paper: 0 trains alone, and a large one follows the common model"
    )
    personal_steps: int | None = parameter(
        None, "local steps on v in a round; as many as the learner takes by default"
    )
    robust: bool = parameter(
        False,
        "whether the common model is the geometric median of what clients train, not the mean. It "
        "needs no clip, and takes `median_steps` sums, with the smoothing `nu`",
    )
    median_steps: int = parameter(3, "sums that the geometric median takes")
    nu: float = parameter(1e-6, "smoothing: within this distance of a client, distances count squared")

    def check(self) -> None:
        if self.robust:
            if self.privacy is not None:
                raise ParameterError(
                    "the robust common model has no private variant: unset robust or privacy"
                )
            checks.whole("cap", self.cap, 1)
            checks.whole("median_steps", self.median_steps, 1, MAX_TIMES)
            self.aggregation  # noqa: B018  # raises if the steps are invalid
        else:
            super().check()
        checks.real("pull", self.pull, 0)
        if self.personal_steps is not None:
            checks.whole("personal_steps", self.personal_steps, 1)

    @cached_property
    def aggregation(self) -> Aggregation:
        layer = Layer(0, self.dim, GeometricMedian(nu=self.nu, leave=True, bits=self.bits))
        return Aggregation(layers=(layer,), clients=self.clients, steps=self.median_steps)

    def sums(self) -> tuple[Sum, ...]:
        return (self.aggregation.sum,) if self.robust else super().sums()

    def round(self, state: ModelState) -> Round[ModelState]:
        if not self.robust:
            return (yield from super().round(state))
        reached = yield from self.aggregation.run(state.model)
        facts: dict[str, Fact] = {"steps": reached.sums, "stopped": str(reached.stop)}
        return Outcome(ModelState(as_vector(reached.point)), facts)

    def client(self, learner: Learner, memory: OwnModel) -> DittoClient:
        return DittoClient(self, learner, memory)


class DittoClient(TrainingClient[Ditto, OwnModel]):
    _trained: Vector | None = None

    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        algorithm, samples = self._algorithm, self._learner.samples
        if isinstance(query, Residuals):
            share = share_of(samples, algorithm.cap, weighted=algorithm.weighted)
            return algorithm.aggregation.contribution(self._trained_from(query.point), query.point, share)
        assert isinstance(query, Update)
        return algorithm.averaging.contribution(self._trained_from(query.model) - query.model, samples)

    def _trained_from(self, common: Vector) -> Vector:
        """Return the client's model trained from `common`. The first call of a round trains this model and
        also the personal one. Later calls train nothing and return the same model."""
        if self._trained is None:
            self._trained = self._learner.train(common)
            start = common if self._memory.model is None else self._memory.model
            steering = Steering(pull=self._algorithm.pull, anchor=common)
            personal = self._learner.train(start, steering, steps=self._algorithm.personal_steps)
            self._memory = OwnModel(as_vector(personal))
        return self._trained
