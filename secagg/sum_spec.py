"""The description of sums, agreed before a run: parts (bounded vectors), specs of sums, and tables of specs.
No object of this module is received from a peer. Both sides have the same table and compare its digest. So a
server cannot widen a bound, or ask for more sums than the algorithm declares."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import msgpack
import numpy as np
from numpy.typing import NDArray

from secagg import sensitivity_and_headroom
from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.errors import SpecError, SpecTooLarge
from secagg.hashing import digest
from secagg.residue_packing import packed_bytes

MAX_ELEMENTS: Final = 1 << 32
MAX_PACKED: Final = 1 << 31
MOST_NORM2: Final = 1 << 62  # the largest squared norm that the arithmetic of a part can hold
COUNT_BITS: Final = 64  # the bits of the hidden count, which every sum has after its parts
COUNT_BYTES: Final = COUNT_BITS // 8
MAX_TIMES: Final = 1 << 16
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}\Z")


def check_name(name: str, what: str) -> None:
    if not isinstance(name, str) or not _NAME.match(name):
        raise SpecError(f"{what} must be a letter followed by up to 63 of A-Z a-z 0-9 _ . -")


def _check_whole(value: object, what: str, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise SpecError(f"{what} must be a whole number from {least} to {most}")


@dataclass(frozen=True)
class _RealBound:
    limit: float

    def __post_init__(self) -> None:
        """Store the limit as a float, so that client and server use the same number. Raises `SpecError`
        unless it is a number from 2^-500 to 2^500."""
        if not isinstance(self.limit, (int, float)) or isinstance(self.limit, bool):
            raise SpecError("a bound must be a number")
        if not 2.0**-500 <= self.limit <= 2.0**500:
            raise SpecError("a bound must be above zero, from 2^-500 to 2^500")
        object.__setattr__(self, "limit", float(self.limit))


@dataclass(frozen=True)
class L2(_RealBound):
    """The bound of a real vector. If its Euclidean norm exceeds `limit`, the vector is scaled down to that
    norm. Raises `SpecError` unless the limit is a number from 2^-500 to 2^500.

    >>> L2(2)
    L2(limit=2.0)
    """


@dataclass(frozen=True)
class LInf(_RealBound):
    """The bound of a real vector. Each coordinate is clipped to the range from -`limit` to `limit`. Raises
    `SpecError` unless the limit is a number from 2^-500 to 2^500.

    >>> LInf(0.5)
    LInf(limit=0.5)
    """


@dataclass(frozen=True)
class Count:
    """The bound of whole numbers from 0 to `limit`; other values in an input raise `InputError`. Without
    noise, the numbers are summed exactly. `total`, if given, is the most that a client's numbers may sum to:
    1 for a histogram to which each client adds one count. It limits how far one client can move the sum, and
    so the noise needed to hide it. Raises `SpecError` unless 1 <= `limit` <= `total`, in whole numbers.

    >>> histogram = Count(1, total=1)
    """

    limit: int
    total: int | None = None

    def __post_init__(self) -> None:
        _check_whole(self.limit, "the limit of a count", 1, (1 << 64) - 1)
        if self.total is not None:
            _check_whole(self.total, "the total of a count", self.limit, (1 << 64) - 1)


@dataclass(frozen=True)
class Residue:
    """The bound of integers modulo 2^bits, such as parities and hashes. The total is also modulo 2^bits.

    >>> params = SessionParams(trust="curious_server", corrupt=0)
    >>> sum_securely([[7], [5]], bound=Residue(), bits=3, params=params).values
    array([4], dtype=uint64)
    """


Bound: TypeAlias = L2 | LInf | Count | Residue


def bits_for_cohort(bound: Bound, cohort: int) -> int:
    """Return the fewest bits per element with which the total of `cohort` honest clients cannot wrap around.
    For residues, whose total may wrap around, this is 1."""
    if isinstance(bound, Residue):
        return 1
    if isinstance(bound, Count):
        return (cohort * bound.limit).bit_length()
    return cohort.bit_length() + 1  # each client needs at least the levels -1, 0 and 1, plus a sign


@dataclass(frozen=True, kw_only=True)
class Part:
    """A named vector in a sum: `size` elements modulo 2^`bits`, each sent as exactly `bits` bits. Raises
    `SpecError` for an invalid name, size, number of bits, bound or noise.

    >>> Part(name="update", size=1000, bits=32, bound=L2(1.0)).bits_needed(cohort=100)
    8
    """

    name: str
    size: int
    bits: int
    bound: Bound
    noise: Noise | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "the name of a part")
        _check_whole(self.size, f"the size of part {self.name!r}", 1, MAX_ELEMENTS)
        _check_whole(self.bits, f"the bits of part {self.name!r}", 1, 64)
        if not isinstance(self.bound, (L2, LInf, Count, Residue)):
            raise SpecError(f"the bound of part {self.name!r} must be L2, LInf, Count or Residue")
        if self.noise is not None:
            self._check_noise(self.noise)

    def _check_noise(self, noise: Noise) -> None:
        if not isinstance(noise, Noise):
            raise SpecError(f"the noise of part {self.name!r} must be a Noise")
        if isinstance(self.bound, Count) and not noise.scale.is_integer():
            raise SpecError(f"part {self.name!r} holds counts: its noise needs a whole scale")
        if self.norm2 > MOST_NORM2:
            raise SpecError(
                f"part {self.name!r} spans more than 2^31 grid points; lower the scale of its noise"
            )

    @property
    def width(self) -> int:
        """The number of elements sent: `size`, or the next power of two if rotated (`L2` with noise)."""
        return 1 << (self.size - 1).bit_length() if self.is_rotated else self.size

    @property
    def is_rotated(self) -> bool:
        return self.noise is not None and isinstance(self.bound, L2)

    @property
    def counts(self) -> bool:
        return isinstance(self.bound, Count)

    @cached_property
    def norm2(self) -> int:
        """The largest squared L2 norm of a client's rounded vector, in grid points. The part needs noise."""
        assert self.noise is not None
        scale = Fraction(self.noise.scale)
        match self.bound:
            case L2(limit):
                return sensitivity_and_headroom.rounded_norm2(Fraction(limit) * scale, self.width)
            case LInf(limit):
                return sensitivity_and_headroom.rounded_norm2_of_elements(Fraction(limit) * scale, self.size)
            case Count(limit, total):
                return sensitivity_and_headroom.counts_norm2(limit, total, self.size) * int(scale) ** 2
            case _:
                raise SpecError(f"part {self.name!r} holds residues, and noise would hide all of them")

    def bits_needed(self, cohort: int, promise: NoiseAssumptions | None = None) -> int:
        """Return the fewest bits per element with which a total of `cohort` honest clients cannot wrap
        around. With noise and `promise`, `promise.clients` clients are assumed, and it is only unlikely."""
        if self.noise is None or promise is None:
            return bits_for_cohort(self.bound, cohort)
        return sensitivity_and_headroom.bits_for_noise(self, self.noise, promise, promise.clients)

    def check_fits(self, cohort: int, promise: NoiseAssumptions | None = None) -> None:
        """Raise `SpecError` if the part has fewer bits per element than `bits_needed` for these arguments."""
        needed = self.bits_needed(cohort, promise)
        if needed > 64:
            raise SpecError(
                f"part {self.name!r} needs {needed} bits for {cohort} clients, and 64 is the most; "
                "lower its bound or the cohort",
                bits_needed=needed,
            )
        if needed > self.bits:
            raise SpecError(
                f"part {self.name!r} has {self.bits} bits, but {cohort} clients need {needed}",
                bits_needed=needed,
            )

    def canonical(self) -> list[Any]:
        """Return the fields of this part, in the order in which the digest of a spec hashes them."""
        limit = getattr(self.bound, "limit", 0)
        value = limit if isinstance(self.bound, Count) else float(limit)
        row = [self.name, self.size, self.bits, type(self.bound).__name__, value]
        if isinstance(self.bound, Count) and self.bound.total is not None:
            row.append(self.bound.total)
        return row if self.noise is None else [*row, self.noise.canonical()]


