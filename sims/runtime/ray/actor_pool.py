"""Starts the actors of a channel, sends them commands, and replaces those that are lost.

Ray neither restarts an actor nor repeats a call: both would go on with a state that the server does not know.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from protocols.algorithm import AnyAlgorithm
from secagg.client_memory import AnswerEntry
from secagg.errors import ParameterError
from secagg.events import ClientEvent
from secagg.trust_levels import Trust
from sims.runtime.hosted_channel import OnWorkerEvent
from sims.runtime.hosted_clients import (
    ClientFactory,
    ClientFailure,
    RestoreState,
    RoundFinished,
    WorkersFailed,
    pack_algorithm,
)
from sims.runtime.ray import cluster as clusters
from sims.runtime.ray.cluster import Cluster, RayPlace
from sims.runtime.ray.commands import (
    ActorCommand,
    ActorConfig,
    ClientsLoaded,
    DeliverEvent,
    LoadClients,
    Replies,
)
from sims.runtime.ray.errors import first_line, one_line
from sims.runtime.ray.sources import DIFFERENT, source_digest
from sims.text_format import counted

T = TypeVar("T")

_INTERVAL: Final = 2.0  # seconds between two looks at the nodes, while an actor starts
_PATIENCE: Final = 10.0  # seconds after which it is said that actors wait for others to free the cluster
_ATTEMPTS: Final = 3  # attempts to start an actor that is lost each time


@dataclass
class ActorSlot:
    """A group of clients, and the actor that hosts these clients now, if any."""

    members: tuple[int, ...]
    actor: Any = None  # a handle of Ray; None if the actor was lost
    pids: list[int] = field(default_factory=list)  # of all actors so far, the current one last
    keys: Mapping[int, bytes] = field(default_factory=dict)  # public keys by client id
    queued: list[ActorCommand] = field(default_factory=list)  # to be sent with the next command
    saved: Mapping[int, bytes] | None = field(default=None, repr=False)  # states, with personal models
    answered: dict[int, list[AnswerEntry]] = field(default_factory=dict, repr=False)  # since `saved`
    failed_starts: int = 0  # number of failed starts in a row
    waiting: bool = False  # whether the cluster had no place for a new actor


class ActorPool:
    """An actor for each of `groups` (of client ids), which hosts these clients. Call `start` once, and `stop`
    at the end. `saved` has clients' states by group index, then by id."""

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        clients: ClientFactory,
        groups: Iterable[tuple[int, ...]],
        *,
        cluster: Cluster,
        place: RayPlace,
        trust: Trust,
        insecure_seed: bytes | None,
        on_worker_event: OnWorkerEvent,
        saved: Mapping[int, Mapping[int, bytes]],
    ) -> None:
        self._ray = clusters.import_ray()
        self._algorithm = pack_algorithm(algorithm)
        self._clients = clients
        self._cluster = cluster
        self._place = place
        self._trust = trust
        self._seed = insecure_seed
        self._on_worker_event = on_worker_event
        self._reserves = False
        self._placed: list[Any] = []  # references that are ready when a new actor has its place
        self._waiting_since = 0.0
        self._make: Callable[[], Any]
        self.slots = [ActorSlot(members, saved=saved.get(index)) for index, members in enumerate(groups)]
        self.registry_version = -1  # counts the sets of public keys so far

    # --- start and end ---

    def start(self) -> None:
        """Start all actors, and wait until they have made their clients. Raise `ParameterError` if the
        cluster is too small, and `WorkersFailed` if an actor cannot start."""
        self._reserve()
        self._make = self._maker()
        while missing := [slot for slot in self.slots if slot.actor is None]:
            self._launch(missing)
            if any(slot.waiting for slot in missing):
                raise WorkersFailed("nodes of the Ray cluster were lost: it has no room for all clients")

    def stop(self) -> None:
        """End all actors."""
        for slot in self.slots:
            self._forget(slot)
        if self._reserves:
            self._cluster.reserved -= len(self.slots)

    def _reserve(self) -> None:
        """Check that the cluster has room. Only the first channel of a process takes CPUs and GPUs: the
        channels of a run compute in turn."""
        with self._cluster.lock:
            if self._cluster.reserved:
                return
            room = self._cluster.capacity(self._place)
            if room < len(self.slots):
                raise ParameterError(
                    f"the Ray cluster has room for {counted(int(room), 'actor')} of num_cpus = "
                    f"{self._place.num_cpus:g} and num_gpus = {self._place.num_gpus:g}, but the clients need "
                    f"{len(self.slots)}: use fewer workers, or less of each"
                )
            self._cluster.reserved += len(self.slots)
            self._reserves = True

    def _maker(self) -> Callable[[], Any]:
        from sims.runtime.ray.client_actor import ClientActor

        cpus, gpus = (self._place.num_cpus, self._place.num_gpus) if self._reserves else (0, 0)
        made = self._ray.remote(ClientActor).options(
            num_cpus=cpus, num_gpus=gpus, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )
        make: Callable[[], Any] = made.remote
        return make

    def _launch(self, slots: Sequence[ActorSlot]) -> None:
        """Start an actor for each of these slots, and wait until it has made its clients."""
        begun, self._placed = [], []
        self._waiting_since = time.monotonic()
        for slot in slots:
            slot.actor, slot.queued = self._make(), []
            self._placed.append(slot.actor.__ray_ready__.remote())
            load = LoadClients(tuple(sys.path), self._config(slot), RestoreState(slot.saved, slot.answered))
            begun.append(slot.actor.execute.remote([load]))
        for slot, reply in zip(slots, begun, strict=True):
            if not self._is_placed(slot, reply):
                continue
            loaded = self._reply(slot, reply, starting=True)
            if isinstance(loaded, ClientsLoaded):
                if loaded.sources != source_digest():
                    raise WorkersFailed(f"{_named(slot)} did not start: {DIFFERENT}")
                slot.pids.append(loaded.pid)
                slot.keys, slot.failed_starts = loaded.keys, 0
        self.registry_version += 1

    def _is_placed(self, slot: ActorSlot, reference: Any) -> bool:
        """Wait until a new actor has made its clients. Return False, without the actor, if the cluster turns
        out to have no room for it: a node that was just killed is listed as alive for some seconds."""
        while not self._ray.wait([reference], timeout=_INTERVAL)[0]:
            if self._lacks_room():
                self._forget(slot)
                self._report_restart(slot, placed=False)
                return False
            if self._placed and time.monotonic() - self._waiting_since >= _PATIENCE:
                self._report_waiting()
        return True

    def _report_waiting(self) -> None:
        """Say, once for the actors that are started together, that some have no place, if that is so."""
        started, self._placed = self._placed, []
        waiting = self._ray.wait(started, num_returns=len(started), timeout=0)[1]
        if waiting and self._is_full():
            self._on_worker_event(
                f"the run waits for {len(waiting)} of {counted(len(started), 'actor')}: others use the "
                "cluster, or it starts them slowly"
            )

    def _is_full(self) -> bool:
        """Return whether the cluster has too little left for one more actor, which has to wait then."""
        left = self._ray.available_resources()
        needs = {"CPU": self._place.num_cpus, "GPU": self._place.num_gpus}
        return self._reserves and any(left.get(name, 0) < need for name, need in needs.items() if need)

    def _lacks_room(self) -> bool:
        """Return whether the nodes that are left have no room for all actors that were started."""
        hosted = sum(slot.actor is not None for slot in self.slots)
        return self._reserves and self._cluster.capacity(self._place) < hosted

    def _config(self, slot: ActorSlot) -> bytes:
        return pickle.dumps(
            ActorConfig(
                algorithm=self._algorithm,
                trust=self._trust,
                make=self._clients.make,
                shared=self._clients.shared,
                owned={member: self._clients.owned[member] for member in slot.members},
                insecure_seed=self._seed,
            )
        )

    def restart(self) -> bool:
        """Replace the actors that were lost, if the cluster has room. Return whether any was lost. Raise
        `WorkersFailed` if an actor cannot start."""
        lost = [slot for slot in self.slots if slot.actor is None]
        if not lost:
            return False
        placed = lost[: self._room(len(lost))]
        for slot in lost:
            self._report_restart(slot, placed=slot in placed)
        self._launch(placed)
        return True

    def _room(self, wanted: int) -> int:
        """Return for how many of the `wanted` lost actors the cluster has room."""
        if not self._reserves:
            return wanted
        room = self._cluster.capacity(self._place) - (len(self.slots) - wanted)
        return max(int(min(room, wanted)), 0)

    def _report_restart(self, slot: ActorSlot, *, placed: bool) -> None:
        if placed:
            self._on_worker_event(f"{_named(slot)} is started again")
        elif not slot.waiting:
            self._on_worker_event(f"{_named(slot)} is not started again: the cluster has no room for it")
        slot.waiting = not placed

    # --- facts ---

    @property
    def keys(self) -> dict[int, bytes]:
        """The public signing keys of all clients, by id."""
        return {member: key for slot in self.slots for member, key in slot.keys.items()}

    @property
    def lost(self) -> set[int]:
        """The clients that no actor hosts now."""
        return {member for slot in self.slots if slot.actor is None for member in slot.members}

    # --- commands ---

    def share(self, content: bytes) -> Any:
        """Put a content that all actors need into Ray's object store, once, and return its reference."""
        return self._ray.put(content)

    def queue(self, index: int, command: ActorCommand) -> None:
        """Send a command that needs no reply together with the next one to the actor of a slot, if it has
        one. The next actor begins with no commands."""
        slot = self.slots[index]
        if slot.actor is not None:
            slot.queued.append(command)

    def restore(self, saved: Mapping[int, Mapping[int, bytes]]) -> None:
        """Replace the states of all clients by `saved`: by the index of their slot, and then by id. The next
        actor of a slot that has lost its own begins with these states."""
        for index, states in saved.items():
            self.slots[index].saved, self.slots[index].answered = states, {}
            self.queue(index, RestoreState(states, {}))

    def queue_event(self, index: int, member: int, event: ClientEvent) -> None:
        """Queue an event for one client. Clients with equal events share a command."""
        queued = self.slots[index].queued
        last = queued[-1] if queued else None
        if isinstance(last, DeliverEvent) and last.event == event:
            last.members.append(member)
        else:
            self.queue(index, DeliverEvent(event, [member]))

    def call(self, commands: Mapping[int, ActorCommand], apart: Sequence[Any] = ()) -> dict[int, Any]:
        """Send commands by slot index, all at once, with references from `share`. Return the replies, by slot
        index; a lost actor has none. Raise `WorkersFailed` if a client's computation failed."""
        return self.replies(self.begin(commands, apart))

    def begin(self, commands: Mapping[int, ActorCommand], apart: Sequence[Any] = ()) -> dict[int, Any]:
        """Send commands as `call` does, but do not wait. Return what `replies` waits for."""
        begun = {}
        for index, command in commands.items():
            slot = self.slots[index]
            if slot.actor is not None:
                slot.queued, queued = [], slot.queued
                begun[index] = slot.actor.execute.remote([*queued, command], *apart)
        return begun

    def replies(self, begun: Mapping[int, Any]) -> dict[int, Any]:
        """Return the replies to commands that `begin` has sent, as `call` does."""
        replies = {index: self._reply(self.slots[index], reference) for index, reference in begun.items()}
        return {index: reply for index, reply in replies.items() if reply is not None}

    def _reply(self, slot: ActorSlot, reference: Any, *, starting: bool = False) -> Any:
        """Return an actor's reply; None if the actor or its reply is lost."""
        errors = self._ray.exceptions
        try:
            reply = self._ray.get(reference)
        except errors.RayTaskError as error:  # Ray could not carry what was sent, or the reply.
            raise WorkersFailed(f"{_named(slot)} failed: {one_line(error.cause)}") from None
        except errors.ObjectLostError:  # Large replies stay in the memory of the actor's node.
            self._lose(slot, "its reply was lost with its node", starting=starting)
            return None
        except (errors.RayActorError, errors.NodeDiedError, errors.OutOfMemoryError) as error:
            self._lose(slot, first_line(error), starting=starting)
            return None
        except errors.RayError as error:
            raise WorkersFailed(f"{_named(slot)} failed: {one_line(error)}") from None
        match reply:
            case ClientFailure(text) if starting:
                raise WorkersFailed(f"{_named(slot)} did not start: {text}")
            case ClientFailure(text):
                raise WorkersFailed(text)
            case RoundFinished():
                slot.saved, slot.answered = reply.saved, {}
            case Replies():
                for member, entry in reply.answered:
                    slot.answered.setdefault(member, []).append(entry)
        return reply

    def _lose(self, slot: ActorSlot, cause: str, *, starting: bool) -> None:
        with_its_node = starting and self._lacks_room()
        self._forget(slot)
        if not starting:
            self._on_worker_event(f"{_named(slot)} is lost: {cause}")
            return
        if with_its_node:
            self._report_restart(slot, placed=False)
            return
        slot.failed_starts += 1
        if slot.failed_starts == _ATTEMPTS:
            raise WorkersFailed(f"{_named(slot)} did not start: {cause}")

    def _forget(self, slot: ActorSlot) -> None:
        """Kill the actor of a slot. One that only seemed to be lost must not go on."""
        if slot.actor is not None:
            with suppress(Exception):
                self._ray.kill(slot.actor, no_restart=True)
        slot.actor, slot.queued = None, []


def _named(slot: ActorSlot) -> str:
    return f"the actor of {counted(len(slot.members), 'client')} from {slot.members[0]} on"
