"""The interface between algorithms and local training: `Learner`, and the types of its arguments and results.

This module imports only numpy, so training code can use it alone. A learner's data never leave its client.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

Vector: TypeAlias = NDArray[np.float64]
Floats: TypeAlias = NDArray[Any]


class SubspaceDescription(Protocol):
    """The interface of a public projection matrix P (`size` x `dim`). Equal objects describe the same P."""

    @property
    def dim(self) -> int: ...
    @property
    def size(self) -> int: ...

    def __hash__(self) -> int: ...

    def matrix(self) -> Floats | None:
        """Return the projection matrix if it is dense and small enough to be held in memory, else None."""

    def blocks(self) -> Iterator[tuple[int, Floats]]:
        """Yield the rows of a dense projection matrix in blocks (index of the block's first row, rows)."""

    def mixing(self) -> tuple[NDArray[np.int8], NDArray[np.int64]] | None:
        """Return a Walsh-Hadamard projection's signs and kept coordinates; None for a dense projection."""

    def project(self, vectors: Floats) -> Vector:
        """Return P x, with the projection matrix P, for one vector x or for each row x of an array."""

    def lift(self, points: Floats) -> Vector:
        """Return P' y (P': transposed projection matrix) for one vector y or each row y of an array."""


@dataclass(frozen=True, kw_only=True, repr=False)  # it may be private
class PenaltyTerm:
    """A penalty pull / power * |P w - center|^power on a model w (`power` 1: l1 norm, 2: l2). Its gradient is

        pull * P' (P w - center)         with power 2
        pull * P' sign(P w - center)     with power 1, where the sign of 0 is 0

    `space` describes P. If it is None, P is the identity, and `center` is as long as the model.
    """

    center: Vector
    pull: float
    power: int = 2
    space: SubspaceDescription | None = None


@dataclass(frozen=True, kw_only=True, repr=False)  # it may contain private vectors
class Steering:
    """Terms that an algorithm adds to plain local steps. With learning rate `rate` and gradient g, one step
    without momentum is

        w <- w - rate * (g(w) + pull * (w - anchor) + correction + gradient of `penalty`)
        w <- keep * w + (1 - keep) * target        with keep = 1 / (1 + rate * mix)

    where terms that are None are left out.

    `pull`, `anchor`  a proximal term pull / 2 * |w - anchor|^2 (FedProx, FedBC, Ditto, pFedMe).
    `correction`      a constant added to every gradient (SCAFFOLD).
    `mix`, `target`   after every step, w is moved towards `target` (Fed+, where `mix` is called sigma).
    `penalty`         a term that pulls a projection of w (lp-proj, RSA).

    >>> Steering(pull=0.1, anchor=np.zeros(3)).mix
    0.0
    """

    pull: float = 0.0
    anchor: Vector | None = None
    correction: Vector | None = None
    mix: float = 0.0
    target: Vector | None = None
    penalty: PenaltyTerm | None = None


NO_STEERING: Final = Steering()


@dataclass(frozen=True, repr=False)  # it is private
class Score:
    """The score of a model on one client's held-out samples: `correct` of `total` samples are classified
    correctly, and `loss` is the mean loss over the samples, or 0 if there are none."""

    correct: int
    total: int
    loss: float


class TrainOptions(TypedDict, total=False):
    """Options of `Learner.train`. For an option that is None or left out, the learner uses its own value.

    `steps`  number of local steps.
    `rate`   learning rate.
    `only`   mask over the model's parameters; those whose mask is zero do not change. By default, all may.
    """

    steps: int | None
    rate: float | None
    only: Floats | None


class Learner(Protocol):
    """The interface of a client's local training. The implementation holds the client's data.

    `samples`  number of training samples.
    `rate`     learning rate of the local steps.
    `steps`    number of local steps in one round, which `train` takes unless told otherwise.
    """

    @property
    def samples(self) -> int: ...
    @property
    def rate(self) -> float: ...
    @property
    def steps(self) -> int: ...

    def loss(self, model: Vector) -> float:
        """Return the mean loss of `model` over all of the client's training data."""

    def gradient(self, model: Vector) -> Vector:
        """Return the loss's gradient at `model` on the next batch, or on all data if there are no batches."""

    def train(self, start: Vector, steering: Steering = ..., **options: Unpack[TrainOptions]) -> Vector:
        """Return the model after local steps from `start`, with the extra terms of `steering`."""

    def score(self, model: Vector) -> Score:
        """Return how well `model` does on the client's held-out data."""


# --- random choices of a learner ---


def calls_of(learner: object) -> int | None:
    """Return how often a learner has trained, if it counts this in an attribute `calls`; otherwise None. Such
    a learner derives its random choices, such as the order of samples, from the count."""
    calls = getattr(learner, "calls", None)
    return calls if type(calls) is int else None


def set_calls(learner: Any, calls: int | None) -> None:
    """Let the random choices of a learner go on as after `calls` trainings. Do nothing if it is None, or if
    the learner does not allow it."""
    if calls is not None:
        with suppress(AttributeError):
            learner.calls = calls


@contextmanager
def uncounted(learner: object) -> Iterator[None]:
    """Context manager: trainings in the block do not change the random choices of later ones."""
    calls = calls_of(learner)
    try:
        yield
    finally:
        set_calls(learner, calls)
