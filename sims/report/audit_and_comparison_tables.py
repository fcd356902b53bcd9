"""Makes the tables of a report: one run's sums, privacy cost, drop-outs and bytes; several runs compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from sims import text_format
from sims.audit.audit_result import (
    Audit,
    Canary,
    CheckedNoise,
    GroupSteps,
    Release,
    RunSummary,
    Spent,
    StageBytes,
    SumKind,
    Verdict,
)
from sims.records.run_file_names import METRICS
from sims.report.html_elements import (
    ReportTable,
    TableCell,
    Tone,
    number_cell,
    percent_cell,
    size_cell,
    text_cell,
)
from sims.report.reported_run import MEASURES, POOLED, ReportedRun, accuracy_key, judged
from sims.report.sum_and_privacy_plots import STAGES
from sims.text_format import ADJACENCY_MEANINGS, counted, sentence_of

VERDICT_TONES: Final[dict[Verdict, Tone]] = {
    Verdict.AUTHENTICATED: "good",
    Verdict.CONSISTENT: "quiet",
    Verdict.ALTERED: "bad",
}
_SET_UP: Final = "set-up"
_NO_NOISE: Final = TableCell("no noise", tone="bad")
_EXCLUDED_COLUMNS: Final = ("Client", "Error", "What it did", "Barred for good")
_CANARY_COLUMNS: Final = (
    "Kind", "Tests of its spec", "Tests in the run", "Canaries", "Lower bound", "Without assuming its law",
    "Claimed", "Delta",
)  # fmt: skip


def findings(run: ReportedRun, prefix: str, *, rows: int) -> tuple[ReportTable, ...]:
    """Return a run's non-empty audit tables, long ones cut to `rows` rows. HTML ids begin with `prefix`."""
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
    return tuple(replace(table, key=f"{prefix}{table.key}") for table in made if table.rows)


def _cells(*values: TableCell | str | float | None) -> tuple[TableCell, ...]:
    """Return a table row with one cell per value. None, which is a missing number, becomes a dash."""
    return tuple(_cell(value) for value in values)


def _cell(value: TableCell | str | float | None) -> TableCell:
    if isinstance(value, TableCell):
        return value
    return TableCell(value) if isinstance(value, str) else number_cell(value)


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
    return _cells(kind.kind, kind.reveals, parts, text_cell(kind.group or None), noise)


def _releases(audit: Audit, rows: int) -> ReportTable:
    shown = audit.releases[:rows]
    left = len(audit.releases) - len(shown)
    return ReportTable(
        key="releases",
        caption="Every sum that was released, in order",
        columns=("Sum", "Round", "Kind", "Elements", "Bits", "Invited", "Contributors", "Epsilon", "So far"),
        rows=tuple(_release(each, audit) for each in shown),
        note=f"{left:,} further sums are left out here; secagg audit --json has them." if left else "",
        folded=True,
        noun="sums",
    )


def _release(each: Release, audit: Audit) -> tuple[TableCell, ...]:
    kind = next((kind for kind in audit.kinds if kind.kind == each.kind), None)
    elements = None if kind is None else sum(part.size for part in kind.parts)
    bits = None if kind is None else sum(part.size * part.bits for part in kind.parts)
    about = _cells(each.number, each.round, each.kind, elements, bits, each.invited, each.contributors)
    epsilon = _NO_NOISE if each.rho is None else each.epsilon
    return (*about, *_cells(epsilon, each.epsilon_so_far if each.rho_so_far else None))


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
        note=f"Noise hides {ADJACENCY_MEANINGS[spending.adjacency]}. rho measures the same loss, "
        f"and adds up over sums; epsilon follows from it. {sentence_of(spending.why)}{budget}",
    )


def _spent(name: str, spent: Spent) -> tuple[TableCell, ...]:
    epsilon, delta = (spent.epsilon, spent.delta) if spent.rho else (_NO_NOISE, None)
    return _cells(name, spent.rho, epsilon, delta, spent.unnoised)


def _budget(name: str) -> str:
    words = {"algorithm": "The training by itself", "tail": "The histogram of errors by itself"}
    return words.get(name, name)


