"""FedBC: each client's model stays near the common one. PerFedBC: the same with meta-learning.

"FedBC: Federated Learning Beyond Consensus". Clients minimise the sum of their losses f_i(x_i). Client i has
a multiplier lambda_i for the constraint |x_i - z|^2 <= gamma_i, where z is the common model. It trains x_i
on f_i(x_i) + lambda_i |x_i - z|^2. lambda_i rises while the constraint is violated and falls while there is
slack. z is the mean of the x_i, weighted by lambda_i.

`fedbc_as_released` has the settings of the authors' released program. Two differences remain. In theirs, one
optimiser with momentum updates the multipliers of all clients, so each client's step also changes those of
the others a little. Here, each client has its own multiplier and momentum, and changes them only when it
takes part. In theirs, multipliers have no upper bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from protocols import checks
from protocols.algorithm import LEAST_WEIGHT, Algorithm, ModelState, Sum, TrainingClient
from protocols.averaging import clipped
from protocols.learner import Learner, Steering
from protocols.parameter_fields import BITS_MEANING, parameter
from protocols.rounds import Outcome, Query, Round
from protocols.serialisation import Vector, as_vector
from secagg.errors import CorruptTotal
from secagg.sum_spec import L2, LInf, Part, SumSpec

UPDATE: Final = "update"
MULTIPLIER: Final = "multiplier"
MULTIPLIER_BITS: Final = 64  # bits of the sum of multipliers, by which the server divides the other total


@dataclass(frozen=True)
class Deviations(Query):
    """Asks for each client's trained model minus `model`, times the Lagrange multiplier of the constraint on
    their distance, and for this multiplier."""

    kind: ClassVar[str] = "deviations"
    model: Vector


@dataclass(frozen=True, repr=False)  # it is private
class ConstraintState:
    """A client's memory: its model, and the constraint that keeps it near the common model.

    `model`       the client's own model x_i; None before its first round.
    `multiplier`  lambda_i, which weights the constraint. It rises while the model is too far away.
    `gamma`       the square of the allowed distance from the common model.
    `rise`        the momentum term of `multiplier`; 0 without momentum.
    `widening`    the momentum term of `gamma`; 0 without momentum.
    """

    model: Vector | None = None
    multiplier: float = 0.0
    gamma: float = 0.0
    rise: float = 0.0
    widening: float = 0.0


@dataclass(frozen=True, kw_only=True)
class FedBC(Algorithm[ModelState, ConstraintState]):
    """FedBC: clients train own models that stay near the common one. A client's Lagrange multiplier rises
    while its model is too far away. The common model is the mean of all models, weighted by multipliers."""

    memory_type: ClassVar[type] = ConstraintState

    clip: float | None = parameter(
        None, "largest norm of the difference between a client's model and the common one"
    )
    lambda_max: float | None = parameter(
        None,
        "largest multiplier. Numbers on the wire are relative to it: one far above all multipliers "
        "that occur costs precision. Local steps also need a learning rate below 2 / (curvature + 2 "
        "lambda_max)",
    )
    lambda_min: float = parameter(
        0.0,
        "least multiplier, and the first. It is the least weight that a client can have: a server "
        "that sends a common model near to what a client has, or far from it, moves its multiplier",
    )
    alpha: float = parameter(1e-3, "step of the multipliers")
    gamma: float = parameter(0.0, "square of the distance that clients may keep at first")
    gamma_step: float = parameter(
        1e-3, "by how much times its multiplier a client widens that in every round; 0 keeps it fixed"
    )
    momentum: float = parameter(0.0, "of the steps of multiplier and gamma")
    from_common: bool = parameter(False, "whether clients train from the common model, not from their own")
    fine_tune: int = parameter(
        0, "local steps on a client's training data that its model is given before it is used"
    )
    bits: int = parameter(48, BITS_MEANING)

    def check(self) -> None:
        meaning = "the largest difference between a client's model and the common one, such as 10.0"
        checks.bound("clip", self.clip, meaning)
        checks.bound("lambda_max", self.lambda_max, "the largest multiplier, such as 1.0")
        checks.real("lambda_min", self.lambda_min, 0, self.most)
        checks.positive("alpha", self.alpha)
        checks.real("gamma", self.gamma, 0)
        checks.real("gamma_step", self.gamma_step, 0)
        checks.real("momentum", self.momentum, 0, 1)
        checks.whole("fine_tune", self.fine_tune, 0)
        checks.whole("bits", self.bits, 2, 64)

    limit = checks.CheckedBound("clip")
    most = checks.CheckedBound("lambda_max")

    def sums(self) -> tuple[Sum, ...]:
        parts = (
            Part(name=UPDATE, size=self.dim, bits=self.bits, bound=L2(self.limit)),
            Part(name=MULTIPLIER, size=1, bits=MULTIPLIER_BITS, bound=LInf(1.0)),
        )
        reveals = "the sum of the clients' differences from the common model, weighted by their multipliers"
        return (
            Sum(
                query=Deviations,
                spec=SumSpec(parts=parts),
                reveals=f"{reveals}, and of the multipliers",
                least_weight=self.lambda_min / self.most,
                remedy=f"set lambda_min to {LEAST_WEIGHT:g} of lambda_max or more",
            ),
        )

    def round(self, state: ModelState) -> Round[ModelState]:
        total = yield Deviations(state.model)
        weight = float(total[MULTIPLIER][0])
        if weight < 0:
            raise CorruptTotal("the multipliers add up to less than nothing")
        if weight == 0:
            return Outcome(state, {"multiplier": 0.0, "kept": "every multiplier is zero"})
        # A mean of clipped vectors is within the clip. If this mean is longer, all multipliers are so small
        # that it consists of rounding errors.
        step = clipped(np.asarray(total[UPDATE], np.float64) / weight, self.limit)
        facts = {"multiplier": self.most * weight / total.count, "moved": float(np.linalg.norm(step))}
        return Outcome(ModelState(as_vector(state.model + step)), facts)

    def first_memory(self) -> ConstraintState:
        return ConstraintState(multiplier=float(self.lambda_min), gamma=float(self.gamma))

    def client(self, learner: Learner, memory: ConstraintState) -> FedBCClient:
        return FedBCClient(self, learner, memory)

    def personal(self, memory: ConstraintState, model: Vector, learner: Learner) -> Vector:
        own = model if memory.model is None else memory.model
        return learner.train(own, steps=self.fine_tune) if self.fine_tune else own

    # --- a client's side ---

    def train(self, learner: Learner, start: Vector, common: Vector, multiplier: float) -> Vector:
        """Return the model x after local steps from `start` on loss(x) + multiplier * |x - common|^2."""
        return learner.train(start, Steering(pull=2 * multiplier, anchor=common))

    def next_constraint(self, before: ConstraintState, model: Vector, common: Vector) -> ConstraintState:
        """Return the client's memory after it has trained `model`. The multiplier's step is proportional to
        |model - common|^2 - gamma, and gamma's step to the multiplier. Both use `momentum`."""
        excess = float(np.sum((model - common) ** 2)) - before.gamma
        rise = self.momentum * before.rise + excess
        widening = self.momentum * before.widening + before.multiplier
        multiplier = float(np.clip(before.multiplier + self.alpha * rise, self.lambda_min, self.most))
        gamma = before.gamma + self.gamma_step * widening
        if not self.momentum:
            rise = widening = 0.0
        return ConstraintState(model, multiplier, gamma, rise, widening)


