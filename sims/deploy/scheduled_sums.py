"""The sums that a server requests in every session.

A client records every question that it answered, by kind and payload, and never answers it again. So each
payload begins with a nonce of 16 random bytes, followed by the current content of the payload's file, if
there is one. A round is one pass through the list of questions: sums of one group within it are over the same
clients. Round numbers only rise, also across restarts, because clients refuse groups of earlier rounds.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secagg.ledger import read_ledger
from secagg.net.key_files import FileKind
from secagg.sum_spec import Table
from sims.config_problems import ConfigError, Problems, nearest
from sims.deploy.config import AskSection

NONCE_BYTES: Final = 16
PAYLOAD: Final = FileKind("a payload", "write it, or correct the path", ConfigError)


def fresh(payload: bytes) -> bytes:
    """Return the payload with a new nonce in front, so that clients accept it as a new question."""
    return secrets.token_bytes(NONCE_BYTES) + payload


def without_nonce(payload: bytes) -> bytes:
    """Return the payload without its nonce. Raises `ConfigError` if it is too short to have a nonce."""
    if len(payload) < NONCE_BYTES:
        raise ConfigError(f"the question does not begin with a nonce of {NONCE_BYTES} bytes")
    return payload[NONCE_BYTES:]


def content(_kind: str, payload: bytes) -> bytes:
    """Return the payload without its nonce. Questions with the same content ask for the same values."""
    return payload[NONCE_BYTES:]


DIFFERENCING: Final = (
    "{kinds} without noise: the difference of two totals over the same values shows the clients in which "
    "they differ. So a client with unchanged values answers only over the same clients as before, or over "
    "clients that differ by at least min_contributors. After a client drops out there is no total until "
    "values change; noise lifts this limit"
)


@dataclass(frozen=True)
class ScheduledSum:
    """One sum that the server asks for: sum number `sum_index` of its session, in round `round_number`."""

    kind: str
    round_number: int
    sum_index: int
    payload_file: Path | None

    def payload(self) -> bytes:
        """Return a new nonce and the payload file's content. Raise `ConfigError` if it cannot be read."""
        return fresh(b"" if self.payload_file is None else PAYLOAD.read(self.payload_file))


class SumSchedule:
    """Lists the sums of each session: `sums` of them, by going through `asks` again and again. `next_round`
    is the first round number that no session has used."""

    def __init__(self, asks: Sequence[AskSection], *, sums: int, next_round: int) -> None:
        self._asks = tuple(asks)
        self.sums = sums
        self._next_round = next_round

    def of_session(self) -> Iterator[ScheduledSum]:
        """Yield the sums of the next session. Every pass through the list of questions is a new round."""
        first = self._next_round
        self._next_round += -(-self.sums // len(self._asks))
        for index in range(self.sums):
            rounds, position = divmod(index, len(self._asks))
            ask = self._asks[position]
            yield ScheduledSum(ask.kind, first + rounds, index, ask.payload)


def round_after(ledger: Path) -> int:
    """Return the first round number above all in the ledger, so that none is used twice. Raise `LedgerError`
    if the ledger cannot be read."""
    asked = (row.body["round"] for row in read_ledger(ledger).rows if row.body["entry"] == "asked")
    return max(asked, default=-1) + 1


def check_asks(asks: Sequence[AskSection], table: Table, problems: Problems) -> None:
    """Add a problem for each question with an unknown kind, too many repetitions or an unreadable payload."""
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
