"""What an algorithm needs of a client's model and data. Whoever trains provides it; nothing of it leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from protocols.serialisation import Vector
from protocols.subspace import Subspace


@dataclass(frozen=True, kw_only=True, repr=False)  # it may be private
class PenaltyTerm:
    """The term pull / power * |P w - place|^power, with the norm of that power, 1 or 2. To a gradient it adds

        pull * P' (P w - place)         with power 2
        pull * P' sign(P w - place)     with power 1, where the sign of 0 is 0

    `space` has P; None for P = 1, where `place` is a model.
    """

    place: Vector
    pull: float
    power: int = 2
    space: Subspace | None = None


@dataclass(frozen=True, kw_only=True, repr=False)  # of what it holds, much is private
class Steering:
    """What an algorithm adds to plain local steps. With learning rate `rate` and gradient g, one step is

        w <- w - rate * (g(w) + pull * (w - anchor) + correction + what `tie` adds)
        w <- keep * w + (1 - keep) * target        with keep = 1 / (1 + rate * mix)

    `pull`, `anchor`  a proximal term pull / 2 * |w - anchor|^2 (FedProx, FedBC, Ditto, pFedMe).
    `correction`      a constant added to every gradient (SCAFFOLD).
    `mix`, `target`   the mixing of Fed+ after every step; `mix` is its sigma.
    `tie`             a term that pulls a projection of w (lp-proj, RSA).

    >>> Steering(pull=0.1, anchor=np.zeros(3)).mix
    0.0
    """

    pull: float = 0.0
    anchor: Vector | None = None
    correction: Vector | None = None
    mix: float = 0.0
    target: Vector | None = None
    tie: PenaltyTerm | None = None


@dataclass(frozen=True, repr=False)  # it is private
class Score:
    """How a model does on a client's held-out data: of `total` samples, `correct` are right."""

    correct: int
    total: int
    loss: float  # the mean over the samples


class Scored(Protocol):
    """Anything that says what a score says."""

    @property
    def correct(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def loss(self) -> float: ...


class Learner(Protocol):
    """One client's data, and how it trains.

    `samples`  how many it trains on.
    `rate`     learning rate of its local steps.
    `steps`    local steps of one round, the same in `train` where none are given.
    """

    @property
    def samples(self) -> int: ...
    @property
    def rate(self) -> float: ...
    @property
    def steps(self) -> int: ...

    def loss(self, model: Vector) -> float:
        """The mean loss over all training data."""
        ...

    def gradient(self, model: Vector) -> Vector:
        """Of the loss on the next batch; a learner without batches has one with everything."""
        ...

    def train(
        self,
        start: Vector,
        steering: Steering = ...,
        *,
        steps: int | None = None,
        rate: float | None = None,
        only: Vector | None = None,
    ) -> Vector:
        """The model after local steps from `start`; where `only` is given, parameters at its zeros stay."""
        ...

    def score(self, model: Vector) -> Scored:
        """On held-out data."""
        ...
