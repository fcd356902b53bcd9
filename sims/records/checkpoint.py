"""The state of a run between two rounds, as one file.

It holds clients' states, personal models included: a simulation owns its clients, so only the owner of
the file may read it. The content is MessagePack behind a hash, never executable code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import msgpack

from sims.config_problems import ConfigError
from sims.records.directory import PRIVATE, RunDirectory, read_file
from sims.records.run_paths import CHECKPOINT

_MAGIC: Final = b"secagg checkpoint 1\n"
_REMEDY: Final = "--restart begins the run anew"


@dataclass(frozen=True)
class Side:
    """One part of a run: the server's state, every client's, and how many sessions there were.

    Bytes and costs are those so far; `spend` is charge, noised and unnoised sums of a client in all of them.
    """

    server: bytes = field(repr=False)
    clients: Mapping[int, bytes] = field(repr=False)
    sessions: int
    spend: tuple[int, int, int] = (0, 0, 0)
    bytes_up: Mapping[str, int] = field(default_factory=dict)
    bytes_down: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """The state after `done` rounds of the run with that `digest`."""

    digest: str
    done: int
    training: Side
    tail: Side | None
    lines: Mapping[str, int]  # how many there are in each of its files of lines
    ledger_rows: int | None  # how many there are in its ledger; None where there is none
    seconds: Mapping[str, float]

    def write(self, run: RunDirectory) -> None:
        payload: bytes = msgpack.packb(asdict(self))
        run.write(CHECKPOINT, _MAGIC + hashlib.sha256(payload).digest() + payload, mode=PRIVATE)

    @classmethod
    def read(cls, run: RunDirectory, *, digest: str) -> Checkpoint:
        """Read a checkpoint. Raises `ConfigError` if it is damaged, or that of another run."""
        path = run / CHECKPOINT
        data = read_file(path, f"the run cannot go on: {_REMEDY}")
        start = len(_MAGIC) + hashlib.sha256().digest_size
        payload = data[start:]
        if data[:start] != _MAGIC + hashlib.sha256(payload).digest():
            raise ConfigError(f"{path} is damaged, so the run cannot go on: {_REMEDY}")
        try:
            found = _parse(msgpack.unpackb(payload, strict_map_key=False))
        except (KeyError, TypeError, ValueError):
            raise ConfigError(f"{path} is of another version, so the run cannot go on: {_REMEDY}") from None
        if found.digest != digest:
            raise ConfigError(f"{path} is of a run with other settings: take another --out, or {_REMEDY}")
        return found


def _parse(content: dict[str, Any]) -> Checkpoint:
    tail = content.pop("tail")
    training = _side(content.pop("training"))
    return Checkpoint(training=training, tail=None if tail is None else _side(tail), **content)


def _side(content: dict[str, Any]) -> Side:
    charge, noised, unnoised = content.pop("spend")
    return Side(spend=(charge, noised, unnoised), **content)
