"""The interfaces of a channel and of its sessions, and the graph and the counts of a session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

from protocols.run import SumChannel
from secagg.client_budget import Spend
from secagg.client_memory import AnswerEntry
from secagg.differencing_rules import SetLog
from secagg.events import SessionReady
from secagg.hybrid_keys import KeyAgreement
from secagg.local_session import Absent, AnswerOrDecline, Listener, Prepare, Stage
from secagg.policy import Policy
from secagg.sum_spec import Table, Total
from secagg.trust_levels import Trust
from sims.records.sum_records import Exclusion, Refusal, SumRecord
from sims.runtime.client_state import SimulatedMemory
from sims.runtime.sum_and_dropout_settings import Setting

K = TypeVar("K", bound=tuple[int, ...])


class ObservedChannel(SumChannel, Protocol):
    """Asks simulated clients for sums. Observers can read the state of clients; the simulated server cannot.

    `asked`       records of all sums so far.
    `bytes_up`    the bytes that all clients have sent so far, by stage.
    `bytes_down`  the bytes that all clients have received so far, by stage.
    `memories`    returns by client id what clients keep from completed rounds, such as personal models.
    `save`        returns the state of every client by id, between two rounds, in a format of this channel.
    `restore`     sets these states before the first round; `sessions` is the number of earlier sessions.
    `take_lost`   charges every client for a sum that it may have answered after its state was saved.
    `spends`      returns the privacy cost that every client has recorded, by client id.
    `sessions`    the number of sessions so far.
    """

    asked: list[SumRecord]

    @property
    def bytes_up(self) -> Counter[Stage]: ...
    @property
    def bytes_down(self) -> Counter[Stage]: ...
    @property
    def sessions(self) -> int: ...
    def memories(self) -> dict[int, Any]: ...
    def spends(self) -> dict[int, Spend]: ...
    def save(self) -> dict[int, bytes]: ...
    def restore(self, saved: Mapping[int, bytes], *, sessions: int) -> None: ...
    def take_lost(self, answer: AnswerEntry) -> None: ...
    def close(self) -> None: ...


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
    def is_plain(self) -> bool: ...
    def open(self) -> None: ...
    def ask(self, kind: str, payload: bytes = b"", *, round_number: int = 0) -> Total: ...
    def end(self) -> None: ...


@dataclass(frozen=True)
class SessionPlan:
    """What a session is made from: clients, settings, and functions for answers, drop-outs and events."""

    table: Table
    setting: Setting
    members: tuple[int, ...]
    memories: Mapping[int, SimulatedMemory]
    number: int  # counts sessions, or rounds if every round has its own session
    answer: AnswerOrDecline
    prepare: Prepare
    absent: Absent
    listener: Listener
    history: SetLog  # the server's record of the clients in each sum of all sessions
    left: AbstractSet[int]  # clients gone for the rest of the round; grows during the session

    @property
    def policy(self) -> Policy:
        """Return the limits that every client of the session enforces against the server."""
        setting, least = self.setting, self.setting.corrupt + 2
        return Policy(
            trust=Trust.parse(setting.trust),
            corrupt=setting.corrupt,
            min_cohort=least,
            max_cohort=len(self.members),
            min_contributors=least,
            max_sums=setting.sums,
            unnoised_sums=setting.unnoised_sums,
            max_rho=setting.max_rho,
            adjacency=setting.adjacency,
            key_agreement=KeyAgreement.parse(setting.key_agreement),
        )


SessionFactory: TypeAlias = Callable[[SessionPlan], SumSession]
