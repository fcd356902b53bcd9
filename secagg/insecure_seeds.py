"""Seeded randomness for repeatable simulations, tests and test vectors. It protects nothing.

All secrets of a machine with such hooks can be computed from the seed.
"""

from __future__ import annotations

from collections.abc import Iterable

from secagg.hashing import digest
from secagg.hooks import ClientHooks, Rounding, ServerHooks
from secagg.identity_registry import Registry
from secagg.keys import Identity
from secagg.mask_keystream import KeyStream
from secagg.query_context import Question, content_digest


class SeededRandom:
    """A deterministic replacement of `secrets.token_bytes`: the AES-CTR stream of a hashed seed."""

    def __init__(self, *seed: bytes) -> None:
        self._stream = KeyStream(digest("insecure test seed", *seed))

    def __call__(self, count: int) -> bytes:
        return self._stream.words(-(-count // 8)).tobytes()[:count]


def insecure_client_hooks(seed: bytes, member: int, *, rounding: bytes | None = None) -> ClientHooks:
    """Return hooks for a client that draws all its secrets from `seed`.

    With `rounding`, how it rounds an answer depends on that seed and on the question alone, so it is the same
    in every session.
    """
    random = SeededRandom(seed, b"client", _number(member))
    return ClientHooks(random=random, rounding=None if rounding is None else _repeatable(rounding, member))


def insecure_server_hooks(seed: bytes) -> ServerHooks:
    """Return hooks for a server that draws its nonce, and the order of a ring, from `seed`."""
    return ServerHooks(random=SeededRandom(seed, b"server"))


def insecure_rounding(seed: bytes, member: int, content: bytes) -> KeyStream:
    """Return the stream with which a client rounds its answer to a question with this content."""
    return KeyStream(digest("insecure rounding", seed, _number(member), content))


def seeded_identity(seed: bytes, member: int) -> Identity:
    """Return the signing key of a member that follows from `seed`."""
    return Identity.from_secret(SeededRandom(seed, b"identity", _number(member))(32))


def seeded_registry(seed: bytes, members: Iterable[int], *, version: int = 0) -> Registry:
    """Return the registry of `seeded_identity` for every member."""
    return Registry(version, {k: seeded_identity(seed, k).public for k in members})


def _repeatable(seed: bytes, member: int) -> Rounding:
    def rounding(question: Question) -> KeyStream:
        return insecure_rounding(seed, member, content_digest(question.query.kind, question.query.payload))

    return rounding


def _number(member: int) -> bytes:
    return member.to_bytes(4, "big")
