"""Makes the plots about sums: their clients, bytes by stage, epsilon and steps to a median by round."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from sims import text_format
from sims.audit.audit_result import ByteTraffic, StageBytes
from sims.records.sum_records import SumRecord
from sims.report.plot_types import Plot, Series, StackedBars, Way, over_rounds
from sims.report.reported_run import ReportedRun
from sims.report.svg_plots import Drawable

STAGES: Final = {
    "advertise": "Keys",
    "share": "Shares",
    "deposit": "Deposits",
    "mask": "Masked vectors",
    "confirm": "Confirmations",
    "reveal": "Unmasking",
}
_MODEL: Final = "A plain model"
_BOTH_WAYS: Final = 4  # with more runs, a bar adds both directions up


def survivors(runs: Sequence[ReportedRun]) -> Plot:
    """Return a plot, by sum, of how many clients were invited, how many sent inputs, and how many are in the
    total. For several runs, show only the last of these numbers."""
    sums = [each.sums for each in runs]
    longest = max((len(each) for each in sums), default=0)
    if len(runs) == 1:
        return _of_one(sums[0])
    series = tuple(
        Series(
            each.title,
            tuple(_or_gap(line.count) for line in lines) + (None,) * (longest - len(lines)),
            look,
            "step",
        )
        for look, (each, lines) in enumerate(zip(runs, sums, strict=True))
    )
    note = "How many clients each total is made of; a gap is a sum that released nothing."
    return replace(_plotted(note, longest, series), place="Sum {}")


def _plotted(note: str, sums: int, series: tuple[Series, ...]) -> Plot:
    return Plot(
        key="survivors",
        title="Survivors of every sum",
        note=note,
        x="Sum",
        y="Clients",
        places=tuple(float(place + 1) for place in range(sums)),
        series=series,
        whole=True,
        empty="Nothing was asked.",
    )


def _of_one(sums: Sequence[SumRecord]) -> Plot:
    failed = tuple(0.0 if line.count is None else None for line in sums)
    shown: tuple[Series, ...] = (
        Series("Invited", tuple(float(line.invited) for line in sums), 0, "area"),
        Series("Masked", tuple(float(line.masked) for line in sums), 1, "step"),
        Series("Counted", tuple(_or_gap(line.count) for line in sums), 2, "step"),
    )
    if any(each is not None for each in failed):
        shown = (*shown, Series("Nothing released", failed, 3, "marks"))
    note = "Who was invited, whose masked vector came, and who is in the total."
    names = tuple(f"Sum {place + 1}, {line.kind}" for place, line in enumerate(sums))
    return replace(_plotted(note, len(sums), shown), names=names, least=0.0)


def _or_gap(count: int | None) -> float:
    return math.nan if count is None else float(count)


def traffic(runs: Sequence[ReportedRun]) -> StackedBars:
    """Return a bar chart of one client's bytes by stage in each run, and in plain federated averaging."""
    shown = [(each, each.audit.traffic) for each in runs if each.audit.traffic is not None]
    rows: dict[str, dict[str, float]] = {}
    for run, sent in shown:
        if sent is not None and (sent.up or sent.down):
            rows |= _bars(run.title if len(runs) > 1 else "", sent, both=len(shown) <= _BOTH_WAYS)
    if rows:
        references = dict.fromkeys(
            (sent.fedavg_up, sent.fedavg_down) for _, sent in shown if sent is not None
        )
        for up, down in references:
            rows |= _references(up, down, both=len(shown) <= _BOTH_WAYS, named=len(references) > 1)
    series = tuple(
        Series(name, tuple(row.get(name, 0.0) for row in rows.values()), look, "columns")
        for look, name in enumerate((*STAGES.values(), _MODEL))
        if any(row.get(name) for row in rows.values())
    )
    return StackedBars(
        key="bytes",
        title="Bytes of one client, by stage",
        note="In the whole run, beside federated averaging with no protection (4 bytes for each parameter).",
        rows=tuple(rows),
        series=series,
        empty="Sums were added up in the open, within one process: nothing was sent.",
    )


def _bars(title: str, sent: ByteTraffic, *, both: bool) -> dict[str, dict[str, float]]:
    up = {_stage(each): each.up * _share(sent.up_per_client, sent.up) for each in sent.stages}
    down = {_stage(each): each.down * _share(sent.down_per_client, sent.down) for each in sent.stages}
    if both:
        return {_row(title, "sent"): up, _row(title, "received"): down}
    return {title: {name: up[name] + down[name] for name in up}}