def _canaries(audit: Audit) -> ReportTable:
    return ReportTable(
        key="canaries",
        caption="Tests of the noise, and epsilon as canaries measured it: a lower bound",
        columns=(*_CANARY_COLUMNS, "As promised"),
        rows=tuple(_canary(each) for each in audit.canaries),
        note=" ".join(_not_tested(audit)),
    )


def _not_tested(audit: Audit) -> Iterable[str]:
    """Yield sentences about noise that was not tested."""
    for each in audit.canaries:
        if each.spec.why_not:
            yield f"The noise of {each.kind} was not tested with the run's own spec: {each.spec.why_not}."
        if each.own.why_not:
            yield f"The sums of {each.kind} in the run were not tested: {each.own.why_not}."
        if not each.bound:
            yield f"The lower bound of {each.kind} proves nothing."
    yield from (f"The noise of {kind} was not tested." for kind in audit.untested)


def _canary(each: Canary) -> tuple[TableCell, ...]:
    holds = TableCell("yes", tone="good") if each.holds else TableCell("no", tone="bad")
    bounds = (each.bound, each.bound_of_any_noise, each.claimed, each.delta)
    return _cells(each.kind, _passed(each.spec), _passed(each.own), each.runs, *bounds, holds)


def _passed(found: CheckedNoise) -> TableCell:
    """Return how many tests of noise were done and, if any contradicts the noise, how many."""
    if found.why_not:
        return TableCell("not tested")
    wrong = f", {len(found.alarms):,} contradict it" if found.alarms else ""
    return TableCell(f"{counted(found.tests, 'test')}{wrong}", tone="bad" if found.alarms else "good")


# --- drop-outs ---


def _groups(audit: Audit) -> ReportTable:
    return ReportTable(
        key="groups",
        caption="Groups: sums of the same private vectors, round by round",
        columns=("Group", "Planned steps", "Mean", "Rounds by steps achieved", "Cut short"),
        rows=tuple(_group(each) for each in audit.groups),
    )


def _group(each: GroupSteps) -> tuple[TableCell, ...]:
    often = (f"{steps}: {counted(rounds, 'round')}" for steps, rounds in sorted(each.rounds.items()))
    return _cells(each.group, each.planned, each.mean, ", ".join(often), len(each.cut_short))


def _losses(audit: Audit, rows: int) -> Iterable[ReportTable]:
    losses = audit.losses
    missed = [
        _cells(each.round, each.kind or _SET_UP, _stage(each.stage), each.clients) for each in losses.missed
    ]
    refused = [
        _cells(each.round, each.kind or _SET_UP, each.member, each.error, each.sentence)
        for each in losses.refused
    ]
    excluded = [
        _cells(each.round, each.kind or _SET_UP, each.member, each.error, each.sentence, _yes(each.barred))
        for each in losses.excluded
    ]
    failed = [_cells(each.round, each.kind or _SET_UP, each.why) for each in losses.failed]
    for key, caption, columns, found, noun in (
        ("missed", "Clients that dropped out", ("Stage", "Clients"), missed, "drop-outs"),
        ("refused", "Clients that refused", ("Client", "Error", "What it said"), refused, "refusals"),
        ("excluded", "Clients that were excluded", _EXCLUDED_COLUMNS, excluded, "exclusions"),
        ("failed", "Sums of which nothing was released", ("Why",), failed, "sums"),
    ):
        yield ReportTable(
            key=key,
            caption=caption,
            columns=("Round", "Kind", *columns),
            rows=tuple(found[:rows]),
            note=_left(len(found), rows),
            folded=True,
            noun=noun,
        )


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _left(count: int, rows: int) -> str:
    return f"{count - rows:,} more are left out here; secagg audit --json has them." if count > rows else ""


def _stage(name: str) -> str:
    return f"{STAGES[name]} ({name})" if name in STAGES else name


# --- bytes ---


def _stages(audit: Audit) -> ReportTable:
    sent = audit.traffic
    return ReportTable(
        key="stages",
        caption="Bytes of all clients together, measured and as predicted",
        columns=("Stage", "Up", "Up, predicted", "Down", "Down, predicted", "Frames up", "Frames down"),
        rows=() if sent is None else tuple(_stage_bytes(each) for each in sent.stages),
        note=_agreement(audit),
    )


