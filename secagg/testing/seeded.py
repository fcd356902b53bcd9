"""Machines whose randomness comes from a seed: for vectors and repeatable tests, never for use.

Everything such a machine keeps secret can be computed by whoever knows the seed.
"""

from __future__ import annotations

from typing import Any

from secagg.client import ClientMachine
from secagg.hashing import digest
from secagg.keys import Identity
from secagg.masks import KeyStream
from secagg.question import Question, content_digest
from secagg.registry import Registry
from secagg.server import ServerMachine


class SeededRandom:
    """A deterministic stand-in for `secrets.token_bytes`: the AES-CTR stream of a hashed seed."""

    def __init__(self, *seed: bytes) -> None:
        self._stream = KeyStream(digest("insecure test seed", *seed))

    def __call__(self, count: int) -> bytes:
        return self._stream.words(-(-count // 8)).tobytes()[:count]


class InsecureSeededClient(ClientMachine):
    """A client that draws all its secrets from `seed`."""

    def __init__(self, *, seed: bytes, member: int, **settings: Any) -> None:
        self._random = SeededRandom(seed, b"client", member.to_bytes(4, "big"))
        super().__init__(member=member, **settings)


class InsecureRepeatableClient(InsecureSeededClient):
    """Draws how it rounds an answer from `rounding` and the question, whichever session it is asked in."""

    def __init__(self, *, seed: bytes, rounding: bytes, member: int, **settings: Any) -> None:
        super().__init__(seed=seed, member=member, **settings)
        self._rounding_seed = rounding

    def _rounding(self, question: Question) -> KeyStream:
        content = content_digest(question.query.kind, question.query.payload)
        return insecure_rounding(self._rounding_seed, self.member, content)


def insecure_rounding(seed: bytes, member: int, content: bytes) -> KeyStream:
    """How a client rounds its answer to a question: a function of who it is and what is asked."""
    return KeyStream(digest("insecure rounding", seed, member.to_bytes(4, "big"), content))


class InsecureSeededServer(ServerMachine):
    """A server that draws its nonce, and the order of a ring, from `seed`."""

    def __init__(self, *, seed: bytes, **settings: Any) -> None:
        self._random = SeededRandom(seed, b"server")
        super().__init__(**settings)


def seeded_identity(seed: bytes, member: int) -> Identity:
    return Identity.from_secret(SeededRandom(seed, b"identity", member.to_bytes(4, "big"))(32))


def seeded_registry(seed: bytes, members: range | list[int], *, version: int = 0) -> Registry:
    """The registry of `seeded_identity` for every member."""
    return Registry(version, {k: seeded_identity(seed, k).public for k in members})
