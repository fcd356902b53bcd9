"""A channel for secure sums whose clients run in worker processes and connect to the server over TLS.

Under the same `Setting.insecure_seed`, totals equal those of `secure_sum` to the last bit. Only drop-outs
differ: a client that drops out loses its connection until the next session, and after a round with drop-outs
a new session begins. If a worker process is killed, all of its clients drop out. It is restarted before the
next round, and its clients continue from their state after the last finished round. For this and for
observers, workers send a copy of every client's state to this process after each round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from protocols.algorithm import AnyAlgorithm
from protocols.learner import Learner
from protocols.rounds import RoundInfo
from secagg.client_memory import AnswerEntry
from secagg.trust_levels import Trust
from sims.runtime.hosted_channel import HostedChannel, OnWorkerEvent, groups_of, log_worker_event
from sims.runtime.hosted_clients import BeginRound, ClientFactory, FinishRound, RoundFinished
from sims.runtime.processes.messages import WorkerReply
from sims.runtime.processes.session import ProcessSession
from sims.runtime.processes.supervisor import WorkerSupervisor
from sims.runtime.session_channel import SimulatedSessionPlan
from sims.runtime.sum_and_dropout_settings import Setting


def processes_sum(
    algorithm: AnyAlgorithm,
    learners: Mapping[int, Learner],
    setting: Setting,
    *,
    clients: ClientFactory,
    workers: int = 0,
    on_worker_event: OnWorkerEvent = log_worker_event,
) -> ProcessesChannel:
    """Return a channel to clients in at most `workers` processes, or in one process per client if `workers`
    is 0. The workers make their clients with `clients`. `learners` are copies in this process, by client id,
    that hold states for observers and never train. `on_worker_event` receives a text when a worker ends or is
    restarted, or the server excludes a client. The processes start with the first round, and end when the
    channel is closed or this program ends in any way. Raise `ParameterError` if arguments do not fit."""
    return ProcessesChannel(algorithm, learners, setting, clients, workers, on_worker_event)


class ProcessesChannel(HostedChannel):
    """A channel to clients in worker processes, made by `processes_sum`."""

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        learners: Mapping[int, Learner],
        setting: Setting,
        clients: ClientFactory,
        workers: int,
        on_worker_event: OnWorkerEvent,
    ) -> None:
        super().__init__(
            algorithm,
            learners,
            setting,
            self._process_session,
            clients=clients,
            groups=groups_of(tuple(learners), workers),
            on_worker_event=on_worker_event,
        )
        self._supervisor: WorkerSupervisor | None = None

    # --- called by a run ---

    def begin(self, round_info: RoundInfo) -> None:
        self._take_turn()
        supervisor = self._running()
        if supervisor.call(supervisor.restart_workers):
            self.coordinator.end_session()  # The clients of the new workers are not part of it.
        alone = self.coordinator.invited(round_info) if self._algorithm.table is None else ()
        self._command(lambda some: BeginRound(round_info, tuple(k for k in some if k in alone)))
        super().begin(round_info)

    def announce(self, round_info: RoundInfo) -> None:
        """Finish the round in all workers, and copy the states of their clients to this process."""
        replies = self._command(lambda _some: FinishRound(round_info))
        for slot, some in enumerate(self._groups_of_clients):
            reply = replies.get(slot)
            if isinstance(reply, RoundFinished):
                self._take(some, reply.saved)
                self._note_silent(reply.silent)
            else:
                self._take_answered(slot)
        self._begun = True

    def _answered(self, slot: int) -> Mapping[int, list[AnswerEntry]]:
        return self._running().slots[slot].answered

    def _restore_hosts(self, saved: Mapping[int, Mapping[int, bytes]]) -> None:
        if self._supervisor is not None:
            self._supervisor.call(self._supervisor.restore, saved)

    @property
    def needs_new_session(self) -> bool:
        """Whether clients dropped out: they lost their connection, and come back in a new session only."""
        session = self.coordinator.session
        return isinstance(session, ProcessSession) and session.lost

    def close(self) -> None:
        """End the session and all worker processes."""
        if self._supervisor is None:
            return
        try:
            self.coordinator.end_session()
        finally:
            self._supervisor.stop()
            self._supervisor = None

    # --- processes ---

    @property
    def pids(self) -> tuple[tuple[int, ...], ...]:
        """Return each client group's worker process ids so far, the current one last; () before the start."""
        return () if self._supervisor is None else self._supervisor.pids()

    @property
    def fork_server_pid(self) -> int:
        """Return the process id of the fork server, which forks the workers. Start it if it does not run."""
        return self._running().pool.fork_server_pid

    def _running(self) -> WorkerSupervisor:
        if self._supervisor is None:
            self._supervisor = WorkerSupervisor(
                self._algorithm,
                self._clients,
                self._groups_of_clients,
                trust=Trust.parse(self._setting.trust),
                insecure_seed=self._setting.insecure_seed,
                on_worker_event=self._on_worker_event,
                saved=self._saved_groups(),
            )
            self._supervisor.start()
        return self._supervisor

    def _command(self, make: Callable[[tuple[int, ...]], object]) -> dict[int, WorkerReply]:
        """Send the command `make(its client ids)` to each worker. Return the replies, if any, by slot."""
        supervisor = self._running()
        commands = {slot: make(some) for slot, some in enumerate(self._groups_of_clients)}
        return supervisor.call(supervisor.command, commands)

    def _process_session(self, plan: SimulatedSessionPlan) -> ProcessSession:
        return ProcessSession(plan, self._running(), self._slot_of.__getitem__, self._missing)
