"""Writes and reads the checkpoint file: the state of a run between two rounds.

Only the owner of the file may read it, because it has the states of all clients with their personal models.
The content is a SHA-256 hash followed by MessagePack, which cannot contain executable code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import msgpack

from sims.config_problems import ConfigError
from sims.records.run_directory import RunDirectory, read_file
from sims.records.run_file_names import CHECKPOINT

_MAGIC: Final = b"secagg checkpoint 2\n"


@dataclass(frozen=True)
class PartState:
    """The state of one part of a run: of the training, or of the private histogram of errors.

    `server`, `clients`       the serialised state of the server, and that of each client by its number.
    `sessions`                the number of sessions so far.
    `spend`                   privacy cost, noised sums and unnoised sums of a client that was in every sum.
    `bytes_up`, `bytes_down`  bytes sent to and by the server so far, by the name of the stage.
    """

    server: bytes = field(repr=False)
    clients: Mapping[int, bytes] = field(repr=False)
    sessions: int
    spend: tuple[int, int, int] = (0, 0, 0)
    bytes_up: Mapping[str, int] = field(default_factory=dict)
    bytes_down: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after `done` rounds: that of the training and, if there is one, of the private
    histogram of errors (`tail`). `digest` is the hash of the settings of the run. `barred` has the clients
    that are invited no more, because they lied or were in a dispute."""

    digest: str
    done: int
    training: PartState
    tail: PartState | None  # the private histogram of errors; None if the run has none
    lines: Mapping[str, int]  # file name -> number of lines at this time
    ledger_rows: int | None  # number of rows at this time; None if the run has no ledger
    seconds: Mapping[str, float]  # "wall" and "cpu" time so far
    barred: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """Return the contents of the file."""
        payload: bytes = msgpack.packb(asdict(self))
        return _MAGIC + hashlib.sha256(payload).digest() + payload

    @classmethod
    def read(cls, run: RunDirectory, *, digest: str) -> Checkpoint:
        """Return a run's checkpoint. Raise `ConfigError` if it is missing, damaged or of another digest."""
        path, lost = run / CHECKPOINT, run.advice.lost
        data = read_file(path, f"the run cannot go on: {lost}")
        start = len(_MAGIC) + hashlib.sha256().digest_size
        payload = data[start:]
        if data[:start] != _MAGIC + hashlib.sha256(payload).digest():
            raise ConfigError(f"{path} is damaged, so the run cannot go on: {lost}")
        try:
            found = _parse(msgpack.unpackb(payload, strict_map_key=False))
        except (KeyError, TypeError, ValueError):
            raise ConfigError(f"{path} is of another version, so the run cannot go on: {lost}") from None
        if found.digest != digest:
            raise ConfigError(f"{path} is of a run with other settings: {run.advice.foreign}")
        return found


def _parse(content: dict[str, Any]) -> Checkpoint:
    tail, barred = content.pop("tail"), tuple(content.pop("barred"))
    training = _part_state(content.pop("training"))
    return Checkpoint(
        training=training, tail=None if tail is None else _part_state(tail), barred=barred, **content
    )


def _part_state(content: dict[str, Any]) -> PartState:
    charge, noised, unnoised = content.pop("spend")
    return PartState(spend=(charge, noised, unnoised), **content)
