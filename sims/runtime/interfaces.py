"""The interface of a channel to clients, as a simulation uses it, and of a session, as a channel uses it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from protocols.run import SumChannel
from secagg.client_budget import Spend
from secagg.client_memory import AnswerEntry
from secagg.local import Absent, AnswerOrDecline, Listener, Prepare, Stage
from secagg.policy import Policy
from secagg.sequence_rules import SetLog
from secagg.sum_spec import Table, Total
from secagg.trust_levels import Trust
from sims.records.sum_records import SessionGraph, SumRecord, SumStats, TrafficCounter
from sims.runtime.channel_setting import Setting
from sims.runtime.client_state import SimulatedMemory


class ObservedChannel(SumChannel, Protocol):
    """Asks simulated clients for sums. Observers can read the state of clients; the simulated server cannot.

    `asked`       records of all sums so far.
    `bytes_up`    the bytes that all clients have sent so far, by stage; `bytes_down`: have received.
    `memories`    returns by client id what clients keep from completed rounds, such as personal models.
    `save`        returns the state of every client by id, between two rounds, in a format of this channel.
    `restore`     sets these states before the first round; `sessions` is the number of earlier sessions.
    `take_lost`   charges every client for a sum that it may have answered after its state was saved.
    `spends`      returns the privacy cost that every client has recorded, by client id.
    `sessions`    the number of sessions so far.

    The channel reports sessions and sums to `Setting.log`. Its server writes to `Setting.ledger`.
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


class SumSession(TrafficCounter, Protocol):
    """A session, in which a fixed set of clients computes sums, such as a `secagg.local.LocalSession`."""

    stats: SumStats  # counts of the last sum

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
    """What a session is made from. The session calls `answer`, `prepare`, `absent` and `listener`."""

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
        )


SessionFactory: TypeAlias = Callable[[SessionPlan], SumSession]
