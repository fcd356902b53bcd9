"""Sessions with clients in actors of Ray: plain sums by partial sums, and secure ones by real machines.

Both take from the sessions in one process (`sims.runtime.plain`, `sims.runtime.secure`) who takes part, who
drops out and what is recorded, so all four give the same totals. A lost actor is a drop-out of its clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from secagg.events import Outgoing
from secagg.local_session import STAGE_OF, Stage
from secagg.server import ServerMachine
from sims.runtime.insecure_seed_hooks import server_hooks
from sims.runtime.plain import PlainSession, SumInProgress
from sims.runtime.ray.actor_pool import ActorPool
from sims.runtime.ray.commands import (
    AddAnswers,
    AnswersAdded,
    EndSession,
    ExchangeFrames,
    OpenSession,
    Replies,
)
from sims.runtime.secure import ObservedSession, server_machine
from sims.runtime.session_channel import SimulatedSessionPlan

# (commands by slot, contents that they share) -> replies by slot. Records the clients of lost actors.
CallActors: TypeAlias = Callable[[Mapping[int, Any], tuple[bytes, ...]], dict[int, Any]]


class ActorPlainSession(PlainSession):
    """A session without protection. Each actor adds up the answers of its own clients."""

    def __init__(self, plan: SimulatedSessionPlan, slots: Mapping[int, int], call: CallActors) -> None:
        super().__init__(plan)
        self._slots = slots
        self._call = call

    def _collect(self, adding: SumInProgress, asked: Mapping[int, int]) -> None:
        query = adding.query
        commands = {
            slot: AddAnswers(adding.encoded, query.sum_index, query.round, tuple(members))
            for slot, members in _by_slot(asked, self._slots).items()
        }
        for reply in self._call(commands, (query.payload,)).values():
            assert isinstance(reply, AnswersAdded)
            adding.addition.merge(reply.partial)
            for member in reply.partial.noise:
                self._record_answer(adding, member)
            for refusal in reply.refusals:
                self._leave(asked[refusal.member], refusal)


class ActorSecureSession(ObservedSession):
    """A session of secure sums. The server's machine is in this process, the clients' are in actors."""

    def __init__(
        self, plan: SimulatedSessionPlan, slots: Mapping[int, int], call: CallActors, pool: ActorPool
    ) -> None:
        super().__init__(_server(plan, pool), {}, plan)
        self._slots = slots
        self._call = call
        self._pool = pool
        self._gone: set[int] = set()  # clients whose machines have left

    def open(self) -> None:
        plan, pool = self._plan, self._pool
        for slot, members in _by_slot(plan.members, self._slots).items():
            opening = OpenSession(plan.number, tuple(members), plan.policy, pool.keys, pool.registry_version)
            pool.queue(slot, opening)
        super().open()

    def _receivers(self) -> tuple[int, ...]:
        return self._plan.members

    def end(self) -> None:
        self._server.end()
        for slot in _by_slot(self._plan.members, self._slots):
            self._pool.queue(slot, EndSession())

    def _send(self, outgoing: Iterable[Outgoing]) -> None:
        stage = self._stage = STAGE_OF.get(self._server.state, self._stage)
        frames: dict[int, list[tuple[int, bytes | int]]] = {}
        shared: list[bytes] = []
        for packet in outgoing:
            content = self._shared(packet, shared)
            for member in packet.receivers:
                if member not in self._gone and not self._absent(member, stage, self._sum_index):
                    self.bytes_down[stage] += len(packet.frame)
                    self.frames_down[stage] += 1
                    frames.setdefault(self._slots[member], []).append((member, content))
        commands = {slot: ExchangeFrames(tuple(some)) for slot, some in frames.items()}
        for reply in self._call(commands, tuple(shared)).values():
            self._take(reply, stage)

    def _shared(self, packet: Outgoing, shared: list[bytes]) -> bytes | int:
        """Return the frame of a packet for one client; for many, add it to `shared` and return its place."""
        if len(packet.receivers) == 1:
            return packet.frame
        shared.append(packet.frame)
        return len(shared) - 1

    def _take(self, replies: Replies, stage: Stage) -> None:
        self._gone.update(replies.left)
        self.informed.update(replies.confirmed)
        self.stats.refusals.extend(replies.refusals)
        for member, frame in replies.frames:
            self._forward(member, (frame,), stage)


def _server(plan: SimulatedSessionPlan, pool: ActorPool) -> ServerMachine:
    hooks = server_hooks(seed=plan.setting.insecure_seed, number=plan.number)
    return server_machine(plan, pool.keys, hooks, version=pool.registry_version)


def _by_slot(members: Iterable[int], slots: Mapping[int, int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for member in members:
        found.setdefault(slots[member], []).append(member)
    return found
