"""The CPU time of a simulated round by stage: training, masks, the server.

Public calls of channels and machines are wrapped from outside while a clock is running. Time counts for the
innermost wrapped call, so that nothing counts twice; time outside of all calls is the rest.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial, wraps
from typing import Any, Final, TypeAlias

from benchmarks.patches import Function, Patches
from fl.crowd import Crowd
from secagg import messages as m
from secagg.client import ClientMachine
from secagg.errors import SERVER
from secagg.input_encoding import Encoding
from secagg.server import ServerMachine
from secagg.transitions import ServerState
from sims.runtime.session_channel import SessionChannel


class Part(StrEnum):
    """Where the time of a session goes."""

    SETUP = "set-up"
    TRAIN = "train"
    ASK = "ask"
    ENCODE = "encode"
    MASK = "mask"
    COLLECT = "collect"
    CONFIRM = "confirm"
    REVEAL = "reveal"
    UNMASK = "unmask"
    REST = "rest"


MEANINGS: Final = {
    Part.SETUP: "keys and shares, once in a session",
    Part.TRAIN: "local steps, the client's algorithm",
    Part.ASK: "the query is made, read, checked",
    Part.ENCODE: "clipping, rounding, fixed point",
    Part.MASK: "masks of all neighbours, packing",
    Part.COLLECT: "the server adds up masked inputs",
    Part.CONFIRM: "signatures on who is in the sum",
    Part.REVEAL: "signatures verified, shares sent",
    Part.UNMASK: "the server removes masks",
    Part.REST: "frames carried, server's algorithm",
}

Name: TypeAlias = Callable[..., Part]  # of a call, from its arguments


class StageClock:
    """CPU seconds of this process, by part. All time within set-up counts as set-up."""

    def __init__(self, *, signed: bool) -> None:
        self.seconds: defaultdict[Part, float] = defaultdict(float)
        self._open = [Part.REST]
        self._since = 0.0
        # Whether clients sign who survived before they reveal anything.
        self._survivors = Part.CONFIRM if signed else Part.REVEAL

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time everything in this block."""
        with Patches() as patches:
            for owner, name, part in self._calls():
                patches.replace(owner, name, partial(self._timed, part))
            self._since = time.process_time()
            try:
                yield
            finally:
                self._switch()

    def _calls(self) -> tuple[tuple[type, str, Name], ...]:
        return (
            (SessionChannel, "begin", _always(Part.SETUP)),
            (Crowd, "together", _always(Part.TRAIN)),
            (Encoding, "encode", _always(Part.ENCODE)),
            (ClientMachine, "answer", _always(Part.MASK)),
            (ClientMachine, "receive", self._of_frame),
            (ServerMachine, "ask", _always(Part.ASK)),
            (ServerMachine, "receive", _of_server),
            (ServerMachine, "close_stage", _of_server),
        )

    def _of_frame(self, _machine: ClientMachine, frame: bytes) -> Part:
        kind = m.message_type(frame, sender=SERVER)
        if kind is m.Survivors:
            return self._survivors
        return Part.REVEAL if kind is m.Confirmations else Part.ASK

    def _timed(self, name: Name, call: Function) -> Function:
        @wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._open[-1] is Part.SETUP:
                return call(*args, **kwargs)
            part = name(*args, **kwargs)
            self._switch()
            self._open.append(part)
            try:
                return call(*args, **kwargs)
            finally:
                self._switch()
                self._open.pop()

        return timed

    def _switch(self) -> None:
        now = time.process_time()
        self.seconds[self._open[-1]] += now - self._since
        self._since = now


def _always(part: Part) -> Name:
    return lambda *_args, **_kwargs: part


def _of_server(machine: ServerMachine, *_frame: object) -> Part:
    match machine.state:
        case ServerState.MASKING:
            return Part.COLLECT
        case ServerState.CONFIRMING:
            return Part.CONFIRM
        case _:
            return Part.UNMASK
