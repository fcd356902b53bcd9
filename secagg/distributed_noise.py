"""The noise of a sum and what it assumes: the numbers of clients, of drop-outs and of colluders.

Of the n clients of a sum's roster, at most T drop out and C collude. The target is the variance of the noise
that a part needs. It has to come from the n - T - C honest clients that are sure to stay, so each client adds
1 / (n - T - C) of the target. If no client drops out, this is too much. Removable noise is therefore a sum of
components, each from its own seed: one that always stays, and others of variance m, m, 2m, 4m, ... When the
survivors are known, the seeds of some components are revealed, and the server subtracts these. The variance
of the remaining noise is at least the target.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil, floor, isqrt
from typing import Any, Final, Protocol

from secagg.errors import SpecError

# Components are so small that, without drop-outs, the noise left exceeds the target by less than this.
_SURPLUS: Final = Fraction(1, 200)
_LARGEST: Final = 1 << 128
_LARGEST_ROSTER: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The discrete Gaussian noise on one part, a named piece of the summed vector.

    `scale`     grid points per unit of the part's values; a whole number if the values are counts.
    `variance`  the least variance of the noise that honest clients add to the total, in grid points squared.

    Raises `SpecError` for a scale or a variance that is not above zero.

    >>> Noise(scale=16.0, variance=Fraction(400)).scale
    16.0
    """

    scale: float
    variance: Fraction

    def __post_init__(self) -> None:
        scale, variance = self.scale, self.variance
        number = isinstance(scale, (int, float)) and not isinstance(scale, bool)
        if not number or not 2.0**-500 <= scale <= 2.0**500:
            raise SpecError("the scale of noise must be a number above zero, from 2^-500 to 2^500")
        if type(variance) not in (int, Fraction) or variance <= 0:
            raise SpecError("the variance of noise must be a fraction above zero")
        if max(variance.numerator, variance.denominator) > _LARGEST:
            raise SpecError("the variance of noise must be a fraction of numbers up to 2^128")
        object.__setattr__(self, "scale", float(scale))
        object.__setattr__(self, "variance", Fraction(variance))

    def canonical(self) -> list[Any]:
        return [self.scale, str(self.variance.numerator), str(self.variance.denominator)]


@dataclass(frozen=True, kw_only=True)
class NoiseAssumptions:
    """The numbers of clients, drop-outs and colluders for which noise is planned.

    `clients`    the most clients in the roster of a sum.
    `dropouts`   the most clients of the roster that may drop out; with more, no total is released.
    `colluders`  the most contributors whose noise the adversary knows.
    `removable`  whether surplus noise is removed when the survivors are known.

    Raises `SpecError` if no honest client is sure to stay.

    >>> NoiseAssumptions(clients=20, dropouts=3, colluders=1, removable=True).least_roster
    5
    """

    clients: int
    dropouts: int
    colluders: int
    removable: bool = False

    def __post_init__(self) -> None:
        numbers = (self.clients, self.dropouts, self.colluders)
        if any(type(k) is not int or k < 0 for k in numbers):
            raise SpecError("clients, dropouts and colluders must be whole numbers from 0 on")
        if not isinstance(self.removable, bool):
            raise SpecError("removable must be True or False")
        if self.clients > _LARGEST_ROSTER:
            raise SpecError(f"noise can be planned for at most {_LARGEST_ROSTER} clients")
        if self.least_roster > self.clients:
            raise SpecError(
                f"of {self.clients} clients, {self.dropouts} may drop out and {self.colluders} collude: "
                "no client is left to add noise"
            )

    @property
    def least_roster(self) -> int:
        """The fewest clients in a roster with which at least one honest client is sure to stay."""
        return self.dropouts + self.colluders + 1

    @cached_property
    def levels(self) -> int:
        """The base-2 logarithm of the number of equal units in the variance of a client's removable noise."""
        finest = self.dropouts / (_SURPLUS * (self.clients - self.dropouts))
        return (max(self.dropouts, ceil(finest)) - 1).bit_length()

    @property
    def seeds(self) -> int:
        """The number of removable noise components of a client in one sum. Each has a secret-shared seed."""
        return self.levels + 1 if self.removable and self.dropouts else 0

    def canonical(self) -> list[Any]:
        return [self.clients, self.dropouts, self.colluders, self.removable]

    # --- with a roster ---

    def components(self, roster: int) -> tuple[Fraction, ...]:
        """Return the variances of one client's noise components, as fractions of the target.

        The first component always stays, and the others are removable. `roster` counts the asked clients.
        """
        whole = Fraction(1, roster - self.dropouts - self.colluders)
        if not self.seeds:
            return (whole,)
        unit = (whole - self._kept(roster, 0)) / (1 << self.levels)
        return (self._kept(roster, 0), unit, *(unit * (1 << level) for level in range(self.levels)))

    def surplus(self, roster: int, survivors: int) -> tuple[int, ...]:
        """Return the indices of the noise components to remove if `survivors` of `roster` clients are left.

        Index 0 is never removed. If more clients dropped out than planned, no component is removed.
        """
        if not self.seeds or roster - survivors > self.dropouts:
            return ()
        base, unit = self.components(roster)[:2]
        units = ceil((self._kept(roster, roster - survivors) - base) / unit)
        stays = units >> self.levels, *(units >> level & 1 for level in range(self.levels))
        if stays[0]:
            return ()
        return tuple(1 + index for index, kept in enumerate(stays) if not kept)

    def left(self, roster: int) -> Fraction:
        """Return the fraction of the target variance that one client's noise keeps if nobody drops out."""
        removed = self.surplus(roster, roster)
        shares = enumerate(self.components(roster))
        return sum((share for index, share in shares if index not in removed), Fraction(0))

    def _kept(self, roster: int, dropped: int) -> Fraction:
        """Return the fraction of the target variance that each survivor must keep if `dropped` drop out."""
        honest = Fraction(roster - self.dropouts, roster - self.dropouts - self.colluders)
        return honest / (roster - dropped)


