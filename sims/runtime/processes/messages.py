"""Messages between the supervisor of a channel and its worker processes.

They control the simulation and are not part of the protocol: which clients a worker hosts, when a round
begins, which clients drop out, and what an observer needs. The sums themselves go over sockets.
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
from protocols.queries import RoundInfo
from secagg.client_memory import AnswerEntry
from secagg.local import Stage
from secagg.net.settings import Address, Patience
from secagg.policy import Policy
from secagg.thresholds import Trust
from sims.runtime.tampering import Tamper


@dataclass(frozen=True)
class WorkerClients:
    """The clients of a worker."""

    learners: Mapping[int, Learner]  # by client id
    tamper: Mapping[int, Tamper] = field(default_factory=dict)  # of clients that violate the protocol
    begin_round: Callable[[int], None] | None = None  # is called with the number of every round


# (data shared by all workers, data of each client): both are pickled.
MakeWorkerClients: TypeAlias = Callable[[Any, Mapping[int, Any]], WorkerClients]


@dataclass(frozen=True)
class ClientFactory:
    """Makes the clients of a channel: `make(shared, owned)` returns those of one worker."""

    make: MakeWorkerClients  # a function of an importable module; its name is pickled
    shared: Any
    owned: Mapping[int, Any] = field(repr=False)  # the data of each client, such as its samples
    preload: tuple[str, ...] = ()  # modules to import before workers are forked


def pack_algorithm(algorithm: AnyAlgorithm) -> bytes:
    """Pickle an algorithm. `pickle.loads` returns an equal one."""
    packed = io.BytesIO()
    _Pickler(packed).dump(algorithm)
    return packed.getvalue()


class _Pickler(pickle.Pickler):
    """Also pickles read-only mappings, which algorithms hold."""

    dispatch_table = {  # noqa: RUF012
        **copyreg.dispatch_table,
        MappingProxyType: lambda proxy: (_frozen, (dict(proxy),)),
    }


def _frozen(content: dict[Any, Any]) -> Mapping[Any, Any]:
    return MappingProxyType(content)


# --- to a worker ---


@dataclass(frozen=True)
class SimulatedCredentials:
    """The identity of a client. It is kept when the worker is restarted."""

    secret: bytes = field(repr=False)
    certificate: bytes


@dataclass(frozen=True)
class WorkerConfig:
    """Which clients a worker hosts, and where the server is."""

    algorithm: bytes = field(repr=False)
    trust: Trust
    make: MakeWorkerClients
    shared: Any = field(repr=False)
    credentials: Mapping[int, SimulatedCredentials]
    address: Address
    server: bytes  # its certificate
    keys: Mapping[int, bytes]  # of all clients, for a registry
    patience: Patience
    insecure_seed: bytes | None = field(repr=False)


@dataclass(frozen=True)
class LoadClientData:
    """The data of one client. A worker receives one for each client, then `RestoreState`."""

    member: int
    content: Any = field(repr=False)


@dataclass(frozen=True)
class RestoreState:
    """Make the clients and restore them from `saved`, if any, and from the answers given since."""

    saved: Mapping[int, bytes] | None = field(repr=False)
    answered: Mapping[int, list[AnswerEntry]] = field(repr=False)


@dataclass(frozen=True)
class BeginRound:
    """A round begins. The clients in `alone` train without a query."""

    round_info: RoundInfo
    alone: tuple[int, ...] = ()


@dataclass(frozen=True)
class JoinSession:
    """Connect the clients for a session. Its `number` is part of the seed of seeded clients."""

    number: int
    members: tuple[int, ...]
    policy: Policy


@dataclass(frozen=True)
class ScheduleDropouts:
    """Which clients drop out at which stage of the next sum or set-up. Replaces an earlier schedule."""

    at: Mapping[int, Stage]


@dataclass(frozen=True)
class FinishRound:
    """A round is over."""

    round_info: RoundInfo


# --- from a worker ---


@dataclass(frozen=True)
class CommandDone:
    """A command was carried out."""


@dataclass(frozen=True)
class RoundFinished:
    """The state of the clients after a round, and the clients that declined to answer in it."""

    saved: Mapping[int, bytes] = field(repr=False)
    silent: tuple[int, ...]


@dataclass(frozen=True)
class AnswerRecorded:
    """An answer is about to be sent. The client must remember it even if its worker is killed."""

    member: int
    entry: AnswerEntry = field(repr=False)


@dataclass(frozen=True)
class ClientFailure:
    """A client's own computation failed. This is an error of the simulation, not a drop-out."""

    text: str


WorkerReply: TypeAlias = CommandDone | RoundFinished
