"""The noise of a sum and what it assumes: the numbers of clients, of drop-outs and of colluders.

Of the n clients that are asked for a sum, at most T drop out and C collude. The target is the variance of the
noise that the total needs. It has to come from the n - T - C honest clients that are sure to stay, so each
client adds 1 / (n - T - C) of the target. If fewer clients drop out, this is too much. Removable noise is
therefore a sum of components, each from its own seed: one that always stays, and others with 1, 1, 2, 4, ...
times the variance of a small unit. When the survivors are known, the seeds of surplus components are
revealed, and the server subtracts these. The variance of the remaining noise is at least the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import Any, Final

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

    Raises `SpecError` for a scale or a variance that is not above zero, or is out of range.

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

    `clients`    the most clients that are asked for a sum (its roster).
    `dropouts`   the most of them that may drop out; with more, no total is released.
    `colluders`  the most contributors whose noise the adversary knows.
    `removable`  whether surplus noise is removed when the survivors are known.

    Raises `SpecError` for invalid numbers, or if no honest client is sure to stay.

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
        """The fewest clients that must be asked, so that at least one honest client is sure to stay."""
        return self.dropouts + self.colluders + 1

    @cached_property
    def levels(self) -> int:
        """log2 of the number of equal units into which the variance of a client's removable noise is divided.
        The removable components have 1, 1, 2, 4, ... units."""
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
        """Return the variances of one client's noise components, as fractions of the variance that the total
        needs, if `roster` clients are asked. The first always stays; the others are removable."""
        whole = Fraction(1, roster - self.dropouts - self.colluders)
        if not self.seeds:
            return (whole,)
        unit = (whole - self._kept(roster, 0)) / (1 << self.levels)
        return (self._kept(roster, 0), unit, *(unit * (1 << level) for level in range(self.levels)))

    def surplus(self, roster: int, survivors: int) -> tuple[int, ...]:
        """Return the indices in `components` of the noise to remove if `survivors` of `roster` clients are
        left. Index 0 is never removed. If more clients dropped out than planned, nothing is removed."""
        if not self.seeds or roster - survivors > self.dropouts:
            return ()
        base, unit = self.components(roster)[:2]
        units = ceil((self._kept(roster, roster - survivors) - base) / unit)
        stays = units >> self.levels, *(units >> level & 1 for level in range(self.levels))
        if stays[0]:
            return ()
        return tuple(1 + index for index, kept in enumerate(stays) if not kept)

    def left(self, roster: int) -> Fraction:
        """Return the variance that stays of one client's noise if no client drops out and the surplus is
        removed, as a fraction of the target (the variance that the total needs)."""
        removed = self.surplus(roster, roster)
        shares = enumerate(self.components(roster))
        return sum((share for index, share in shares if index not in removed), Fraction(0))

    def _kept(self, roster: int, dropped: int) -> Fraction:
        """Return the variance that each survivor's noise keeps at least if `dropped` of `roster` clients drop
        out, as a fraction of the target (the variance that the total needs from honest clients)."""
        honest = Fraction(roster - self.dropouts, roster - self.dropouts - self.colluders)
        return honest / (roster - dropped)
