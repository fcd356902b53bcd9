"""The privacy budget of a client: what its answers have cost so far, and what they may cost at most.

The cost of a sum with noise is its rho, of zero-concentrated differential privacy: rhos of several sums add
up. They are counted as whole numbers in units of 2^-40 (see `noise.accounting.charge`), so that adding is
exact. A sum without noise has no such cost, it can only be counted.

A rho is about an adjacency. Zero-out and add-remove cost the same and add up. Replace costs more for the same
noise, so that its rhos are another unit: they are never added to the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from secagg.errors import SERVER, BudgetExceeded, ParameterError, SpecError, TooManySums
from secagg.noise.accounting import Adjacency, charge, rho_of, sum_rho
from secagg.spec import SumSpec, Table

_FORGIVEN_BITS: Final = 20  # of a limit, at most its 2^-20th part is forgiven


def sum_charge(spec: SumSpec, *, roster: int, adjacency: Adjacency) -> int | None:
    """Return the cost of a sum over `roster` clients with the planned noise; None without noise."""
    rho = sum_rho(spec, roster=roster, adjacency=adjacency)
    return None if rho is None else charge(rho)


def check_priced(table: Table) -> None:
    """Raise `SpecError` if some noise is so fine that no sum of it can be accounted for."""
    for kind, spec in table.items():
        if spec.promise is not None and sum_rho(spec, roster=spec.promise.clients) == math.inf:
            raise SpecError(
                f"the noise of {kind!r} is finer than its grid: every component that a client adds needs a "
                "variance of at least 1/2; raise its scale, and its variance with the square"
            )


@dataclass(frozen=True)
class Spend:
    """The cost of all sums answered so far.

    `charge`     of the sums with noise, in units of 2^-40 rho.
    `noised`     how many those were.
    `unnoised`   how many others there were.
    `adjacency`  the adjacency of the charge: that of the first sum with noise.
    """

    charge: int = 0
    noised: int = 0
    unnoised: int = 0
    adjacency: Adjacency = Adjacency.ZERO_OUT

    @property
    def rho(self) -> float:
        """The rho of all sums with noise together."""
        return rho_of(self.charge)

    @property
    def sums(self) -> int:
        return self.noised + self.unnoised

    def plus(self, charge: int | None, adjacency: Adjacency = Adjacency.ZERO_OUT) -> Spend:
        """Return the spend after one more sum; None is the charge of a sum without noise.

        Raises `ParameterError` if the charge is for another adjacency, whose costs are another unit.
        """
        if charge is None:
            return Spend(self.charge, self.noised, self.unnoised + 1, self.adjacency)
        self.check_adjacency(adjacency)
        first = adjacency if self.noised == 0 else self.adjacency
        return Spend(self.charge + charge, self.noised + 1, self.unnoised, first)

    def check_adjacency(self, adjacency: Adjacency) -> None:
        """Raise if a cost under `adjacency` cannot be added to what was spent."""
        replaced = Adjacency.REPLACE
        if self.noised > 0 and (adjacency is replaced) != (self.adjacency is replaced):
            raise ParameterError(
                f"{self.noised} sums were charged under {self.adjacency} adjacency, to which costs under "
                f"{adjacency} cannot be added: keep the adjacency for as long as the identity lives"
            )


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
        """Allow a unit for each charge, because each was rounded up by less than a unit.

        Otherwise a budget of ten times the cost of a sum would buy only nine sums. But sums that cost less
        than a unit would then be free. So the allowance in all is at most the 2^-20th part of the limit: a
        budget of n sums buys n sums if each costs a rho of at least 2^-20, and no limit is exceeded by more
        than one part in a million.
        """
        if self.charge is None:
            return
        forgiven = min(spend.noised + 1, self.charge >> _FORGIVEN_BITS)
        if spend.charge + charge > self.charge + forgiven:
            raise BudgetExceeded(
                SERVER,
                f"a sum of rho {rho_of(charge):.6g}, after {rho_of(spend.charge):.6g} of the "
                f"{rho_of(self.charge):.6g} that this client ever spends",
            )
