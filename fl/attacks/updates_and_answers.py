"""Corrupt updates: clients that do not submit the update that they trained (trained model - start model).

The algorithm gets the model start + corrupt update instead of the trained model, and processes it as usual,
including clipping. These clients follow the protocol; those of `fl.attacks.residue_tampering` do not. The
learner's `gradient` is unchanged: only `CorruptAnswer`, which changes any answer, affects sent gradients.

Four attacks are from the lp-proj paper (`protocols.lpproj`): same value, sign flip, Gaussian, and scaling
together with random labels. It corrupts whole models, as with `whole=True`; the default corrupts updates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, Unpack

import numpy as np

from fl.checks import positive
from fl.errors import TrainingError
from fl.learner_wrapper import LearnerWrapper
from fl.samples import Array
from protocols.learner import NO_STEERING, Steering, TrainOptions

FIXED: Final = "fixed"
SPREAD: Final = "spread"
NORM: Final = "norm"


class CorruptUpdate(LearnerWrapper, ABC):
    """A learner that submits corrupted updates or, if `whole`, a corrupted model instead of the trained one.
    Every training draws new randomness from `rng`."""

    def __init__(self, learner: Any, rng: np.random.Generator, *, whole: bool = False) -> None:
        super().__init__(learner)
        self.rng = rng
        self._whole = whole

    def train(self, start: Array, steering: Steering = NO_STEERING, **options: Unpack[TrainOptions]) -> Array:
        trained, only = super().train(start, steering, **options), options.get("only")
        corrupt = self.submitted(trained - start, start)
        return np.asarray(start + (corrupt if only is None else np.where(only, corrupt, 0)), trained.dtype)

    def _proximal(self, point: Array, eta: float) -> Array:
        found = super()._proximal(point, eta)
        return np.asarray(point + self.submitted(found - point, point), found.dtype)

    def submitted(self, update: Array, start: Array) -> Array:
        """Return the corrupt update to submit instead of `update`, trained from the model `start`."""
        if not self._whole:
            return self.corrupt(update, start)
        return self.corrupt(start + update, start) - start

    @abstractmethod
    def corrupt(self, message: Array, start: Array, /) -> Array:
        """Return the corrupted form of `message`, which is an update from `start`, or a model if `whole`."""


class SameValue(CorruptUpdate):
    """Replaces all elements of the update (or model, if `whole`) by the same draw of N(0, deviation^2)."""

    def __init__(
        self, learner: Any, rng: np.random.Generator, *, deviation: float = 100.0, whole: bool = False
    ) -> None:
        super().__init__(learner, rng, whole=whole)
        self._deviation = positive("deviation", deviation, TrainingError)

    def corrupt(self, message: Array, _start: Array, /) -> Array:
        return np.full_like(message, self.rng.normal(scale=self._deviation))


class SignFlip(CorruptUpdate):
    """Multiplies the update (or model, if `whole`) by -|x| with one random x ~ N(0, deviation^2), or by -1 if
    `deviation` is None."""

    def __init__(
        self, learner: Any, rng: np.random.Generator, *, deviation: float | None = 10.0, whole: bool = False
    ) -> None:
        super().__init__(learner, rng, whole=whole)
        self._deviation = None if deviation is None else positive("deviation", deviation, TrainingError)

    def corrupt(self, message: Array, _start: Array, /) -> Array:
        if self._deviation is None:
            return -message
        return -abs(self.rng.normal(scale=self._deviation)) * message


class Gaussian(CorruptUpdate):
    """Replaces the update (or model, if `whole`) by Gaussian noise. `like` selects the scale of the noise:

    `fixed`   N(0, deviation^2) in every coordinate.
    `spread`  N(0, s^2), where s is the standard deviation over the coordinates of the honest update (model).
              The code of "Robust Aggregation for Federated Learning" calls this "gauss", and `norm` "gauss2".
    `norm`    the whole model is replaced, by noise with the norm of the model `start`; `whole` is ignored.
    """

    def __init__(
        self,
        learner: Any,
        rng: np.random.Generator,
        *,
        deviation: float = 100.0,
        like: str = FIXED,
        whole: bool = False,
    ) -> None:
        super().__init__(learner, rng, whole=whole and like != NORM)
        self._deviation = positive("deviation", deviation, TrainingError)
        if like not in (FIXED, SPREAD, NORM):
            raise TrainingError(f'like must be "{FIXED}", "{SPREAD}" or "{NORM}", not {like!r}')
        self._like = like

    def corrupt(self, message: Array, start: Array, /) -> Array:
        noise = self.rng.normal(size=message.shape)
        if self._like == FIXED:
            return self._deviation * noise
        if self._like == SPREAD:
            return float(np.std(message)) * noise
        return noise * (np.linalg.norm(start) / np.linalg.norm(noise)) - start


class Scaling(CorruptUpdate):
    """Multiplies the update (or model, if `whole`) by either `factor` or a draw of N(0, deviation^2)."""

    def __init__(
        self,
        learner: Any,
        rng: np.random.Generator,
        *,
        factor: float | None = None,
        deviation: float | None = None,
        whole: bool = False,
    ) -> None:
        super().__init__(learner, rng, whole=whole)
        if (factor is None) == (deviation is None):
            raise TrainingError("scaling needs either a factor or a deviation")
        self._factor = factor
        self._deviation = None if deviation is None else positive("deviation", deviation, TrainingError)

    def corrupt(self, message: Array, _start: Array, /) -> Array:
        factor = self.rng.normal(scale=self._deviation) if self._deviation is not None else self._factor
        return np.asarray(factor * message)


class CorruptAnswer(LearnerWrapper):
    """A learner that trains honestly. Its `answered` corrupts what is sent, by the attack `corrupt`."""

    def __init__(self, corrupt: CorruptUpdate) -> None:
        super().__init__(corrupt.wrapped)
        self._corrupt = corrupt
        self._rng = corrupt.rng  # the generator's state is saved with this learner

    def answered(
        self, values: Mapping[str, Any], most: Mapping[str, int], sent: Sequence[Array]
    ) -> dict[str, Any]:
        """Return the answer `values` to a query (arrays by part name), with its longest arrays corrupted.

        `most`  the largest possible count, by name of each part that has counts. The attack corrupts count -
                most / 2. Then most / 2 is added, and the result is rounded and clipped to 0..most.
        `sent`  the vectors that came with the query. The first with the shape of an array (else zeros) is its
                start model. Attacks on whole models corrupt start + array, and then subtract start.
        """
        arrays = {name: np.asarray(each) for name, each in values.items()}
        longest = max(map(np.size, arrays.values()), default=0)
        return {
            name: self._changed(each, most.get(name), sent) if each.size == longest else values[name]
            for name, each in arrays.items()
        }

    def _changed(self, honest: Array, most: int | None, sent: Sequence[Array]) -> Array:
        if most is None:
            start = next((each for each in sent if each.shape == honest.shape), np.zeros_like(honest))
            return self._corrupt.submitted(honest, start)
        middle = most / 2
        steps = honest.astype(np.float64) - middle
        changed = np.rint(self._corrupt.corrupt(steps, np.zeros_like(steps)) + middle)
        return np.clip(changed, 0, most).astype(honest.dtype)
