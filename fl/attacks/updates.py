"""Corrupt updates: clients that train, or do not, and then submit something else.

An algorithm sees the model `start + corrupt update` in place of the one that training came to. Whatever it
then does with a model, such as clipping, it does with this one, so these are attacks by clients that keep to
the protocol; `fl.attacks.message` has those that do not. Clients that send gradients of their own making
instead of a trained model are out of their reach, as `gradient` stays what it is.

Same value, sign flip, Gaussian and scaling with random labels are those of the lp-proj paper, which puts them
in the place of a whole message; here that is an update.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final

import numpy as np

from fl.attacks.wrapper import Wrapper
from fl.errors import TrainingError
from fl.samples import Array
from fl.steering import PLAIN, Steering

FIXED: Final = "fixed"
SPREAD: Final = "spread"
NORM: Final = "norm"


class CorruptUpdate(Wrapper, ABC):
    """A learner whose updates are `corrupt`. Every training takes fresh randomness from `rng`."""

    def __init__(self, learner: Any, rng: np.random.Generator) -> None:
        super().__init__(learner)
        self._rng = rng

    def train(
        self,
        start: Array,
        steering: Steering = PLAIN,
        *,
        steps: int | None = None,
        rate: float | None = None,
        only: Array | None = None,
    ) -> Array:
        trained = super().train(start, steering, steps=steps, rate=rate, only=only)
        corrupt = self.corrupt(trained - start, start)
        return np.asarray(start + (corrupt if only is None else np.where(only, corrupt, 0)), trained.dtype)

    @abstractmethod
    def corrupt(self, update: Array, start: Array, /) -> Array:
        """What takes the place of an honest update from the model `start`."""


class SameValue(CorruptUpdate):
    """One number in every coordinate, drawn from N(0, deviation^2)."""

    def __init__(self, learner: Any, rng: np.random.Generator, *, deviation: float = 100.0) -> None:
        super().__init__(learner, rng)
        self._deviation = _positive("deviation", deviation)

    def corrupt(self, update: Array, _start: Array, /) -> Array:
        return np.full_like(update, self._rng.normal(scale=self._deviation))


class SignFlip(CorruptUpdate):
    """The update turned around, and scaled by |N(0, deviation^2)|; by 1 if `deviation` is None."""

    def __init__(self, learner: Any, rng: np.random.Generator, *, deviation: float | None = 10.0) -> None:
        super().__init__(learner, rng)
        self._deviation = None if deviation is None else _positive("deviation", deviation)

    def corrupt(self, update: Array, _start: Array, /) -> Array:
        if self._deviation is None:
            return -update
        return -abs(self._rng.normal(scale=self._deviation)) * update


class Gaussian(CorruptUpdate):
    """Noise in place of the update. `like` says how much:

    `fixed`   N(0, deviation^2) in every coordinate.
    `spread`  N(0, s^2), where s is the standard deviation over the coordinates of the honest update ("gauss"
              in the code of RFA).
    `norm`    the submitted model is a random one with the norm of the common model ("gauss2" there).
    """

    def __init__(
        self, learner: Any, rng: np.random.Generator, *, deviation: float = 100.0, like: str = FIXED
    ) -> None:
        super().__init__(learner, rng)
        self._deviation = _positive("deviation", deviation)
        if like not in (FIXED, SPREAD, NORM):
            raise TrainingError(f'like must be "{FIXED}", "{SPREAD}" or "{NORM}", not {like!r}')
        self._like = like

    def corrupt(self, update: Array, start: Array, /) -> Array:
        noise = self._rng.normal(size=update.shape)
        if self._like == FIXED:
            return self._deviation * noise
        if self._like == SPREAD:
            return float(np.std(update)) * noise
        return noise * (np.linalg.norm(start) / np.linalg.norm(noise)) - start


class Scaling(CorruptUpdate):
    """The update times `factor`; or times N(0, deviation^2), drawn every time, if that is given."""

    def __init__(
        self,
        learner: Any,
        rng: np.random.Generator,
        *,
        factor: float | None = None,
        deviation: float | None = None,
    ) -> None:
        super().__init__(learner, rng)
        if (factor is None) == (deviation is None):
            raise TrainingError("scaling needs either a factor or a deviation")
        self._factor = factor
        self._deviation = None if deviation is None else _positive("deviation", deviation)

    def corrupt(self, update: Array, _start: Array, /) -> Array:
        factor = self._rng.normal(scale=self._deviation) if self._deviation is not None else self._factor
        return np.asarray(factor * update)


def _positive(name: str, value: float) -> float:
    if not 0 < value < np.inf:
        raise TrainingError(f"{name} must be above 0, not {value!r}")
    return value
