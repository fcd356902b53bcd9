"""Converts the metrics of a run, one mapping per round, to a table."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def as_csv(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return metrics, one mapping per round, as CSV text with columns such as `measured.common.mean_loss`."""
    rows = [dict(_flat(line, "")) for line in lines]
    names = dict.fromkeys(name for row in rows for name in row)
    parents = {name.rpartition(".")[0] for name in names}  # objects, which are None in some lines
    columns = [
        name for name in names if not any(each == name or each.startswith(f"{name}.") for each in parents)
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _flat(content: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        else:
            yield name, json.dumps(value) if isinstance(value, list | bool) else value
