"""What a crew and its fork server say to each other.

The crew sends one `Opening`, waits for `Ready` and from then on gives orders of a fixed size,
because an order to hire has a file descriptor with it, and those travel with exactly the bytes they
were sent with. The fork server answers with pickled reports.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from sims.processes.census import Individual

_ORDER: Final = struct.Struct("!cI")


@dataclass(frozen=True)
class Opening:
    duty: bytes  # pickled, which makes it the name of a function
    preload: tuple[str, ...]  # names of modules


class Verb(Enum):
    HIRE = b"h"  # comes with the worker's end of its line
    KILL = b"k"


@dataclass(frozen=True)
class Ready:
    """Everything is imported, and there is one thread."""


@dataclass(frozen=True)
class Refused:
    """There will be no crew, or one worker less than was ordered."""

    reason: str


@dataclass(frozen=True)
class Started:
    index: int
    who: Individual


@dataclass(frozen=True)
class Stopped:
    index: int
    exitcode: int  # negative: the number of a signal


Report: TypeAlias = Ready | Refused | Started | Stopped


@dataclass(frozen=True)
class Order:
    verb: Verb
    index: int
    line: socket.socket | None = None

    def send(self, control: socket.socket) -> None:
        """Send without waiting. So few bytes are sent whole, or `BlockingIOError` is raised."""
        data = _ORDER.pack(self.verb.value, self.index)
        if self.line is None:
            control.send(data)
        else:
            socket.send_fds(control, [data], [self.line.fileno()])


def receive_order(control: socket.socket) -> Order | None:
    """The next order; None if the crew is closed or dead."""
    try:
        data, descriptors, _, _ = socket.recv_fds(control, _ORDER.size, 1)
    except ConnectionError:
        return None
    if not data:
        return None
    verb, index = _ORDER.unpack(data)
    line = socket.socket(fileno=descriptors[0]) if descriptors else None
    if line is not None:
        line.set_inheritable(False)  # Nothing that the worker executes shall have it.
    return Order(Verb(verb), index, line)
