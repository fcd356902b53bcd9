"""The server's process: it holds the server machine and nothing else, so that its cost can be measured.

    python -m benchmarks.server_worker

The clients' process tells it what to do, one message at a time (`benchmarks.pipe_messages`). Only calls of
the machine are timed. Memory is read before anything is computed from the total.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Final, Self, TypeVar

import numpy as np

from benchmarks.limits import Limit, Mask
from benchmarks.memory_growth import MemoryGrowth
from benchmarks.pipe_messages import Channel, Kind, Note
from benchmarks.sum_setting import KIND, SumSetting, make_server
from secagg import Registry
from secagg.errors import LocalError
from secagg.events import (
    Excluded,
    Outgoing,
    ServerEvent,
    SessionFailed,
    SessionReady,
    SumAborted,
    SumReleased,
)
from secagg.mask_pool import ProcessPool
from secagg.residue_packing import Residues, reduce
from secagg.self_and_pair_masks import Expander, OneProcess, PairMasks, Removal

Result = TypeVar("Result")
_SAMPLES: Final = 2  # of the limit


class Counting:
    """Expands masks in one process or in several, and counts them."""

    def __init__(self, processes: int) -> None:
        self.masks = 0
        self._pool = ProcessPool(processes) if processes > 1 else None
        self._expander: Expander = self._pool or OneProcess()

    def __enter__(self) -> Self:
        if self._pool is not None:
            self._pool.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.close()

    def get_ready(self) -> None:
        self._expander.get_ready()

    def take_off(self, residues: Sequence[Residues], removals: Sequence[Removal], *, salt: bytes) -> None:
        self.masks += sum(len(each.pairs) if isinstance(each, PairMasks) else 1 for each in removals)
        self._expander.take_off(residues, removals, salt=salt)

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of the other processes."""
        return 0.0 if self._pool is None else self._pool.cpu_seconds()


class Seat:
    """One session, from the job to the limits."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._outgoing: list[Outgoing] = []  # the next one last
        self._error: str | None = None
        self._released: SumReleased | None = None
        self._ready: SessionReady | None = None
        self._cpu: defaultdict[str, float] = defaultdict(float)  # by state at the call
        self._wall: defaultdict[str, float] = defaultdict(float)

    def run(self) -> None:
        """Execute commands until the other process is gone."""
        with ExitStack() as self._resources:
            self._work()

    def _work(self) -> None:
        tasks: dict[Kind, Callable[[Note], None]] = {
            Kind.JOB: self._begin,
            Kind.FRAME: self._take,
            Kind.NEXT: self._give,
            Kind.ASK: self._ask,
            Kind.CLOSE: self._close,
            Kind.COSTS: self._costs,
            Kind.TOTAL: self._total,
            Kind.LIMIT: self._limit,
        }
        while True:
            try:
                note = self._channel.receive()
            except EOFError:
                return
            tasks[note.kind](note)
            del note  # a frame is not kept while waiting for the next one

    # --- the session ---

    def _begin(self, note: Note) -> None:
        job = note.json()
        self._setting = SumSetting.from_json(job["setting"])
        registry = _registry(job["registry"])
        self._expander = self._resources.enter_context(Counting(self._setting.processes))
        self._growth = MemoryGrowth()
        try:
            self._server = make_server(self._setting, registry, self._expander)
        except LocalError as error:
            self._channel.send_json(Kind.STATUS, {"state": None, "error": str(error)})
            return
        self._outgoing = [Outgoing(tuple(range(self._setting.clients)), self._server.invitation)]
        self._report_status()

    def _take(self, note: Note) -> None:
        """Receive a client's frame, which has no answer."""
        self._note_events(self._timed(lambda: self._server.receive(note.number, note.data)))

    def _give(self, _: Note) -> None:
        if not self._outgoing:
            self._channel.send(Kind.EMPTY)
            return
        packet = self._outgoing.pop()
        self._channel.send(Kind.RECEIVERS, np.array(packet.receivers, "<u4").data)
        self._channel.send(Kind.FRAME, packet.frame)

    def _ask(self, _: Note) -> None:
        step = self._timed(lambda: self._server.ask(KIND, b"", round_number=0))
        self._outgoing = list(reversed(step.outgoing))
        self._report_status()

    def _close(self, _: Note) -> None:
        step = self._timed(self._server.close_stage)
        self._note_events(step.events)
        self._outgoing = list(reversed(step.outgoing))
        self._report_status()

    def _timed(self, call: Callable[[], Result]) -> Result:
        state = self._server.state.value
        wall, cpu = time.perf_counter(), self._cpu_seconds()
        result = call()
        self._cpu[state] += self._cpu_seconds() - cpu
        self._wall[state] += time.perf_counter() - wall
        return result

    def _cpu_seconds(self) -> float:
        return time.process_time() + self._expander.cpu_seconds()

    def _note_events(self, events: Iterable[ServerEvent]) -> None:
        """Fail if a client is excluded or the sum ends: all clients here are honest."""
        for event in events:
            match event:
                case Excluded() | SessionFailed() | SumAborted():
                    self._error = str(event.error)
                case SessionReady():
                    self._ready = event
                case SumReleased():
                    self._released = event

    def _report_status(self) -> None:
        status = {"state": self._server.state.value, "error": self._error}
        self._channel.send_json(Kind.STATUS, status)

    # --- what it cost ---

    def _costs(self, _: Note) -> None:
        peak = self._growth.peak_bytes()
        assert self._ready is not None  # there was a sum
        costs = {
            "cpu": self._cpu,
            "wall": self._wall,
            "threshold": self._ready.threshold,
            "neighbours": self._ready.neighbours,
            "ring": self._server._topology.is_ring,
            "masks": self._expander.masks,
            "peak_bytes": peak,
        }
        self._channel.send_json(Kind.COSTS, costs)

    def _total(self, _: Note) -> None:
        assert self._released is not None  # the state said so
        # The numbers of a total are rounded to floats: what is compared are the residues behind it.
        residues = self._server._tally._accumulator[0]
        reduce(residues, self._setting.bits)
        self._channel.send(Kind.TOTAL, residues.data)

    def _limit(self, note: Note) -> None:
        limit = Limit(Mask.of(self._setting.spec))
        for _ in range(_SAMPLES):
            limit.sample()
        self._channel.send_json(Kind.LIMIT, limit.cpu_seconds(note.number))


def _registry(members: dict[str, str] | None) -> Registry | None:
    if members is None:
        return None
    return Registry(0, {int(member): bytes.fromhex(key) for member, key in members.items()})


def _private_channel() -> Channel:
    """Return standard input and output, moved to descriptors that nothing else uses."""
    incoming, outgoing = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.dup2(2, 1)
    os.close(nowhere)
    return Channel(open(incoming, "rb"), open(outgoing, "wb"))


def main() -> None:
    # An interrupt reaches both processes, and the other one then ends this one. That has to be an orderly
    # end: workers of a pool would outlive a process that is gone at once.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    Seat(_private_channel()).run()


if __name__ == "__main__":
    main()
