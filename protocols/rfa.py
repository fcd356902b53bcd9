"""Robust federated aggregation: the geometric median of the clients' models, by Weiszfeld's algorithm.

"Robust Aggregation for Federated Learning". A step needs the sum of the unit vectors that point to the
clients' models, and the sum of inverse distances. A distant model counts no more than a near one, so the
result stays near the honest models if less than half of all weight is on corrupted ones. This holds if
clients follow the protocol of the sum: masked values beyond the bound can change a total at will.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from protocols import checks
from protocols.algorithm import Algorithm, ModelState, NoMemory, Sum, TrainingClient
from protocols.averaging import WeightedMean, share_of
from protocols.influence_functions import GeometricMedian, Influence, NoisyInfluence
from protocols.iterative_aggregation import GROUP, Aggregation, Layer, Residuals
from protocols.learner import Learner
from protocols.parameter_fields import BITS_MEANING, CAP_MEANING, parameter
from protocols.privacy_budget import PrivacyBudget, PublicStepBudget
from protocols.rounds import Fact, Outcome, Query, Round
from protocols.serialisation import Vector, as_vector
from secagg.errors import ParameterError
from secagg.sum_spec import SumSpec

MODEL: Final = "model"
MEAN: Final = "mean"


@dataclass(frozen=True)
class Mean(Query):
    """Asks for each client's update of `model`. Their mean is where the Weiszfeld steps of a round begin."""

    kind: ClassVar[str] = "mean"
    model: Vector


@dataclass(frozen=True, kw_only=True)
class RFA(Algorithm[ModelState, NoMemory]):
    """In each round, clients train the common model. The next common model is the geometric median of theirs.
    With a budget in `privacy`, every sum gets noise, and each step has a length that is public."""

    budget_type: ClassVar[type[PrivacyBudget] | None] = PublicStepBudget

    nu: float = parameter(1e-6, "smoothing: within this distance of a client, distances count squared")
    leave: bool = parameter(
        True,
        "whether a client whose model is the very point of a step, because it did not train, holds "
        "the point less: see `GeometricMedian`. Without it, one such client among dozens nearly stops "
        "the model. A client that reports a tiny update still holds it for a while: with several of "
        "them, a larger `nu`, or a start at the mean, helps",
    )
    steps: int = parameter(3, "Weiszfeld steps, one sum each; three to five suffice")
    tolerance: float = parameter(
        0.0, "a step that moves by no more than this is the last one; 0 takes all steps"
    )
    start_at: str = parameter(
        MODEL,
        '"model": where all clients started from. "mean": as in the paper, the clipped mean of all '
        "updates; one more sum over the same models, and it needs `clip`. If a client leaves before "
        "the first step, the round is given up: the mean alone is not robust. Nor are two steps from "
        "it, if outliers are far: the mean is then far as well, and steps lead back by and by",
    )
    clip: float | None = parameter(None, "largest norm of an update in that mean")
    weighted: bool = parameter(True, "whether clients count by their samples, up to `cap`, or all the same")
    cap: int = parameter(1000, CAP_MEANING)
    fast: bool = parameter(False, "steps that need fewer sums to the same median, instead of the paper's")
    reject: float | None = parameter(
        None, "a round that would move the model this far or farther leaves it as it was; None for never"
    )
    privacy: PublicStepBudget | None = None
    bits: int = parameter(32, BITS_MEANING)

    def check(self) -> None:
        checks.whole("cap", self.cap, 1, 1 << 32)
        checks.either("start_at", self.start_at, MODEL, MEAN)
        if self.reject is not None:
            checks.positive("reject", self.reject)
        if self.privacy is not None and (self.fast or self.start_at != MODEL):
            raise ParameterError("private steps are plain ones that start at the model")
        self.aggregation  # noqa: B018  # raises if the steps are invalid
        if self.start_at == MEAN:
            self.averaging  # noqa: B018  # raises if the clip is invalid

    @cached_property
    def aggregation(self) -> Aggregation:
        steps, tolerance = self.steps, self.tolerance
        return Aggregation(
            layers=self._layers(), clients=self.clients, steps=steps, tolerance=tolerance, fast=self.fast
        )

    def _layers(self) -> tuple[Layer, ...]:
        leave = self.leave and self.privacy is None
        influence: Influence = GeometricMedian(nu=self.nu, leave=leave, bits=self.bits)
        if self.privacy is not None:
            influence = NoisyInfluence(inner=influence, privacy=self.privacy, sums=self.steps, bits=self.bits)
        return (Layer(0, self.dim, influence),)

    @cached_property
    def averaging(self) -> WeightedMean:
        cap = self.cap if self.weighted else 1
        return WeightedMean(dim=self.dim, clients=self.clients, clip=self.clip, cap=cap, bits=self.bits)

    def sums(self) -> tuple[Sum, ...]:
        if self.start_at == MODEL:
            return (self.aggregation.sum,)
        reveals = "the sum of the clients' clipped updates" + (", and of their samples" * self.weighted)
        spec = SumSpec(parts=self.averaging.parts(), group=GROUP)
        return Sum(query=Mean, spec=spec, reveals=reveals), self.aggregation.sum

    def round(self, state: ModelState) -> Round[ModelState]:
        begin = state.model
        if self.start_at == MEAN:
            total = yield Mean(state.model)
            begin = state.model + self.averaging.mean(total)
        reached = yield from self.aggregation.run(begin, first=int(self.start_at == MEAN))
        moved = float(np.linalg.norm(reached.point - state.model))
        rejected = self.reject is not None and moved >= self.reject
        facts: dict[str, Fact] = {"steps": reached.sums, "stopped": str(reached.stop), "moved": moved}
        if rejected:
            facts["rejected"] = "the step was too long"
        return Outcome(ModelState(as_vector(state.model if rejected else reached.point)), facts)

    def client(self, learner: Learner, memory: NoMemory) -> RFAClient:
        return RFAClient(self, learner, memory)


@dataclass(frozen=True, kw_only=True)
class RFA1(RFA):
    """One Weiszfeld step from the common model: a mean of updates, weighted by their inverse norms. A client
    with the update u has the weight a / max(nu, |u|), where a (from 0 to 1) depends on its samples. If
    `leave` is False and u = 0, this is a / nu, usually more than all other weights together."""

    steps: int = 1

    def check(self) -> None:
        super().check()
        if self.steps != 1 or self.start_at != MODEL:
            raise ParameterError("RFA1 is one step from the model; take RFA for more, or for another start")


class RFAClient(TrainingClient[RFA, NoMemory]):
    """A client that trains once per round, from the first model sent. All its answers use the result."""

    _trained: Vector | None = None

    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        if isinstance(query, Mean):
            update = self._trained_from(query.model) - query.model
            return self._algorithm.averaging.contribution(update, self._learner.samples)
        assert isinstance(query, Residuals)
        share = share_of(self._learner.samples, self._algorithm.cap, weighted=self._algorithm.weighted)
        return self._algorithm.aggregation.contribution(self._trained_from(query.point), query.point, share)

    def _trained_from(self, model: Vector) -> Vector:
        if self._trained is None:
            self._trained = self._learner.train(model)
        return self._trained