LEAST_STDDEVS: Final = 2.0
# Standard deviations of room that a smaller roster needs: the first for which the full roster has room.
_SMALLER_ROSTER: Final = (5.0, 4.0, 3.0, LEAST_STDDEVS)
_EXACT: Final = 1 - 1e-9  # tolerates a rounding error in a plan that needs the whole ring


class NoisyPart(Protocol):
    """The fields of `secagg.sum_spec.Part` that this module uses. An import of `Part` would be circular."""

    @property
    def bits(self) -> int: ...
    @property
    def bound(self) -> object: ...
    @property
    def noise(self) -> Noise | None: ...
    @property
    def is_rotated(self) -> bool: ...
    @property
    def width(self) -> int: ...
    @property
    def counts(self) -> bool: ...


def bits_for_noise(
    part: NoisyPart, noise: Noise, promise: NoiseAssumptions, clients: int, *, stddevs: float = LEAST_STDDEVS
) -> int:
    """Return the fewest bits per element that hold the total of `clients` plus `stddevs` sigmas of noise."""
    variance = clients * promise.left(clients) * noise.variance
    reach = clients * float(getattr(part.bound, "limit", 0)) * noise.scale
    if part.is_rotated:
        # A rotated total is nearly Gaussian. So is the rounding error, of variance at most 1/4 per client.
        flat = reach / math.sqrt(part.width)
        return 1 + _bits(stddevs * math.sqrt(flat**2 + variance + clients / 4))
    spread = stddevs * math.sqrt(variance)
    if part.counts:
        return _bits(reach + 2 * spread)
    return 1 + _bits(reach + clients + spread)


def fewest_clients(parts: Iterable[NoisyPart], promise: NoiseAssumptions) -> int:
    """Return the fewest clients with which all totals have room for five standard deviations of their noise.

    If `promise.clients` clients leave less room, four, three or two standard deviations are enough.
    """
    noisy = [(part, part.noise) for part in parts if part.noise is not None]

    def fits(clients: int, stddevs: float) -> bool:
        return all(
            bits_for_noise(part, noise, promise, clients, stddevs=stddevs) <= part.bits
            for part, noise in noisy
        )

    low, high = promise.least_roster, promise.clients
    room = next((each for each in _SMALLER_ROSTER if fits(high, each)), LEAST_STDDEVS)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle, room) else (middle + 1, high)
    return low


def _bits(most: float) -> int:
    """Return the number of bits of the largest whole number up to `most`."""
    return math.floor(most * _EXACT).bit_length()


_FINE: Final = 1 << 64


def rounded_norm2(norm: Fraction, size: int) -> int:
    """Return the limit on the squared norm of `size` rounded numbers, if their norm was at most `norm`."""
    root = _root(Fraction(size))
    return floor(min(norm**2 + Fraction(size, 4) + norm + root / 2, (norm + root) ** 2))


def rounded_norm2_of_elements(limit: Fraction, size: int) -> int:
    """Return the limit on the squared norm of `size` rounded numbers, if each was within +-`limit`."""
    return min(rounded_norm2(_root(size * limit**2), size), size * ceil(limit) ** 2)


def counts_norm2(limit: int, total: int | None, size: int) -> int:
    """Return the largest squared norm of `size` whole numbers from 0 to `limit` with a sum up to `total`."""
    most = size * limit if total is None else min(total, size * limit)
    full, rest = divmod(most, limit)
    return full * limit**2 + rest**2


def _root(value: Fraction) -> Fraction:
    """Return the square root, rounded down to a fraction that is the same on every machine."""
    return Fraction(isqrt(value.numerator * value.denominator * _FINE**2), value.denominator * _FINE)
