"""What the office of a channel and its worker processes tell each other, over lines that no client sees.

This is the simulation's own business and no part of the protocol: who is to sit where, when a round begins,
who is to drop out, and what an observer wants to know. Sums go over sockets, as everywhere.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

from protocols.algorithm import AnyAlgorithm
from protocols.learner import Learner
from protocols.vocabulary import RoundInfo
from secagg.local import Stage
from secagg.memory import AnswerEntry
from secagg.net.settings import Address, Patience
from secagg.policy import Policy
from secagg.thresholds import Trust
from sims.runtime.tampering import Tamper


@dataclass(frozen=True)
class WorkerClients:
    """What a worker makes of its clients.

    `learners`     by their ids.
    `tamper`       what those of them do that do not keep to the protocol.
    `begin_round`  is called with the number of every round.
    """

    learners: Mapping[int, Learner]
    tamper: Mapping[int, Tamper] = field(default_factory=dict)
    begin_round: Callable[[int], None] | None = None


# (what all workers are told, what each of its clients owns): both travel pickled.
MakeWorkerClients: TypeAlias = Callable[[Any, Mapping[int, Any]], WorkerClients]


@dataclass(frozen=True)
class ClientFactory:
    """The clients of a channel, as plain data: `make(shared, owned of some)` makes those of a worker.

    `make`     a function of an importable module: its name is what crosses the border.
    `owned`    what belongs to each client alone, such as its samples.
    `preload`  modules that are imported once, before workers are forked.
    """

    make: MakeWorkerClients
    shared: Any
    owned: Mapping[int, Any] = field(repr=False)
    preload: tuple[str, ...] = ()


def pack_algorithm(algorithm: AnyAlgorithm) -> bytes:
    """For the worker's end of a line: `pickle.loads` makes an equal one of it."""
    packed = io.BytesIO()
    _Pickler(packed).dump(algorithm)
    return packed.getvalue()


class _Pickler(pickle.Pickler):
    """Also knows mappings that cannot be changed, of which algorithms have some."""

    dispatch_table = {  # noqa: RUF012
        **copyreg.dispatch_table,
        MappingProxyType: lambda proxy: (_frozen, (dict(proxy),)),
    }


def _frozen(content: dict[Any, Any]) -> Mapping[Any, Any]:
    return MappingProxyType(content)


# --- to a worker ---


@dataclass(frozen=True)
class Credentials:
    """By which a client is known, to the server and to others. A restarted worker's clients keep theirs."""

    secret: bytes = field(repr=False)
    certificate: bytes


@dataclass(frozen=True)
class WorkerConfig:
    """Whom a worker hosts, and where the server is."""

    algorithm: bytes = field(repr=False)
    trust: Trust
    make: MakeWorkerClients
    shared: Any = field(repr=False)
    credentials: Mapping[int, Credentials]
    address: Address
    server: bytes  # its certificate
    keys: Mapping[int, bytes]  # of everybody, for a registry
    patience: Patience
    insecure_seed: bytes | None = field(repr=False)


@dataclass(frozen=True)
class ClientData:
    """What belongs to one client. A worker is handed everybody's after its seat, and then `RestoreState`."""

    member: int
    content: Any = field(repr=False)


@dataclass(frozen=True)
class RestoreState:
    """Make everything; go on from `saved`, where there is something, and from what was answered since."""

    saved: Mapping[int, bytes] | None = field(repr=False)
    answered: Mapping[int, list[AnswerEntry]] = field(repr=False)


@dataclass(frozen=True)
class BeginRound:
    """`alone` are clients that open the round without being asked anything."""

    round_info: RoundInfo
    alone: tuple[int, ...] = ()


@dataclass(frozen=True)
class JoinSession:
    """Be connected: a session begins, the `number` of which decides what seeded clients draw."""

    number: int
    members: tuple[int, ...]
    policy: Policy


@dataclass(frozen=True)
class ScheduleDropouts:
    """Who drops out at which stage of what comes next, and nobody else."""

    at: Mapping[int, Stage]


@dataclass(frozen=True)
class FinishRound:
    """Hear what became of it."""

    round_info: RoundInfo


SupervisorCommand: TypeAlias = RestoreState | BeginRound | JoinSession | ScheduleDropouts | FinishRound


# --- from a worker ---


@dataclass(frozen=True)
class CommandDone:
    """An order was carried out."""


@dataclass(frozen=True)
class RoundFinished:
    """The clients between two rounds (see `clientstate`), and who of them had nothing to say in the last."""

    saved: Mapping[int, bytes] = field(repr=False)
    silent: tuple[int, ...]


@dataclass(frozen=True)
class AnswerRecorded:
    """An answer is about to leave: what a client must not forget, even if its worker is killed."""

    member: int
    entry: AnswerEntry = field(repr=False)


@dataclass(frozen=True)
class Refusal:
    """A client has left a session because of what it was sent."""

    member: int
    error: str  # the class of it
    reason: str


@dataclass(frozen=True)
class ClientFailure:
    """A client's own work has failed, which is no drop-out but a mistake in the simulation."""

    text: str


WorkerReply: TypeAlias = CommandDone | RoundFinished
