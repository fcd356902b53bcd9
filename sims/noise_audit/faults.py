"""Deliberate mistakes in how clients encode inputs and add noise, made to show that the tests find them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from secagg.input_encoding import Encoded, Encoding
from secagg.mask_keystream import KeyStream
from secagg.noise.gaussian import Layers
from secagg.residue_packing import Residues, dtype_for
from secagg.sum_spec import COUNT_BITS, Part, SumSpec
from sims.noise_audit.reference_encoding import grid_vector, on_grid

_WEAKENED: Final = Fraction(9025, 10000)


class Fault(StrEnum):
    """A deliberate mistake, made to check that the tests of the noise detect it."""

    NONE = "none"
    HALVED = "halved"  # all clients draw noise of half the standard deviation
    WEAKENED = "weakened"  # all clients draw noise of 0.95 times the standard deviation
    SILENT = "silent"  # client 0 adds no noise
    UNSCALED = "unscaled"  # the standard deviation is taken in units of the vector, not of the grid
    REUSED = "reused"  # two clients draw from the same seeds
    SHIFTED = "shifted"  # client 1 adds the noise of client 0, shifted by three elements
    UNNOISED_ELEMENT = "unnoised-element"  # no client adds noise to the element in the middle
    REPEATED = "repeated"  # the second half of each vector of noise is the first half
    PAIRED = "paired"  # every second sum has the noise of the sum before
    OPPOSITE = "opposite"  # every second sum has the noise of the sum before, with the opposite sign
    UNCLIPPED = "unclipped"  # vectors beyond the bound are neither clipped nor refused
    ROUNDED_DOWN = "rounded-down"  # values between grid points are rounded down, instead of at random
    ROUNDED_AWAY = "rounded-away"  # they are rounded away from zero
    ROTATED = "rotated"  # clients rotate vectors by other signs than the server


_ROUNDED: Final = {Fault.UNCLIPPED, Fault.ROUNDED_DOWN, Fault.ROUNDED_AWAY}
_REMEMBERING: Final = {Fault.SHIFTED, Fault.UNNOISED_ELEMENT, Fault.REPEATED, Fault.PAIRED, Fault.OPPOSITE}


@dataclass
class NoiseMemory:
    """What faulty clients remember: their noise in the last sum, by client, and how often they drew it."""

    noise: dict[int, list[Residues]] = field(default_factory=dict)
    sums: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))


def encoding_of(
    spec: SumSpec, member: int, *, roster: int, rotation: bytes, fault: Fault, memory: NoiseMemory
) -> Encoding:
    """Return the encoding by which one client encodes its input if all clients have this `fault`."""
    match fault:
        case Fault.HALVED:
            spec = with_variance(spec, lambda _: Fraction(1, 4))
        case Fault.WEAKENED:
            spec = with_variance(spec, lambda _: _WEAKENED)
        case Fault.UNSCALED:
            spec = with_variance(spec, _one_over_scale2)
        case Fault.SILENT if member == 0:
            return _Silent(spec, cohort=roster, roster=roster, rotation=rotation)
        case Fault.ROTATED:
            rotation = bytes(byte ^ 0xFF for byte in rotation)
        case _ if fault in _ROUNDED:
            return _Rounding(spec, cohort=roster, rotation=rotation, fault=fault)
        case _ if fault in _REMEMBERING:
            return _Remembering(
                spec, cohort=roster, rotation=rotation, fault=fault, member=member, memory=memory
            )
    return Encoding(spec, cohort=roster, roster=roster, rotation=rotation)


class _Silent(Encoding):
    """The encoding of a client that adds no noise."""

    def noise(self) -> Layers:
        bare = replace(
            self.spec, parts=tuple(replace(part, noise=None) for part in self.spec.parts), promise=None
        )
        return Layers(bare, roster=self.cohort)


class _Rounding(Encoding):
    """The encoding of a client that rounds wrongly, or neither clips its vectors nor checks their norm."""

    def __init__(self, spec: SumSpec, *, cohort: int, rotation: bytes, fault: Fault) -> None:
        super().__init__(spec, cohort=cohort, roster=cohort, rotation=rotation)
        self._fault, self._seed = fault, rotation

    def encode(
        self, values: Mapping[str, ArrayLike], stream: KeyStream, *, noise: Sequence[KeyStream] = ()
    ) -> Encoded:
        residues: list[Residues] = []
        for number, part in enumerate(self.spec.parts):
            whole = self._rounded(part, number, np.asarray(values[part.name]), stream)
            encoded = whole.astype(np.int64).view(np.uint64).astype(dtype_for(part.bits))
            residues.append(encoded & encoded.dtype.type((1 << part.bits) - 1))
        self.noise().add_to(residues, [stream, *noise])
        residues.append(np.ones(1, dtype_for(COUNT_BITS)))
        return Encoded(tuple(residues), {})

    def _rounded(
        self, part: Part, number: int, values: np.ndarray[Any, np.dtype[Any]], stream: KeyStream
    ) -> np.ndarray[Any, np.dtype[np.float64]]:
        if self._fault is Fault.UNCLIPPED and not part.counts:
            points = on_grid(part, values.astype(np.float64), self._seed, number)
            uniform = stream.words(len(points)) / 2.0**64
            return np.clip(np.floor(points + uniform), -(2.0**60), 2.0**60)
        points = grid_vector(part, values, self._seed, number)
        if self._fault is Fault.ROUNDED_DOWN:
            return np.floor(points)
        return np.where(points < 0, np.floor(points), np.ceil(points))


class _Remembering(Encoding):
    """The encoding of a client that draws its noise well, and then changes it, or adds an earlier one."""

    def __init__(
        self, spec: SumSpec, *, cohort: int, rotation: bytes, fault: Fault, member: int, memory: NoiseMemory
    ) -> None:
        super().__init__(spec, cohort=cohort, roster=cohort, rotation=rotation)
        self._fault, self._member, self._memory = fault, member, memory

    def noise(self) -> Layers:
        return _ChangedLayers(self.spec, self.cohort, self._fault, self._member, self._memory)


class _ChangedLayers(Layers):
    def __init__(self, spec: SumSpec, roster: int, fault: Fault, member: int, memory: NoiseMemory) -> None:
        super().__init__(spec, roster=roster)
        self._fault, self._member, self._memory = fault, member, memory

    def add_to(self, residues: Sequence[Residues], streams: Sequence[KeyStream]) -> None:
        drawn = [np.zeros_like(part) for part in residues]
        super().add_to(drawn, streams)
        for part, noise in zip(residues, self._changed(drawn), strict=True):
            part += noise

    def _changed(self, drawn: list[Residues]) -> list[Residues]:
        member, memory = self._member, self._memory
        before = memory.noise.get(member, drawn)
        match self._fault:
            case Fault.SHIFTED if member == 1:
                drawn = [np.roll(part, 3) for part in memory.noise[0]]
            case Fault.UNNOISED_ELEMENT:
                for part in drawn:
                    part[len(part) // 2] = 0
            case Fault.REPEATED:
                for part in drawn:
                    half = len(part) // 2
                    part[len(part) - half :] = part[:half]
            case Fault.PAIRED if memory.sums[member] % 2:
                drawn = before
            case Fault.OPPOSITE if memory.sums[member] % 2:
                drawn = [np.negative(part) for part in before]
        memory.noise[member] = drawn
        memory.sums[member] += 1
        return drawn


def with_variance(spec: SumSpec, factor: Callable[[Part], Fraction]) -> SumSpec:
    """Return `spec` with the variance of each part's noise multiplied by `factor(part)`."""
    return replace(spec, parts=tuple(_scaled(part, factor(part)) for part in spec.parts))


def _scaled(part: Part, factor: Fraction) -> Part:
    if part.noise is None:
        return part
    variance = (part.noise.variance * factor).limit_denominator(1 << 40)
    return replace(part, noise=replace(part.noise, variance=max(variance, Fraction(1, 1 << 40))))


def _one_over_scale2(part: Part) -> Fraction:
    return 1 / Fraction(part.noise.scale) ** 2 if part.noise is not None else Fraction(1)
