"""A channel for sums whose clients run in actors of Ray.

Under the same `Setting.insecure_seed`, totals equal those of `insecure_plain_sum` or `secure_sum` to the last
bit, if every client computes the same. Learners that train in batches (`fl.crowd.Crowd`) do so up to
rounding, and to the last bit if the batches are the same. If an actor or its node is lost, all of its clients
drop out. It is replaced before the next round. Its clients continue from their state after the last finished
round.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from protocols.algorithm import AnyAlgorithm
from protocols.learner import Learner
from protocols.rounds import RoundInfo
from secagg.client_memory import AnswerEntry
from secagg.events import ClientEvent
from secagg.trust_levels import Trust
from sims.coordination.transport import SumSession
from sims.runtime.client_state import SimulatedMemory
from sims.runtime.honest_or_forging_participant import SimulatedParticipant
from sims.runtime.hosted_channel import HostedChannel, OnWorkerEvent, groups_of, log_worker_event
from sims.runtime.hosted_clients import BeginRound, ClientFactory, FinishRound
from sims.runtime.ray.actor_pool import ActorPool
from sims.runtime.ray.cluster import Cluster, RayPlace, connect, disconnect
from sims.runtime.ray.sessions import ActorPlainSession, ActorSecureSession
from sims.runtime.session_channel import SimulatedSessionPlan
from sims.runtime.sum_and_dropout_settings import Setting


def ray_sum(
    algorithm: AnyAlgorithm,
    learners: Mapping[int, Learner],
    setting: Setting,
    *,
    clients: ClientFactory,
    secure: bool,
    actors: int = 0,
    place: RayPlace | None = None,
    on_worker_event: OnWorkerEvent = log_worker_event,
) -> RayChannel:
    """Return a channel to clients in at most `actors` actors; if it is 0, in as many as the cluster has room
    for. `secure` says whether sums are protected. Actors make their clients with `clients`. `learners` are
    copies in this process, by client id, that hold states for observers and never train. `on_worker_event`
    receives a text when an actor is lost or replaced. The actors start with the first round, and end when the
    channel is closed. Raise `ParameterError` if arguments do not fit, and `ConfigError` if Ray is not
    installed or the cluster cannot be reached."""
    place = RayPlace() if place is None else place
    cluster = connect(place.address)
    try:
        count = actors or int(min(max(cluster.capacity(place), 1), len(learners)))
        return RayChannel(
            algorithm, learners, setting, clients, count, secure, cluster, place, on_worker_event
        )
    except BaseException:
        disconnect(cluster)
        raise


class RayChannel(HostedChannel):
    """A channel to clients in actors of Ray, made by `ray_sum`."""

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        learners: Mapping[int, Learner],
        setting: Setting,
        clients: ClientFactory,
        actors: int,
        secure: bool,
        cluster: Cluster,
        place: RayPlace,
        on_worker_event: OnWorkerEvent,
    ) -> None:
        super().__init__(
            algorithm,
            learners,
            setting,
            self._actor_session,
            clients=clients,
            groups=groups_of(tuple(learners), actors),
            on_worker_event=on_worker_event,
        )
        self._secure = secure
        self._cluster: Cluster | None = cluster
        self._place = place
        self._pool: ActorPool | None = None
        self._finishing: Mapping[int, Any] = {}  # replies that are to come, by slot, after the last round
        self._stale = False  # whether actors have newer states than the copies in this process

    # --- called by a run ---

    def begin(self, round_info: RoundInfo) -> None:
        self._take_turn()
        pool = self._running()
        self._finish()
        if pool.restart():
            self.coordinator.end_session()  # The clients of the new actors are not part of it.
        alone = self.coordinator.invited(round_info) if self._algorithm.table is None else ()
        for slot, some in enumerate(self._groups_of_clients):
            pool.queue(slot, BeginRound(round_info, tuple(k for k in some if k in alone)))
        super().begin(round_info)

    def announce(self, round_info: RoundInfo) -> None:
        """Have all actors finish the round. They send the states of their clients while this process goes
        on: an observer, or the next round, waits for them."""
        self._finish()
        slots = range(len(self._groups_of_clients))
        self._finishing = self._running().begin({slot: FinishRound(round_info) for slot in slots})
        self._stale = self._begun = True

    def close(self) -> None:
        """End the session and all actors, and disconnect from the cluster if no other channel uses it."""
        if self._cluster is None:
            return
        try:
            self.coordinator.end_session()
            self.refresh()
        finally:
            if self._pool is not None:
                self._pool.stop()
                self._pool = None
            disconnect(self._cluster)
            self._cluster = None

    # --- actors ---

    @property
    def cluster(self) -> Mapping[str, Any]:
        """Facts on the cluster and the number of actors, for the records of a run."""
        facts = {} if self._cluster is None else self._cluster.facts()
        return {**facts, "actors": len(self._groups_of_clients)}

    @property
    def pids(self) -> tuple[tuple[int, ...], ...]:
        """Return the process ids of each client group's actors so far, the current one last."""
        return () if self._pool is None else tuple(tuple(slot.pids) for slot in self._pool.slots)

    def _running(self) -> ActorPool:
        if self._pool is None:
            if self._cluster is None:
                self._cluster = connect(self._place.address)
            self._pool = ActorPool(
                self._algorithm,
                self._clients,
                self._groups_of_clients,
                cluster=self._cluster,
                place=self._place,
                trust=Trust.parse(self._setting.trust),
                insecure_seed=self._setting.insecure_seed,
                on_worker_event=self._on_worker_event,
                saved=self._saved_groups(),
            )
            self._pool.start()
        return self._pool

    def _actor_session(self, plan: SimulatedSessionPlan) -> SumSession:
        if self._secure:
            return ActorSecureSession(plan, self._slot_of, self._call, self._running())
        return ActorPlainSession(plan, self._slot_of, self._call)

    def _call(self, commands: Mapping[int, Any], apart: tuple[bytes, ...] = ()) -> dict[int, Any]:
        """Send commands to actors, by slot, with contents that are shared. The clients of an actor that is
        lost have left the round."""
        pool = self._running()
        replies = pool.call(commands, [pool.share(content) for content in apart])
        self._left.update(pool.lost)
        for reply in replies.values():
            self._note_silent(reply.silent)
        return replies

    def _unreachable(self) -> AbstractSet[int]:
        return self._running().lost

    def _answered(self, slot: int) -> Mapping[int, list[AnswerEntry]]:
        return self._running().slots[slot].answered

    # --- copies of the clients' state ---

    @property
    def participants(self) -> dict[int, SimulatedParticipant]:
        self.refresh()
        return self._participants

    def memories(self) -> dict[int, Any]:
        self.refresh()
        return super().memories()

    def _finish(self) -> None:
        """Wait until the actors have finished the last round."""
        finishing, self._finishing = self._finishing, {}
        if self._pool is not None:
            self._pool.replies(finishing)

    def refresh(self) -> None:
        """Copy the states of clients after the last finished round to this process."""
        self._finish()
        if self._pool is None or not self._stale:
            return
        self._stale = False
        for index, slot in enumerate(self._pool.slots):
            if slot.saved is not None:
                self._take(slot.members, slot.saved)
            self._take_answered(index)

    def _copied_memories(self, some: tuple[int, ...]) -> Mapping[int, SimulatedMemory]:
        """Return where the memories from actors are copied to. Clients of plain sums have theirs here."""
        return self._memories if self._secure else {member: SimulatedMemory() for member in some}

    def _restore_hosts(self, saved: Mapping[int, Mapping[int, bytes]]) -> None:
        if self._pool is not None:
            self._pool.restore(saved)

    def _on_event(self, member: int, event: ClientEvent) -> None:
        """Pass on what a client of a plain sum learns. In a secure one, its machine tells it."""
        self._running().queue_event(self._slot_of[member], member, event)
