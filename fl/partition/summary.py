"""A summary of how samples are divided among clients: how many samples and classes the clients have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from fl.errors import DataError
from fl.samples import Array

Range: TypeAlias = tuple[int, float, int]


@dataclass(frozen=True)
class PartitionSummary:
    """A summary of how samples are divided among clients. `samples` has the minimum, median and maximum of
    the clients' numbers of samples, `classes` those of their numbers of classes, or None in a regression.
    `used` of all `there` samples belong to a client."""

    clients: int
    used: int
    there: int
    samples: Range
    classes: Range | None

    def __str__(self) -> str:
        lines = [
            f"{self.clients} clients, {self.used} of {self.there} samples",
            f"{'for each client':<16}{'min':>8}{'median':>10}{'max':>8}",
            _line("samples", self.samples),
        ]
        if self.classes is not None:
            lines.append(_line("classes", self.classes))
        return "\n".join(lines)


def describe(parts: Sequence[Array], labels: Array) -> PartitionSummary:
    """Return a summary of a partition in which client k has the samples with indices `parts[k]`, with their
    classes or targets in `labels`. Its `str` is a table. Raises `DataError` if `parts` is empty."""
    if not parts:
        raise DataError("there are no parts to describe")
    sizes = [len(part) for part in parts]
    classes = None
    if labels.dtype.kind in "iu":
        classes = _range([len(np.unique(labels[part])) for part in parts])
    return PartitionSummary(len(parts), sum(sizes), len(labels), _range(sizes), classes)


def _range(values: list[int]) -> Range:
    return min(values), float(np.median(values)), max(values)


def _line(what: str, values: Range) -> str:
    least, median, most = values
    return f"{what:<16}{least:>8}{median:>10g}{most:>8}"
