"""The interfaces of transports and of sessions, and the graph and the counts of a session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from protocols.rounds import RoundInfo
from secagg.differencing_rules import SetLog
from secagg.events import SessionReady
from secagg.local_session import Stage
from secagg.sum_spec import Table, Total
from sims.coordination.sum_settings import SumSettings
from sims.records.sum_records import Exclusion, Refusal

K = TypeVar("K", bound=tuple[int, ...])


@dataclass(frozen=True)
class SessionGraph:
    """The graph of a session's clients, in which neighbours share secrets with each other, and what they sent
    each other in set-up: rows as in `SessionRecord.exchanged`."""

    kind: str  # "complete" or "ring"
    neighbours: int  # of each client
    threshold: int  # shares that reconstruct a secret
    id: str = ""  # the identifier of the session in the ledger
    exchanged: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, ready: SessionReady, advertised: int) -> SessionGraph:
        """Return the graph of a session of which `advertised` clients advertised keys."""
        kind, session = "complete" if ready.neighbours >= advertised - 1 else "ring", ready.session.hex()
        return cls(kind, ready.neighbours, ready.threshold, session, rows_of(ready.exchanged))


def rows_of(counts: Mapping[K, int]) -> tuple[tuple[int, ...], ...]:
    """Return a server's counts of clients, whose keys end with a truth value, as rows for a record: the rest
    of the key, the number of clients, and the number of those for which the truth value is True."""
    found: dict[tuple[int, ...], list[int]] = {}
    for (*key, true), clients in counts.items():
        row = found.setdefault(tuple(key), [0, 0])
        row[0] += clients
        row[1] += clients * true
    return tuple((*key, *row) for key, row in sorted(found.items()))


@dataclass
class SumStats:
    """Counts of a sum while it runs; fields as in `SumRecord`. `index` is None until a client is asked."""

    index: int | None = None
    invited: int = 0
    masked: int = 0
    revealed: int = 0
    around: tuple[tuple[int, ...], ...] = ()
    refusals: list[Refusal] = field(default_factory=list)
    exclusions: list[Exclusion] = field(default_factory=list)


class TrafficCounter(Protocol):
    """An object that counts bytes and frames by stage, such as a session."""

    bytes_up: Counter[Stage]
    bytes_down: Counter[Stage]
    frames_up: Counter[Stage]
    frames_down: Counter[Stage]


class SumSession(TrafficCounter, Protocol):
    """A session, in which a fixed set of clients computes sums, such as `secagg.LocalSession`."""

    stats: SumStats  # counts of the last sum, or of set-up before the first

    @property
    def graph(self) -> SessionGraph | None: ...  # None before the end of set-up
    @property
    def contributors(self) -> tuple[int, ...]: ...
    @property
    def informed(self) -> AbstractSet[int]: ...  # clients that know that they are in the last total
    @property
    def is_plain(self) -> bool: ...
    def open(self) -> None: ...
    def ask(self, kind: str, payload: bytes = b"", *, round_number: int = 0) -> Total: ...
    def end(self) -> None: ...


@dataclass(frozen=True)
class SessionPlan:
    """What a coordinator asks a transport for: a session of these clients (`members`), with these sums."""

    table: Table
    settings: SumSettings
    members: tuple[int, ...]
    number: int  # counts sessions, or rounds if every round has its own session
    history: SetLog  # the server's record of the clients in each sum of all sessions
    on_stage: Callable[[Stage], None]  # called when a stage begins


class Transport(Protocol):
    """Carries frames between a coordinator and its clients.

    `clients`   returns the ids of the clients that can be invited now.
    `session`   returns a session that is not open yet.
    `announce`  tells clients how the rounds before `round_info.number` ended. It may do nothing: the next
                query tells them, too.
    `needs_new_session`  whether clients were lost that can come back only in a new session.
    """

    @property
    def needs_new_session(self) -> bool: ...
    def clients(self) -> tuple[int, ...]: ...
    def session(self, plan: SessionPlan) -> SumSession: ...
    def announce(self, round_info: RoundInfo) -> None: ...
