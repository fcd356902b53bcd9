"""Messages between the process of the clients and that of the server.

A message is its kind, a number and some bytes. The bytes are read into one object of their size, and the
reader keeps nothing: what the server's process holds is the server's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import IO, Any, Final

_HEADER: Final = Struct("<BIQ")  # kind, number, bytes that follow


class Kind(IntEnum):
    """The kind of a message. All but `FRAME` ask for an answer, or are one."""

    JOB = 1  # the setting, once
    FRAME = 2  # of a client, to the server, or the other way round
    NEXT = 3  # the next frame that the server wants sent
    RECEIVERS = 4  # of the frame that follows
    EMPTY = 5  # there is no such frame
    ASK = 6
    CLOSE = 7
    STATUS = 8
    COSTS = 9
    TOTAL = 10
    LIMIT = 11


@dataclass(frozen=True)
class Note:
    """One message."""

    kind: Kind
    number: int = 0  # the client's id, where it is a client's frame
    data: bytes = field(default=b"", repr=False)

    def json(self) -> Any:
        return json.loads(self.data)


class Channel:
    """Two streams of messages, one each way."""

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    def send(self, kind: Kind, data: bytes | memoryview = b"", *, number: int = 0) -> None:
        view = memoryview(data).cast("B")
        self._outgoing.write(_HEADER.pack(kind, number, len(view)))
        self._outgoing.write(view)
        self._outgoing.flush()

    def send_json(self, kind: Kind, value: object) -> None:
        self.send(kind, json.dumps(value).encode())

    def receive(self) -> Note:
        """Return the next message. Raises `EOFError` if the other side is gone."""
        kind, number, length = _HEADER.unpack(self._read(_HEADER.size))
        return Note(Kind(kind), number, self._read(length))

    def _read(self, length: int) -> bytes:
        data = self._incoming.read(length)
        if len(data) < length:
            raise EOFError
        return data

    def close(self) -> None:
        self._incoming.close()
        self._outgoing.close()
