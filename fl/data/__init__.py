"""Data sets by name.

A source is a function that returns samples, samples by owner, or a whole federation. Those that read
files take the directory as their first argument; none of them ever downloads anything. `register` adds
further ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from fl.checks import unknown_name
from fl.data import cifar, files, leaf, mnist, npz, shakespeare
from fl.data.generated import GENERATORS
from fl.data.owned import OwnedSamples
from fl.errors import DataError
from fl.federation import Federation
from fl.samples import Samples

Source: TypeAlias = Callable[..., Samples | OwnedSamples | Federation]

SOURCES: dict[str, Source] = {
    "cifar10": cifar.cifar10,
    "digits": npz.digits,
    "emnist": mnist.emnist,
    "fashion-mnist": mnist.fashion_mnist,
    "leaf": leaf.leaf,
    "mnist": mnist.mnist,
    "npz": npz.pooled,
    "npz-owned": npz.owned,
    "shakespeare": shakespeare.shakespeare,
    **GENERATORS,
}


def register(name: str, source: Source) -> None:
    """Add a data set that can be loaded, and named by scenarios. Raises `DataError` if the name is taken.

    Its return annotation says what it gives: `Samples`, `OwnedSamples` or `Federation`.
    """
    if name in SOURCES:
        raise DataError(f"there is a data set {name!r} already")
    SOURCES[name] = source


def load(
    name: str, directory: str | Path | None = None, **parameters: Any
) -> Samples | OwnedSamples | Federation:
    """The data set of that name, read from `directory` if it is one that is read from files."""
    if name not in SOURCES:
        raise unknown_name("data set", name, sorted(SOURCES), DataError, parameter="kind")
    source = SOURCES[name]
    accepted = inspect.signature(source).parameters
    if ("directory" in accepted) != (directory is not None):
        need = (
            "is read from files: say in which directory"
            if directory is None
            else "is not read from a directory"
        )
        raise DataError(f"{name} {need}")
    if directory is not None:
        parameters = {"directory": directory, **parameters}
    try:
        inspect.signature(source).bind(**parameters)
    except TypeError as error:
        raise DataError(f"{name}: {error}. It takes {', '.join(accepted) or 'no parameters'}") from error
    return source(**parameters)


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
    mnist.look(kind, directory, **named)


def _npz(_kind: str, directory: Path, parameters: Mapping[str, Any]) -> None:
    files.find(directory, (parameters["file"],), npz.ORIGIN)


_LOOKS: Final[Mapping[str, Look]] = {
    "cifar10": lambda _, directory, given: list(cifar.batch_files(directory, given.get("part", "all"))),
    "emnist": _idx,
    "fashion-mnist": _idx,
    "leaf": lambda _, directory, given: leaf.json_files(directory, given.get("part", "all")),
    "mnist": _idx,
    "npz": _npz,
    "npz-owned": _npz,
    "shakespeare": lambda _, directory, given: shakespeare.text_in(directory, given.get("file")),
}
