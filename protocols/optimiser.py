"""Optimisers of a server: how a model moves, given the mean of the clients' updates.

"Adaptive Federated Optimization", Algorithm 2: the mean D of the clients' updates stands in for a gradient
that points downwards, and the model x moves by the rate times

    sgd     m                     with m <- momentum * m + D
    adam    m / (sqrt(v) + eps)   with m <- b1 * m + (1 - b1) * D,  v <- b2 * v + (1 - b2) * D^2
    yogi    the same              with v <- v - (1 - b2) * D^2 * sign(v - D^2)

all in each coordinate. Momentum is that of "Measuring the Effects of Non-Identical Data Distribution for
Federated Visual Classification" (FedAvgM). As the paper has it, v begins with eps^2, and nothing is corrected
for where m and v begin; `corrected`, both begin with zero and are divided by 1 - b1^t and 1 - b2^t, which
makes it the Adam of "Adam: A Method for Stochastic Optimization".

A server that knows D from a sum needs nothing more for any of this: it learns nothing else from clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

from protocols import checks
from protocols.checks import shown
from protocols.record import Vector, as_vector
from secagg.errors import ParameterError

_ADAPTIVE: Final = ("rate", "beta1", "beta2", "epsilon", "corrected")
# What may be set for each kind of optimiser.
PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"sgd": ("rate", "momentum"), "adam": _ADAPTIVE, "yogi": _ADAPTIVE}
)


@dataclass(frozen=True)
class OptimiserState:
    """What an optimiser keeps from round to round.

    `steps`   that it has made.
    `first`   m, a mean of the updates so far, or their sum with momentum.
    `second`  v, of their squares; None where there is no need of it.
    """

    steps: int
    first: Vector
    second: Vector | None = None


@dataclass(frozen=True, kw_only=True)
class ServerOptimiser:
    """How a server moves its model along the mean of the clients' updates.

    `kind`       "sgd", "adam" or "yogi".
    `rate`       how far: for sgd along the mean update, 1 by default; for the others about how far every
                 coordinate moves in a round, which has no default.
    `momentum`   what stays of earlier updates, of sgd.
    `beta1`, `beta2`  what stays of the earlier means of updates, and of their squares.
    `epsilon`    added to the root of the mean square; larger ones adapt less (tau in the paper).
    `corrected`  whether both means are corrected for their first value, as Adam is outside of the paper.

    Raises `ParameterError` where parameters make no sense.

    >>> optimiser = ServerOptimiser(kind="sgd", momentum=0.5)
    >>> model, state = optimiser.step(optimiser.start(2), np.zeros(2), np.array([1.0, 2.0]))
    >>> model, state = optimiser.step(state, model, np.zeros(2))
    >>> model
    array([1.5, 3. ])
    """

    kind: str = "sgd"
    rate: float | None = None
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-3
    corrected: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in PARAMETERS:
            raise ParameterError(
                f"kind must be one of {', '.join(PARAMETERS)}, not {shown(self.kind)}", parameter="kind"
            )
        if self.is_adaptive or self.rate is not None:
            checks.bound("rate", self.rate, "about how far a coordinate moves in a round, such as 0.01")
        for name in ("momentum", "beta1", "beta2"):
            checks.real(name, getattr(self, name), 0)
            if getattr(self, name) >= 1:
                raise ParameterError(
                    f"{name} must be less than 1, not {shown(getattr(self, name))}", parameter=name
                )
        checks.positive("epsilon", self.epsilon)
        checks.truth("corrected", self.corrected)

    @property
    def is_adaptive(self) -> bool:
        """Whether every coordinate has a rate of its own."""
        return self.kind != "sgd"

    @property
    def length(self) -> float:
        """The rate; that of sgd is 1 by default, with which it is plain averaging."""
        return 1.0 if self.rate is None else self.rate

    def start(self, dim: int) -> OptimiserState:
        """Before the first update of `dim` numbers."""
        zeros = as_vector(np.zeros(dim))
        if not self.is_adaptive:
            return OptimiserState(0, zeros)
        return OptimiserState(0, zeros, zeros if self.corrected else as_vector(zeros + self.epsilon**2))

    def step(self, state: OptimiserState, model: Vector, update: Vector) -> tuple[Vector, OptimiserState]:
        """The model after one step along `update`, and what to keep for the next one."""
        if not self.is_adaptive:
            velocity = as_vector(self.momentum * state.first + update)
            moved = model + self.length * velocity
            return as_vector(moved), OptimiserState(state.steps + 1, velocity)
        assert state.second is not None  # as `start` made it
        first = self.beta1 * state.first + (1 - self.beta1) * update
        second = self._second(state.second, update**2)
        moved = model + self.length * self._direction(first, second, state.steps + 1)
        return as_vector(moved), OptimiserState(state.steps + 1, as_vector(first), as_vector(second))

    def _second(self, second: Vector, square: Vector) -> Vector:
        if self.kind == "yogi":
            return second - (1 - self.beta2) * square * np.sign(second - square)
        return self.beta2 * second + (1 - self.beta2) * square

    def _direction(self, first: Vector, second: Vector, steps: int) -> Vector:
        if self.corrected:
            first = first / (1 - self.beta1**steps)
            second = second / (1 - self.beta2**steps)
        return first / (np.sqrt(second) + self.epsilon)
