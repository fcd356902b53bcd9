"""One hash, SHA-256, with a purpose in front and every field length-prefixed.

No two purposes and no two lists of fields ever hash the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

VERSION: Final = 1
DIGEST_BYTES: Final = 32


def label(purpose: str) -> bytes:
    """The domain separator of `purpose` in this version of the protocol."""
    return f"secagg/{VERSION} {purpose}".encode("ascii")


def framed(purpose: str, *fields: bytes) -> bytes:
    """`purpose` and `fields` as one string that can be cut in only one way."""
    return b"".join(_pieces(purpose, fields))


def digest(purpose: str, *fields: bytes) -> bytes:
    """SHA-256 of `framed(purpose, *fields)`, without building it: a field may be a whole model."""
    state = hashlib.sha256()
    for piece in _pieces(purpose, fields):
        state.update(piece)
    return state.digest()


def _pieces(purpose: str, fields: tuple[bytes, ...]) -> Iterator[bytes]:
    for chunk in (label(purpose), *fields):
        yield len(chunk).to_bytes(8, "big")
        yield chunk