def _stage_bytes(each: StageBytes) -> tuple[TableCell, ...]:
    measured = (each.up, each.expected_up, each.down, each.expected_down, each.frames_up, each.frames_down)
    return _cells(_stage(each.stage), *measured)


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
    """Return a table that compares the runs, with one column per run and one row per figure."""
    subjects = [each.audit.subject for each in runs]
    lines: list[tuple[str, list[TableCell]]] = [
        ("Algorithm", [TableCell(each.algorithm) for each in runs]),
        ("Channel", [TableCell(f"{each.channel}, {each.trust}") for each in subjects]),
        ("Key agreement", [_agreement_cell(each) for each in subjects]),
        ("Status", [_status(each) for each in runs]),
        ("Rounds completed", [_completed(each) for each in runs]),
        *_accuracies(runs),
        ("90th percentile of errors", [percent_cell(each.final("error_90")) for each in runs]),
        ("Accuracy of the worst tenth", [percent_cell(each.final("worst_tenth")) for each in runs]),
        ("Loss", [number_cell(each.final("pooled_loss")) for each in runs]),
        ("Sums released", [number_cell(len(each.audit.releases)) for each in runs]),
        ("Sums without noise", [number_cell(each.audit.spending.server.unnoised) for each in runs]),
        *_epsilons(runs),
        ("Sent by a client", [_sent(each.audit) for each in runs]),
        ("Received by a client", [_sent(each.audit, down=True) for each in runs]),
        ("Time", [TableCell(text_format.duration(each.seconds)) for each in subjects]),
        ("Records", [_intact(each.audit) for each in runs]),
    ]
    known = (line for line in lines if any(cell.text != text_format.MISSING for cell in line[1]))
    return ReportTable(
        key="compared",
        caption="The runs beside each other",
        columns=("What", *(each.title for each in runs)),
        rows=tuple((TableCell(name), *cells) for name, cells in known),
        sortable=False,
    )


def _accuracies(runs: Sequence[ReportedRun]) -> Iterable[tuple[str, list[TableCell]]]:
    for measure in judged(runs):
        name = MEASURES.get(measure, measure)
        key = accuracy_key(runs)
        cells = [percent_cell(each.final(key, measure)) for each in runs]
        pooled = ", over all samples" if key == POOLED else ""
        yield f"Accuracy: {name[:1].lower()}{name[1:]}{pooled}", cells


def _agreement_cell(subject: RunSummary) -> TableCell:
    return text_cell(None) if subject.is_plain else TableCell(subject.key_agreement)


def _status(run: ReportedRun) -> TableCell:
    status = run.audit.subject.status
    return TableCell(status, tone="" if status == "finished" else "bad")


def _completed(run: ReportedRun) -> TableCell:
    if METRICS in run.audit.integrity.withheld:
        return text_cell(None)
    return TableCell(f"{run.audit.achieved.completed:,} of {run.audit.subject.rounds:,}")


def _epsilons(runs: Sequence[ReportedRun]) -> Iterable[tuple[str, list[TableCell]]]:
    yield "Epsilon of all sums together", [_guaranteed(each) for each in runs]
    yield "Epsilon of the training", [_epsilon(each.training_spent) for each in runs]
    if any(each.tail_spent for each in runs):
        yield "Epsilon of the histogram of errors", [_epsilon(each.tail_spent) for each in runs]


def _guaranteed(run: ReportedRun) -> TableCell:
    epsilon = run.audit.guarantee.epsilon
    return text_cell("none") if epsilon is None else number_cell(epsilon)


def _epsilon(spent: Spent | None) -> TableCell:
    return _NO_NOISE if spent is None else number_cell(spent.epsilon)


def _sent(audit: Audit, *, down: bool = False) -> TableCell:
    if audit.traffic is None or not audit.traffic.up:
        return text_cell(None)
    return size_cell(audit.traffic.down_per_client if down else audit.traffic.up_per_client)


def _intact(audit: Audit) -> TableCell:
    return TableCell(str(audit.integrity.verdict), tone=VERDICT_TONES[audit.integrity.verdict])
