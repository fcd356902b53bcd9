"""Server optimisers: rules by which a server moves its model along the mean of the clients' updates.

They are Algorithm 2 of "Adaptive Federated Optimization". The mean D of the clients' updates is used like a
negative gradient. In each coordinate, the model moves by the learning rate times

    sgd     m                     with m <- momentum * m + D
    adam    m / (sqrt(v) + eps)   with m <- b1 * m + (1 - b1) * D,  v <- b2 * v + (1 - b2) * D^2
    yogi    the same              with v <- v - (1 - b2) * D^2 * sign(v - D^2)

where b1, b2 and eps are `beta1`, `beta2` and `epsilon`. Momentum is that of "Measuring the Effects of
Non-Identical Data Distribution for Federated Visual Classification" (FedAvgM). As in the paper, v begins with
eps^2, and there is no bias correction. With `corrected`, m and v begin with zero and are divided by 1 - b1^t
and 1 - b2^t in step t, as in "Adam: A Method for Stochastic Optimization".

The server needs only D, so it learns no more from clients than in plain averaging. An optimiser can be
combined with any algorithm that has a common model. The algorithm's own round runs unchanged, with its own
clients and sums. The vector by which it moves the common model is taken as D. The optimiser then replaces the
move by its own, and the next round continues from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Final, Generic, TypeVar

import numpy as np

from protocols import checks
from protocols.algorithm import Algorithm, ClientRound, ModelState, NoMemory, Sum
from protocols.checks import shown
from protocols.fedavg import FedAvg
from protocols.learner import Learner
from protocols.parameter_fields import BITS_MEANING, CAP_MEANING, parameter
from protocols.privacy_budget import PrivacyBudget
from protocols.rounds import Outcome, Round
from protocols.serialisation import Vector, as_vector
from secagg.errors import ParameterError

_ADAPTIVE: Final = ("rate", "beta1", "beta2", "epsilon", "corrected")
# The parameters of each kind of optimiser.
PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"sgd": ("rate", "momentum"), "adam": _ADAPTIVE, "yogi": _ADAPTIVE}
)


@dataclass(frozen=True)
class OptimiserState:
    """What a server optimiser keeps from round to round. An update is the mean update of the clients.

    `steps`   number of steps so far.
    `first`   decaying mean of the updates so far; for sgd, their decaying sum (momentum).
    `second`  decaying mean of the squared updates; None for sgd.
    """

    steps: int
    first: Vector
    second: Vector | None = None


@dataclass(frozen=True, kw_only=True)
class ServerOptimiser:
    """The rule by which a server moves its model along D, the mean of the clients' updates.

    With m, a decaying mean of all D so far (for sgd, their decaying sum), and v, a decaying mean of all D^2,
    each coordinate moves by rate * m ("sgd"), or by rate * m / (sqrt(v) + epsilon) ("adam" and "yogi").

    `rate`            learning rate. For sgd it is 1 by default. For the others it is about the distance that
                      every coordinate moves in a round, and has no default.
    `momentum`        factor of the earlier m in the new one; for sgd only.
    `beta1`, `beta2`  factors of the earlier m and v in the new ones; for adam and yogi only.
    `epsilon`         the larger it is, the less the steps of coordinates differ; for adam and yogi only.
    `corrected`       whether m and v are corrected for their bias towards the start, as in the original Adam.

    The constructor raises `ParameterError` for invalid parameters.

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
        checks.one_of("kind", self.kind, tuple(PARAMETERS))
        if self.is_adaptive or self.rate is not None:
            checks.bound("rate", self.rate, "about how far a coordinate moves in a round, such as 0.01")
        for name in ("momentum", "beta1", "beta2"):
            value = getattr(self, name)
            checks.real(name, value, 0)
            if value >= 1:
                raise ParameterError(f"{name} must be less than 1, not {shown(value)}", parameter=name)
        checks.positive("epsilon", self.epsilon)
        checks.truth("corrected", self.corrected)

    @property
    def is_adaptive(self) -> bool:
        """Whether every coordinate has its own step size, as in "adam" and "yogi", but not in "sgd"."""
        return self.kind != "sgd"

    @property
    def length(self) -> float:
        """The learning rate; 1 if none is set, which is plain averaging for sgd without momentum."""
        return 1.0 if self.rate is None else self.rate

    def start(self, dim: int) -> OptimiserState:
        """Return the optimiser's state before the first update, for models of `dim` numbers."""
        zeros = as_vector(np.zeros(dim))
        if not self.is_adaptive:
            return OptimiserState(0, zeros)
        return OptimiserState(0, zeros, zeros if self.corrected else as_vector(zeros + self.epsilon**2))

    def step(self, state: OptimiserState, model: Vector, update: Vector) -> tuple[Vector, OptimiserState]:
        """Return (new model, new state) after one step along `update`, the clients' mean update."""
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


S = TypeVar("S")
M = TypeVar("M")


@cache
def _state_of(inner: type) -> type:
    """Return a dataclass that holds an algorithm's state of type `inner` and the optimiser's state. The type
    is made at run time, because serialisation needs the declared type of every field."""
    parts = [("inner", inner), ("optimiser", OptimiserState)]
    return make_dataclass(f"Optimised{inner.__name__}", parts, frozen=True)


