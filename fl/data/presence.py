"""Whether the files of a data set are there, without reading them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from fl.data import cifar, idx, leaf, npz, shakespeare, source
from fl.errors import DataError

Look = Callable[[str, Path, Mapping[str, Any]], Any]


def look(kind: str, directory: Path, parameters: Mapping[str, Any]) -> None:
    """Raises `DataError` that says what is missing, as the source of that kind itself would.

    `parameters`  of the source; those that do not matter here may be among them. Of a source that is not
                  known here, the directory has to be there.
    """
    if kind in _LOOKS:
        _LOOKS[kind](kind, directory, parameters)
    elif not directory.is_dir():
        raise DataError(f"{directory} is no directory, and {kind} was to be read from it")


def _idx(kind: str, directory: Path, parameters: Mapping[str, Any]) -> None:
    named = {name: parameters[name] for name in ("split", "part") if name in parameters}
    idx.look(kind, directory, **named)


def _npz(_kind: str, directory: Path, parameters: Mapping[str, Any]) -> None:
    source.find(directory, (parameters["file"],), npz.ORIGIN)


_LOOKS: Final[Mapping[str, Look]] = {
    "cifar10": lambda _, directory, given: list(cifar.files(directory, given.get("part", "all"))),
    "emnist": _idx,
    "fashion-mnist": _idx,
    "leaf": lambda _, directory, given: leaf.files(directory, given.get("part", "all")),
    "mnist": _idx,
    "npz": _npz,
    "npz-owned": _npz,
    "shakespeare": lambda _, directory, given: shakespeare.text_in(directory, given.get("file")),
}
