"""Computes a run's privacy cost by the server's ledger and by clients' own counts, and compares the two."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from typing import Final

from secagg.noise.zcdp_cost import Adjacency
from sims.audit.audit_result import PrivacySpending, Release, Spent
from sims.audit.ledger_reconciliation import Records
from sims.audit.released_sums import BudgetAccounts, PrivacyAccount
from sims.audit.run_files import Evidence, Row
from sims.records.sum_records import SumRecord
from sims.text_format import counted

ALGORITHM: Final = "algorithm"
TAIL: Final = "tail"
TOGETHER: Final = "together"
DELTA: Final = 1e-5  # used if neither the scenario nor the caller sets one
_SAME: Final = 1e-9  # tolerance: a ledger rounds every charge up, by less than 2^-40


def delta_of(evidence: Evidence, settings: Row, given: float | None) -> tuple[float, str]:
    """Return the delta for all epsilons, and a remark, which is empty unless the delta is the default."""
    if given is not None:
        return given, ""
    spend = evidence.spend or {}
    for table in (settings.get("privacy", {}), settings.get("tail", {}), spend):  # `spend` is unsigned
        if isinstance(table.get("delta"), float):
            return table["delta"], ""
    return DELTA, f"neither the scenario nor --delta names a delta: epsilons are for {DELTA:g}"


def adjacency_of(evidence: Evidence, records: Records) -> Adjacency:
    """Return the adjacency of the privacy costs: of the ledger's first noisy sum, else of `spend.json`."""
    for entry in records.entries:
        if entry.asked is not None and entry.asked["charge"] is not None:
            return Adjacency(entry.asked["adjacency"])
    return Adjacency((evidence.spend or {}).get("adjacency", str(Adjacency.ZERO_OUT)))


def spending(
    evidence: Evidence,
    records: Records,
    extra: Container[str],
    found: Sequence[Release],
    budget_accounts: BudgetAccounts,
) -> PrivacySpending:
    """Return the privacy cost of the released sums `found`, by the server's and by the clients' count. Sums
    of the kinds in `extra`, which the training does not use, have their own budget."""
    accounts = budget_accounts.algorithm
    own = [release for release in found if release.kind not in extra]
    extra_releases = [release for release in found if release.kind in extra]
    server = _spent(own, accounts)
    most, least = (_of_client(evidence.spend, which, accounts) for which in ("most", "least"))
    larger, why = _compared(server, most, records, evidence)
    budgets = {ALGORITHM: server}
    if extra_releases:
        budgets |= {TAIL: _spent(extra_releases, budget_accounts.tail), TOGETHER: _spent(found, accounts)}
    return PrivacySpending(
        adjacency=str(adjacency_of(evidence, records)),
        delta=accounts.delta,
        server=server,
        most=most,
        least=least,
        larger=larger,
        why=why,
        max_rho=None if evidence.spend is None else evidence.spend.get("max_rho"),
        of_budgets=budgets,
        most_of_tail=_of_client((evidence.spend or {}).get("tail"), "most", budget_accounts.tail),
    )


def _spent(found: Sequence[Release], accounts: PrivacyAccount) -> Spent:
    costs = [release.rho for release in found if release.rho is not None]
    return _cost(math.fsum(costs), len(found) - len(costs), accounts)


def _cost(rho: float, unnoised: int, accounts: PrivacyAccount) -> Spent:
    epsilon = accounts.epsilon(rho) if rho else None
    return Spent(rho=rho, epsilon=epsilon, unnoised=unnoised, delta=accounts.delta)


def _of_client(spend: Row | None, which: str, accounts: PrivacyAccount) -> Spent | None:
    own = ((spend or {}).get("clients") or {}).get(which)
    return None if own is None else _cost(float(own["rho"]), int(own["unnoised"]), accounts)


def _compared(server: Spent, most: Spent | None, records: Records, evidence: Evidence) -> tuple[str, str]:
    """Return whose count of the privacy cost is larger ("server", "clients" or "equal"), and a sentence why.
    Clients also count sums that failed after inputs were sent. The server counts released sums alone, but as
    if a single client had contributed to all of them."""
    if most is None:
        return "equal", "the run has no record of what clients have spent"
    own = [entry for entry in records.entries if not entry.extra]
    in_vain = sum(entry.contributors is None and _masked(entry.logged) for entry in own)
    same = math.isclose(server.rho, most.rho, rel_tol=_SAME, abs_tol=_SAME)
    if same and server.unnoised == most.unnoised:
        return "equal", "some client was in every sum that was released, and in no other"
    if most.unnoised > server.unnoised or (not same and most.rho > server.rho):
        reason = f"{counted(in_vain, 'sum')} failed after inputs were sent" if in_vain else "some sums failed"
        return "clients", f"a client is charged before it sends its input, without a refund: {reason}"
    if records.lost:
        lost = counted(records.lost, "sum")
        return "server", f"its ledger also knows {lost} of rounds that were cut off, of which clients do not"
    away = "no client was in every sum that was released"
    drawn = int(evidence.run["per_round"]) < int(evidence.run["clients"])
    return "server", away + (": each round is over a draw of them" if drawn else ", as some were missing")


def _masked(logged: SumRecord | None) -> bool:
    """Return whether any client sent an input to a sum. This is assumed if the log does not have the sum."""
    return logged is None or logged.masked > 0
