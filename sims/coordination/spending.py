"""Computes the privacy cost of all sums so far, for a client that has answered every one of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from protocols.algorithm import AnyAlgorithm
from secagg.client_budget import Spend, sum_charge
from secagg.noise.zcdp_cost import Adjacency, charge
from sims.records.sum_records import SumRecord
from sims.scenario.settings import Settings

_FORGIVEN_BITS: Final = 20  # clients forgive what rounding adds to the limit, as `client_budget` says


class Spending:
    """The privacy cost of the sums so far. Failed sums count, as clients are charged before they answer."""

    def __init__(self, algorithm: AnyAlgorithm, spend: tuple[int, int, int] = (0, 0, 0)) -> None:
        self._table = algorithm.table
        self._limit = None if algorithm.max_rho is None else charge(algorithm.max_rho)
        self._spend = Spend(*spend)

    @property
    def spend(self) -> Spend:
        """The cost for a client that was in all sums, or as much as clients spend at most, if that is less:
        a client may take part in fewer rounds than there are."""
        found, limit = self._spend, self._limit
        if limit is None or found.charge <= limit + (limit >> _FORGIVEN_BITS):
            return found
        return replace(found, charge=limit)

    def add(self, record: SumRecord) -> None:
        """Add the cost of a sum, unless no client was asked or all refused: then no client was charged."""
        if record.index is None or self._table is None:
            return
        if not record.masked and len(record.refusals) >= record.invited:
            return
        spec = self._table[record.kind]
        self.charge(sum_charge(spec, roster=record.invited, adjacency=Adjacency.ZERO_OUT))

    def charge(self, cost: int | None) -> None:
        """Add the privacy cost of one sum, in units of 2^-40 rho; None for a sum without noise."""
        self._spend = self._spend.plus(cost)

    @property
    def saved(self) -> tuple[int, int, int]:
        return self._spend.charge, self._spend.noised, self._spend.unnoised


def total(parts: Iterable[Spending]) -> Spend:
    """Return the cost of all sums of a run, whatever they are for: they are over the same clients."""
    spends = [each.spend for each in parts]
    return Spend(
        charge=sum(each.charge for each in spends),
        noised=sum(each.noised for each in spends),
        unnoised=sum(each.unnoised for each in spends),
    )


def epsilon_of(spend: Spend, delta: float | None) -> float | None:
    """Return epsilon at `delta`; None if `delta` is None, if a sum had no noise, or before any sum."""
    if delta is None or spend.unnoised or not spend.noised:
        return None
    return _epsilon(spend.rho, delta)


@lru_cache(maxsize=1024)
def _epsilon(rho: float, delta: float) -> float:
    from secagg.noise.rho_and_epsilon import epsilon  # slow to import, and only needed for noise

    return epsilon([rho], delta=delta)


def delta_of(settings: Settings, part: str = "training") -> float | None:
    section = settings.tail if part == "tail" else settings.privacy
    return None if section is None else section.delta


def run_delta(settings: Settings) -> float | None:
    """Return the delta at which the epsilon of a whole run is stated: that of [privacy], or else that of
    [tail]; None if neither has one."""
    own = delta_of(settings)
    return delta_of(settings, "tail") if own is None else own


def spend_facts(
    server: Spend, clients: Mapping[int, Spend], *, max_rho: float | None, delta: float | None
) -> dict[str, Any]:
    """Return as JSON the privacy cost that the server computed, and the largest and smallest of a client. All
    of them are over all sums of the run."""
    by_cost = sorted(clients.items(), key=lambda item: (item[1].charge, item[1].unnoised))
    return {
        "adjacency": str(Adjacency.ZERO_OUT),
        "server": {"rho": server.rho, "unnoised": server.unnoised},
        "clients": {"most": _client(*by_cost[-1]), "least": _client(*by_cost[0])} if by_cost else {},
        "max_rho": max_rho,
        "delta": delta,
    }


def _client(member: int, spend: Spend) -> dict[str, Any]:
    return {"client": member, "rho": spend.rho, "noised": spend.noised, "unnoised": spend.unnoised}
