"""Values that a client can always send, for sums in which its silence would show what noise is there to hide.

A server sees which clients decline a sum. If a client declined because its values do not fit, the server
would learn this about them without any noise: that a count is beyond its limit, or that training diverged. So
in a sum whose parts all have noise, a client sends what comes closest. Counts are brought within their
bounds. Anything else that cannot be used makes the *whole* answer zeros, not only one part: parts belong
together, such as a sum and the number of samples in it, and zeros are exactly what the noise makes hard to
tell from any other answer (zero-out adjacency).

In a sum without noise nothing is hidden, and a value that was changed in silence would make an exact total
wrong. So these functions refuse such sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from secagg.clipping_and_fixed_point import within_counts
from secagg.errors import InputError, SpecError
from secagg.sum_spec import SumSpec

Arrays: TypeAlias = Mapping[str, NDArray[Any]]


class Unusable(StrEnum):
    """Why an answer could not be used: computing it raised an exception (`FAILED`), it is not a mapping from
    names to arrays (`NO_MAPPING`), it lacks a part (`MISSING_PART`), or a part has another shape or type, or
    numbers that are not finite (`UNFIT_PART`)."""

    FAILED = "failed"
    NO_MAPPING = "no mapping"
    MISSING_PART = "missing part"
    UNFIT_PART = "unfit part"


@dataclass(frozen=True)
class Zeros:
    """Why an answer is all zeros. `detail` is for the client's operator: what is wrong with which part, the
    text of an `InputError`, or only the type of any other exception, whose text could contain values."""

    reason: Unusable
    detail: str


@dataclass(frozen=True, eq=False)
class UsableValues:
    """The arrays to send, by part name, and what was changed. All of it is private to the client: `clipped`
    names the parts in which counts were beyond their bounds, and `zeros` says why all values are zeros, or is
    None if they are not."""

    values: Arrays = field(repr=False)
    clipped: tuple[str, ...] = field(default=(), repr=False)
    zeros: Zeros | None = field(default=None, repr=False)

    @property
    def changed(self) -> bool:
        return bool(self.clipped) or self.zeros is not None


def usable_values(spec: SumSpec, compute: Callable[[], object]) -> UsableValues:
    """Return what `compute()` returns, changed where `spec` needs it: counts within their bounds, or zeros
    for the whole answer. Arrays that `spec` does not name are ignored. Whatever `compute` raises results in
    zeros, even `KeyboardInterrupt`: call this in a worker thread, which does not get those of the user. Call
    `ClientMachine.charge` before. Raises `SpecError` if a part of the sum has no noise.

    >>> visits = Part(name="visits", size=1, bits=16, bound=Count(10), noise=Noise(scale=1, variance=100))
    >>> spec = SumSpec(parts=(visits,), promise=NoiseAssumptions(clients=9, dropouts=1, colluders=0))
    >>> found = usable_values(spec, lambda: {"visits": [27]})
    >>> found.values["visits"], found.clipped
    (array([10], dtype=uint64), ('visits',))
    """
    zeros = zero_values(spec)
    try:
        return _fitted(spec, compute(), zeros)
    except BaseException as error:
        detail = str(error) if isinstance(error, InputError) else type(error).__name__
        return UsableValues(zeros, zeros=Zeros(Unusable.FAILED, detail))


def zero_values(spec: SumSpec) -> Arrays:
    """Return zeros for every part of `spec`: the answer of a client that has nothing to add to the sum.
    Raises `SpecError` if a part has no noise. There, zeros would be counted, but hide nothing."""
    if not spec.is_private:
        raise SpecError("a part of this sum has no noise: decline it, or send values that fit")
    return {part.name: np.zeros(part.size, np.uint64 if part.counts else np.float64) for part in spec.parts}


def _fitted(spec: SumSpec, values: object, zeros: Arrays) -> UsableValues:
    if not isinstance(values, Mapping):
        return UsableValues(zeros, zeros=Zeros(Unusable.NO_MAPPING, type(values).__name__))
    arrays: dict[str, NDArray[Any]] = {}
    clipped: list[str] = []
    for part in spec.parts:
        if part.name not in values:
            return UsableValues(zeros, zeros=Zeros(Unusable.MISSING_PART, part.name))
        try:
            arrays[part.name], changed = within_counts(part, values[part.name])
        except InputError as error:
            return UsableValues(zeros, zeros=Zeros(Unusable.UNFIT_PART, str(error)))
        clipped += [part.name] * changed
    return UsableValues(arrays, tuple(clipped))
