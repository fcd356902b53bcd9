"""What a client's privacy has cost so far, and what it may cost at most.

The cost of a sum with noise is its rho, of zero-concentrated differential privacy: rhos of several sums add
up. They are counted as whole numbers in units of 2^-40 (see `noise.accounting.charge`), so that adding is
exact. A sum without noise has no such cost, it can only be counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from secagg.errors import SERVER, BudgetExceeded, TooManySums
from secagg.noise.accounting import Adjacency, charge, rho_of, sum_rho
from secagg.spec import SumSpec


def sum_charge(spec: SumSpec, *, roster: int, adjacency: Adjacency) -> int | None:
    """What a sum over `roster` clients costs, if the promise of its noise is kept; None without noise."""
    rho = sum_rho(spec, roster=roster, adjacency=adjacency)
    return None if rho is None else charge(rho)


@dataclass(frozen=True)
class Spend:
    """The cost of all sums answered so far.

    `charge`    of the sums with noise, in units of 2^-40 rho.
    `noised`    how many those were.
    `unnoised`  how many others there were.
    """

    charge: int = 0
    noised: int = 0
    unnoised: int = 0

    @property
    def sums(self) -> int:
        return self.noised + self.unnoised

    def plus(self, charge: int | None) -> Spend:
        """After one more sum; None is the charge of a sum without noise."""
        if charge is None:
            return Spend(self.charge, self.noised, self.unnoised + 1)
        return Spend(self.charge + charge, self.noised + 1, self.unnoised)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits for the lifetime of an identity. None is no limit."""

    unnoised_sums: int | None = None
    charge: int | None = None

    def check(self, spend: Spend, charge: int | None) -> None:
        """Raise unless one more sum of this charge is within the limits."""
        if charge is None:
            self._check_unnoised(spend)
        else:
            self._check_charge(spend, charge)

    def _check_unnoised(self, spend: Spend) -> None:
        if self.unnoised_sums is not None and spend.unnoised >= self.unnoised_sums:
            raise TooManySums(SERVER, f"{self.unnoised_sums} sums without noise were answered")

    def _check_charge(self, spend: Spend, charge: int) -> None:
        """Every charge was rounded up by less than a unit, which is forgiven.

        Otherwise a budget of ten times what a sum costs would buy nine of them.
        """
        after = spend.plus(charge)
        if self.charge is not None and after.charge > self.charge + after.noised:
            raise BudgetExceeded(
                SERVER,
                f"a sum of rho {rho_of(charge):.6g}, after {rho_of(spend.charge):.6g} of the "
                f"{rho_of(self.charge):.6g} that this client ever spends",
            )