@dataclass(frozen=True, kw_only=True)
class SumSpec:
    """One kind of sum: its `parts`, which are named vectors, and what clients require of such sums. Raises
    `SpecError` if a field is invalid or the parts do not fit together.

    `times`    the most sums of this kind that a client answers in one round.
    `group`    sums with the same group name have the *same private vector*: within a round, clients require
               the same survivor set for all of them. By default, a kind is its own group.
    `promise`  the numbers of clients, drop-outs and colluders assumed for noise; needed if a part has noise.

    >>> update = Part(name="update", size=1000, bits=20, bound=L2(1.0))
    >>> SumSpec(parts=(update,), times=3, group="model").packed_bytes  # with the hidden count
    2508
    """

    parts: tuple[Part, ...]
    times: int = 1
    group: str | None = None
    promise: NoiseAssumptions | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.parts, tuple) or not self.parts:
            raise SpecError("a spec needs a tuple of at least one part")
        if not all(isinstance(part, Part) for part in self.parts):
            raise SpecError("the parts of a spec must be Part objects")
        names = [part.name for part in self.parts]
        if len(set(names)) != len(names):
            raise SpecError("two parts of a spec have the same name")
        if self.packed_bytes > MAX_PACKED:
            raise SpecTooLarge(
                f"a spec must pack into at most {MAX_PACKED} bytes; split it into several sums"
            )
        _check_whole(self.times, "times", 1, MAX_TIMES)
        if self.group is not None:
            check_name(self.group, "the name of a group")
        if self.promise is not None and not isinstance(self.promise, NoiseAssumptions):
            raise SpecError("the promise of a spec must be NoiseAssumptions")
        if (self.promise is not None) != any(part.noise for part in self.parts):
            raise SpecError("a spec needs a promise if one of its parts has noise, and only then")

    @property
    def is_private(self) -> bool:
        """Whether all parts have noise. (The number of contributors never has noise.)"""
        return all(part.noise is not None for part in self.parts)

    @property
    def seeds(self) -> int:
        """The number of a client's removable noise components in a sum, each with a seed; 0 without noise."""
        return self.promise.seeds if self.promise else 0

    @cached_property
    def least_roster(self) -> int:
        """The fewest clients to ask, so that an honest one is sure to stay and the total is unlikely to wrap
        around. (The fewer clients there are, the more noise each adds.) 0 without noise."""
        return sensitivity_and_headroom.fewest_clients(self.parts, self.promise) if self.promise else 0

    @cached_property
    def packed_bytes(self) -> int:
        """The bytes of a masked input: its parts, each padded to whole bytes, and 8 to count the clients."""
        parts = sum(packed_bytes(part.width, part.bits) for part in self.parts)
        return parts + packed_bytes(1, COUNT_BITS)

    def check_fits(self, cohort: int) -> None:
        for part in self.parts:
            part.check_fits(cohort, self.promise)

    @cached_property
    def digest(self) -> bytes:
        """The digest of the spec. Masks depend on it: if two clients' specs differ, masks do not cancel."""
        rows = [part.canonical() for part in self.parts]
        fields = [rows, self.times, self.group or ""]
        if self.promise is not None:
            fields.append(self.promise.canonical())
        return digest("spec", msgpack.packb(fields))


