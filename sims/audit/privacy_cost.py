"""Computes and checks the privacy cost of a run's sums, by ledger, clients' counts and canaries."""

from __future__ import annotations

import heapq
import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from secagg.noise.zcdp_cost import Adjacency, charge, sum_rho
from secagg.sum_spec import SumSpec
from sims.audit.audit_result import Canary, PrivacySpending, Release, Spent
from sims.audit.ledger_vs_sum_log import Records
from sims.audit.recorded_sum_spec import spec_of
from sims.audit.run_files import Evidence, Row
from sims.text_format import counted

ALGORITHM: Final = "algorithm"
TAIL: Final = "tail"
DELTA: Final = 1e-5  # used if neither the scenario nor the caller sets one
_SAME: Final = 1e-9  # tolerance: a ledger rounds every charge up, by less than 2^-40


class PrivacyAccount:
    """Computes the privacy cost of sums as rho (zCDP), and converts rho to epsilon at a fixed delta."""

    def __init__(self, adjacency: Adjacency, delta: float) -> None:
        self._adjacency = adjacency
        self.delta = delta
        self._known: dict[float, float] = {}

    def rho(self, spec: SumSpec, roster: int) -> float | None:
        """Return the cost rho of one sum over `roster` clients; None if a part has no noise."""
        return sum_rho(spec, roster=roster, adjacency=self._adjacency)

    def epsilon(self, rho: float) -> float:
        """Return epsilon at the account's delta for `rho`, the cost of one sum or the total of several."""
        from secagg.noise.rho_and_epsilon import epsilon  # slow to import, and only needed for noise

        if rho not in self._known:
            self._known[rho] = epsilon([rho], delta=self.delta) if rho else 0.0
        return self._known[rho]


@dataclass(frozen=True)
class BudgetAccounts:
    """Two privacy accounts: `algorithm` for the sums of the training, `tail` for all other (extra) sums. A
    client takes part in so many rounds of the training (`participations`) at most; if None, in all."""

    algorithm: PrivacyAccount
    tail: PrivacyAccount
    participations: int | None = None

    def of(self, *, extra: bool) -> PrivacyAccount:
        return self.tail if extra else self.algorithm


def participations_of(settings: Row) -> int | None:
    """Return in how many rounds a client takes part at most, as the scenario says; None for all."""
    found = (settings.get("privacy") or {}).get("participations")
    return found if type(found) is int and found > 0 else None


def rho_of_rounds(costs: Mapping[int, float], participations: int | None) -> float:
    """Return the cost rho for a client in the rounds that cost most, of all `costs` (round -> rho): in as
    many as it takes part in, or in all."""
    most = len(costs) if participations is None else participations
    return math.fsum(heapq.nlargest(most, costs.values()))


def rho_of_releases(found: Iterable[Release], participations: int | None) -> float:
    """Return the cost rho of sums with noise in the rounds that cost most, as `rho_of_rounds` does."""
    costs: dict[int, float] = {}
    for each in found:
        costs[each.round] = costs.get(each.round, 0.0) + (each.rho or 0.0)
    return rho_of_rounds(costs, participations)


def delta_of(evidence: Evidence, settings: Row, given: float | None) -> tuple[float, str]:
    """Return the delta for all epsilons: `given`, else that of the scenario (`settings`) or `spend.json`,
    else 1e-5. Also return a remark about the last case, which is empty in all others."""
    if given is not None:
        return given, ""
    spend = evidence.spend or {}
    for table in (settings.get("privacy", {}), settings.get("tail", {}), spend):  # `spend` is unsigned
        if isinstance(table.get("delta"), float):
            return table["delta"], ""
    return DELTA, f"neither the scenario nor --delta names a delta: epsilons are for {DELTA:g}"


