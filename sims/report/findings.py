"""The audit as tables: what the server learned, what it cost, who went missing, and what was sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from sims.audit.audit import Audit, Kind, Release, Spent
from sims.report import numbers, tables
from sims.report.chapter import MEASURES, Chapter, judged
from sims.report.tables import Cell, Table
from sims.report.traffic import STAGES
from sims.report.wording import sentence_of
from sims.words import counted

_SET_UP: Final = "set-up"


def findings(chapter: Chapter, prefix: str, *, rows: int) -> tuple[Table, ...]:
    """All tables that have something to show. Of long ones, `rows` at most are in the page."""
    audit = chapter.audit
    made = (
        _kinds(audit),
        _releases(audit, rows),
        _spending(audit),
        _groups(audit),
        *_losses(audit, rows),
        _stages(audit),
        _canaries(audit),
    )
    return tuple(_prefixed(table, prefix) for table in made if table.rows)


def _prefixed(table: Table, prefix: str) -> Table:
    return replace(table, key=f"{prefix}{table.key}")


# --- what was learned ---


def _kinds(audit: Audit) -> Table:
    return Table(
        key="kinds",
        caption="What the server learns from each kind of sum",
        columns=("Kind", "What it reveals", "Parts", "Group", "Noise"),
        rows=tuple(_kind(each) for each in audit.kinds),
    )


def _kind(kind: Kind) -> tuple[Cell, ...]:
    parts = "; ".join(f"{part.name}: {part.size:,} of {part.bits} bits, {part.bound}" for part in kind.parts)
    noise = Cell("on every part", tone="good") if kind.private else Cell("no", tone="bad")
    return (Cell(kind.kind), Cell(kind.reveals), Cell(parts), tables.words(kind.group or None), noise)


def _releases(audit: Audit, rows: int) -> Table:
    shown = audit.releases[:rows]
    left = len(audit.releases) - len(shown)
    return Table(
        key="releases",
        caption="Every sum that was released, in order",
        columns=("Sum", "Round", "Kind", "Elements", "Bits", "Invited", "Contributors", "Epsilon", "So far"),
        rows=tuple(_release(each, audit) for each in shown),
        note=f"{left:,} further sums are left out here; secagg audit --json has them." if left else "",
        folded=True,
        noun="sums",
    )


def _release(each: Release, audit: Audit) -> tuple[Cell, ...]:
    kind = next((kind for kind in audit.kinds if kind.kind == each.kind), None)
    elements = None if kind is None else sum(part.size for part in kind.parts)
    bits = None if kind is None else sum(part.size * part.bits for part in kind.parts)
    none = Cell("no noise", tone="bad")
    return (
        tables.number(each.number),
        tables.number(each.round),
        Cell(each.kind),
        tables.number(elements),
        tables.number(bits),
        tables.number(each.invited),
        tables.number(each.contributors),
        none if each.rho is None else tables.number(each.epsilon),
        tables.number(each.epsilon_so_far if each.rho_so_far else None),
    )


# --- what it cost ---


def _spending(audit: Audit) -> Table:
    spending, several = audit.spending, len(audit.spending.of_budgets) > 1
    parties: list[tuple[str, Spent | None]] = [
        ("The server's ledger: a client in every sum", spending.server),
        ("The client that spent most, by its own ledger", spending.most),
        ("The client that spent least", spending.least),
        *((_budget(name), spent) for name, spent in spending.of_budgets.items() if several),
    ]
    budget = "" if spending.max_rho is None else f" Clients refuse more than a rho of {spending.max_rho:.4g}."
    return Table(
        key="spending",
        caption="What privacy has cost",
        columns=("Who keeps count", "rho", "Epsilon", "Delta", "Sums without noise"),
        rows=tuple(_spent(name, spent) for name, spent in parties if spent is not None),
        note=f"Adjacency: {spending.adjacency}. {sentence_of(spending.why)}{budget}",
    )


def _spent(name: str, spent: Spent) -> tuple[Cell, ...]:
    epsilon = Cell("no noise", tone="bad") if not spent.rho else tables.number(spent.epsilon)
    delta = tables.number(spent.delta if spent.rho else None)
    return (Cell(name), tables.number(spent.rho), epsilon, delta, tables.number(spent.unnoised))


def _budget(name: str) -> str:
    words = {"algorithm": "The training by itself", "tail": "The histogram of errors by itself"}
    return (words | {"together": "Both together, for a client in all of it"}).get(name, name)


def _canaries(audit: Audit) -> Table:
    return Table(
        key="canaries",
        caption="Epsilon as canaries measured it: a lower bound",
        columns=(
            "Kind",
            "Runs",
            "Lower bound",
            "Without assuming its law",
            "Claimed",
            "Delta",
            "As promised",
        ),
        rows=tuple(
            (
                Cell(each.kind),
                tables.number(each.runs),
                tables.number(each.bound),
                tables.number(each.bound_of_any_noise),
                tables.number(each.claimed),
                tables.number(each.delta),
                Cell("yes", tone="good") if each.holds else Cell("no", tone="bad"),
            )
            for each in audit.canaries
        ),
    )


# --- who went missing ---


def _groups(audit: Audit) -> Table:
    return Table(
        key="groups",
        caption="Groups: sums of the same private vectors, round by round",
        columns=("Group", "Planned steps", "Mean", "Rounds by steps achieved", "Cut short"),
        rows=tuple(
            (
                Cell(each.group),
                tables.number(each.planned),
                tables.number(each.mean),
                Cell(
                    ", ".join(
                        f"{steps}: {counted(often, 'round')}" for steps, often in sorted(each.rounds.items())
                    )
                ),
                tables.number(len(each.cut_short)),
            )
            for each in audit.groups
        ),
    )


def _losses(audit: Audit, rows: int) -> Iterable[Table]:
    losses = audit.losses
    yield Table(
        key="missed",
        caption="Clients that dropped out",
        columns=("Round", "Kind", "Stage", "Clients"),
        rows=tuple(
            (
                tables.number(each.round),
                Cell(each.kind or _SET_UP),
                Cell(_stage(each.stage)),
                tables.number(each.clients),
            )
            for each in losses.missed[:rows]
        ),
        note=_left(len(losses.missed), rows),
        folded=True,
        noun="drop-outs",
    )
    yield Table(
        key="refused",
        caption="Clients that refused",
        columns=("Round", "Kind", "Client", "Error", "What it said"),
        rows=tuple(
            (
                tables.number(each.round),
                Cell(each.kind or _SET_UP),
                tables.number(each.member),
                Cell(each.error),
                Cell(each.sentence),
            )
            for each in losses.refused[:rows]
        ),
        note=_left(len(losses.refused), rows),
        folded=True,
        noun="refusals",
    )
    yield Table(
        key="failed",
        caption="Sums of which nothing was released",
        columns=("Round", "Kind", "Why"),
        rows=tuple(
            (tables.number(each.round), Cell(each.kind or _SET_UP), Cell(each.why))
            for each in losses.failed[:rows]
        ),
        note=_left(len(losses.failed), rows),
        folded=True,
        noun="sums",
    )


def _left(count: int, rows: int) -> str:
    return f"{count - rows:,} more are left out here; secagg audit --json has them." if count > rows else ""


def _stage(name: str) -> str:
    return f"{STAGES[name]} ({name})" if name in STAGES else name


# --- what was sent ---


def _stages(audit: Audit) -> Table:
    sent = audit.traffic
    rows = (
        ()
        if sent is None
        else tuple(
            (
                Cell(_stage(each.stage)),
                tables.number(each.up),
                tables.number(each.expected_up),
                tables.number(each.down),
                tables.number(each.expected_down),
                tables.number(each.frames_up),
                tables.number(each.frames_down),
            )
            for each in sent.stages
        )
    )
    return Table(
        key="stages",
        caption="Bytes of all clients together, measured and as the closed form says",
        columns=("Stage", "Up", "Up, closed form", "Down", "Down, closed form", "Frames up", "Frames down"),
        rows=rows,
        note=_agreement(audit),
    )


def _agreement(audit: Audit) -> str:
    sent = audit.traffic
    if sent is None:
        return ""
    text = f"{sent.exact:,} of {sent.sums:,} sums and sessions agree to the byte."
    if sent.growth is not None:
        sizes = sent.growth.sizes
        text += (
            f" Over cohorts of {min(sizes):,} to {max(sizes):,}, a round takes "
            f"{sent.growth.log_coefficient:.3g} m log2 m + {sent.growth.size_coefficient:.3g} m d bytes, "
            f"{100 * sent.growth.worst:.2g} % off at worst."
        )
    return " ".join((text, *sent.differences[:5]))


# --- several runs beside each other ---


def compared(chapters: Sequence[Chapter]) -> Table:
    """One column for every run."""
    lines: list[tuple[str, list[Cell]]] = [
        ("Algorithm", [Cell(each.algorithm) for each in chapters]),
        ("Channel", [Cell(f"{each.audit.subject.channel}, {each.audit.subject.trust}") for each in chapters]),
        ("Status", [_status(each) for each in chapters]),
        ("Rounds completed", [_completed(each) for each in chapters]),
        *_accuracies(chapters),
        ("90th percentile of errors", [tables.percent(each.final("error_90")) for each in chapters]),
        ("Accuracy of the worst tenth", [tables.percent(each.final("worst_tenth")) for each in chapters]),
        ("Loss", [tables.number(each.final("pooled_loss")) for each in chapters]),
        ("Sums released", [tables.number(len(each.audit.releases)) for each in chapters]),
        ("Sums without noise", [tables.number(each.audit.spending.server.unnoised) for each in chapters]),
        *_epsilons(chapters),
        ("Sent by a client", [_sent(each.audit) for each in chapters]),
        ("Received by a client", [_sent(each.audit, down=True) for each in chapters]),
        ("Time", [Cell(numbers.duration(each.audit.subject.seconds)) for each in chapters]),
        ("Records", [_intact(each.audit) for each in chapters]),
    ]
    shown = [(name, cells) for name, cells in lines if any(cell.text != numbers.MISSING for cell in cells)]
    return Table(
        key="compared",
        caption="The runs beside each other",
        columns=("What", *(each.title for each in chapters)),
        rows=tuple((Cell(name), *cells) for name, cells in shown),
        sortable=False,
    )


def _accuracies(chapters: Sequence[Chapter]) -> Iterable[tuple[str, list[Cell]]]:
    for measure in judged(chapters):
        name = MEASURES.get(measure, measure)
        cells = [tables.percent(each.final("mean_accuracy", measure)) for each in chapters]
        yield f"Accuracy: {name[:1].lower()}{name[1:]}", cells


def _status(chapter: Chapter) -> Cell:
    status = chapter.audit.subject.status
    return Cell(status, tone="" if status == "finished" else "bad")


def _completed(chapter: Chapter) -> Cell:
    return Cell(f"{chapter.audit.achieved.completed:,} of {chapter.audit.subject.rounds:,}")


def _epsilons(chapters: Sequence[Chapter]) -> Iterable[tuple[str, list[Cell]]]:
    yield "Epsilon of the training", [_epsilon(each.training_spent) for each in chapters]
    if any(each.tail_spent for each in chapters):
        yield "Epsilon of the histogram of errors", [_epsilon(each.tail_spent) for each in chapters]


def _epsilon(spent: Spent | None) -> Cell:
    return Cell("no noise", tone="bad") if spent is None else tables.number(spent.epsilon)


def _sent(audit: Audit, *, down: bool = False) -> Cell:
    if audit.traffic is None or not audit.traffic.up:
        return tables.words(None)
    return tables.size(audit.traffic.down_per_client if down else audit.traffic.up_per_client)


def _intact(audit: Audit) -> Cell:
    if not audit.intact:
        return Cell("altered", tone="bad")
    return Cell("intact", tone="good") if audit.integrity.key else Cell("no ledger", tone="quiet")
