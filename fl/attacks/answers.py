"""Corrupt answers: clients that train honestly, and answer a question with something else.

What an algorithm sends need not be a model. A client of lp-proj sends a point of a subspace, or whole numbers
of steps in it, and an attack on what it trains would change its own model above all. Here the attack has the
answer itself: the same kinds as in `fl.attacks.updates`, applied to the longest of an answer's vectors just
before it is encoded. These clients keep to the protocol in all else, so bounds hold: a vector that is too
long is scaled down, and whole numbers stay within their range, which is taken as lying around its middle.
Whoever sends at most R steps either way cannot say more than R by an attack of this kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fl.attacks.updates import CorruptUpdate
from fl.attacks.wrapper import Wrapper
from fl.samples import Array


class CorruptAnswer(Wrapper):
    """A learner that trains as the one in `corrupt` does. Whoever runs its client calls `answered`."""

    def __init__(self, corrupt: CorruptUpdate) -> None:
        super().__init__(corrupt.wrapped)
        self._corrupt = corrupt
        self._rng = corrupt.rng  # so that whoever saves this learner finds it

    def answered(
        self, values: Mapping[str, Any], most: Mapping[str, int], sent: Sequence[Array]
    ) -> dict[str, Any]:
        """What is answered in place of `values`.

        `most`  the largest number in each part that is of whole numbers; all others are real.
        `sent`  the vectors that came with the question. A message that is whole is the one of them with as
                many numbers as the answer, plus the answer.
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
