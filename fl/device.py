"""Where a client computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches

import torch

from fl.errors import TrainingError

_KINDS = ("auto", "cuda", "mps", "cpu")


def pick(name: str = "auto", client: int = 0) -> torch.device:
    """The device called `name`, or with `auto` the best there is: cuda, then mps, then cpu.

    Where there are several GPUs, clients take turns by their id; `cuda:1` is always that one.
    """
    kind, _, index = name.partition(":")
    if kind not in _KINDS or (index and not (kind == "cuda" and index.isdecimal())):
        near = get_close_matches(kind, _KINDS, n=1)
        meant = f": did you mean {near[0]}?" if near else ""
        raise TrainingError(f"no device is called {name!r}{meant}; there are {', '.join(_KINDS)} and cuda:N")
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "mps" if torch.mps.is_available() else "cpu"
    if kind == "cuda":
        return _gpu(name, int(index) if index else None, client)
    if kind == "mps" and not torch.mps.is_available():
        raise TrainingError("this machine has no mps: set device to auto or cpu")
    return torch.device(kind)


def _gpu(name: str, index: int | None, client: int) -> torch.device:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise TrainingError(f"{name}: torch sees no GPU here; set device to auto or cpu")
    if index is not None and index >= count:
        raise TrainingError(f"{name}: there are {count} GPUs, counted from 0")
    return torch.device("cuda", client % count if index is None else index)


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums of floats depend on how they are shared out; with one thread, they are the same everywhere.

    CPU time means something then, too: it counts no threads that wait for each other.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
