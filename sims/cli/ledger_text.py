"""Renders the audit of ledgers as lines of text for ``secagg audit``."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sims.text_format import ADJACENCY_MEANINGS, counted

if TYPE_CHECKING:
    from sims.audit.audit_result import Spent
    from sims.audit.ledger_audit import DeploymentAudit, KindOfSums, LedgerAudit, LedgerSum

MOST_SHOWN = 10


def as_json(audit: "DeploymentAudit") -> dict[str, Any]:
    """Return the audit as a dictionary for JSON, with the property `intact`."""
    return {**asdict(audit), "intact": audit.intact}


def ledger_lines(audit: "DeploymentAudit", *, everything: bool = False) -> Iterator[str]:
    """Yield the lines of an audit of ledgers. With `everything`, list each sum."""
    for number, each in enumerate(audit.ledgers):
        yield from ("",) if number else ()
        yield from _ledger(each, everything=everything)
    if len(audit.ledgers) > 1:
        yield ""
        yield "The ledgers against each other"
        yield from (f"  WRONG: {problem}" for problem in audit.problems)
        if not audit.problems:
            yield f"  {counted(audit.compared, 'sum')} are in several of them, and they say the same"
        yield "  a sum that only one of them has was asked of others, or its total was never released"
    for remark in audit.remarks if any(each.spent.epsilon for each in audit.ledgers) else ():
        yield ""
        yield remark


def _ledger(found: "LedgerAudit", *, everything: bool) -> Iterator[str]:
    if not found.rows:
        yield f"{found.path}: nothing is shown of this ledger"
        yield from (f"  WRONG: {problem}" for problem in found.problems)
        return
    key = f", key {found.identity}" if found.identity else ", without a key"
    yield f"{found.path}: the ledger of {found.owner}{key}"
    yield f"  {counted(found.rows, 'row')}, head {found.head[:16]}..., begun {found.created}"
    yield from (f"  WRONG: {problem}" for problem in found.problems)
    if not found.problems:
        yield "  consistent, not authenticated: the chain of its rows and its seal hold"
    yield from (f"  {remark}" for remark in found.remarks)
    yield ""
    is_server = found.role == "server"
    yield "What the server learned" if is_server else f"What {found.owner} was asked, and answered"
    yield f"  {counted(len(found.sessions), 'session')}, {counted(len(found.sums), 'sum')}"
    for kind in found.kinds:
        yield from (f"  {line}" for line in _kind(kind, is_server=is_server))
    shown = found.sums if everything else ()
    yield from (f"  {_sum(each, is_server=is_server)}" for each in shown)
    failed = [each for each in found.sums if each.failure is not None]
    for each in failed[: len(failed) if everything else MOST_SHOWN]:
        yield f"  nothing was released of {each.name}: {each.failure}"
    if not everything and found.sums:
        yield f"  --all lists each of the {len(found.sums):,} sums"
    yield ""
    yield "What it cost"
    whose = "a client that was in every released sum" if is_server else f"{found.owner}, by its own count"
    yield f"  {whose}: {_spent(found.spent)}"
    if found.spent.epsilon is not None:
        yield f"  noise hides ({found.adjacency} adjacency): {ADJACENCY_MEANINGS[found.adjacency]}"
    if is_server:
        yield ""
        yield "Who was excluded"
        rows = [f"client {each.member} was {each.what}: {each.why}" for each in found.departures]
        yield from (f"  {row}" for row in rows or ["nobody"])


def _kind(kind: "KindOfSums", *, is_server: bool) -> Iterator[str]:
    verb = "asked" if is_server else "answered"
    known = "released" if is_server else "known to have a total"
    low, high = kind.least_contributors, kind.most_contributors
    over = "" if low is None else f", over {low:,}" + ("" if low == high else f" to {high:,}") + " clients"
    first, last = kind.first_round, kind.last_round
    rounds = f"round {first}" if first == last else f"rounds {first}-{last}"
    yield f"{kind.kind}: {counted(kind.asked, 'sum')} {verb} in {rounds}, {kind.released:,} {known}{over}"
    for part, span in zip(kind.parts, kind.sigmas, strict=True):
        noise = "no noise: the total is exact"
        if part.noisy:
            noise = "noise" if span is None else f"noise of standard deviation {_span(span)} on the total"
        size = f"{counted(part.size, 'number')} of {counted(part.bits, 'bit')}"
        yield f"  {part.name:<14} {size}; of each client, {part.bound}; {noise}"
    cost = "not covered by rho: a part has no noise" if kind.rho is None else f"rho {kind.rho:.4g} together"
    yield f"  {cost}"


def _span(span: tuple[float, float]) -> str:
    low, high = (f"{each:.4g}" for each in span)
    return low if low == high else f"{low} to {high}"


def _sum(found: "LedgerSum", *, is_server: bool) -> str:
    unknown = "no total" if is_server else "total unknown"
    total = unknown if found.contributors is None else f"over {found.contributors:,}"
    cost = "no noise" if found.rho is None else f"rho {found.rho:.4g}"
    members = "" if found.members is None else f"; clients {', '.join(map(str, found.members))}"
    return f"{found.name}: {total} of {found.roster:,} clients; {cost}{members}"


def _spent(found: "Spent") -> str:
    bare = f"{counted(found.unnoised, 'sum')} without noise"
    if found.epsilon is None:
        return f"{bare}, and none with noise"
    return f"rho {found.rho:.4g}, epsilon {found.epsilon:.4g} at delta {found.delta:g}, and {bare}"
