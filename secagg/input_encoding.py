"""The encoding of a whole input: from a client's values to residues, and from a total's residues to numbers.

Each part has its own `Code`, of `clipping_and_fixed_point`, or with noise of `noise.grid_encoding`. After
the parts comes the hidden count: a 64-bit number, to which each client adds 1. If masks are left in a total,
its hidden count is not the number of clients in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from secagg import residue_packing
from secagg.clipping_and_fixed_point import Code, FixedPoint, Whole, checked, levels
from secagg.errors import CorruptTotal, InputError, SpecError
from secagg.keys import OneTime
from secagg.mask_keystream import KeyStream
from secagg.noise.gaussian import Layers
from secagg.noise.grid_encoding import NoisyCounts, NoisyReals
from secagg.noise.hadamard_rotation import Rotation
from secagg.residue_packing import Residues
from secagg.sum_spec import COUNT_BITS, L2, Count, LInf, Part, SumSpec, Total, Values

# If a vector exceeds its bound only by a rounding error, it is not reported as clipped.
_UNCLIPPED: Final = 1.0 - 1e-12


@dataclass(frozen=True, eq=False)
class Encoded(OneTime):
    """A client's encoded input before masking. `clipped` maps the name of each part that exceeded its bound
    to the factor by which the part (bound `L2`) or its largest element (bound `LInf`) was scaled down. It is
    not sent to the server."""

    residues: tuple[Residues, ...]
    clipped: Mapping[str, float]

    def __repr__(self) -> str:  # the residues are the client's private input
        return f"Encoded(parts={len(self.residues)}, clipped={len(self.clipped)})"


class Encoding:
    """Encodes inputs and decodes totals of `spec` for `cohort` clients; `roster` (None: all) are asked.
    `rotation` is the public seed for rotating parts with noise. Raises `SpecError` if totals do not fit."""

    def __init__(
        self, spec: SumSpec, *, cohort: int, roster: int | None = None, rotation: bytes = bytes(32)
    ) -> None:
        if cohort < 1:
            raise SpecError("a cohort has at least one client")
        spec.check_fits(cohort)
        self.spec = spec
        self.cohort = cohort
        self._roster = cohort if roster is None else roster
        self._rotation = rotation
        self._layout = [(part.width, part.bits) for part in spec.parts] + [(1, COUNT_BITS)]

    @cached_property
    def count_offset(self) -> int:
        """The number of bytes of a mask's key stream that come before the mask of the hidden count."""
        return sum(size * residue_packing.dtype_for(bits).itemsize for size, bits in self._layout[:-1])

    @cached_property
    def _codes(self) -> list[Code]:
        return [self._code(number, part) for number, part in enumerate(self.spec.parts)]

    def _code(self, number: int, part: Part) -> Code:
        match part.bound:
            case L2() | LInf() as bound:
                if part.noise is None:
                    return FixedPoint(part, bound, cohort=self.cohort)
                rotation = Rotation(self._rotation, number, part.width) if part.is_rotated else None
                return NoisyReals(part, bound, part.noise, rotation)
            case Count() as bound if part.noise is not None:
                return NoisyCounts(part, bound, part.noise, roster=self._roster)
            case _:
                return Whole(part)

    def levels(self, part: Part) -> int:
        """Return the largest absolute integer that encodes a value of `part` (reals, and without noise)."""
        return levels(part.bits, self.cohort)

    def scale(self, part: Part) -> float:
        """Return how many integer steps encode a difference of 1 between values of `part`."""
        return self._codes[self.spec.parts.index(part)].scale

    def noise(self) -> Layers:
        """Return the components ("layers") of the noise that each client that is asked adds to its input."""
        return Layers(self.spec, roster=self._roster)

    # --- the client's side ---

    def encode(
        self, values: Mapping[str, ArrayLike], stream: KeyStream, *, noise: Sequence[KeyStream] = ()
    ) -> Encoded:
        """Check, clip and round the values (by part name), add noise, and return the residues to be masked.

        `stream` is the key stream for rounding and for noise that stays in the total. `noise` has a key
        stream for each noise component that the server can remove. Raises `InputError` if values do not fit
        the spec.
        """
        names = [part.name for part in self.spec.parts]
        if not isinstance(values, Mapping) or set(values) != set(names):
            raise InputError(f"values must be a mapping with exactly the parts {', '.join(names)}")
        arrays = [checked(part, values[part.name]) for part in self.spec.parts]
        clipped: dict[str, float] = {}
        residues: list[Residues] = []
        for part, code, array in zip(self.spec.parts, self._codes, arrays, strict=True):
            encoded, factor = code.encode(array, stream)
            residues.append(encoded)
            if factor < _UNCLIPPED:
                clipped[part.name] = factor
        self.noise().add_to(residues, [stream, *noise])
        residues.append(np.ones(1, residue_packing.dtype_for(COUNT_BITS)))
        return Encoded(tuple(residues), clipped)

    # --- the server's side ---

    def zeros(self) -> tuple[Residues, ...]:
        """Return an array of zeros for each part and one for the hidden count, to add masked inputs to."""
        return tuple(np.zeros(size, residue_packing.dtype_for(bits)) for size, bits in self._layout)

    def pack(self, residues: Sequence[Residues]) -> bytes:
        """Reduce each part of masked `residues` modulo 2^(its bits), in place, and return bytes to send."""
        chunks = []
        for part, (_, bits) in zip(residues, self._layout, strict=True):
            residue_packing.reduce(part, bits)
            chunks.append(residue_packing.pack_buffer(part, bits))
        return b"".join(chunks)

    def accepts(self, data: bytes) -> bool:
        """Return whether `data` has the length of a masked input, and all its padding bits are zero."""
        return len(data) == self.spec.packed_bytes and all(
            residue_packing.padding_is_zero(chunk, size, bits)
            for chunk, (size, bits) in zip(self._cut(data), self._layout, strict=True)
        )

    def add(self, total: Sequence[Residues], data: bytes) -> None:
        """Add the masked input `data` to the arrays `total` in place. `accepts(data)` must be true."""
        for part, chunk, (_, bits) in zip(total, self._cut(data), self._layout, strict=True):
            residue_packing.add_packed(part, chunk, bits)

    def unpack(self, data: bytes) -> tuple[Residues, ...]:
        """Return the residues in the masked input `data`: an array for each part, and one for the hidden
        count. The caller has checked `data` with `accepts`."""
        residues = self.zeros()
        self.add(residues, data)
        return residues

    def _cut(self, data: bytes) -> Iterator[memoryview]:
        """Yield the bytes of each part in the masked input `data`, and then those of the hidden count."""
        view, start = memoryview(data), 0
        for size, bits in self._layout:
            stop = start + residue_packing.packed_bytes(size, bits)
            yield view[start:stop]
            start = stop

    def buffer(self) -> list[Values]:
        """Return a new array for each part, into which `decode` writes the numbers of a total."""
        return [code.buffer() for code in self._codes]

    def decode(
        self,
        residues: Sequence[Residues],
        *,
        contributors: int,
        invited: int,
        buffer: Sequence[Values] | None = None,
    ) -> Total:
        """Return the total as numbers, in `buffer` (from `buffer()`) if given. Reduces its unmasked
        `residues` modulo 2^bits in place. Raises `CorruptTotal` if the hidden count (each client adds 1) is
        not `contributors`, the number of inputs in the total. `invited` is the number of clients asked."""
        if int(residues[-1][0]) != contributors:
            raise CorruptTotal("the hidden count does not match the contributors: some masks did not cancel")
        parts: dict[str, Values] = {}
        rows = zip(self.spec.parts, self._codes, residues[:-1], buffer or self.buffer(), strict=True)
        for part, code, total, out in rows:
            residue_packing.reduce(total, part.bits)
            parts[part.name] = code.decode(total, out)
        return Total(parts, count=contributors, invited=invited)
