"""What stands between an algorithm and a learner, and looks like the learner."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from fl.errors import TrainingError
from fl.samples import Array
from protocols.learner import NO_STEERING, Steering


class LearnerWrapper:
    """A learner that passes everything on to another one. Subclasses change how it trains."""

    # They are the wrapped learner's, read from it at every use: a learning rate may fall over time.
    samples: int
    rate: float
    steps: int

    # Only of learners that know their proximal operator exactly; what they find is changed as a training is.
    proximal: Callable[[Array, float], Array]

    def __init__(self, learner: Any) -> None:
        self.wrapped = learner
        if callable(getattr(learner, "proximal", None)):
            self.proximal = self._proximal

    def __getattr__(self, name: str) -> Any:
        if name == "wrapped":  # asked for before there is one, by whoever copies this
            raise AttributeError(name)
        return getattr(self.wrapped, name)

    def loss(self, model: Array) -> float:
        return float(self.wrapped.loss(model))

    def gradient(self, model: Array) -> Array:
        gradient: Array = self.wrapped.gradient(model)
        return gradient

    def score(self, model: Array) -> Any:
        return self.wrapped.score(model)

    def train(
        self,
        start: Array,
        steering: Steering = NO_STEERING,
        *,
        steps: int | None = None,
        rate: float | None = None,
        only: Array | None = None,
    ) -> Array:
        some = {} if only is None else {"only": only}  # not every learner can keep parameters where they are
        trained: Array = self.wrapped.train(start, steering, steps=steps, rate=rate, **some)
        return trained

    def _proximal(self, point: Array, eta: float) -> Array:
        found: Array = self.wrapped.proximal(point, eta)
        return found


def generator(purpose: str, seed: int, client: int) -> np.random.Generator:
    """A source of randomness of that client's own: what others draw, and how often, does not change it."""
    if seed < 0 or client < 0:
        raise TrainingError(f"seeds and ids of clients must not be below 0, but they are {seed} and {client}")
    return np.random.default_rng([zlib.crc32(purpose.encode()), seed, client])


class WrappedLearners(Mapping[int, Any]):
    """`learners`, and how those who made them let them train together; None if they know nothing of it.

    Learners that train at the same time are a mapping with a callable `together`, which runs jobs of many
    clients. Whoever puts wrappers around such learners has to hand it on: a plain dict would lose it, and
    they would train one by one.
    """

    def __init__(self, learners: Mapping[int, Any], together: Callable[..., Any] | None = None) -> None:
        self._learners = dict(learners)
        self.together = together

    @classmethod
    def of(cls, learners: Mapping[int, Any], change: Callable[[int, Any], Any]) -> WrappedLearners:
        """`change(client, learner)` of every client in `learners`, which train together as those do."""
        changed = {client: change(client, learner) for client, learner in learners.items()}
        return cls(changed, getattr(learners, "together", None))

    def __getitem__(self, client: int) -> Any:
        return self._learners[client]

    def __iter__(self) -> Iterator[int]:
        return iter(self._learners)

    def __len__(self) -> int:
        return len(self._learners)

    def __repr__(self) -> str:
        return f"WrappedLearners({len(self)} clients)"