@dataclass(frozen=True)
class Table(Mapping[str, SumSpec]):
    """All kinds of sums of an algorithm: a mapping from names to specs. Clients answer no other kinds. Raises
    `SpecError` if it is empty or a name is invalid. `terms` is a digest of all else that server and clients
    agree on, such as the parameters of an algorithm; clients refuse a table with other terms.

    >>> table = Table({"step": SumSpec(parts=(Part(name="x", size=2, bits=16, bound=LInf(1.0)),), times=3)})
    >>> table["step"].times
    3
    """

    kinds: Mapping[str, SumSpec] = field()
    terms: bytes = b""

    def __post_init__(self) -> None:
        if not self.kinds:
            raise SpecError("a table needs at least one kind of sum")
        for kind, spec in self.kinds.items():
            check_name(kind, "the name of a kind of sum")
            if not isinstance(spec, SumSpec):
                raise SpecError(f"kind {kind!r} must be described by a SumSpec")
        object.__setattr__(self, "kinds", MappingProxyType(dict(self.kinds)))

    def __getitem__(self, kind: str) -> SumSpec:
        return self.kinds[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self.kinds)

    def __len__(self) -> int:
        return len(self.kinds)

    def __hash__(self) -> int:
        return hash(self.digest)

    def check_colluders(self, corrupt: int) -> None:
        """Raise `SpecError` if the noise of a sum is planned for fewer than `corrupt` colluders."""
        for kind, spec in self.kinds.items():
            if spec.promise is not None and spec.promise.colluders < corrupt:
                raise SpecError(
                    f"{corrupt} clients may be corrupt, but the noise of {kind!r} is planned for "
                    f"{spec.promise.colluders} colluders"
                )

    @property
    def seeds(self) -> int:
        """The largest number of removable noise components per client and sum, over all kinds of sums."""
        return max(spec.seeds for spec in self.kinds.values())

    def group_of(self, kind: str) -> str:
        return self.kinds[kind].group or kind

    def remembered_group(self, kind: str) -> str:
        """Return the name under which clients remember the last round of the group of `kind` over sessions.
        It contains the terms, because a run with other terms counts its rounds from 0 again."""
        name = self.group_of(kind)
        return f"{name} {self.terms.hex()}" if self.terms else name

    def check_fits(self, cohort: int) -> None:
        for spec in self.kinds.values():
            spec.check_fits(cohort)

    @cached_property
    def digest(self) -> bytes:
        fields = [part for kind in sorted(self) for part in (kind.encode(), self[kind].digest)]
        return digest("table with terms", self.terms, *fields) if self.terms else digest("table", *fields)


Values: TypeAlias = NDArray[np.float64] | NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Total:
    """The result of a sum: the total of each part over `count` of the `invited` clients that were asked.
    `total["name"]` is the total of a part: floats, or unsigned integers for exact counts and residues.

    >>> Total({"x": np.array([6.0, 1.5])}, count=3, invited=4)["x"]
    array([6. , 1.5])
    """

    parts: Mapping[str, Values]
    count: int
    invited: int

    def __getitem__(self, name: str) -> Values:
        return self.parts[name]
