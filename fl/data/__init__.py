"""Data sets by name.

A source is a function that returns samples, samples by owner, or a whole federation. Those that read
files take the directory as their first argument; none of them ever downloads anything. Further ones
are added to `SOURCES`.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from fl.data import cifar, digits, idx, leaf, npz, shakespeare
from fl.data.owned import Owned
from fl.errors import DataError
from fl.federation import Federation
from fl.samples import Samples

Source: TypeAlias = Callable[..., Samples | Owned | Federation]

SOURCES: dict[str, Source] = {
    "cifar10": cifar.cifar10,
    "digits": digits.digits,
    "emnist": idx.emnist,
    "fashion-mnist": idx.fashion_mnist,
    "leaf": leaf.leaf,
    "mnist": idx.mnist,
    "npz": npz.pooled,
    "npz-owned": npz.owned,
    "shakespeare": shakespeare.shakespeare,
}


def load(name: str, directory: str | Path | None = None, **parameters: Any) -> Samples | Owned | Federation:
    """The data set of that name, read from `directory` if it is one that is read from files."""
    if name not in SOURCES:
        near = difflib.get_close_matches(name, SOURCES, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise DataError(f"no data set is called {name!r}.{hint} There are {', '.join(sorted(SOURCES))}")
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
