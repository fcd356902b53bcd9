"""The rows of a ledger as a hash chain (each hash covers all rows before it)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from secagg.hashing import DIGEST_BYTES, digest

Body: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Head:
    """The number of rows of a ledger, and its last hash. An older copy of the ledger has another head."""

    rows: int
    hash: bytes

    def after(self, text: bytes) -> Head:
        """Return the head (row count and last hash) that the ledger has after a row `text` is appended."""
        number = self.rows.to_bytes(8, "big")
        return Head(self.rows + 1, digest("ledger row", self.hash, number, text))


START: Final = Head(0, bytes(DIGEST_BYTES))


@dataclass(frozen=True)
class Row:
    """One row of a ledger. `body["entry"]` is the type of the row, and the other items are its data."""

    number: int
    body: Body


def text_of(body: Body) -> bytes:
    """Return a row's `body` as canonical JSON, which is stored and hashed: equal bodies give equal bytes."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def body_of(text: bytes) -> Body:
    body: Body = json.loads(text)
    return body
