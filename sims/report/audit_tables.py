"""The audit as tables: released sums, privacy cost, drop-outs and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from sims import text_format
from sims.audit.audit_result import Audit, Release, Spent, SumKind
from sims.report import html_tables
from sims.report.html_tables import ReportTable, TableCell
from sims.report.reported_run import MEASURES, ReportedRun, judged
from sims.report.traffic_plots import STAGES
from sims.text_format import counted, sentence_of

_SET_UP: Final = "set-up"


def findings(run: ReportedRun, prefix: str, *, rows: int) -> tuple[ReportTable, ...]:
    """Return all tables with content, each with at most `rows` rows."""
    audit = run.audit
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


def _prefixed(table: ReportTable, prefix: str) -> ReportTable:
    return replace(table, key=f"{prefix}{table.key}")


# --- released sums ---


def _kinds(audit: Audit) -> ReportTable:
    return ReportTable(
        key="kinds",
        caption="What the server learns from each kind of sum",
        columns=("Kind", "What it reveals", "Parts", "Group", "Noise"),
        rows=tuple(_kind(each) for each in audit.kinds),
    )


def _kind(kind: SumKind) -> tuple[TableCell, ...]:
    parts = "; ".join(f"{part.name}: {part.size:,} of {part.bits} bits, {part.bound}" for part in kind.parts)
    noise = TableCell("on every part", tone="good") if kind.private else TableCell("no", tone="bad")
    return (
        TableCell(kind.kind),
        TableCell(kind.reveals),
        TableCell(parts),
        html_tables.text_cell(kind.group or None),
        noise,
    )


def _releases(audit: Audit, rows: int) -> ReportTable:
    shown = audit.releases[:rows]
    left = len(audit.releases) - len(shown)
    return ReportTable(
        key="releases",
        caption="Every sum that was released, in order",
        columns=(
            "Sum",
            "Round",
            "SumKind",
            "Elements",
            "Bits",
            "Invited",
            "Contributors",
            "Epsilon",
            "So far",
        ),
        rows=tuple(_release(each, audit) for each in shown),
        note=f"{left:,} further sums are left out here; secagg audit --json has them." if left else "",
        folded=True,
        noun="sums",
    )


def _release(each: Release, audit: Audit) -> tuple[TableCell, ...]:
    kind = next((kind for kind in audit.kinds if kind.kind == each.kind), None)
    elements = None if kind is None else sum(part.size for part in kind.parts)
    bits = None if kind is None else sum(part.size * part.bits for part in kind.parts)
    none = TableCell("no noise", tone="bad")
    return (
        html_tables.number_cell(each.number),
        html_tables.number_cell(each.round),
        TableCell(each.kind),
        html_tables.number_cell(elements),
        html_tables.number_cell(bits),
        html_tables.number_cell(each.invited),
        html_tables.number_cell(each.contributors),
        none if each.rho is None else html_tables.number_cell(each.epsilon),
        html_tables.number_cell(each.epsilon_so_far if each.rho_so_far else None),
    )


# --- privacy cost ---


def _spending(audit: Audit) -> ReportTable:
    spending, several = audit.spending, len(audit.spending.of_budgets) > 1
    parties: list[tuple[str, Spent | None]] = [
        ("The server's ledger: a client in every sum", spending.server),
        ("The client that spent most, by its own ledger", spending.most),
        ("The client that spent least", spending.least),
        *((_budget(name), spent) for name, spent in spending.of_budgets.items() if several),
    ]
    budget = "" if spending.max_rho is None else f" Clients refuse more than a rho of {spending.max_rho:.4g}."
    return ReportTable(
        key="spending",
        caption="What privacy has cost",
        columns=("Who keeps count", "rho", "Epsilon", "Delta", "Sums without noise"),
        rows=tuple(_spent(name, spent) for name, spent in parties if spent is not None),
        note=f"Adjacency: {spending.adjacency}. {sentence_of(spending.why)}{budget}",
    )


def _spent(name: str, spent: Spent) -> tuple[TableCell, ...]:
    epsilon = TableCell("no noise", tone="bad") if not spent.rho else html_tables.number_cell(spent.epsilon)
    delta = html_tables.number_cell(spent.delta if spent.rho else None)
    return (
        TableCell(name),
        html_tables.number_cell(spent.rho),
        epsilon,
        delta,
        html_tables.number_cell(spent.unnoised),
    )


def _budget(name: str) -> str:
    words = {"algorithm": "The training by itself", "tail": "The histogram of errors by itself"}
    return (words | {"together": "Both together, for a client in all of it"}).get(name, name)


def _canaries(audit: Audit) -> ReportTable:
    return ReportTable(
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
                TableCell(each.kind),
                html_tables.number_cell(each.runs),
                html_tables.number_cell(each.bound),
                html_tables.number_cell(each.bound_of_any_noise),
                html_tables.number_cell(each.claimed),
                html_tables.number_cell(each.delta),
                TableCell("yes", tone="good") if each.holds else TableCell("no", tone="bad"),
            )
            for each in audit.canaries
        ),
    )


# --- drop-outs ---


def _groups(audit: Audit) -> ReportTable:
    return ReportTable(
        key="groups",
        caption="Groups: sums of the same private vectors, round by round",
        columns=("Group", "Planned steps", "Mean", "Rounds by steps achieved", "Cut short"),
        rows=tuple(
            (
                TableCell(each.group),
                html_tables.number_cell(each.planned),
                html_tables.number_cell(each.mean),
                TableCell(
                    ", ".join(
                        f"{steps}: {counted(often, 'round')}" for steps, often in sorted(each.rounds.items())
                    )
                ),
                html_tables.number_cell(len(each.cut_short)),
            )
            for each in audit.groups
        ),
    )


def _losses(audit: Audit, rows: int) -> Iterable[ReportTable]:
    losses = audit.losses
    yield ReportTable(
        key="missed",
        caption="Clients that dropped out",
        columns=("Round", "SumKind", "Stage", "Clients"),
        rows=tuple(
            (
                html_tables.number_cell(each.round),
                TableCell(each.kind or _SET_UP),
                TableCell(_stage(each.stage)),
                html_tables.number_cell(each.clients),
            )
            for each in losses.missed[:rows]
        ),
        note=_left(len(losses.missed), rows),
        folded=True,
        noun="drop-outs",
    )
    yield ReportTable(
        key="refused",
        caption="Clients that refused",
        columns=("Round", "SumKind", "Client", "Error", "What it said"),
        rows=tuple(
            (
                html_tables.number_cell(each.round),
                TableCell(each.kind or _SET_UP),
                html_tables.number_cell(each.member),
                TableCell(each.error),
                TableCell(each.sentence),
            )
            for each in losses.refused[:rows]
        ),
        note=_left(len(losses.refused), rows),
        folded=True,
        noun="refusals",
    )
    yield ReportTable(
        key="failed",
        caption="Sums of which nothing was released",
        columns=("Round", "SumKind", "Why"),
        rows=tuple(
            (html_tables.number_cell(each.round), TableCell(each.kind or _SET_UP), TableCell(each.why))
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


# --- bytes ---


def _stages(audit: Audit) -> ReportTable:
    sent = audit.traffic
    rows = (
        ()
        if sent is None
        else tuple(
            (
                TableCell(_stage(each.stage)),
                html_tables.number_cell(each.up),
                html_tables.number_cell(each.expected_up),
                html_tables.number_cell(each.down),
                html_tables.number_cell(each.expected_down),
                html_tables.number_cell(each.frames_up),
                html_tables.number_cell(each.frames_down),
            )
            for each in sent.stages
        )
    )
    return ReportTable(
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


# --- comparison of runs ---


def compared(runs: Sequence[ReportedRun]) -> ReportTable:
    """Return the comparison, with one column for each run."""
    lines: list[tuple[str, list[TableCell]]] = [
        ("Algorithm", [TableCell(each.algorithm) for each in runs]),
        (
            "Channel",
            [TableCell(f"{each.audit.subject.channel}, {each.audit.subject.trust}") for each in runs],
        ),
        ("Status", [_status(each) for each in runs]),
        ("Rounds completed", [_completed(each) for each in runs]),
        *_accuracies(runs),
        (
            "90th percentile of errors",
            [html_tables.percent_cell(each.final("error_90")) for each in runs],
        ),
        (
            "Accuracy of the worst tenth",
            [html_tables.percent_cell(each.final("worst_tenth")) for each in runs],
        ),
        ("Loss", [html_tables.number_cell(each.final("pooled_loss")) for each in runs]),
        ("Sums released", [html_tables.number_cell(len(each.audit.releases)) for each in runs]),
        (
            "Sums without noise",
            [html_tables.number_cell(each.audit.spending.server.unnoised) for each in runs],
        ),
        *_epsilons(runs),
        ("Sent by a client", [_sent(each.audit) for each in runs]),
        ("Received by a client", [_sent(each.audit, down=True) for each in runs]),
        ("Time", [TableCell(text_format.duration(each.audit.subject.seconds)) for each in runs]),
        ("Records", [_intact(each.audit) for each in runs]),
    ]
    shown = [
        (name, cells) for name, cells in lines if any(cell.text != text_format.MISSING for cell in cells)
    ]
    return ReportTable(
        key="compared",
        caption="The runs beside each other",
        columns=("What", *(each.title for each in runs)),
        rows=tuple((TableCell(name), *cells) for name, cells in shown),
        sortable=False,
    )


def _accuracies(runs: Sequence[ReportedRun]) -> Iterable[tuple[str, list[TableCell]]]:
    for measure in judged(runs):
        name = MEASURES.get(measure, measure)
        cells = [html_tables.percent_cell(each.final("mean_accuracy", measure)) for each in runs]
        yield f"Accuracy: {name[:1].lower()}{name[1:]}", cells


def _status(run: ReportedRun) -> TableCell:
    status = run.audit.subject.status
    return TableCell(status, tone="" if status == "finished" else "bad")


def _completed(run: ReportedRun) -> TableCell:
    return TableCell(f"{run.audit.achieved.completed:,} of {run.audit.subject.rounds:,}")


def _epsilons(runs: Sequence[ReportedRun]) -> Iterable[tuple[str, list[TableCell]]]:
    yield "Epsilon of the training", [_epsilon(each.training_spent) for each in runs]
    if any(each.tail_spent for each in runs):
        yield "Epsilon of the histogram of errors", [_epsilon(each.tail_spent) for each in runs]


def _epsilon(spent: Spent | None) -> TableCell:
    return TableCell("no noise", tone="bad") if spent is None else html_tables.number_cell(spent.epsilon)


def _sent(audit: Audit, *, down: bool = False) -> TableCell:
    if audit.traffic is None or not audit.traffic.up:
        return html_tables.text_cell(None)
    return html_tables.size_cell(audit.traffic.down_per_client if down else audit.traffic.up_per_client)


def _intact(audit: Audit) -> TableCell:
    if not audit.intact:
        return TableCell("altered", tone="bad")
    return TableCell("intact", tone="good") if audit.integrity.key else TableCell("no ledger", tone="quiet")
