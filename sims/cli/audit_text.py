"""Renders the audit of a run, or a comparison of several, as lines of text for ``secagg audit``."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sims.audit.guarantee_text import covered, headline, knowledge, odds, protected, unprotected
from sims.records.run_directory import SERVED
from sims.text_format import ADJACENCY_MEANINGS, counted

if TYPE_CHECKING:
    from sims.audit.audit_result import (
        Audit,
        ByteGrowth,
        ByteTraffic,
        ClientLosses,
        GroupSteps,
        Integrity,
        PrivacySpending,
        Release,
        RoundRange,
        RunSummary,
        Spent,
        StageBytes,
        SumKind,
    )
    from sims.audit.table_of_runs import ComposedCost, RunComparison

MOST_SHOWN = 10


def lines(audit: "Audit", *, everything: bool = False) -> Iterator[str]:
    """Yield the lines of an audit. With `everything`, list each released sum, not just ranges of rounds."""
    yield from _subject(audit.subject)
    yield from (f"  {remark}" for remark in audit.remarks)
    yield from _section("Integrity", _integrity(audit.integrity))
    yield from _section("What the server learned", _learned(audit, everything=everything))
    yield from _section("What this means for one client", _meaning(audit))
    yield from _section("What it cost", _spending(audit.spending))
    yield from _section("What is not private", (f"- {each.what}: {each.why}" for each in audit.exposures))
    yield from _section("Groups of sums", (line for group in audit.groups for line in _group(group)))
    yield from _section("Drop-outs and refusals", _losses(audit.losses, everything=everything))
    yield from _section("Bytes", _bytes(audit.traffic, audit.subject))
    yield from _section("Canaries", _canaries(audit))


def printable(line: str) -> str:
    """Return the line with control characters escaped, because names in a run directory are untrusted."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line)


def _section(title: str, content: Iterator[str]) -> Iterator[str]:
    """Yield the title and the indented content of a section; nothing if there is no content."""
    for number, line in enumerate(content):
        if number == 0:
            yield ""
            yield title
        yield f"  {line}"


def _subject(found: "RunSummary") -> Iterator[str]:
    lying = f", {found.attackers:,} of them malicious" if found.attackers else ""
    drawn = f", {found.per_round:,} a round" if found.per_round < found.clients else ""
    who = f"{found.clients:,} clients{lying}{drawn}"
    yield f"{found.label}: {found.algorithm}, {who}, {counted(found.dim, 'parameter')}"
    graph = ""
    if found.graph is not None:
        graph = f", {found.graph} graph: {found.neighbours} neighbours, threshold {found.threshold}"
    yield f"  channel        {found.channel}, {found.trust}, {found.key_agreement}{graph}"
    if found.cluster_text:
        yield f"  cluster        {found.cluster_text}"
    why = f": {found.why}" if found.why else ""
    yield f"  status         {found.status}{why}; {found.done} of {counted(found.rounds, 'round')}"
    if found.insecure_seed is not None:
        yield f"  insecure_seed  {found.insecure_seed[:16]}...: nothing is secret from anyone who knows it"
    if found.command:
        name = "simulate it" if found.channel == SERVED else "repeat it"
        yield f"  {name:14} {found.command}"


def _integrity(found: "Integrity") -> Iterator[str]:
    yield from (f"WRONG: {problem}" for problem in found.problems)
    if found.rows is not None and found.head is not None and found.intact:
        yield f"the ledger's chain holds: {counted(found.rows, 'row')}, head {found.head[:16]}..."
        every = "every other sum" if found.lost else "every sum"
        yield f"{every} in the ledger is in sums.jsonl, with the same numbers, and the other way round"
    if found.key is not None:
        yield f"its head is signed by the key {found.key}"
        yield f"fingerprint {found.fingerprint}" + (": the key you expect" if found.expected else "")
    yield from found.remarks


# --- what was learned -------------------------------------------------------------------------------


def _learned(audit: "Audit", *, everything: bool) -> Iterator[str]:
    if not audit.releases:
        yield "nothing: no sum was released"
        return
    released = Counter(release.kind for release in audit.releases)
    for kind in audit.kinds:
        if released[kind.kind]:
            yield from _kind(kind, released[kind.kind], _sigmas(kind, audit.releases))
    if everything:
        yield from (_release(release) for release in audit.releases)
        return
    shown = audit.stretches if len(audit.stretches) <= 2 * MOST_SHOWN else audit.stretches[:MOST_SHOWN]
    yield from (_stretch(stretch) for stretch in shown)
    if len(shown) < len(audit.stretches):
        yield f"... and {len(audit.stretches) - len(shown)} more ranges of rounds"
    yield f"--all lists each of the {len(audit.releases):,} sums"


