"""Compares the audits of several runs: one row for each measure, one column for each run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from secagg.noise.zcdp_cost import Adjacency
from sims.audit.audit_result import Audit, ByteGrowth
from sims.audit.byte_comparison_and_growth import Load, growth
from sims.audit.privacy_cost import TAIL, PrivacyAccount
from sims.records.run_file_names import METRICS


@dataclass(frozen=True)
class RunComparison:
    """A table that compares runs, and a fit over all runs of how bytes grow with the number of clients."""

    names: tuple[str, ...]  # one for each run
    rows: tuple[tuple[str, tuple[float | str | None, ...]], ...]  # (measure, its value in each run or None)
    growth: ByteGrowth | None  # None if there are fewer than two sizes of cohorts
    together: ComposedCost


@dataclass(frozen=True)
class ComposedCost:
    """What all compared runs cost a client that was in all of them. A choice among runs uses all of them."""

    epsilon: float | None  # None if a run has no epsilon
    delta: float
    rho: float | None
    why: str  # in a sentence


def compared(audits: Sequence[Audit]) -> RunComparison:
    """Return a comparison of audited runs by accuracy, privacy cost, bytes, time and other measures."""
    names = tuple(_names(audits))
    found = [dict(_measures(audit)) for audit in audits]
    rows = tuple((name, tuple(each[name] for each in found)) for name in found[0])
    bytes_by_size = growth(_load(audit) for audit in audits if audit.traffic is not None)
    return RunComparison(names, rows, bytes_by_size, composed(audits))


def composed(audits: Sequence[Audit]) -> ComposedCost:
    """Return what the runs cost together: the sum of their rho, at the smallest of their deltas."""
    found = [audit.guarantee for audit in audits]
    delta = min(each.delta for each in found)
    costs = [each.rho for each in found if each.rho is not None]
    adjacencies = {each.adjacency for each in found}
    if len(costs) < len(found):
        why = f"{len(found) - len(costs)} of the {len(found)} runs have no epsilon"
        return ComposedCost(None, delta, None, why)
    if Adjacency.REPLACE in adjacencies and len(adjacencies) > 1:
        return ComposedCost(None, delta, None, "the costs of runs of different adjacencies cannot be added")
    rho = math.fsum(costs)
    why = "a choice among runs over the same clients uses all of them, not only the one that is chosen"
    account = PrivacyAccount(Adjacency(found[0].adjacency), delta)
    return ComposedCost(account.epsilon(rho), delta, rho, why)


def _names(audits: Sequence[Audit]) -> Iterator[str]:
    """Yield the name of each run: its label, or its path if several runs have the same label."""
    labels = [audit.subject.label for audit in audits]
    for audit in audits:
        own = audit.subject.label
        yield own if labels.count(own) == 1 else audit.subject.path


def _measures(audit: Audit) -> Iterator[tuple[str, float | str | None]]:
    subject, traffic, tail = audit.subject, audit.traffic, audit.tail
    tail_cost = audit.spending.of_budgets.get(TAIL)
    yield "algorithm", subject.algorithm
    yield "channel", subject.channel
    yield "status", subject.status
    yield "records", _records(audit)
    yield "accuracy", audit.achieved.accuracy
    yield "error of the 90th percentile", audit.achieved.error_90
    yield "accuracy of the worst tenth", audit.achieved.worst_tenth
    yield "private tail, 90th percentile", tail.get("error_p90")
    yield "rounds completed", None if METRICS in audit.integrity.withheld else audit.achieved.completed
    yield "sums released", len(audit.releases)
    yield "sums without noise", audit.spending.server.unnoised
    yield "bytes up a client", None if traffic is None else round(traffic.up_per_client)
    yield "bytes down a client", None if traffic is None else round(traffic.down_per_client)
    yield "epsilon", audit.guarantee.epsilon
    yield "delta", audit.guarantee.delta if audit.guarantee.epsilon is not None else None
    yield "epsilon of the private tail", None if tail_cost is None else tail_cost.epsilon
    yield "refusals", len(audit.losses.refused)
    yield "exclusions", len(audit.losses.excluded)
    yield "clients missed", sum(each.clients for each in audit.losses.missed)
    yield "seconds", audit.achieved.seconds


def _records(audit: Audit) -> str:
    if not audit.intact:
        return "ALTERED"
    return str(audit.integrity.verdict) if audit.sound else "WRONG"


def _load(audit: Audit) -> Load:
    traffic = audit.traffic
    assert traffic is not None  # checked by the caller
    rounds = len({release.round for release in audit.releases}) or 1
    return Load(audit.subject.per_round, audit.subject.dim, (traffic.up + traffic.down) / rounds)


def as_json(found: RunComparison) -> dict[str, Any]:
    """Return a dictionary for JSON: `runs` maps a run's name to its measures; `growth` is how bytes grow."""
    runs = {
        name: {measure: values[index] for measure, values in found.rows}
        for index, name in enumerate(found.names)
    }
    own = found.growth
    return {
        "runs": runs,
        "together": asdict(found.together),
        "growth": None
        if own is None
        else {"a": own.log_coefficient, "b": own.size_coefficient, "worst": own.worst, "sizes": own.sizes},
    }
