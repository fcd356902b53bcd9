"""What a run has left in its directory, read without any code of the packages."""

from __future__ import annotations

import csv
import hashlib
import json
import sqlite3
import tomllib
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

_SHOWN: Final = 32  # elements of a model
_OBJECTS: Final = ("run.json", "result.json", "clients.json", "spend.json", "canaries.json", "ledger.head")
_LINES: Final = ("metrics.jsonl", "sums.jsonl")


def read_run(directory: Path) -> dict[str, Any]:
    """All files with data, by their names."""
    names = sorted(each.name for each in directory.iterdir())
    read: dict[str, Any] = {"files": names}
    read |= {name: json.loads((directory / name).read_text()) for name in _OBJECTS if name in names}
    read |= {name: _lines(directory / name) for name in _LINES}
    read["scenario.toml"] = tomllib.loads((directory / "scenario.toml").read_text())
    read["metrics.csv"] = _table(directory / "metrics.csv")
    read["model.npz"] = read_model(directory / "model.npz")
    if "ledger" in names:
        read["ledger"] = _ledger(directory / "ledger")
    return read


def read_model(path: Path) -> dict[str, Any]:
    """Every array of a model: its hash, its first elements and its norm."""
    with np.load(path) as file:
        return {name: _array(file[name]) for name in file.files}


def _array(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    flat = np.ascontiguousarray(array).ravel()
    return {
        "dtype": str(flat.dtype),
        "shape": list(array.shape),
        "sha256": hashlib.sha256(flat.tobytes()).hexdigest(),
        "first": flat[:_SHOWN].tolist(),
        "norm": float(np.linalg.norm(flat.astype(np.float64))),
    }


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _table(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="") as file:
        return [{key: _value(text) for key, text in row.items()} for row in csv.DictReader(file)]


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _ledger(path: Path) -> list[Any]:
    """The bodies of all rows; their hashes cover the time at which the ledger was created."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        rows = connection.execute("SELECT number, body FROM entries ORDER BY number").fetchall()
    return [{"number": number, **json.loads(body)} for number, body in rows]