def _kind(kind: "SumKind", times: int, sigmas: Sequence[str]) -> Iterator[str]:
    often = f", up to {counted(kind.times, 'time')} a round" if kind.times and kind.times > 1 else ""
    beside = ", beside the training" if kind.extra else ""
    yield f"{kind.kind}: {counted(times, 'sum')}{often}{beside}; {kind.reveals}"
    for part, sigma in zip(kind.parts, sigmas, strict=True):
        size = f"{counted(part.size, 'number')} of {counted(part.bits, 'bit')}"
        yield f"  {part.name:<14} {size}; of each client, {part.bound}; {sigma}"


def _sigmas(kind: "SumKind", releases: "Sequence[Release]") -> list[str]:
    """Return a text for each part of a kind of sum: the range of its noise's standard deviation, if any."""
    own = [release.sigmas for release in releases if release.kind == kind.kind and release.sigmas]
    texts = []
    for index, part in enumerate(kind.parts):
        found = [sigma for row in own if (sigma := row[index]) is not None]
        if part.noisy and found:
            low, high = f"{min(found):.4g}", f"{max(found):.4g}"
            span = low if low == high else f"{low} to {high}"
            texts.append(f"noise of standard deviation {span} on the total")
        else:
            texts.append("no noise")
    return texts


def _stretch(found: "RoundRange") -> str:
    rounds = f"round {found.first}" if found.first == found.last else f"rounds {found.first}-{found.last}"
    each = "" if found.first == found.last else " a round"
    sums = ", ".join(f"{kind}, {times}{each}" for kind, times in found.sums.items())
    low, high = found.least_contributors, found.most_contributors
    over = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"{rounds}: {sums}; over {over} clients{_so_far(found.rho_so_far, found.epsilon_so_far)}"


def _release(found: "Release") -> str:
    cost = "no noise" if found.rho is None else f"rho {found.rho:.4g}, epsilon {found.epsilon:.4g}"
    return (
        f"{found.number}. round {found.round}, {found.kind}: over {found.contributors:,} of "
        f"{found.invited:,} clients; {cost}{_so_far(found.rho_so_far, found.epsilon_so_far)}"
    )


def _so_far(rho: float, epsilon: float | None) -> str:
    return "" if epsilon is None else f"; so far rho {rho:.4g}, epsilon {epsilon:.4g}"


# --- what it cost -----------------------------------------------------------------------------------


def _meaning(audit: "Audit") -> Iterator[str]:
    """Yield what the privacy guarantee means, in the words that the page of the run has, too."""
    yield headline(audit)
    yield covered(audit)
    yield f"protected: {protected(audit)}"
    yield odds(audit)
    yield from (f"not protected: {each}" for each in unprotected(audit))
    yield "who could know what about one client:"
    yield from (f"- {each.party}: {each.knows} (protection: {each.protection})" for each in knowledge(audit))


def _spending(found: "PrivacySpending") -> Iterator[str]:
    noisy = found.server.rho or (found.most is not None and found.most.rho)
    if noisy:
        meaning = ADJACENCY_MEANINGS[found.adjacency]
        yield f"noise hides one client ({found.adjacency}): {meaning}; epsilon is at delta {found.delta:g}"
        yield "rho is another measure of the same loss: that of several sums is added up, and gives epsilon"
    rounds = "" if found.participations is None else f" of {counted(found.participations, 'round')}"
    yield f"by the server's count, a client in every released sum{rounds}: {_spent(found.server)}"
    if found.most is not None and found.least is not None:
        yield f"by their own count, the client that spent most: {_spent(found.most)}"
        if found.least != found.most:
            yield f"and the one that spent least: {_spent(found.least)}"
        which = {"equal": "both counts are equal", "server": "the server's count is larger"}
        yield f"{which.get(found.larger, 'the count of clients is larger')}: {found.why}"
    else:
        yield found.why
    if found.max_rho is not None:
        yield f"clients spend rho {found.max_rho:.4g} in this run, for all that they are asked, and no more"
    for name, words in (("algorithm", "of this, the training"), ("tail", "and what is asked beside it")):
        if "tail" in found.of_budgets:
            own = found.of_budgets[name]
            at = "" if own.delta in (None, found.delta) else f" (at delta {own.delta:g})"
            yield f"{words}: {_spent(own)}{at}"


def _spent(found: "Spent") -> str:
    bare = f"{counted(found.unnoised, 'sum')} without noise"
    if found.epsilon is None:
        return f"{bare}, and none with noise"
    return f"rho {found.rho:.4g}, epsilon {found.epsilon:.4g}, and {bare}"


def _group(found: "GroupSteps") -> Iterator[str]:
    if not found.rounds:
        return
    taken = ", ".join(f"{steps} in {counted(often, 'round')}" for steps, often in found.rounds.items())
    yield f"{found.group}: up to {found.planned} sums a round, {found.mean:.3g} on average ({taken})"
    for cut in found.cut_short[:MOST_SHOWN]:
        yield f"  round {cut.round} ended after {counted(cut.steps, 'sum')}: {cut.why}"
    if len(found.cut_short) > MOST_SHOWN:
        yield f"  and {len(found.cut_short) - MOST_SHOWN} more rounds were cut short"


