"""An optimiser of the server around any algorithm that has a common model.

The algorithm's own round is run as it is, with its own clients and its own sums. How far it moves the common
model is taken as the update of the round; the optimiser says how far the model moves instead, and the next
round goes on from there. A server learns what it learnt before, and clients cannot tell the difference.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, make_dataclass
from functools import cache, cached_property
from typing import Any, Generic, TypeVar

import numpy as np

from protocols import checks
from protocols.algorithm import Algorithm, ClientRound, ModelState, NoMemory, Sum
from protocols.fedavg import FedAvg
from protocols.learner import Learner
from protocols.optimiser import PARAMETERS, OptimiserState, ServerOptimiser
from protocols.privacy import Privacy
from protocols.record import Vector
from protocols.vocabulary import Outcome, Round
from secagg.errors import ParameterError

S = TypeVar("S")
M = TypeVar("M")


@cache
def _state_of(inner: type) -> type:
    """A record of an algorithm's state and the optimiser's; of all its fields, a record knows the types."""
    parts = [("inner", inner), ("optimiser", OptimiserState)]
    return make_dataclass(f"Optimised{inner.__name__}", parts, frozen=True)


@dataclass(frozen=True, kw_only=True)
class Optimised(Algorithm[Any, M], Generic[S, M]):
    """`algorithm`, whose common model moves as `optimiser` says along what the algorithm would move it by.

    A round that leaves the algorithm's state as it was is no step of the optimiser either. Raises
    `ParameterError` where there is no common model to move.
    """

    dim: int = field(init=False)
    clients: int = field(init=False)
    algorithm: Algorithm[S, M]
    optimiser: ServerOptimiser

    def __post_init__(self) -> None:
        for name in ("dim", "clients", "memory_type", "needs_everybody"):
            object.__setattr__(self, name, getattr(self.algorithm, name))
        super().__post_init__()

    @property
    def state_type(self) -> type:  # type: ignore[override]  # it is made, and so cannot be pickled with this
        return _state_of(self.algorithm.state_type)

    def check(self) -> None:
        if not self.algorithm.sums():
            raise ParameterError("clients that work alone have no common model that a server could move")
        first = self.algorithm.start(np.zeros(self.dim))
        self.algorithm.with_model(first, self.algorithm.model(first))

    @property
    def privacy(self) -> Privacy | None:
        privacy: Privacy | None = getattr(self.algorithm, "privacy", None)
        return privacy

    @cached_property
    def max_rho(self) -> float | None:
        return self.algorithm.max_rho

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
class FedOpt(Optimised[ModelState, NoMemory]):
    """Federated averaging whose server has an optimiser.

    `clip`      largest norm of an update.
    `weighted`  whether clients count by their samples, up to `cap`, or all the same.
    `mu`        proximal pull of clients towards the common model.
    `privacy`   a budget for noise on every sum, or None. All clients then count the same.
    `kind`      of the optimiser: "sgd", "adam" or "yogi".
    `server_rate`  how far the server goes: with momentum along the mean update, 1 by default; with the others
                about how far every parameter moves in a round.
    `momentum`  what stays of earlier updates.
    `beta1`, `beta2`  what stays of the earlier means of updates, and of their squares.
    `epsilon`   added to the root of the mean square; larger ones adapt less (tau in the paper).
    `corrected`  whether both means are corrected for their first value, as Adam is outside of the paper.
    """

    dim: int
    clients: int
    algorithm: Algorithm[ModelState, NoMemory] = field(init=False)
    optimiser: ServerOptimiser = field(init=False)
    clip: float | None = None
    weighted: bool = True
    cap: int = 1000
    bits: int = 32
    privacy: Privacy | None = None
    mu: float = 0.0
    kind: str = "sgd"
    server_rate: float | None = None
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-3
    corrected: bool = False

    def __post_init__(self) -> None:
        own = ("dim", "clients", "clip", "weighted", "cap", "bits", "privacy", "mu")
        averaging = FedAvg(**{name: getattr(self, name) for name in own})
        if self.server_rate is not None or self.kind != "sgd":
            checks.bound("server_rate", self.server_rate, "about how far a parameter moves, such as 0.01")
        chosen = {
            name: getattr(self, name)
            for name in (each.name for each in fields(ServerOptimiser))
            if name != "rate"
        }
        object.__setattr__(self, "algorithm", averaging)
        object.__setattr__(self, "optimiser", ServerOptimiser(rate=self.server_rate, **chosen))
        super().__post_init__()


def of_other_kinds(kind: str) -> dict[str, Any]:
    """`kind`, and the parameters of other kinds with their defaults: what makes `FedOpt` this one."""
    names = {name for every in PARAMETERS.values() for name in every} - set(PARAMETERS[kind])
    return {"kind": kind} | {
        each.name: each.default for each in fields(ServerOptimiser) if each.name in names
    }
