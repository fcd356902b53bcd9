"""Seeded randomness for repeatable simulations, tests and test vectors. It is not secure.

Anyone who knows the seed can compute all secrets of a client or server that uses it.
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

    If `rounding`, a second seed, is given, answers to the same query are rounded alike in every session.
    """
    random = SeededRandom(seed, b"client", _id_bytes(member))
    return ClientHooks(random=random, rounding=None if rounding is None else _repeatable(rounding, member))


def insecure_server_hooks(seed: bytes) -> ServerHooks:
    """Return hooks for a server that draws its session nonce and its random ring order from `seed`."""
    return ServerHooks(random=SeededRandom(seed, b"server"))


def insecure_rounding(seed: bytes, member: int, content: bytes) -> KeyStream:
    """Return the key stream for rounding a client's answer; `content` is the query's `content_digest`."""
    return KeyStream(digest("insecure rounding", seed, _id_bytes(member), content))


def seeded_identity(seed: bytes, member: int) -> Identity:
    """Return the identity of a member, with a signing key that is derived from `seed`."""
    return Identity.from_secret(SeededRandom(seed, b"identity", _id_bytes(member))(32))


def seeded_registry(seed: bytes, members: Iterable[int], *, version: int = 0) -> Registry:
    """Return a registry with the `seeded_identity` of every member."""
    return Registry(version, {k: seeded_identity(seed, k).public for k in members})


def _repeatable(seed: bytes, member: int) -> Rounding:
    def rounding(question: Question) -> KeyStream:
        return insecure_rounding(seed, member, content_digest(question.query.kind, question.query.payload))

    return rounding


def _id_bytes(member: int) -> bytes:
    return member.to_bytes(4, "big")
