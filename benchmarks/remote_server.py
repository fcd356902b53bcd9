"""The server's process, seen from the process of the clients."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.pipe_messages import Channel, Kind, Note
from benchmarks.sum_setting import SumSetting
from secagg import Registry
from secagg.errors import ParameterError
from secagg.residue_packing import Residues, dtype_for
from secagg.transitions import ServerState

_ROOT: Final = Path(__file__).resolve().parents[1]  # where the package benchmarks is


class BenchmarkFailed(Exception):
    """There is nothing to report: no total was released, or the server's process ended."""


@dataclass(frozen=True)
class ServerCosts:
    """Seconds by the state of the server, what it removed, and by how much its process grew."""

    cpu: Mapping[str, float]
    wall: Mapping[str, float]
    threshold: int
    neighbours: int
    ring: bool
    masks: int  # that it took off the total
    peak_bytes: int

    def cpu_in(self, *states: ServerState) -> float:
        return sum(self.cpu.get(state.value, 0.0) for state in states)


class RemoteServer:
    """Controls the server. Every answer is read before the next command."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.state = ""

    def begin(self, setting: SumSetting, registry: Registry | None) -> None:
        """Make the machine."""
        keys = None if registry is None else {str(k): key.hex() for k, key in registry.members.items()}
        job = json.dumps({"setting": setting.as_json(), "registry": keys}).encode()
        status = self._request(Kind.JOB, job).json()
        if status["error"] is not None:
            raise ParameterError(status["error"])
        self.state = status["state"]

    def receive(self, member: int, frame: bytes) -> None:
        with _while_it_lives():
            self._channel.send(Kind.FRAME, frame, number=member)

    def outgoing(self) -> Iterator[tuple[list[int], bytes]]:
        """Yield what the server sends: receivers, and the frame for each of them."""
        while (note := self._request(Kind.NEXT)).kind is not Kind.EMPTY:
            with _while_it_lives():
                frame = self._channel.receive().data
            yield np.frombuffer(note.data, "<u4").tolist(), frame

    def ask(self) -> None:
        self._step(Kind.ASK)

    def close_stage(self) -> None:
        self._step(Kind.CLOSE)

    def costs(self) -> ServerCosts:
        return ServerCosts(**self._request(Kind.COSTS).json())

    def residues(self, bits: int) -> Residues:
        """Return the residues of the total."""
        return np.frombuffer(self._request(Kind.TOTAL).data, dtype_for(bits))

    def limit_cpu_seconds(self, masks: int) -> float:
        """Return the least cost of `masks` masks in that process."""
        return float(self._request(Kind.LIMIT, number=masks).json())

    def _step(self, kind: Kind) -> None:
        status = self._request(kind).json()
        if status["error"] is not None:
            raise BenchmarkFailed(f"there was no total: {status['error']}")
        self.state = status["state"]

    def _request(self, kind: Kind, data: bytes = b"", *, number: int = 0) -> Note:
        with _while_it_lives():
            self._channel.send(kind, data, number=number)
            return self._channel.receive()


@contextmanager
def _while_it_lives() -> Iterator[None]:
    """Report a process that has ended; it has printed the reason on standard error."""
    try:
        yield
    except (BrokenPipeError, EOFError):
        raise BenchmarkFailed("the server's process ended before its time") from None


@contextmanager
def server_process() -> Iterator[RemoteServer]:
    """Start a server in a new process of the same interpreter, which ends when its input does."""
    command, pipe = (sys.executable, "-m", "benchmarks.server_worker"), subprocess.PIPE
    with subprocess.Popen(command, cwd=_ROOT, stdin=pipe, stdout=pipe) as process:  # constants
        assert process.stdin is not None  # asked for above
        assert process.stdout is not None
        try:
            yield RemoteServer(Channel(process.stdout, process.stdin))
        except BaseException:
            process.terminate()
            with suppress(BrokenPipeError):  # of what was still to be written to it
                process.stdin.close()
            raise
