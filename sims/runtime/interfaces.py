"""The interfaces between a simulation, its channels to clients, and the sessions of a channel."""

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
from sims.records.sums import SessionGraph, SumRecord, SumStats, TrafficCounter
from sims.runtime.client_state import SimulatedMemory
from sims.runtime.cohort_setting import Setting


class ObservedChannel(SumChannel, Protocol):
    """A channel to simulated clients. Observers can read the state of clients; the simulated server cannot.

    `asked`       records of all sums so far.
    `memories`    returns the state that completed rounds have left with every client.
    `save`        returns the state of every client between two rounds, in a format of this channel.
    `restore`     continues from a saved state, before the first round, after `sessions` earlier sessions.
    `take_lost`   charges every client for a sum that it may have answered after the state was saved.
    `spends`      returns the privacy cost that every client has recorded.
    `sessions`    the number of sessions so far.

    The channel reports sessions and sums to the `log` of its setting. Its server writes to the `ledger`.
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
    """A session that computes sums, such as a `secagg.local.LocalSession`."""

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
    """The arguments of a `SessionFactory`. The session calls `answer`, `prepare`, `absent` and `listener`."""

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
        """Return the limits that every client of the session enforces."""
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
