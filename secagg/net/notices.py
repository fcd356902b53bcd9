"""Notices: short texts between server and client that belong to no session, such as the terms of a run.

A link carries them like frames. The first byte of a notice is one that no frame of the protocol begins with.
A notice is information only: no input is masked, and no budget is charged, because of one. Notices about keys
are signed: the receiver believes the authority, or the key that it trusts already, and not the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from secagg.errors import MalformedMessage, Peer

_MARK: Final = 0xC1  # MessagePack never uses this byte
_HEADER: Final = 2
# The longest notice of a client. A server may send longer ones, up to the size of its queries.
MAX_CLIENT_NOTICE: Final = 2048
# The longest notice about keys: a registry of 100,000 clients.
MAX_KEY_NOTICE: Final = 1 << 22


class Topic(IntEnum):
    """What a notice is about.

    >>> Topic.REFUSAL.name
    'REFUSAL'
    """

    TERMS = 1  # from a server: the terms of its run; from a client: how its own terms differ
    RUN_ENDED = 2  # from a server: the outcome of its run; from a client: it has the outcome
    REFUSAL = 3  # from a client: the name of the error because of which it left a session
    REGISTRY = 4  # from a server: the newest registry, signed by the authority
    SERVER_CERTIFICATE = 5  # from a server: its new certificate, and a hand-over signed by its old key


@dataclass(frozen=True, repr=False)
class Notice:
    """A notice: its topic, and its content, which the receiver must not trust.

    >>> from secagg.net import Topic
    >>> Notice(Topic.REFUSAL, b"WrongTable")
    Notice(REFUSAL, 10 bytes)
    """

    topic: Topic
    body: bytes

    def __repr__(self) -> str:
        return f"Notice({self.topic.name}, {len(self.body)} bytes)"

    def encode(self) -> bytes:
        return bytes([_MARK, self.topic]) + self.body


def is_notice(frame: bytes) -> bool:
    return frame[:1] == bytes([_MARK])


def parse_notice(frame: bytes, *, sender: Peer) -> Notice:
    """Return the notice in `frame`. Raises `MalformedMessage` if it has no known topic."""
    if len(frame) < _HEADER or frame[1] not in list(Topic):
        raise MalformedMessage(sender, "a notice of an unknown topic")
    return Notice(Topic(frame[1]), frame[_HEADER:])
