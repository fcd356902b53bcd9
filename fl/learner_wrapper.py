"""Base class of learners that wrap another learner and change how it trains, for attacks and stragglers."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Unpack

import numpy as np

from fl.errors import TrainingError
from fl.samples import Array
from protocols.learner import NO_STEERING, Steering, TrainOptions


class LearnerWrapper:
    """A learner that forwards every call to the learner it wraps. Subclasses change single methods."""

    # Read from the wrapped learner at every use, since the learning rate may change.
    samples: int
    rate: float
    steps: int

    # Set only if the wrapped learner has this method. Subclasses change its result like that of `train`.
    proximal: Callable[[Array, float], Array]

    def __init__(self, learner: Any) -> None:
        self.wrapped = learner
        if callable(getattr(learner, "proximal", None)):
            self.proximal = self._proximal

    def __getattr__(self, name: str) -> Any:
        if name == "wrapped":  # `copy` reads this attribute before __init__ has run
            raise AttributeError(name)
        return getattr(self.wrapped, name)

    def loss(self, model: Array) -> float:
        return float(self.wrapped.loss(model))

    def gradient(self, model: Array) -> Array:
        gradient: Array = self.wrapped.gradient(model)
        return gradient

    def score(self, model: Array) -> Any:
        return self.wrapped.score(model)

    def train(self, start: Array, steering: Steering = NO_STEERING, **options: Unpack[TrainOptions]) -> Array:
        given = {name: each for name, each in options.items() if each is not None}  # not all support `only`
        trained: Array = self.wrapped.train(start, steering, **given)
        return trained

    def _proximal(self, point: Array, eta: float) -> Array:
        found: Array = self.wrapped.proximal(point, eta)
        return found


def generator(purpose: str, seed: int, client: int) -> np.random.Generator:
    """Return a random generator determined by the arguments. Negative numbers raise `TrainingError`."""
    if seed < 0 or client < 0:
        raise TrainingError(f"seed and client id must be 0 or more, not {seed} and {client}")
    return np.random.default_rng([zlib.crc32(purpose.encode()), seed, client])


class WrappedLearners(Mapping[int, Any]):
    """Learners by client id, all or some of them wrapped. `together` computes the trainings of many clients
    in one batch; it is taken from the mapping of the learners before wrapping (see
    `fl.crowd.Crowd.together`). If it is None, the learners can only train one by one."""

    def __init__(self, learners: Mapping[int, Any], together: Callable[..., Any] | None = None) -> None:
        self._learners = dict(learners)
        self.together = together

    @classmethod
    def of(cls, learners: Mapping[int, Any], change: Callable[[int, Any], Any]) -> WrappedLearners:
        """Return `change(client, learner)` by client id, and keep the method `together` of `learners`."""
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