def _references(up: float, down: float, *, both: bool, named: bool) -> dict[str, dict[str, float]]:
    name = f"Plain FedAvg ({text_format.size(up)})" if named else "Plain FedAvg"
    if both:
        return {_row(name, "sent"): {_MODEL: up}, _row(name, "received"): {_MODEL: down}}
    return {name: {_MODEL: up + down}}


def _row(title: str, way: str) -> str:
    return f"{title}, {way}" if title else way.capitalize()


def _stage(each: StageBytes) -> str:
    return STAGES.get(each.stage, each.stage)


def _share(per_client: float, all_together: int) -> float:
    return per_client / all_together if all_together else 0.0


def privacy(runs: Sequence[ReportedRun]) -> Plot:
    """Return a plot of epsilon so far, by round. Marks at the bottom show rounds with sums without noise."""
    curves = _epsilons(runs)
    plot = over_rounds(
        "epsilon",
        "Epsilon over time",
        "What the noisy sums so far have cost a client that was in every one of them.",
        "Epsilon",
        {name: curve for name, curve in curves.items() if curve},
        least=0.0,
        empty=_no_epsilon(runs),
        order=list(curves),
    )
    bare = {at for each in runs for at in _bare_rounds(each)}
    if not plot.drawn or not bare:
        return plot
    marks = tuple(0.0 if place in bare else None for place in plot.places)
    series = Series("Sums without noise", marks, len(curves), "marks")
    return replace(plot, series=(*plot.series, series))


def _epsilons(runs: Sequence[ReportedRun]) -> dict[str, dict[float, float]]:
    """Return name -> round -> epsilon so far: of all sums of a run; for one run, also of its histograms."""
    if len(runs) > 1:
        return {each.title: _of_training(each) for each in runs}
    (only,) = runs
    tails = {at: tail.get("epsilon") for at, tail in only.line("tail").items() if tail}
    known = {at: float(epsilon) for at, epsilon in tails.items() if epsilon is not None}
    training = _of_training(only)
    return {"All sums": training, "Histogram of errors": known if training or len(known) > 1 else {}}


def _of_training(run: ReportedRun) -> dict[float, float]:
    if not any(line.get("rho") for line in run.metrics):
        return {}
    return {at: float(value) for at, value in run.line("epsilon").items() if value is not None}


def _bare_rounds(run: ReportedRun) -> Iterable[float]:
    """Yield the numbers of the rounds of a run that had sums without noise."""
    before = 0
    for at, count in run.line("unnoised").items():
        if (count or 0) > before:
            yield at
        before = count or 0


def _no_epsilon(runs: Sequence[ReportedRun]) -> str:
    if any(each.audit.subject.is_plain for each in runs):
        return "Sums were added up in the open: no epsilon says anything about them."
    tails = [spent for each in runs if (spent := each.tail_spent) is not None]
    beside = max(tails, key=lambda spent: spent.rho, default=None)
    text = "No sum of the training carries noise, so there is no epsilon to show: what protects a client is "
    text += "that only totals are seen."
    if beside is not None:
        text += f" The histogram of errors does, at an epsilon of {text_format.short(beside.epsilon)}"
        text += f" and a delta of {text_format.delta(beside.delta)}."
    return text


def steps(runs: Sequence[ReportedRun]) -> Iterable[Drawable]:
    """Yield a plot of how many sums each round used to approach a median, if an algorithm computes one."""
    curves = {each.title: _steps(each) for each in runs}
    curves = {title: curve for title, curve in curves.items() if curve}
    if not curves:
        return
    names = curves if len(runs) > 1 else {"Steps": next(iter(curves.values()))}
    plot = over_rounds(
        "steps",
        "Steps to the median",
        "Sums of one group that each round achieved: a group ends early if a client drops out.",
        "Steps",
        names,
        least=0.0,
        order=[each.title for each in runs] if len(runs) > 1 else (),
    )
    way: Way = "columns" if len(names) <= 3 else "step"
    yield replace(plot, series=tuple(replace(each, way=way) for each in plot.series), whole=True)


def _steps(run: ReportedRun) -> dict[float, float]:
    facts = {at: (found or {}).get("steps") for at, found in run.line("facts").items()}
    return {at: float(value) for at, value in facts.items() if isinstance(value, int | float)}
