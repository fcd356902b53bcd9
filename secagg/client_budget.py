"""The privacy budget of a client: what its answers have cost so far, and what they may cost at most.

The cost of a sum with noise is its rho in zero-concentrated differential privacy. The rhos of several sums
add up. They are stored as integers in units of 2^-40 (see `noise.zcdp_cost.charge`), so that adding is exact.
A sum without noise has no rho, so such sums are only counted.

A rho refers to an adjacency: the definition of neighbouring data sets. The same noise has the same rho under
zero-out and add-remove adjacency, so these rhos can be added to each other. Under replace adjacency, the same
noise has a larger rho, which must not be added to the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from secagg.errors import SERVER, BudgetExceeded, ParameterError, SpecError, TooManySums
from secagg.noise.zcdp_cost import Adjacency, charge, rho_of, sum_rho
from secagg.sum_spec import SumSpec, Table

_FORGIVEN_BITS: Final = 20  # a limit may be exceeded by its 2^-20th part, to make up for rounding


def sum_charge(spec: SumSpec, *, roster: int, adjacency: Adjacency) -> int | None:
    """Return the cost of a sum of `roster` clients in units of 2^-40 rho; None if a part has no noise."""
    rho = sum_rho(spec, roster=roster, adjacency=adjacency)
    return None if rho is None else charge(rho)


def check_priced(table: Table) -> None:
    """Raise `SpecError` if the noise of a sum in `table` is so small that no bound on its cost is known."""
    for kind, spec in table.items():
        if spec.promise is not None and sum_rho(spec, roster=spec.promise.clients) == math.inf:
            raise SpecError(
                f"the noise of {kind!r} is finer than its grid: every component that a client adds needs a "
                "variance of at least 1/2; raise its scale, and its variance with the square"
            )


@dataclass(frozen=True)
class Spend:
    """The total privacy cost of several sums, for example of all sums that a client has answered.

    `charge`     the cost of all sums with noise, in units of 2^-40 rho.
    `noised`     the number of sums with noise.
    `unnoised`   the number of sums without noise.
    `adjacency`  the adjacency under which the first sum with noise was charged.
    """

    charge: int = 0
    noised: int = 0
    unnoised: int = 0
    adjacency: Adjacency = Adjacency.ZERO_OUT

    @property
    def rho(self) -> float:
        """The total rho (cost in zero-concentrated differential privacy) of all sums with noise."""
        return rho_of(self.charge)

    @property
    def sums(self) -> int:
        return self.noised + self.unnoised

    def plus(self, charge: int | None, adjacency: Adjacency = Adjacency.ZERO_OUT) -> Spend:
        """Return the spend after one more sum, which costs `charge` units of 2^-40 rho (None: it has no
        noise). Raises `ParameterError` if a cost under `adjacency` cannot be added to this spend."""
        if charge is None:
            return Spend(self.charge, self.noised, self.unnoised + 1, self.adjacency)
        self.check_adjacency(adjacency)
        first = adjacency if self.noised == 0 else self.adjacency
        return Spend(self.charge + charge, self.noised + 1, self.unnoised, first)

    def check_adjacency(self, adjacency: Adjacency) -> None:
        """Raise `ParameterError` if costs under `adjacency` must not be added to those of this spend."""
        replaced = Adjacency.REPLACE
        if self.noised > 0 and (adjacency is replaced) != (self.adjacency is replaced):
            raise ParameterError(
                f"{self.noised} sums were charged under {self.adjacency} adjacency, to which costs under "
                f"{adjacency} cannot be added: keep the adjacency for as long as the identity lives"
            )


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A client's lifetime limits: number of sums without noise, and `charge` in 2^-40 rho. None: no limit."""

    unnoised_sums: int | None = None
    charge: int | None = None

    def check(self, spend: Spend, charge: int | None) -> None:
        """Raise `PolicyError` if a sum of cost `charge` (None: no noise) after `spend` exceeds a limit."""
        if charge is not None:
            self._check_charge(spend, charge)
        elif self.unnoised_sums is not None and spend.unnoised >= self.unnoised_sums:
            raise TooManySums(SERVER, f"{self.unnoised_sums} sums without noise were answered")

    def _check_charge(self, spend: Spend, charge: int) -> None:
        """Raise `BudgetExceeded` if old and new charges exceed the limit by more than a rounding allowance.
        Every charge was rounded up by less than one unit (2^-40 rho). Without an allowance, a limit of ten
        times the rho of a sum would allow only nine such sums. The allowance is one unit for each sum, but at
        most 2^-20 of the limit, because otherwise sums that cost less than a unit would be free. Hence a
        limit of n times the rho of a sum allows n sums if this rho is at least 2^-20."""
        if self.charge is None:
            return
        forgiven = min(spend.noised + 1, self.charge >> _FORGIVEN_BITS)
        if spend.charge + charge > self.charge + forgiven:
            raise BudgetExceeded(
                SERVER,
                f"a sum of rho {rho_of(charge):.6g}, after {rho_of(spend.charge):.6g} of the "
                f"{rho_of(self.charge):.6g} that this client ever spends",
            )
