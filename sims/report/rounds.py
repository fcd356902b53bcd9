"""Plots over the rounds of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from sims.report import numbers
from sims.report.series import Plot, Series

Curve: TypeAlias = Mapping[float, float]

_ROUND: Final = "Round {}"
_NOBODY: Final = "Nothing was measured in this run."


def over_rounds(
    key: str,
    title: str,
    note: str,
    y: str,
    curves: Mapping[str, Curve],
    *,
    scale: float = 1.0,
    form: Callable[[float | None], str] = numbers.plain,
    least: float | None = None,
    empty: str = _NOBODY,
    order: Sequence[str] = (),
) -> Plot:
    """One line for each curve. Rounds that only some of them have are places of the others, too.

    `order` are the names of all curves of a page: with it, each looks the same in all plots.
    """
    names = list(order) or list(curves)
    places = tuple(sorted({place for curve in curves.values() for place in curve}))
    series = tuple(
        Series(name, tuple(_scaled(curve.get(place), scale) for place in places), names.index(name))
        for name, curve in curves.items()
    )
    return Plot(
        key=key,
        title=title,
        note=note,
        x="Round",
        y=y,
        places=places,
        series=series,
        place=_ROUND,
        form=form,
        least=least,
        empty=empty,
    )


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale
