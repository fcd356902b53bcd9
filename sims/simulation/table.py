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
    columns = dict.fromkeys(name for row in rows for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
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
