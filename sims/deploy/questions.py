"""What a server asks: the same few questions in every session, in order, and which round they belong to.

A client remembers every question that it answered, by kind and payload, and never answers it again. So each
payload begins with a nonce of 16 random bytes, after which comes what the payload's file holds at that
moment, if there is one. A round is one pass through the questions: sums of one group within it are over the
same clients. Rounds only ascend, also across restarts, because clients refuse groups of earlier rounds.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secagg.ledger import read_ledger
from secagg.net.files import FileKind
from secagg.spec import Table
from sims.config_problems import ConfigError, Problems, nearest
from sims.deploy.config import AskSection

NONCE_BYTES: Final = 16
PAYLOAD: Final = FileKind("a payload", "write it, or correct the path", ConfigError)


def fresh(payload: bytes) -> bytes:
    """A payload that nobody has been asked before."""
    return secrets.token_bytes(NONCE_BYTES) + payload


def without_nonce(payload: bytes) -> bytes:
    """What `fresh` was given. Raises `ConfigError` if there is no nonce."""
    if len(payload) < NONCE_BYTES:
        raise ConfigError(f"the question does not begin with a nonce of {NONCE_BYTES} bytes")
    return payload[NONCE_BYTES:]


@dataclass(frozen=True)
class Question:
    """One sum to ask for."""

    kind: str
    round_number: int
    sum_index: int
    payload_file: Path | None

    def payload(self) -> bytes:
        """Read anew for each question. Raises `ConfigError` if the file cannot be read."""
        return fresh(b"" if self.payload_file is None else PAYLOAD.read(self.payload_file))


class Questions:
    """All sessions' questions. `next_round` is the first that nobody has been asked in."""

    def __init__(self, asks: Sequence[AskSection], *, sums: int, next_round: int) -> None:
        self._asks = tuple(asks)
        self.sums = sums
        self._next_round = next_round

    def of_session(self) -> Iterator[Question]:
        """`sums` questions: every pass through the list is a round."""
        first = self._next_round
        self._next_round += -(-self.sums // len(self._asks))
        for index in range(self.sums):
            rounds, place = divmod(index, len(self._asks))
            ask = self._asks[place]
            yield Question(ask.kind, first + rounds, index, ask.payload)


def round_after(ledger: Path) -> int:
    """The first round after all in which the server has asked. Raises `LedgerError`."""
    asked = (row.body["round"] for row in read_ledger(ledger).rows if row.body["entry"] == "asked")
    return max(asked, default=-1) + 1


def check_asks(asks: Sequence[AskSection], table: Table, problems: Problems) -> None:
    """Clients would refuse what is not in the table, and a kind more often in a round than declared."""
    if not asks:
        problems.add("ask", "is empty; say which kinds of sums are asked for")
    asked: Counter[str] = Counter()
    for number, ask in enumerate(asks, start=1):
        asked[ask.kind] += 1
        if ask.kind not in table:
            hint = nearest(ask.kind, list(table))
            problems.add(f"ask#{number}.kind", f"the table has no kind {ask.kind!r}; {hint}")
        elif asked[ask.kind] == table[ask.kind].times + 1:
            problems.add(
                f"ask#{number}.kind",
                f"{ask.kind!r} is asked more often than its times in the table, {table[ask.kind].times}",
            )
        if ask.payload is not None:
            with problems.about(f"ask#{number}.payload"):
                PAYLOAD.read(ask.payload)
