"""SHA-256 of a purpose and a list of fields, each preceded by its length.

Because of the lengths and the purpose, different lists of fields or purposes never give the same hash input.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

VERSION: Final = 2  # of the protocol: the first field of every frame
DIGEST_BYTES: Final = 32


def label(purpose: str) -> bytes:
    """Return a prefix for hash inputs that differs for each `purpose`. Its number is not the version of the
    protocol, so that older registries and ledgers stay valid. Session ids depend on the version anyway."""
    return f"secagg/1 {purpose}".encode("ascii")


def framed(purpose: str, *fields: bytes | memoryview) -> bytes:
    """Return the label of `purpose` and the `fields` as one byte string, each preceded by its length."""
    return b"".join(_pieces(purpose, fields))


def digest(purpose: str, *fields: bytes | memoryview) -> bytes:
    """Return SHA-256 of `framed(purpose, *fields)`. Long fields are hashed without being copied."""
    state = hashlib.sha256()
    for piece in _pieces(purpose, fields):
        state.update(piece)
    return state.digest()


def _pieces(purpose: str, fields: tuple[bytes | memoryview, ...]) -> Iterator[bytes | memoryview]:
    for chunk in (label(purpose), *fields):
        yield len(chunk).to_bytes(8, "big")
        yield chunk
