"""SCAFFOLD: federated averaging in which control variates ("controls") correct the clients' local steps.

"SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", Algorithm 1 with option II.

The server's control c must stay the mean of all clients' controls c_i. So clients that are counted in the sum
change their controls, and all others keep theirs. A client that disconnected before it knew whether it was
counted stores both values until a later query tells which one is valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from protocols import checks
from protocols.algorithm import Algorithm, Sum, TrainingClient
from protocols.averaging import WeightedMean, clipped, norm
from protocols.learner import Learner, Steering
from protocols.parameter_fields import BITS_MEANING, parameter
from protocols.rounds import Outcome, Query, Round
from protocols.serialisation import Vector, as_vector
from secagg.errors import SERVER, MalformedMessage, ParameterError
from secagg.sum_spec import L2, Part, SumSpec

CONTROL: Final = "control"
_SLACK: Final = 1.01  # margin for rounding


@dataclass(frozen=True)
class Controlled(Query):
    """Asks each client to train `model`, and for the changes of the model and of its control variate.
    `control` is the mean of all clients' control variates."""

    kind: ClassVar[str] = "controlled"
    model: Vector
    control: Vector


@dataclass(frozen=True)
class ControlledState:
    """The server's state: the model, and c, the mean of all clients' control variates."""

    model: Vector
    control: Vector


@dataclass(frozen=True, repr=False)  # it is private
class ControlVariate:
    """A client's memory: its control variate c_i, the mean gradient of the local steps in its last round;
    None before its first round."""

    value: Vector | None = None


@dataclass(frozen=True, kw_only=True)
class Scaffold(Algorithm[ControlledState, ControlVariate]):
    """SCAFFOLD: a client's control c_i is its mean gradient in its last round, and c is the mean of all c_i.
    In local steps, a client adds c - c_i to every gradient. This corrects the drift towards its own optimum,
    so the model converges to a point where the mean gradient of all clients is zero."""

    memory_type: ClassVar[type] = ControlVariate
    state_type: ClassVar[type] = ControlledState

    clip: float | None = parameter(
        None, "largest norm of an update. A control then has at most the norm clip / (steps * rate)"
    )
    steps: int | None = parameter(None, "K, local steps of a round")
    rate: float | None = parameter(
        None,
        "eta, their learning rate: set here, and not by each learner, because the bounds and the "
        "meaning of controls depend on them",
    )
    server_rate: float = parameter(1.0, "eta_g, how far the model moves along the mean of the updates")
    population: int | None = parameter(None, "N, all clients there are; by default, as many as are in a sum")
    bits: int = parameter(32, BITS_MEANING)

    def check(self) -> None:
        checks.bound("steps", self.steps, "clients' local steps in a round, such as 10")
        checks.whole("steps", self.steps, 1)
        checks.bound("rate", self.rate, "the learning rate of clients' local steps, such as 0.1")
        checks.positive("server_rate", self.server_rate)
        checks.whole("bits", self.bits, 24, 64)  # rounding errors add up in the common control
        if self.population is not None:
            checks.whole("population", self.population, self.clients)
        self.averaging  # noqa: B018  # raises if the other bounds are invalid
        if not checks.SMALLEST <= 2 * self.control_limit <= checks.LARGEST:
            raise ParameterError("clip / (steps * rate) bounds a control, and is too large or too small")

    @cached_property
    def averaging(self) -> WeightedMean:
        return WeightedMean(dim=self.dim, clients=self.clients, clip=self.clip, bits=self.bits)

    @property
    def reach(self) -> float:
        """`steps` * `rate`: how far a client's local steps move the model in a round if all gradients are the
        same vector of norm 1."""
        assert self.steps is not None
        assert self.rate is not None
        return self.steps * self.rate

    @property
    def control_limit(self) -> float:
        """The largest norm of a client's control variate: clip / (`steps` * `rate`). This is the norm of the
        mean gradient in a round in which local steps move the model by `clip`."""
        return self.averaging.limit / self.reach

    def sums(self) -> tuple[Sum, ...]:
        control = Part(name=CONTROL, size=self.dim, bits=self.bits, bound=L2(2 * self.control_limit))
        spec = SumSpec(parts=(*self.averaging.parts(), control))
        reveals = "the sum of the clients' updates, and the sum of the changes of their mean gradients"
        return (Sum(query=Controlled, spec=spec, reveals=reveals),)

    def start(self, model: Vector) -> ControlledState:
        return ControlledState(as_vector(model), as_vector(np.zeros(self.dim)))

    def round(self, state: ControlledState) -> Round[ControlledState]:
        total = yield Controlled(state.model, state.control)
        model = state.model + self.server_rate * self.averaging.mean(total)
        everyone = self.clients if self.population is None else self.population
        control = state.control + np.asarray(total[CONTROL], np.float64) / everyone
        facts = {"control": float(np.linalg.norm(control))}
        return Outcome(ControlledState(as_vector(model), as_vector(control)), facts)

    def client(self, learner: Learner, memory: ControlVariate) -> ScaffoldClient:
        return ScaffoldClient(self, learner, memory)


class ScaffoldClient(TrainingClient[Scaffold, ControlVariate]):
    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        assert isinstance(query, Controlled)
        if norm(query.control) > self._algorithm.control_limit * _SLACK:
            raise MalformedMessage(SERVER, "a common control that is no mean of the clients'")
        algorithm = self._algorithm
        own = np.zeros(algorithm.dim) if self._memory.value is None else self._memory.value
        correction = query.control - own
        steering = Steering(correction=correction)
        local = self._learner.train(query.model, steering, steps=algorithm.steps, rate=algorithm.rate)
        update = clipped(local - query.model, algorithm.averaging.limit)
        # Option II: with y = w + update, c_i - c + (w - y) / (K * eta).
        renewed = as_vector(clipped(-correction - update / algorithm.reach, algorithm.control_limit))
        self._memory = ControlVariate(renewed)
        return {**algorithm.averaging.contribution(update, self._learner.samples), CONTROL: renewed - own}
