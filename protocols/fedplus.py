"""The family Fed+: personal models that a penalty Psi keeps near a robust common model.

"Robustness and Personalization in Federated Learning: A Unified Approach via Regularization". Psi penalises
the difference d of a client's model w from the common model. It determines the client's personal part theta,
which is the proximal operator of Psi at d, and the common model:

    Psi          theta, with d = w - common                  the common model
    squared      d / (1 + delta)                             the mean              FedAvg+
    norm         max(0, 1 - delta / |d|) d                   geometric median      FedGeoMed+
    coordinates  sign(d) max(0, |d| - delta), each its own   coordinate median     FedCoMed+

Medians are smoothed: within delta of a client, distances count squared. Equation (12) of the printed paper
has a theta for coordinates that is not the proximal operator of its Psi. The theta above is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import ClassVar, assert_never

import numpy as np
from numpy.typing import ArrayLike

from protocols import checks
from protocols.algorithm import Algorithm, ModelState, Sum, TrainingClient
from protocols.averaging import norm, share_of
from protocols.influence_functions import (
    CoordinateMedian,
    GeometricMedian,
    Influence,
    MeanInfluence,
    NoisyInfluence,
)
from protocols.iterative_aggregation import Aggregation, Layer, Residuals
from protocols.learner import Learner, Steering
from protocols.parameter_fields import CAP_MEANING, parameter
from protocols.personal_model import KeepsOwnModel, OwnModel
from protocols.privacy_budget import PrivacyBudget, PublicStepBudget
from protocols.rounds import Fact, Outcome, Query, Round
from protocols.serialisation import Vector, as_vector
from secagg.errors import ParameterError


class Psi(StrEnum):
    """The form of the penalty on the difference between a client's model and the common one."""

    SQUARED = "squared"
    NORM = "norm"
    COORDINATES = "coordinates"


@dataclass(frozen=True, kw_only=True)
class PenaltyGroup:
    """The parameters with indices `start` <= i < `stop`, and their penalty.

    `psi`    form of the penalty. It also decides how the common model is computed from the clients' models.
    `delta`  strength of the penalty. If `psi` is squared, 0 means no penalty, so a client only follows its
             own data, and infinity means no personal part. Medians count distances below `delta` squared.
    `clip`   largest norm of the difference between a client's model and the common one; for `squared` only.
    `bits`   bits of every number on the wire.
    """

    start: int
    stop: int
    psi: Psi | str = Psi.SQUARED
    delta: float = 0.1
    clip: float | None = None
    bits: int = 32

    def __post_init__(self) -> None:
        if not self.is_mean:
            checks.positive("delta", self.delta)
        elif self.delta != math.inf:
            checks.real("delta", self.delta, 0)

    @property
    def form(self) -> Psi:
        checks.one_of("psi", self.psi, tuple(Psi))
        return Psi(self.psi)

    @property
    def is_mean(self) -> bool:
        """Whether the group's common model is the mean of clients' models, which needs a single sum."""
        return self.form is Psi.SQUARED

    @property
    def layer(self) -> Layer:
        return Layer(self.start, self.stop, self._influence())

    def _influence(self) -> Influence:
        form = self.form
        match form:
            case Psi.SQUARED:
                return MeanInfluence(clip=self.clip, bits=self.bits)
            case Psi.NORM:
                return GeometricMedian(nu=self.delta, bits=self.bits)
            case Psi.COORDINATES:
                return CoordinateMedian(delta=self.delta, bits=self.bits)
        assert_never(form)

    def theta(self, difference: Vector) -> Vector:
        """Return the client's personal part theta of this group: the proximal operator of the penalty, with
        strength `delta`, at `difference`, the client's model minus the common one."""
        form = self.form
        match form:
            case Psi.SQUARED:
                return difference / (1 + self.delta)
            case Psi.NORM:
                length = norm(difference)
                return difference * (1 - self.delta / length if length > self.delta else 0.0)
            case Psi.COORDINATES:
                return np.sign(difference) * np.maximum(0.0, np.abs(difference) - self.delta)
        assert_never(form)


@dataclass(frozen=True, kw_only=True)
class FedPlus(KeepsOwnModel, Algorithm[ModelState, OwnModel]):
    """Clients train personal models, which are moved towards the common one after every local step.

    One local step with learning rate eta is

        w <- kappa (w - eta gradient) + (1 - kappa) (common + theta)      with kappa = 1 / (1 + eta sigma)

    where theta is the penalty's proximal operator at the client's last model minus the common one. The common
    model is the mean or median of all w. Special cases of the paper: with `sigma` 0 and `start_mix` 1,
    `psi` decides between FedAvg, RFA (a geometric median) and the coordinate median; with both 0, this is
    local SGD; with infinite `delta` and `start_mix` 1, FedProx.

    `privacy`    a budget for noise on every sum, with a public step length; None for sums without noise.
    """

    budget_type: ClassVar[type[PrivacyBudget] | None] = PublicStepBudget

    sigma: float = parameter(
        1.0,
        "how strongly clients are drawn; the paper advises a kappa of 0.9 to 0.999, which 1 is for "
        "learning rates from 0.1 down to 0.001",
    )
    psi: Psi | str = parameter(Psi.SQUARED, "form of the penalty of all parameters, see `PenaltyGroup`")
    delta: float = parameter(0.1, "strength of the penalty. For medians it is their smoothing as well")
    clip: float | None = parameter(
        None, "of a mean, the largest norm of the difference between a client's model and the common one"
    )
    bits: int = parameter(32, "of every number on the wire")
    groups: tuple[PenaltyGroup, ...] = parameter(
        (), "for the hybrid: groups of parameters with penalties of their own, instead"
    )
    start_mix: float = parameter(
        0.0, "the paper's lambda: clients start from their own model at 0, from the common one at 1"
    )
    weighted: bool = parameter(False, "whether clients count by their samples, up to `cap`, or all the same")
    cap: int = parameter(1000, CAP_MEANING)
    steps: int = parameter(
        12,
        "most sums of a round. A mean takes one; medians are found step by step from the last common "
        "model, until a step is within `tolerance`",
    )
    tolerance: float = parameter(
        1e-6, "a step that moves by no more than this is the last one; 0 takes all steps"
    )
    fast: bool = parameter(
        True, "whether steps are accelerated by what earlier ones showed; with `privacy`, none is"
    )
    privacy: PublicStepBudget | None = None

    def check(self) -> None:
        checks.real("sigma", self.sigma, 0)
        checks.real("start_mix", self.start_mix, 0, 1)
        checks.whole("cap", self.cap, 1)
        if self.privacy is not None and len(self.penalties) > 1:
            raise ParameterError(
                "private sums allow one group only: each group would spend the whole goal", parameter="groups"
            )
        self.aggregation  # noqa: B018  # raises if the bounds are invalid
        if self.penalties[-1].stop != self.dim:
            raise ParameterError(
                f"the last group must end at {self.dim}, the number of parameters", parameter="groups"
            )

    @cached_property
    def penalties(self) -> tuple[PenaltyGroup, ...]:
        """The penalty groups of all parameters, in the order of their indices."""
        whole = PenaltyGroup(
            start=0, stop=self.dim, psi=self.psi, delta=self.delta, clip=self.clip, bits=self.bits
        )
        return self.groups or (whole,)

    @cached_property
    def aggregation(self) -> Aggregation:
        steps = 1 if all(group.is_mean for group in self.penalties) else self.steps
        layers = [group.layer for group in self.penalties]
        if self.privacy is not None:
            for number, layer in enumerate(layers):
                inner, bits = layer.influence, layer.influence.bits
                noisy = NoisyInfluence(inner=inner, privacy=self.privacy, sums=steps, bits=bits)
                layers[number] = replace(layer, influence=noisy)
        return Aggregation(
            layers=tuple(layers),
            clients=self.clients,
            steps=steps,
            tolerance=self.tolerance,
            fast=self.fast and self.privacy is None,
        )

    def theta(self, difference: Vector) -> Vector:
        """Return theta, the penalties' proximal operator at `difference`, a model minus the common one."""
        return np.concatenate([group.theta(difference[group.start : group.stop]) for group in self.penalties])

    def sums(self) -> tuple[Sum, ...]:
        return (self.aggregation.sum,)

    def round(self, state: ModelState) -> Round[ModelState]:
        reached = yield from self.aggregation.run(state.model)
        moved = float(np.linalg.norm(reached.point - state.model))
        facts: dict[str, Fact] = {"steps": reached.sums, "stopped": str(reached.stop), "moved": moved}
        return Outcome(ModelState(as_vector(reached.point)), facts)

    def client(self, learner: Learner, memory: OwnModel) -> FedPlusClient:
        return FedPlusClient(self, learner, memory)


class FedPlusClient(TrainingClient[FedPlus, OwnModel]):
    """A client that trains at the first query of a round. Every answer depends on the difference between its
    trained model and the query's point."""

    _trained: Vector | None = None

    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        assert isinstance(query, Residuals)
        if self._trained is None:
            self._trained = as_vector(self._train(query.point))
        share = share_of(self._learner.samples, self._algorithm.cap, weighted=self._algorithm.weighted)
        return self._algorithm.aggregation.contribution(self._trained, query.point, share)

    def _train(self, common: Vector) -> Vector:
        own = common if self._memory.model is None else self._memory.model
        target = common + self._algorithm.theta(own - common)
        mix = self._algorithm.start_mix
        start = (1 - mix) * own + mix * common
        return self._learner.train(start, Steering(mix=self._algorithm.sigma, target=target))

    def memory(self) -> OwnModel:
        return OwnModel(self._trained)
