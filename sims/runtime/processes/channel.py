"""Sums through real processes: every client behind a socket of its own, over TLS, and mortal.

Numbers are those of the other channels, to the last bit under a seed. What differs is how clients go missing:
whoever drops out loses its connection, and is gone until the next session; after a round that somebody left,
there is one. A worker process that is killed is a drop-out of all of its clients. Before the next round it is
started again, and its clients go on from where they were between two rounds.

In this process there is a shadow of every client: its state between two rounds, as its worker told it. It
answers nothing, and is what an observer looks at.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Final

from protocols.algorithm import AnyAlgorithm
from protocols.learner import Learner
from protocols.vocabulary import RoundInfo
from secagg.errors import ParameterError
from secagg.thresholds import Trust
from sims.runtime.channel import SessionChannel
from sims.runtime.client_state import restore_clients, save_clients
from sims.runtime.processes.messages import BeginRound, ClientFactory, FinishRound, RoundFinished, WorkerReply
from sims.runtime.processes.session import ProcessSession
from sims.runtime.processes.supervisor import Tell, WorkerSupervisor
from sims.runtime.session import SessionPlan
from sims.runtime.setting import Setting

_logger: Final = logging.getLogger("sims.workers")


def to_log(line: str) -> None:
    """By default, what happens to processes goes to the log, and from there to standard error."""
    _logger.warning("%s", line)


def processes_sum(
    algorithm: AnyAlgorithm,
    learners: Mapping[int, Learner],
    setting: Setting,
    *,
    clients: ClientFactory,
    workers: int = 0,
    tell: Tell = to_log,
) -> ProcessesChannel:
    """A channel to clients in `workers` processes; in one for each client, if 0.

    `clients` makes them there; `learners` are their likes in this process, which never train. `tell` hears
    what happens to processes, in a few words. Processes are started with the first round, and end when the
    channel is closed or this program ends, however it does.
    """
    return ProcessesChannel(algorithm, learners, setting, clients, workers, tell)


class ProcessesChannel(SessionChannel):
    """Made by `processes_sum`."""

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        learners: Mapping[int, Learner],
        setting: Setting,
        clients: ClientFactory,
        workers: int,
        tell: Tell,
    ) -> None:
        super().__init__(algorithm, learners, setting, self._process_session)
        if setting.insecure_replay:
            raise ParameterError("clients in other processes forget nothing: a round cannot be repeated")
        if clients.owned.keys() != learners.keys():
            raise ParameterError("the clients of the workers are others than the learners")
        self._clients = clients
        self._tell_what_happens = tell
        self._groups_of_clients = _groups(tuple(learners), workers)
        self._place = {k: place for place, some in enumerate(self._groups_of_clients) for k in some}
        self._supervisor: WorkerSupervisor | None = None
        self._begun = False  # whether clients have a state that a worker has to be told

    # --- what a run calls ---

    def begin(self, round_info: RoundInfo) -> None:
        supervisor = self._running()
        if supervisor.call(supervisor.restart_workers):
            self._end_session()  # in which nobody would know the new ones
        alone = self._invited(round_info) if self._algorithm.table is None else ()
        self._order(lambda some: BeginRound(round_info, tuple(k for k in some if k in alone)))
        super().begin(round_info)

    def _tell(self, round_info: RoundInfo) -> None:
        """Workers have their clients hear it, and say how they are now."""
        replies = self._order(lambda _some: FinishRound(round_info))
        for place, some in enumerate(self._groups_of_clients):
            reply = replies.get(place)
            if isinstance(reply, RoundFinished):
                self._take(some, reply)
            else:
                self._take_answered(place)
        self._begun = True

    def finish(self, round_info: RoundInfo) -> None:
        """After a round that somebody left, the next one begins with a new session, and with everybody."""
        super().finish(round_info)
        if isinstance(self._session, ProcessSession) and self._session.lost:
            self._end_session()

    def restore(self, saved: Mapping[int, bytes], *, sessions: int) -> None:
        super().restore(saved, sessions=sessions)
        self._begun = True

    def close(self) -> None:
        """End the session, if there is one, and all processes."""
        if self._supervisor is None:
            return
        try:
            self._end_session()
        finally:
            self._supervisor.stop()
            self._supervisor = None

    # --- processes ---

    @property
    def pids(self) -> tuple[tuple[int, ...], ...]:
        """Of every worker, those that have ended too, by its place among the workers; for an observer."""
        return () if self._supervisor is None else self._supervisor.pids()

    @property
    def fork_server_pid(self) -> int:
        """Of the process that starts workers."""
        return self._running().pool.fork_server_pid

    def _running(self) -> WorkerSupervisor:
        if self._supervisor is None:
            saved = {}
            if self._begun:
                saved = {place: self._saved(some) for place, some in enumerate(self._groups_of_clients)}
            self._supervisor = WorkerSupervisor(
                self._algorithm,
                self._clients,
                self._groups_of_clients,
                trust=Trust.parse(self._setting.trust),
                insecure_seed=self._setting.insecure_seed,
                tell=self._tell_what_happens,
                saved=saved,
            )
            self._supervisor.start()
        return self._supervisor

    def _order(self, make: Callable[[tuple[int, ...]], object]) -> dict[int, WorkerReply]:
        """To all workers, each for the clients that it hosts."""
        supervisor = self._running()
        orders = {place: make(some) for place, some in enumerate(self._groups_of_clients)}
        return supervisor.call(supervisor.order, orders)

    def _process_session(self, plan: SessionPlan) -> ProcessSession:
        return ProcessSession(plan, self._running(), self._place.__getitem__, self._missing)

    # --- shadows ---

    def _saved(self, some: tuple[int, ...]) -> dict[int, bytes]:
        return save_clients({k: self.participants[k] for k in some}, self._memories, self._setting.tamper)

    def _take(self, some: tuple[int, ...], reply: RoundFinished) -> None:
        shadows = {member: self.participants[member] for member in some}
        restore_clients(reply.saved, shadows, self._memories, self._setting.tamper)
        for member in reply.silent:
            # What `sims.simulation.observers` would have seen here, had it answered here.
            setattr(self.participants[member], "diverged", self._round_info.number)  # noqa: B010

    def _take_answered(self, place: int) -> None:
        """Of clients whose worker was killed, what they are known to have answered is not forgotten.

        Nor is it paid for twice: if the next worker is killed as well, some of it is known here already.
        """
        for member, entries in self._running().slots[place].answered.items():
            memory = self._memories[member]
            for entry in entries:
                if not memory.knows_query(entry.content):
                    memory.take_answer(entry)


def _groups(members: tuple[int, ...], workers: int) -> list[tuple[int, ...]]:
    """The clients of each worker."""
    share = math.ceil(len(members) / (min(workers, len(members)) or len(members)))
    return [members[start : start + share] for start in range(0, len(members), share)]
