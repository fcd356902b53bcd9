"""Meters on machines: how much CPU time each one used, or which primitives it called.

Both wrap the public calls of the machines from outside, and only while their context is open.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial, wraps
from typing import Any, Final, TypeAlias

from benchmarks.costs import Cost
from benchmarks.patches import Function, Patches
from benchmarks.primitive_replay import LEAVES, Leaf, Replay
from secagg.client import ClientMachine
from secagg.server import ServerMachine

SERVER: Final = -1  # among the owners of machines; clients have their ids
_CALLS: Final = (
    (ClientMachine, "receive"),
    (ClientMachine, "answer"),
    (ServerMachine, "receive"),
    (ServerMachine, "close_stage"),
    (ServerMachine, "ask"),
)


class Phase(StrEnum):
    """Set-up happens once in a session, the rest with every sum."""

    SETUP = "set-up"
    SUM = "sum"


Place: TypeAlias = tuple[int, Phase]  # (owner of a machine, phase)


def _owner(machine: object) -> int:
    return machine.member if isinstance(machine, ClientMachine) else SERVER


class Stopwatch:
    """CPU seconds of this thread inside the machines."""

    def __init__(self) -> None:
        self.phase = Phase.SETUP
        self.seconds: defaultdict[Place, float] = defaultdict(float)

    @contextmanager
    def running(self) -> Iterator[None]:
        with Patches() as patches:
            for machine, name in _CALLS:
                patches.replace(machine, name, self._timed)
            yield

    def _timed(self, call: Function) -> Function:
        @wraps(call)
        def timed(machine: object, *args: Any, **kwargs: Any) -> Any:
            started = time.thread_time()
            result = call(machine, *args, **kwargs)
            self.seconds[_owner(machine), self.phase] += time.thread_time() - started
            return result

        return timed


class Recorder:
    """The primitives that some machines called, as replays."""

    def __init__(self, owners: Collection[int]) -> None:
        self.phase = Phase.SETUP
        self.replays: defaultdict[Place, defaultdict[Cost, list[Replay]]]
        self.replays = defaultdict(lambda: defaultdict(list))
        self._owners = owners
        self._current: int | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        with Patches() as patches:
            for machine, name in _CALLS:
                patches.replace(machine, name, self._attributed)
            for leaf in LEAVES:
                patches.replace(leaf.owner, leaf.name, partial(self._recorded, leaf))
            yield

    def _attributed(self, call: Function) -> Function:
        @wraps(call)
        def attributed(machine: object, *args: Any, **kwargs: Any) -> Any:
            owner = _owner(machine)
            self._current = owner if owner in self._owners else None
            try:
                return call(machine, *args, **kwargs)
            finally:
                self._current = None

        return attributed

    def _recorded(self, leaf: Leaf, call: Function) -> Function:
        @wraps(call)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            owner, self._current = self._current, None  # what a replay needs is not itself recorded
            if owner is not None:
                replay = leaf.replay(call, *args, **kwargs)
                if replay is not None:
                    self.replays[owner, self.phase][leaf.cost].append(replay)
            self._current = owner
            return call(*args, **kwargs)

        return recorded


def cpu_seconds(replays: Collection[Replay]) -> float:
    """Return the CPU seconds of this thread for calling each of `replays` once."""
    started = time.thread_time()
    for replay in replays:
        replay()
    return time.thread_time() - started