def _losses(found: "ClientLosses", *, everything: bool) -> Iterator[str]:
    if not (found.missed or found.refused or found.excluded or found.failed):
        yield "none"
        return
    stages: Counter[str] = Counter()
    for each in found.missed:
        stages[each.stage] += each.clients
    for stage, clients in stages.items():
        rounds = sorted({each.round for each in found.missed if each.stage == stage})
        yield f"{stage}: {counted(clients, 'client')} missing, in {_rounds(rounds)}"
    rows = [f"client {e.member} refused in round {e.round} ({e.kind}): {e.sentence}" for e in found.refused]
    rows += [
        f"client {e.member} was excluded in round {e.round} ({e.kind or 'set-up'}), {e.error}: {e.sentence}"
        + ("; it is invited no more" if e.barred else "")
        for e in found.excluded
    ]
    rows += [f"nothing was released in round {e.round} ({e.kind or 'set-up'}): {e.why}" for e in found.failed]
    most = len(rows) if everything else MOST_SHOWN
    yield from rows[:most]
    if len(rows) > most:
        yield f"and {len(rows) - most} more, which --all lists"


def _rounds(rounds: Sequence[int]) -> str:
    if len(rounds) > MOST_SHOWN:
        return f"{len(rounds)} rounds from {rounds[0]} to {rounds[-1]}"
    return ("round " if len(rounds) == 1 else "rounds ") + ", ".join(map(str, rounds))


# --- bytes ------------------------------------------------------------------------------------------


def _bytes(found: "ByteTraffic | None", subject: "RunSummary") -> Iterator[str]:
    if found is None:
        return
    yield f"{'stage':<10} {'up':>14} {'predicted':>14} {'down':>14} {'predicted':>14}"
    yield from map(_stage, found.stages)
    if found.exact == found.sums:
        yield f"all {found.sums:,} set-ups and sums take what the protocol says, to the byte"
    else:
        yield f"{found.exact:,} of {found.sums:,} set-ups and sums take what the protocol says, to the byte"
    if found.wrong:
        yield f"WRONG: {counted(found.wrong, 'count')} of bytes contradict the protocol"
    yield from found.differences
    yield (
        f"each of {subject.per_round:,} clients of a round: {found.up_per_client:,.0f} bytes up and "
        f"{found.down_per_client:,.0f} down in the whole run"
    )
    if found.fedavg_up and found.fedavg_down:
        yield (
            f"plain federated averaging would take {found.fedavg_up:,.0f} each way: that is "
            f"{found.up_per_client / found.fedavg_up:,.3g} times as much up, and "
            f"{found.down_per_client / found.fedavg_down:,.3g} times as much down"
        )
    if found.growth is not None:
        yield growth_line(found.growth)


def growth_line(found: "ByteGrowth") -> str:
    sizes = ", ".join(f"{size:,}" for size in sorted(set(found.sizes)))
    few = len(found.sizes) <= 2
    error = "which any two sizes would fit" if few else f"off by {found.worst:.1%} at most"
    return (
        f"over cohorts m of {sizes}, a round takes {found.log_coefficient:,.4g} m log2 m + "
        f"{found.size_coefficient:,.4g} m d bytes, {error}"
    )


def _stage(row: "StageBytes") -> str:
    up, down = ("unknown" if each is None else f"{each:,}" for each in (row.expected_up, row.expected_down))
    return f"{row.stage:<10} {row.up:>14,} {up:>14} {row.down:>14,} {down:>14}"


def _canaries(audit: "Audit") -> Iterator[str]:
    for each in audit.canaries:
        claimed = "" if each.claimed is None else f", and {each.claimed:.4g} is claimed"
        verdict = "" if each.holds else ": THE NOISE IS NOT WHAT WAS PROMISED"
        yield (
            f"{each.kind}: epsilon of one sum is at least {each.bound:.4g} by {each.runs:,} sums with and "
            f"without a known client, at delta {each.delta:g}{claimed}{verdict}"
        )


# --- several runs -----------------------------------------------------------------------------------


def table(found: "RunComparison") -> Iterator[str]:
    """Yield a table, one row per measure and one column per run, and a line on how bytes grow, if known."""
    rows = [("", found.names), *((name, tuple(map(_cell, values))) for name, values in found.rows)]
    first = max(len(name) for name, _ in rows)
    widths = [max(len(values[index]) for _, values in rows) for index in range(len(found.names))]
    for name, values in rows:
        cells = (f"{value:>{width}}" for value, width in zip(values, widths, strict=True))
        yield f"{name:<{first}}  {'  '.join(cells)}"
    yield _together(found.together)
    if found.growth is not None:
        yield growth_line(found.growth)


def _together(found: "ComposedCost") -> str:
    if found.epsilon is None:
        return f"together, if over the same clients: no epsilon, as {found.why}"
    return (
        f"together, if over the same clients: epsilon {found.epsilon:.4g} at delta {found.delta:g} (rho "
        f"{found.rho:.4g}), as {found.why}"
    )


def _cell(value: float | str | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
