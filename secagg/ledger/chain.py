"""The rows of a ledger, each bound by a hash to all rows before it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from secagg.hashing import DIGEST_BYTES, digest

Body: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Head:
    """How many rows there are, and the hash of the last one. Whoever knows it can tell an older copy."""

    rows: int
    hash: bytes

    def after(self, text: bytes) -> Head:
        """The head once a row with this text is appended."""
        number = self.rows.to_bytes(8, "big")
        return Head(self.rows + 1, digest("ledger row", self.hash, number, text))


START: Final = Head(0, bytes(DIGEST_BYTES))


@dataclass(frozen=True)
class Row:
    """What `body["entry"]` says happened, and the rest of it how."""

    number: int
    body: Body


def text_of(body: Body) -> bytes:
    """The one text of a body: JSON, because people read ledgers too."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def body_of(text: bytes) -> Body:
    body: Body = json.loads(text)
    return body
