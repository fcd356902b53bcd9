"""What a channel asks of a session, and what a simulation asks of a channel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from protocols.run import SumChannel
from secagg.budget import Spend
from secagg.local import Absent, AnswerOrDecline, Listener, Prepare, Stage
from secagg.memory import AnswerEntry
from secagg.policy import Policy
from secagg.spec import Table, Total
from secagg.thresholds import Trust
from sims.records.sums import (
    SessionGraph,
    SumRecord,
    SumStats,
    TrafficCounter,
)
from sims.runtime.client_state import SimulatedMemory
from sims.runtime.setting import Setting


class ObservedChannel(SumChannel, Protocol):
    """A channel to simulated clients, of which an observer sees what a server never would.

    `asked`       every sum so far.
    `memories`    what completed rounds have left with every client.
    `save`        every client's state between two rounds, of which only this channel needs to know the form.
    `restore`     go on from there, before the first round; `sessions` is how many there were.
    `take_lost`   have every client pay for a sum that it may have answered after that.
    `spends`      what every client knows to have spent.
    `sessions`    how many there were so far.

    What it is told of the course of things it hands on to the `log` of its setting, and what the server notes
    goes to the `ledger` of its setting.
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
    """What carries sums: `secagg.local.LocalSession`, or something with the same face."""

    stats: SumStats  # of the last sum

    @property
    def graph(self) -> SessionGraph | None: ...  # None unless set-up is done
    @property
    def contributors(self) -> tuple[int, ...]: ...
    @property
    def is_plain(self) -> bool: ...
    def open(self) -> None: ...
    def ask(self, kind: str, payload: bytes = b"", *, round_number: int = 0) -> Total: ...
    def end(self) -> None: ...


@dataclass(frozen=True)
class SessionPlan:
    """All that a session is made from."""

    table: Table
    setting: Setting
    members: tuple[int, ...]
    memories: Mapping[int, SimulatedMemory]
    number: int  # how many there were before, or of its round if every round has one
    answer: AnswerOrDecline
    prepare: Prepare
    absent: Absent
    listener: Listener
    left: AbstractSet[int]  # who is known to be gone for the rest of the round; it grows meanwhile

    @property
    def policy(self) -> Policy:
        """What every client of the session insists on."""
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
