"""Seeded randomness for repeatable simulations, tests and test vectors. It is not secure.

Anyone who knows the seed can compute all secrets of a client or server that uses it.
"""

from __future__ import annotations

from collections.abc import Iterable

from secagg.hashing import digest
from secagg.identity_registry import Registry
from secagg.keys import Identity
from secagg.machine_hooks import ClientHooks, Rounding, ServerHooks
from secagg.mask_keystream import KeyStream
from secagg.query_context import Question, content_digest


class SeededRandom:
    """Replaces `secrets.token_bytes` in tests: each call returns the next bytes of a stream set by `seed`."""

    def __init__(self, *seed: bytes) -> None:
        self._stream = KeyStream(digest("insecure test seed", *seed))

    def __call__(self, count: int) -> bytes:
        return self._stream.words(-(-count // 8)).tobytes()[:count]


def insecure_client_hooks(seed: bytes, member: int, *, rounding: bytes | None = None) -> ClientHooks:
    """Return hooks that make client `member` draw all its secrets from `seed`. With a second seed,
    `rounding`, the random rounding depends only on that seed, `member` and the query, in every session."""
    random = SeededRandom(seed, b"client", _id_bytes(member))
    return ClientHooks(random=random, rounding=None if rounding is None else _repeatable(rounding, member))


def insecure_server_hooks(seed: bytes) -> ServerHooks:
    """Return hooks that make a server draw its session nonce and the clients' order on a ring from `seed`."""
    return ServerHooks(random=SeededRandom(seed, b"server"))


def insecure_rounding(seed: bytes, member: int, content: bytes) -> KeyStream:
    """Return the key stream that rounds client `member`'s answer to the query whose digest is `content`."""
    return KeyStream(digest("insecure rounding", seed, _id_bytes(member), content))


def seeded_identity(seed: bytes, member: int) -> Identity:
    """Return the identity of client `member`, whose private signing key is derived from `seed`."""
    return Identity.from_secret(SeededRandom(seed, b"identity", _id_bytes(member))(32))


def seeded_registry(seed: bytes, members: Iterable[int], *, version: int = 0) -> Registry:
    """Return a registry that maps each of `members` to the public key of `seeded_identity(seed, member)`."""
    return Registry(version, {k: seeded_identity(seed, k).public for k in members})


def _repeatable(seed: bytes, member: int) -> Rounding:
    def rounding(question: Question) -> KeyStream:
        return insecure_rounding(seed, member, content_digest(question.query.kind, question.query.payload))

    return rounding


def _id_bytes(member: int) -> bytes:
    return member.to_bytes(4, "big")
