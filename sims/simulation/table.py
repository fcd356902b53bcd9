"""Lines of metrics as a table for spreadsheets: one row a round, one column for everything in a line."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def as_csv(lines: Sequence[Mapping[str, Any]]) -> str:
    """Names of columns are paths, such as `measured.common.mean_accuracy`; what a line lacks is empty."""
    rows = [dict(_flat(line, "")) for line in lines]
    names = dict.fromkeys(name for row in rows for name in row)
    parents = {name.rpartition(".")[0] for name in names}  # of tables that some lines do not have
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
