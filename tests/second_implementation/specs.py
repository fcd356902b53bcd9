"""What is summed: parts, specs, tables, fixed point, masks and totals (sections 5.1 to 5.5)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tests.second_implementation.crypto import KeyStream, tagged
from tests.second_implementation.encoding import pack, shortest, unpack

# The residues of a sum by part, in the order of the spec.
Residues = dict[str, list[int]]


@dataclass(frozen=True)
class Part:
    """A vector of a sum. Without noise, `scale` and `variance` are 0."""

    name: str
    size: int
    bits: int
    bound: str
    limit: float
    total: int | None
    scale: float
    variance: Fraction

    @property
    def noisy(self) -> bool:
        """Whether clients add noise to the part."""
        return self.variance > 0

    @property
    def rotated(self) -> bool:
        """Whether the part is padded and rotated (5.6)."""
        return self.noisy and self.bound == "L2"

    @property
    def width(self) -> int:
        """Elements on the wire."""
        return 1 << (self.size - 1).bit_length() if self.rotated else self.size

    @property
    def packed_bytes(self) -> int:
        """Bytes in the packed vector."""
        return (self.width * self.bits + 7) // 8

    @property
    def word(self) -> int:
        """Bytes of key stream for each element (5.5)."""
        return next(size for size in (1, 2, 4, 8) if 8 * size >= self.bits)

    def canonical(self) -> list[object]:
        """The part as in the canonical spec (5.3)."""
        limit = {"Residue": 0.0, "Count": int(self.limit)}.get(self.bound, float(self.limit))
        items: list[object] = [self.name, self.size, self.bits, self.bound, limit]
        if self.total is not None:
            items.append(self.total)
        if self.noisy:
            items.append([self.scale, str(self.variance.numerator), str(self.variance.denominator)])
        return items

    def fixed_point(self, cohort: int) -> tuple[int, float]:
        """The largest integer of a client, and the scale, of a real part without noise (5.2)."""
        largest = ((1 << (self.bits - 1)) - 1) // cohort
        return largest, float(largest) / self.limit

    def signed(self, residue: int) -> int:
        """A residue as a signed integer."""
        return residue - (1 << self.bits) if residue >> (self.bits - 1) else residue


@dataclass(frozen=True)
class Promise:
    """The noise assumptions of a spec (5.6)."""

    clients: int
    dropouts: int
    colluders: int
    removable: bool


@dataclass(frozen=True)
class Spec:
    """A sum: its parts, how often it is asked, its group and its noise assumptions."""

    parts: tuple[Part, ...]
    times: int
    group: str | None
    promise: Promise | None

    @property
    def digest(self) -> bytes:
        """The spec digest (5.3)."""
        items: list[object] = [[part.canonical() for part in self.parts], self.times, self.group or ""]
        if self.promise is not None:
            p = self.promise
            items.append([p.clients, p.dropouts, p.colluders, p.removable])
        return tagged("spec", shortest(items))

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed vector, without the hidden count."""
        return sum(part.packed_bytes for part in self.parts)

    def pack(self, residues: Mapping[str, Sequence[int]], count: int) -> bytes:
        """The packed vector with its hidden count (3.3)."""
        parts = b"".join(pack(residues[part.name], part.bits) for part in self.parts)
        return parts + count.to_bytes(8, "little")

    def unpack(self, data: bytes) -> tuple[Residues, int]:
        """The residues and the hidden count of a packed vector."""
        residues = {}
        for part in self.parts:
            residues[part.name] = unpack(data[: part.packed_bytes], part.width, part.bits)
            data = data[part.packed_bytes :]
        assert len(data) == 8
        return residues, int.from_bytes(data, "little")

    def mask(self, seed: bytes) -> tuple[Residues, int]:
        """The mask of a seed, and its word (5.4, 5.5)."""
        stream = KeyStream(seed)
        words = {part.name: stream.words(part.width, part.word) for part in self.parts}
        return words, stream.words(1, 8)[0]

    def add(self, to: Residues, other: Mapping[str, Sequence[int]], sign: int) -> None:
        """Add residues, or subtract them, in place."""
        for part in self.parts:
            if part.name in other:
                pairs = zip(to[part.name], other[part.name], strict=True)
                to[part.name] = [(a + sign * b) % (1 << part.bits) for a, b in pairs]

    def zero(self) -> Residues:
        """The residues of nothing."""
        return {part.name: [0] * part.width for part in self.parts}


Table = dict[str, Spec]


def table_digest(table: Table) -> bytes:
    """The table digest (5.3)."""
    fields = []
    for kind in sorted(table, key=lambda name: name.encode("ascii")):
        fields += [kind.encode("ascii"), table[kind].digest]
    return tagged("table", *fields)


def read_table(listed: Mapping[str, Any]) -> Table:
    """The table of a transcript."""
    return {kind: _read_spec(spec) for kind, spec in listed.items()}


def _read_spec(listed: Mapping[str, Any]) -> Spec:
    promise = Promise(**listed["promise"]) if "promise" in listed else None
    return Spec(
        tuple(_read_part(part) for part in listed["parts"]), listed["times"], listed["group"], promise
    )


def _read_part(listed: Mapping[str, Any]) -> Part:
    noise = listed.get("noise", {"scale": 0.0, "variance": "0"})
    return Part(
        name=listed["name"],
        size=listed["size"],
        bits=listed["bits"],
        bound=listed["bound"],
        limit=listed.get("limit", 0),
        total=listed.get("total"),
        scale=float(noise["scale"]),
        variance=Fraction(noise["variance"]),
    )


def clip(part: Part, values: Sequence[float]) -> list[float]:
    """The values of a real part within its bound (5.1)."""
    if part.bound == "LInf":
        return [min(max(value, -part.limit), part.limit) for value in values]
    norm = math.sqrt(math.fsum(value * value for value in values))
    return [value * min(1.0, part.limit / norm) for value in values] if norm else list(values)


def encodes(part: Part, cohort: int, values: Sequence[float], residues: Sequence[int]) -> bool:
    """Whether residues of a part without noise may be those of the values: rounding is random (5.2)."""
    if part.bound in ("Count", "Residue"):
        return list(values) == list(residues)
    largest, scale = part.fixed_point(cohort)
    for value, residue in zip(clip(part, values), residues, strict=True):
        number = part.signed(residue)
        # A residue of 64 bits exceeds the precision of a double: compare relative to the largest.
        if abs(number - value * scale) >= 1 + largest * 1e-14 or abs(number) > largest:
            return False
    return True


def decode(part: Part, cohort: int, residues: Sequence[int]) -> list[float]:
    """The numbers of a total of a part without noise (5.2)."""
    if part.bound in ("Count", "Residue"):
        return list(residues)
    _, scale = part.fixed_point(cohort)
    return [float(part.signed(residue)) / scale for residue in residues]
