"""Makes the plots of the training: accuracy or loss by round, and the errors of clients.

With several runs, a plot has one curve per run. With a single run, it has one curve per measure, which is the
score of the common or the personal models on some of the clients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from sims import text_format
from sims.records.run_directory import SERVED
from sims.report.plot_types import Curve, Plot, Series, over_rounds
from sims.report.reported_run import MEASURES, POOLED, ReportedRun, accuracy_key, judged

_BINS: Final = 20  # bins of the histogram of errors


def training_plots(runs: Sequence[ReportedRun]) -> tuple[Plot, ...]:
    """Return the plots of accuracy or loss by round, and of clients' errors: a histogram at the end of the
    run, the noisy histogram that the server saw, and the largest errors by round."""
    return (*_accuracy(runs), _histogram(runs), *_private(runs), *_tail(runs))


def _accuracy(runs: Sequence[ReportedRun]) -> Iterable[Plot]:
    if any(each.classifies for each in runs):
        key, scale, form = accuracy_key(runs), 100.0, text_format.hundredths
        kind, y = "Accuracy", "Accuracy, %"
    else:
        key, scale, form = "pooled_loss", 1.0, text_format.plain
        kind, y = "Loss", "Loss"
    if len(runs) == 1:
        shown = (name for name in runs[0].measures if not runs[0].is_copy(name))
        curves = {MEASURES.get(name, name): runs[0].curve(name, key) for name in shown}
        note = (
            "Over all samples that clients did not train on, by the sum that evaluates the model."
            if key == POOLED
            else "Mean over clients, each on data of its own that it did not train on."
        )
        yield over_rounds("accuracy", f"{kind} by round", note, y, curves, scale=scale, form=form)
        return
    for measure in judged(runs):
        curves = {each.title: each.curve(measure, key) for each in runs}
        curves = {title: curve for title, curve in curves.items() if curve}
        name = MEASURES.get(measure, measure)
        yield over_rounds(
            f"accuracy-{measure}",
            f"{kind}: {name[:1].lower()}{name[1:]}",
            "Over all samples, by round." if key == POOLED else "Mean over clients, by round.",
            y,
            curves,
            scale=scale,
            form=form,
            order=_titles(runs),
        )


def _titles(runs: Sequence[ReportedRun]) -> tuple[str, ...]:
    return tuple(each.title for each in runs)


def _histogram(runs: Sequence[ReportedRun]) -> Plot:
    errors = _errors(runs)
    few = len(errors) <= 3
    order = list(_titles(runs)) if len(runs) > 1 else list(errors)
    series = tuple(
        Series(name, _counts(values), order.index(name), "columns" if few else "step")
        for name, values in errors.items()
    )
    whom = "benign clients" if any(each.attacked for each in runs) else "clients"
    return _over_errors(
        "errors",
        "Clients by their error",
        f"How many {whom} end with which part of wrong answers. Seen by an observer of the simulation: a "
        "server never learns it.",
        series,
        empty="Nobody but the clients knows these numbers: the server of this run saw sums alone."
        if all(each.audit.subject.channel == SERVED for each in runs)
        else "Clients' own numbers are written when a run that classifies is over.",
    )


def _errors(runs: Sequence[ReportedRun]) -> dict[str, list[float]]:
    if len(runs) == 1:
        (only,) = runs
        names = {"Common model": "common", "Personal models": "personal"}
        shown = {name: measure for name, measure in names.items() if not only.is_copy(measure)}
        found = {name: only.errors(measure) for name, measure in shown.items()}
    else:
        found = {each.title: each.errors(each.headline or "common") for each in runs}
    return {name: values for name, values in found.items() if values}


def _counts(values: Iterable[float], bins: int = _BINS) -> tuple[float, ...]:
    counts = [0.0] * bins
    for value in values:
        counts[min(bins - 1, math.floor(value * bins + 1e-9))] += 1
    return tuple(counts)


def _private(runs: Sequence[ReportedRun]) -> Iterable[Plot]:
    """Yield a plot of the noisy error histograms that servers saw, if any; for one run, with the true one."""
    seen = {each.title: each.private_tail for each in runs}
    found = {title: tuple(heights) for title, heights in seen.items() if heights is not None}
    bins = max(map(len, found.values()), default=0)
    if len(runs) == 1 and found:
        true = _counts(runs[0].errors("common", include_corrupt=True), bins)
        found = {"Released, with noise": found.popitem()[1], "As it is, for an observer": true}
    order = list(_titles(runs)) if len(runs) > 1 else list(found)
    series = tuple(
        Series(name, heights, order.index(name), "columns" if len(found) <= 3 else "step")
        for name, heights in found.items()
        if len(heights) == bins
    )
    if series:
        yield _over_errors(
            "private-tail",
            "Clients by their error, as the server sees it",
            "A sum with noise of its own, after which no single client's error can be told. Heights may be "
            "below zero.",
            series,
        )


def _over_errors(key: str, title: str, note: str, series: tuple[Series, ...], empty: str = "") -> Plot:
    bins = len(series[0].values) if series else _BINS
    places = tuple(100 * (bin_ + 0.5) / bins for bin_ in range(bins))
    half = 50 / bins
    return Plot(
        key=key,
        title=title,
        note=note,
        x="Error, %",
        y="Clients",
        places=places,
        names=tuple(f"Error {place - half:.4g} to {place + half:.4g} %" for place in places),
        series=series,
        least=0.0,
        whole=True,
        ticks=(0.0, 20.0, 40.0, 60.0, 80.0, 100.0),
        empty=empty,
    )


def _tail(runs: Sequence[ReportedRun]) -> Iterable[Plot]:
    if not any(each.observes_clients for each in runs):
        return
    if len(runs) == 1:
        curves = {"90th percentile": _ninety(runs[0]), "Mean of the worst tenth": _worst(runs[0])}
        whom = MEASURES.get(runs[0].headline or "", "Clients")
        note = f"{whom}: the error that one client in ten exceeds, and the mean error of that tenth."
        yield _errors_by_round("tail", "The tail of clients' errors", note, curves)
        return
    ninety, title = {each.title: _ninety(each) for each in runs}, "90th percentile of clients' errors"
    yield _errors_by_round("tail", title, "One client in ten does worse.", ninety)
    worst = {each.title: _worst(each) for each in runs}
    yield _errors_by_round("worst", "The worst tenth of clients", "Mean error of that tenth.", worst)


def _ninety(run: ReportedRun) -> Curve:
    return run.curve(run.headline or "common", "error_90")


def _worst(run: ReportedRun) -> Curve:
    """Return the mean error rate of the worst tenth of clients by round: 1 minus their mean accuracy."""
    return {at: 1 - value for at, value in run.curve(run.headline or "common", "worst_tenth").items()}


def _errors_by_round(key: str, title: str, note: str, curves: Mapping[str, Curve]) -> Plot:
    shown = {name: curve for name, curve in curves.items() if curve}
    return over_rounds(
        key,
        title,
        note,
        "Error, %",
        shown,
        scale=100.0,
        form=text_format.hundredths,
        least=0.0,
        order=tuple(curves),
    )
