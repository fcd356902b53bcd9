"""The sums that a server requests in every session. A round is one pass through the list of questions. In a
round, all sums of a group (of the same vectors) are over the same clients. Round numbers only rise, also
across restarts: clients refuse groups of earlier rounds. Payloads begin with a nonce (see
`repeatable_query_nonce`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Final

from secagg.ledger import read_ledger
from secagg.net.atomic_files import FileKind
from secagg.sum_spec import Table
from sims.config_problems import ConfigError, Problems, nearest
from sims.deploy.config import AskSection
from sims.deploy.repeatable_query_nonce import fresh

PAYLOAD: Final = FileKind("a payload", "write it, or correct the path", ConfigError)


class NotAsked(Enum):
    """The reason why a server does not ask for a scheduled sum."""

    TOO_FEW_CLIENTS = auto()
    UNREADABLE_PAYLOAD = auto()


@dataclass(frozen=True)
class ScheduledSum:
    """One sum that the server asks for: sum number `sum_index` of its session, in round `round_number`."""

    kind: str
    round_number: int
    sum_index: int
    payload_file: Path | None

    def payload(self) -> bytes:
        """Return a new nonce and the payload file's content. Raise `ConfigError` if that is unreadable."""
        return fresh(b"" if self.payload_file is None else PAYLOAD.read(self.payload_file))


class SumSchedule:
    """Lists the `sums` sums of each session: the questions `asks` in order, and after the last one again from
    the first. `next_round` is the first round number that no session has used."""

    def __init__(self, asks: Sequence[AskSection], *, sums: int, next_round: int) -> None:
        self._asks = tuple(asks)
        self.sums = sums
        self._next_round = next_round

    def of_session(self) -> Iterator[ScheduledSum]:
        """Yield the sums of the next session. Each pass through the configured questions is a new round."""
        first = self._next_round
        self._next_round += -(-self.sums // len(self._asks))
        for index in range(self.sums):
            rounds, position = divmod(index, len(self._asks))
            ask = self._asks[position]
            yield ScheduledSum(ask.kind, first + rounds, index, ask.payload)


def round_after(ledger: Path) -> int:
    """Return one more than the largest round number in the ledger, so that no number is used twice; 0 if it
    has none. Raise `LedgerError` if the ledger cannot be read."""
    asked = (row.body["round"] for row in read_ledger(ledger).rows if row.body["entry"] == "asked")
    return max(asked, default=-1) + 1


def check_asks(asks: Sequence[AskSection], table: Table, problems: Problems) -> None:
    """Add a problem if there are no questions, and for each question whose kind is not in `table`, whose kind
    is asked more often than `table` allows in a round, or whose payload file cannot be read."""
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
