"""Choice of the torch device, and deterministic single-threaded execution."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fl.checks import unknown_name
from fl.errors import TrainingError

_KINDS = ("auto", "cuda", "mps", "cpu")


def pick(name: str = "auto", client: int = 0) -> torch.device:
    """Return the torch device `name`: "cpu", "mps", "cuda", a certain GPU such as "cuda:1", or "auto", the
    first available of cuda, mps and cpu. Without a number, cuda means GPU `client` modulo the number of GPUs,
    to spread clients over them. Raise `TrainingError` if the device does not exist."""
    kind, _, index = name.partition(":")
    if kind not in _KINDS or (index and not (kind == "cuda" and index.isdecimal())):
        raise unknown_name("device", name, (*_KINDS, "cuda:N"), parameter="device")
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "mps" if torch.mps.is_available() else "cpu"
    if kind == "cuda":
        return _gpu(name, int(index) if index else None, client)
    if kind == "mps" and not torch.mps.is_available():
        raise TrainingError("this machine has no mps device: set device to auto or cpu")
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
    """Return a context in which torch uses one thread. So results are reproducible: with several threads,
    sums of floats depend on how they are split. Also, measured CPU times do not include waiting threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
