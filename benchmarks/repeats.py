"""Combines several runs of one sum into one report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from statistics import median
from typing import Any, TypeVar

from benchmarks import sums
from benchmarks.encoding import EncodingCosts
from benchmarks.sum_setting import SumSetting
from benchmarks.sums import SumReport
from sims.console_progress import OnProgress

Figures = TypeVar("Figures", SumReport, EncodingCosts)


def typical(reports: Sequence[SumReport]) -> SumReport:
    """Return the median of every figure. The result is exact if all of them were."""
    return replace(_medians(reports), exact=all(each.exact for each in reports))


def _medians(reports: Sequence[Figures]) -> Figures:
    kind = type(reports[0])
    return kind(
        **{field.name: _typical([getattr(each, field.name) for each in reports]) for field in fields(kind)}
    )


def _typical(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, EncodingCosts):
        return _medians(values)
    if isinstance(first, float):
        return median(values)
    return round(median(values)) if isinstance(first, int) else first


def measure_often(setting: SumSetting, progress: OnProgress, *, runs: int) -> SumReport:
    return typical([sums.measure(setting, progress) for _ in range(runs)])