class FedBCClient(TrainingClient[FedBC, ConstraintState]):
    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        assert isinstance(query, Deviations)
        algorithm, common, before = self._algorithm, query.model, self._memory
        start = common if algorithm.from_common or before.model is None else before.model
        model = as_vector(algorithm.train(self._learner, start, common, before.multiplier))
        self._memory = algorithm.next_constraint(before, model, common)
        weight = self._memory.multiplier / algorithm.most
        return {UPDATE: clipped(model - common, algorithm.limit) * weight, MULTIPLIER: [weight]}


fedbc_as_released = partial(FedBC, from_common=True, momentum=0.5)


@dataclass(frozen=True, kw_only=True)
class PerFedBC(FedBC):
    """FedBC for models that each client adapts by a step before use (first-order MAML).

    A local step first takes `inner_steps` steps on the client's Lagrangian, from its model w to a point p.
    Then the gradient of the loss at p, on the next batch, moves w. For use, w takes `fine_tune` more steps.

    Only the inner steps depend on the multiplier. They pull p towards the common model, and the gradient at p
    moves w to compensate the pull. So larger multipliers drive models apart here, and the multipliers rise to
    `lambda_max` if gamma, the allowed squared distance, is fixed.
    """

    fine_tune: int = 1
    inner_steps: int = parameter(1, "how far ahead")
    inner_rate: float = parameter(
        0.01,
        "learning rate of the steps ahead, and of `fine_tune`. Times curvature + 2 lambda_max it must "
        "stay below 1: w would have to be infinitely far away to be best after such a step",
    )
    outer_rate: float = parameter(0.01, "that of w")

    def check(self) -> None:
        super().check()
        checks.whole("inner_steps", self.inner_steps, 1)
        checks.positive("inner_rate", self.inner_rate)
        checks.positive("outer_rate", self.outer_rate)

    def train(self, learner: Learner, start: Vector, common: Vector, multiplier: float) -> Vector:
        steering = Steering(pull=2 * multiplier, anchor=common)
        model = start
        for _ in range(learner.steps):
            ahead = learner.train(model, steering, steps=self.inner_steps, rate=self.inner_rate)
            model = model - self.outer_rate * learner.gradient(ahead)
        return model

    def personal(self, memory: ConstraintState, model: Vector, learner: Learner) -> Vector:
        own = model if memory.model is None else memory.model
        return learner.train(own, steps=self.fine_tune, rate=self.inner_rate) if self.fine_tune else own
