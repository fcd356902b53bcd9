"""The main process's part of a channel whose clients run in other processes: copies of their states."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from protocols.algorithm import AnyAlgorithm
from protocols.learner import Learner
from protocols.rounds import RoundInfo
from secagg.client_memory import AnswerEntry
from secagg.errors import ParameterError
from sims.runtime.client_state import SimulatedMemory, restore_clients, save_clients
from sims.runtime.hosted_clients import ClientFactory
from sims.runtime.session_channel import SessionChannel, SessionFactory
from sims.runtime.sum_and_dropout_settings import Setting

_logger: Final = logging.getLogger("sims.workers")

OnWorkerEvent: TypeAlias = Callable[[str], None]


def log_worker_event(text: str) -> None:
    """Log a warning: `text` says that a worker ended or is restarted, or that a client is excluded."""
    _logger.warning("%s", text)


class HostedChannel(SessionChannel):
    """A channel to clients that run in other processes, by groups of ids. This process has copies of them,
    which hold states for observers and never train. Hosts send the states after each round. A killed host is
    replaced before the next round, and its clients continue from their state after the last finished round.
    Raise `ParameterError` if arguments do not fit."""

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        learners: Mapping[int, Learner],
        setting: Setting,
        make_session: SessionFactory,
        *,
        clients: ClientFactory,
        groups: list[tuple[int, ...]],
        on_worker_event: OnWorkerEvent,
    ) -> None:
        super().__init__(algorithm, learners, setting, make_session)
        if setting.insecure_replay:
            raise ParameterError("clients in other processes keep their state: a round cannot be repeated")
        if clients.owned.keys() != learners.keys():
            raise ParameterError("the clients of the workers differ from the learners")
        self._clients = clients
        self._on_worker_event = on_worker_event
        self._groups_of_clients = groups
        self._slot_of = {k: slot for slot, some in enumerate(groups) for k in some}
        self._begun = False  # whether a new worker has to restore the state of its clients

    def restore(self, saved: Mapping[int, bytes], *, sessions: int) -> None:
        super().restore(saved, sessions=sessions)
        self._begun = True

    def _take_turn(self) -> None:
        """Use the memories of the clients. If another channel has used them, send the hosts these memories
        and the present states of the learners, which both channels use."""
        if self._shared.take_turn(self):
            self._begun = True
            self._restore_hosts(self._saved_groups())

    # --- what a subclass implements ---

    @abstractmethod
    def _restore_hosts(self, saved: Mapping[int, Mapping[int, bytes]]) -> None:
        """Replace the states of all clients in their hosts, if these have started, by `saved`: by the index
        of their group, and then by id."""

    @abstractmethod
    def _answered(self, slot: int) -> Mapping[int, list[AnswerEntry]]:
        """Return, by id, what the clients of a group answered since their states were saved."""

    def _open_alone(self, members: tuple[int, ...], round_info: RoundInfo) -> None:
        """Do nothing: the hosts begin the round."""

    # --- copies of the clients' state ---

    def _saved_groups(self) -> dict[int, Mapping[int, bytes]]:
        """Return the states with which hosts begin, by group index; {} if all clients are new."""
        if not self._begun:
            return {}
        return {slot: self._saved(some) for slot, some in enumerate(self._groups_of_clients)}

    def _saved(self, some: tuple[int, ...]) -> dict[int, bytes]:
        return save_clients({k: self._participants[k] for k in some}, self._memories, self._setting.tamper)

    def _take(self, some: tuple[int, ...], saved: Mapping[int, bytes]) -> None:
        copies = {member: self._participants[member] for member in some}
        restore_clients(saved, copies, self._copied_memories(some), self._setting.tamper)

    def _note_silent(self, members: Iterable[int]) -> None:
        """Record, for observers, that clients declined to answer in this round."""
        for member in members:
            self._participants[member].diverged = self.coordinator.round_info.number

    def _copied_memories(self, _some: tuple[int, ...]) -> Mapping[int, SimulatedMemory]:
        return self._memories

    def _take_answered(self, slot: int) -> None:
        """Record, in this process, the answers that clients of a killed worker sent in this round. Answers
        that are recorded already, because an earlier worker was killed too, are not charged again."""
        for member, entries in self._answered(slot).items():
            memory = self._memories[member]
            for entry in entries:
                if not memory.knows_query(entry.content):
                    memory.take_answer(entry)


def groups_of(members: tuple[int, ...], workers: int) -> list[tuple[int, ...]]:
    """Split client ids into up to `workers` groups, equal except for the last; 0 means one per client."""
    share = math.ceil(len(members) / (min(workers, len(members)) or len(members)))
    return [members[start : start + share] for start in range(0, len(members), share)]
