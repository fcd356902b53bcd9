"""Simulated clients that run outside of the main process: in worker processes, or in actors of Ray.

The host of a group of clients makes them with a `ClientFactory` and keeps them in a `HostedClients`. After
each round, it sends a copy of their states to the main process (`RoundFinished`). A new host restores its
clients from the last copy.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, TypeAlias, TypeVar

from numpy.typing import ArrayLike

from protocols.algorithm import AnyAlgorithm
from protocols.learner import Learner
from protocols.rounds import RoundInfo
from secagg.client_memory import AnswerEntry
from secagg.errors import SecaggError
from secagg.events import Asked
from secagg.trust_levels import Trust
from sims.coordination.client_runtime import ClientRuntime
from sims.runtime.client_state import SimulatedMemory, restore_clients, save_clients
from sims.runtime.honest_or_forging_participant import SimulatedParticipant
from sims.runtime.residue_tampering import Tamper
from sims.runtime.session_channel import Together, in_batch, may_train_at_end

M = TypeVar("M", bound=SimulatedMemory)

Values: TypeAlias = Mapping[str, ArrayLike]  # a client's answer, by name of part


class WorkersFailed(SecaggError):
    """Raised if hosts of clients cannot go on. Unlike after a drop-out, a new attempt would fail again."""


# --- how hosts make their clients ---


@dataclass(frozen=True)
class WorkerClients:
    """The result of `ClientFactory.make`: a worker's clients, and a function to call when a round begins."""

    learners: Mapping[int, Learner]  # by client id
    tamper: Mapping[int, Tamper] = field(default_factory=dict)  # by id, of clients that attack the sums
    begin_round: Callable[[int], None] | None = None  # is called with the number of every round


# (data shared by all workers, data of each client of this worker) -> its clients. The data is pickled.
MakeWorkerClients: TypeAlias = Callable[[Any, Mapping[int, Any]], WorkerClients]


@dataclass(frozen=True)
class ClientFactory:
    """Makes clients in workers: each worker calls `make(shared, owned)`, with only its clients' data. Modules
    named in `preload` are imported before the workers are forked."""

    make: MakeWorkerClients  # a function of an importable module; its name is pickled
    shared: Any
    owned: Mapping[int, Any] = field(repr=False)  # the data of each client, by id, such as its samples
    preload: tuple[str, ...] = ()  # modules to import before workers are forked


def pack_algorithm(algorithm: AnyAlgorithm) -> bytes:
    """Return a pickle of the algorithm, from which `pickle.loads` makes an equal algorithm."""
    packed = io.BytesIO()
    _Pickler(packed).dump(algorithm)
    return packed.getvalue()


class _Pickler(pickle.Pickler):
    """A pickler that also pickles read-only mappings, which algorithms contain."""

    dispatch_table = {  # noqa: RUF012
        **copyreg.dispatch_table,
        MappingProxyType: lambda proxy: (_frozen, (dict(proxy),)),
    }


def _frozen(content: dict[Any, Any]) -> Mapping[Any, Any]:
    return MappingProxyType(content)


# --- what hosts and the main process tell each other ---


@dataclass(frozen=True)
class RestoreState:
    """Tells a host to make its clients, restore their states from `saved`, if any, and record the answers
    (`answered`) that they sent after these states were saved. Both mappings are by client id."""

    saved: Mapping[int, bytes] | None = field(repr=False)
    answered: Mapping[int, list[AnswerEntry]] = field(repr=False)


@dataclass(frozen=True)
class BeginRound:
    """Tells a host to begin a round. Clients in `alone` train now; there are none if there are sums."""

    round_info: RoundInfo
    alone: tuple[int, ...] = ()


@dataclass(frozen=True)
class FinishRound:
    """Tells a host to report the round's outcome to its clients and to reply with their states."""

    round_info: RoundInfo


@dataclass(frozen=True)
class RoundFinished:
    """What a host sends after a round: the state of each of its clients by id, and who declined to answer."""

    saved: Mapping[int, bytes] = field(repr=False)  # after the round
    silent: tuple[int, ...]  # the clients that declined to answer in the round


@dataclass(frozen=True)
class ClientFailure:
    """A host's report that a client's computation failed: an error of the simulation, not a drop-out."""

    text: str


# --- in the host ---


class HostedClients(Generic[M]):
    """The clients of one host. `make_memory(member)` makes the record of answers of each."""

    def __init__(
        self, algorithm: bytes, trust: Trust, made: WorkerClients, make_memory: Callable[[int], M]
    ) -> None:
        self.algorithm: AnyAlgorithm = pickle.loads(algorithm)  # noqa: S301  # from this program
        self.made = made
        self.participants = {
            member: SimulatedParticipant(self.algorithm, learner, trust=trust, member=member)
            for member, learner in made.learners.items()
        }
        self.runtimes = {member: ClientRuntime(each) for member, each in self.participants.items()}
        self.memories = {member: make_memory(member) for member in self.participants}
        self._together: Together | None = getattr(made.learners, "together", None)
        self.silent: set[int] = set()  # clients that declined to answer in this round

    def restore(self, command: RestoreState) -> None:
        if command.saved is not None:
            restore_clients(command.saved, self.participants, self.memories, self.made.tamper)
        for member, entries in command.answered.items():
            for entry in entries:
                SimulatedMemory.take_answer(self.memories[member], entry)

    def begin_round(self, number: int) -> None:
        self.silent.clear()
        if self.made.begin_round is not None:
            self.made.begin_round(number)

    def answers(self, asked: Mapping[int, Asked]) -> Mapping[int, Callable[[], Values | None]]:
        """Return, by client id, functions that return a client's answer. If the learners can compute in
        batches, as `fl.crowd.Crowd` can, all answers are computed now."""
        return in_batch({k: partial(self.answer, k, each) for k, each in asked.items()}, self._together)

    def announce(self, round_info: RoundInfo) -> None:
        """Report to all clients which rounds before `round_info.number` were completed."""
        together = self._together if may_train_at_end(self.algorithm) else None
        for done in in_batch(self.announcements(round_info), together).values():
            done()

    def answer(self, member: int, asked: Asked) -> Values | None:
        """Return a client's answer to a query (values by part name), or None if it declines to answer."""
        values = self.runtimes[member].answer(asked)
        if values is None:
            self.silent.add(member)
        return values

    def announcements(self, round_info: RoundInfo) -> dict[int, Callable[[], None]]:
        """Return, by client id, functions that report to a client which rounds were completed."""
        return {member: partial(each.announce, round_info) for member, each in self.runtimes.items()}

    def finished(self) -> RoundFinished:
        """Return the states of all clients. Call it between two rounds."""
        saved = save_clients(self.participants, self.memories, self.made.tamper)
        return RoundFinished(saved, tuple(sorted(self.silent)))
