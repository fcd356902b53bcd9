"""Plots of accuracy, loss and client errors. Several runs share a plot; one run shows its measures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from sims import text_format
from sims.report.chapter import MEASURES, Chapter, judged
from sims.report.plot_data import Curve, Plot, Series, over_rounds
from sims.report.svg_plots import Drawable
from sims.report.traffic_plots import privacy, steps, survivors, traffic

_BINS: Final = 20


def plots(chapters: Sequence[Chapter]) -> tuple[Drawable, ...]:
    """All that the runs have something for, and the reason where one is missing."""
    return (
        *_accuracy(chapters),
        _histogram(chapters),
        *_private(chapters),
        *_tail(chapters),
        survivors(chapters),
        traffic(chapters),
        privacy(chapters),
        *steps(chapters),
    )


# --- accuracy ---


def _accuracy(chapters: Sequence[Chapter]) -> Iterable[Plot]:
    if any(each.classifies for each in chapters):
        kind, key, y, scale, form = "Accuracy", "mean_accuracy", "Accuracy, %", 100.0, text_format.hundredths
    else:
        kind, key, y, scale, form = "Loss", "pooled_loss", "Loss", 1.0, text_format.plain
    if len(chapters) == 1:
        told = (name for name in chapters[0].measures if not chapters[0].is_copy(name))
        curves = {MEASURES.get(name, name): chapters[0].curve(name, key) for name in told}
        note = "Mean over clients, each on data of its own that it did not train on."
        yield over_rounds("accuracy", f"{kind} by round", note, y, curves, scale=scale, form=form)
        return
    for measure in judged(chapters):
        curves = {each.title: each.curve(measure, key) for each in chapters}
        curves = {title: curve for title, curve in curves.items() if curve}
        name = MEASURES.get(measure, measure)
        yield over_rounds(
            f"accuracy-{measure}",
            f"{kind}: {name[:1].lower()}{name[1:]}",
            "Mean over clients, by round.",
            y,
            curves,
            scale=scale,
            form=form,
            order=_titles(chapters),
        )


def _titles(chapters: Sequence[Chapter]) -> tuple[str, ...]:
    return tuple(each.title for each in chapters)


# --- clients' errors ---


def _histogram(chapters: Sequence[Chapter]) -> Plot:
    errors = _errors(chapters)
    few = len(errors) <= 3
    order = list(_titles(chapters)) if len(chapters) > 1 else list(errors)
    series = tuple(
        Series(name, _counts(values), order.index(name), "columns" if few else "step")
        for name, values in errors.items()
    )
    whom = "benign clients" if any(each.attacked for each in chapters) else "clients"
    return _over_errors(
        "errors",
        "Clients by their error",
        f"How many {whom} end with which part of wrong answers. Seen by an observer of the simulation: a "
        "server never learns it.",
        series,
        empty="Clients' own numbers are written when a run that classifies is over.",
    )


def _errors(chapters: Sequence[Chapter]) -> dict[str, list[float]]:
    if len(chapters) == 1:
        (only,) = chapters
        names = {"Common model": "common", "Personal models": "personal"}
        told = {name: measure for name, measure in names.items() if not only.is_copy(measure)}
        found = {name: only.errors(measure) for name, measure in told.items()}
    else:
        found = {each.title: each.errors(each.headline or "common") for each in chapters}
    return {name: values for name, values in found.items() if values}


def _counts(values: Iterable[float], bins: int = _BINS) -> tuple[float, ...]:
    counts = [0.0] * bins
    for value in values:
        counts[min(bins - 1, math.floor(value * bins + 1e-9))] += 1
    return tuple(counts)


def _private(chapters: Sequence[Chapter]) -> Iterable[Plot]:
    """What the server itself sees of the tail: a histogram with noise, and of one run the truth beside it."""
    seen = {each.title: each.private_tail for each in chapters}
    found = {title: tuple(heights) for title, heights in seen.items() if heights is not None}
    bins = max(map(len, found.values()), default=0)
    if len(chapters) == 1 and found:
        true = _counts(chapters[0].errors("common", include_corrupt=True), bins)
        found = {"Released, with noise": found.popitem()[1], "As it is, for an observer": true}
    order = list(_titles(chapters)) if len(chapters) > 1 else list(found)
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


# --- the tail ---


def _tail(chapters: Sequence[Chapter]) -> Iterable[Plot]:
    if not any(each.classifies for each in chapters):
        return
    if len(chapters) == 1:
        curves = {"90th percentile": _ninety(chapters[0]), "Mean of the worst tenth": _worst(chapters[0])}
        whom = _of_whom(chapters[0])
        note = f"{whom}: the error that one client in ten exceeds, and the mean error of that tenth."
        yield _errors_by_round("tail", "The tail of clients' errors", note, curves)
        return
    ninety, title = {each.title: _ninety(each) for each in chapters}, "90th percentile of clients' errors"
    yield _errors_by_round("tail", title, "One client in ten does worse.", ninety)
    worst = {each.title: _worst(each) for each in chapters}
    yield _errors_by_round("worst", "The worst tenth of clients", "Mean error of that tenth.", worst)


def _of_whom(chapter: Chapter) -> str:
    return MEASURES.get(chapter.headline or "", "Clients")


def _ninety(chapter: Chapter) -> Curve:
    return chapter.curve(chapter.headline or "common", "error_90")


def _worst(chapter: Chapter) -> Curve:
    """Runs keep the accuracy of the worst tenth."""
    return {at: 1 - value for at, value in chapter.curve(chapter.headline or "common", "worst_tenth").items()}


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