@dataclass(frozen=True, kw_only=True)
class WithServerOptimiser(Algorithm[Any, M], Generic[S, M]):
    """Runs `algorithm`. Each move of its common model is passed to `optimiser` as an update, and replaced by
    the optimiser's own step. If a round leaves the algorithm's state unchanged, the optimiser takes no step.
    The constructor raises `ParameterError` if the algorithm has no common model to move."""

    dim: int = field(init=False)
    clients: int = field(init=False)
    algorithm: Algorithm[S, M]
    optimiser: ServerOptimiser

    def __post_init__(self) -> None:
        for name in ("dim", "clients", "memory_type", "needs_all_clients"):
            object.__setattr__(self, name, getattr(self.algorithm, name))
        super().__post_init__()

    @property
    def state_type(self) -> type:  # type: ignore[override]  # made at run time, so it cannot be pickled
        return _state_of(self.algorithm.state_type)

    def check(self) -> None:
        if not self.algorithm.sums():
            raise ParameterError("clients that work alone have no common model that a server could move")
        first = self.algorithm.start(np.zeros(self.dim))
        self.algorithm.with_model(first, self.algorithm.model(first))

    @property
    def privacy(self) -> PrivacyBudget | None:
        privacy: PrivacyBudget | None = getattr(self.algorithm, "privacy", None)
        return privacy

    @cached_property
    def rho_of_noise(self) -> float:
        return self.algorithm.rho_of_noise

    def sums(self) -> tuple[Sum, ...]:
        return self.algorithm.sums()

    def start(self, model: Vector) -> Any:
        return self.state_type(self.algorithm.start(model), self.optimiser.start(self.dim))

    def model(self, state: Any) -> Vector:
        return self.algorithm.model(state.inner)

    def with_model(self, state: Any, model: Vector) -> Any:
        return self.state_type(self.algorithm.with_model(state.inner, model), state.optimiser)

    def round(self, state: Any) -> Round[Any]:
        outcome = yield from self.algorithm.round(state.inner)
        if outcome.state is state.inner:
            return Outcome(state, outcome.facts)
        before, after = self.model(state), self.algorithm.model(outcome.state)
        model, optimiser = self.optimiser.step(state.optimiser, before, after - before)
        moved = self.algorithm.with_model(outcome.state, model)
        facts = {**outcome.facts, "moved": float(np.linalg.norm(model - before))}
        return Outcome(self.state_type(moved, optimiser), facts)

    def client(self, learner: Learner, memory: M) -> ClientRound[M]:
        return self.algorithm.client(learner, memory)

    def first_memory(self) -> M:
        return self.algorithm.first_memory()

    def personal(self, memory: M, model: Vector, learner: Learner) -> Vector:
        return self.algorithm.personal(memory, model, learner)


@dataclass(frozen=True, kw_only=True)
class FedOpt(WithServerOptimiser[ModelState, NoMemory]):
    """Federated averaging with a server optimiser. `privacy` is a budget for noise on every sum, or None.
    With noise, all clients have the same weight."""

    budget_type: ClassVar[type[PrivacyBudget] | None] = PrivacyBudget

    dim: int
    clients: int
    algorithm: Algorithm[ModelState, NoMemory] = field(init=False)
    optimiser: ServerOptimiser = field(init=False)
    clip: float | None = parameter(None, "largest norm of an update")
    weighted: bool = parameter(True, "whether clients count by their samples, up to `cap`, or all the same")
    cap: int = parameter(1000, CAP_MEANING)
    bits: int = parameter(32, BITS_MEANING)
    privacy: PrivacyBudget | None = None
    mu: float = parameter(0.0, "proximal pull of clients towards the common model")
    kind: str = parameter("sgd", 'of the optimiser: "sgd", "adam" or "yogi"')
    server_rate: float | None = parameter(
        None,
        "how far the server goes: with momentum along the mean update, 1 by default; with the others "
        "about how far every parameter moves in a round",
    )
    momentum: float = parameter(0.0, "what stays of earlier updates")
    beta1: float = parameter(0.9, "what stays of the earlier means of updates, and of their squares")
    beta2: float = parameter(0.99, "what stays of the earlier means of updates, and of their squares")
    epsilon: float = parameter(
        1e-3, "added to the root of the mean square; larger ones adapt less (tau in the paper)"
    )
    corrected: bool = parameter(
        False, "whether both means are corrected for their first value, as Adam is outside of the paper"
    )

    def __post_init__(self) -> None:
        own = ("dim", "clients", "clip", "weighted", "cap", "bits", "privacy", "mu")
        averaging = FedAvg(**{name: getattr(self, name) for name in own})
        if self.server_rate is not None or self.kind != "sgd":
            checks.bound("server_rate", self.server_rate, "about how far a parameter moves, such as 0.01")
        names = (each.name for each in fields(ServerOptimiser))
        chosen = {name: getattr(self, name) for name in names if name != "rate"}
        object.__setattr__(self, "algorithm", averaging)
        object.__setattr__(self, "optimiser", ServerOptimiser(rate=self.server_rate, **chosen))
        super().__post_init__()


def of_other_kinds(kind: str) -> dict[str, Any]:
    """Return the parameters, by name, that are fixed for optimisers of this kind: `kind` itself, and those
    that only other kinds use, with their defaults."""
    names = {name for every in PARAMETERS.values() for name in every} - set(PARAMETERS[kind])
    defaults = {each.name: each.default for each in fields(ServerOptimiser) if each.name in names}
    return {"kind": kind, **defaults}