def adjacency_of(evidence: Evidence, records: Records) -> Adjacency:
    """Return the adjacency of the run's privacy costs: which change of one client's input the noise hides. It
    is that of the ledger's first sum with noise, else that in `spend.json`, else zero-out."""
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
    """Return the privacy cost of the released sums `found`, by the server's ledger and by the clients' counts
    in `spend.json`. Sums of the kinds in `extra`, which the training does not use, are also counted apart."""
    accounts = budget_accounts.algorithm
    own = [release for release in found if release.kind not in extra]
    extra_releases = [release for release in found if release.kind in extra]
    often = budget_accounts.participations
    rho, rho_of_tail = rho_of_releases(own, often), rho_of_releases(extra_releases, None)
    server = _cost(rho + rho_of_tail, _unnoised(found), accounts)
    most, least = (_of_client(evidence.spend, which, accounts) for which in ("most", "least"))
    larger, why = _compared(server, most, records, evidence)
    budgets = {ALGORITHM: _cost(rho, _unnoised(own), accounts)}
    if extra_releases:
        budgets[TAIL] = _cost(rho_of_tail, _unnoised(extra_releases), budget_accounts.tail)
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
        participations=often,
    )


def _unnoised(found: Iterable[Release]) -> int:
    return sum(release.rho is None for release in found)


def _cost(rho: float, unnoised: int, accounts: PrivacyAccount) -> Spent:
    epsilon = accounts.epsilon(rho) if rho else None
    return Spent(rho=rho, epsilon=epsilon, unnoised=unnoised, delta=accounts.delta)


def _of_client(spend: Row | None, which: str, accounts: PrivacyAccount) -> Spent | None:
    own = ((spend or {}).get("clients") or {}).get(which)
    return None if own is None else _cost(float(own["rho"]), int(own["unnoised"]), accounts)


def _compared(server: Spent, most: Spent | None, records: Records, evidence: Evidence) -> tuple[str, str]:
    """Return whose count of the privacy cost is larger ("server", "clients" or "equal"), and a sentence why.
    Clients also count sums that failed after inputs were sent. The server counts only released sums, as if
    one client were in all of them. If the clients' count, `most`, is None, return "equal"."""
    if most is None:
        return "equal", "the run has no record of what clients have spent"
    failed = [entry for entry in records.entries if entry.contributors is None]
    in_vain = sum(entry.logged is None or entry.logged.masked > 0 for entry in failed)
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


def wrong_charges(records: Records, accounts: PrivacyAccount) -> Iterator[str]:
    """Yield a sentence for each sum whose privacy cost in the ledger is not what follows from its noise."""
    for entry in records.entries:
        if entry.asked is None:
            continue
        rho = accounts.rho(spec_of(entry.asked), entry.invited)
        own = None if rho is None else charge(rho)
        if own != entry.asked["charge"]:
            yield (
                f"a sum of {entry.kind} in round {entry.round}: the ledger charges {entry.asked['charge']} "
                f"for it, and its noise costs {own}"
            )


def canaries(evidence: Evidence) -> tuple[Canary, ...]:
    """Return the results in `canaries.json`, one for each kind of sum: lower bounds on epsilon, measured with
    sums with and without a known client (the canary). Empty if there is no such file."""
    return tuple(
        Canary(
            kind=row["kind"],
            runs=2 * row["runs_per_arm"],
            bound=row["epsilon_gaussian"],
            bound_of_any_noise=row["epsilon_clopper_pearson"],
            claimed=row["epsilon"],
            delta=row["delta"],
            confidence=row["confidence"],
            holds=bool(row["holds"]) and not _refutes(row),
        )
        for row in (evidence.canaries or {}).get("specs") or ()
    )


def _refutes(row: Row) -> bool:
    """Return whether a lower bound on epsilon that a canary test measured exceeds the claimed epsilon."""
    bounds = (row["epsilon_gaussian"], row["epsilon_clopper_pearson"])
    return any(bound is not None and bound > row["epsilon"] for bound in bounds)
