"""Several runs of one sum, and the one report that stands for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from statistics import median
from typing import Any

from sims.bench import sums
from sims.bench.progress import Progress
from sims.bench.rehearsal import SumSetting
from sims.bench.sums import SumReport


def typical(reports: Sequence[SumReport]) -> SumReport:
    """The median of every figure. It is exact if all of them were."""
    chosen = {
        field.name: _typical([getattr(each, field.name) for each in reports]) for field in fields(SumReport)
    }
    return SumReport(**(chosen | {"exact": all(each.exact for each in reports)}))


def _typical(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, float):
        return median(values)
    return round(median(values)) if isinstance(first, int) else first


def measure_often(setting: SumSetting, progress: Progress, *, runs: int) -> SumReport:
    return typical([sums.measure(setting, progress) for _ in range(runs)])
