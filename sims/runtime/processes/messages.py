"""Messages between the main process, where the supervisor runs, and the worker processes of a channel.

They control the simulation: which clients a worker hosts, when a round begins, which clients drop out. They
also carry the states that observers need. The messages of the secure sums go over other sockets.
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
from protocols.rounds import RoundInfo
from secagg.client_memory import AnswerEntry
from secagg.local_session import Stage
from secagg.net.settings import Address, Patience
from secagg.policy import Policy
from secagg.trust_levels import Trust
from sims.runtime.residue_tampering import Tamper


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


# --- to a worker ---


@dataclass(frozen=True)
class SimulatedCredentials:
    """A client's secret key and certificate. They stay the same when the client's worker is restarted."""

    secret: bytes = field(repr=False)
    certificate: bytes


@dataclass(frozen=True)
class WorkerConfig:
    """What a worker process needs to make its clients, apart from their data, and to reach the server."""

    algorithm: bytes = field(repr=False)  # made by `pack_algorithm`
    trust: Trust
    make: MakeWorkerClients
    shared: Any = field(repr=False)
    credentials: Mapping[int, SimulatedCredentials]
    address: Address
    server: bytes  # the certificate of the server
    keys: Mapping[int, bytes]  # public keys of all clients, for a registry
    patience: Patience
    insecure_seed: bytes | None = field(repr=False)


@dataclass(frozen=True)
class LoadClientData:
    """Gives a worker the data of one client. One such message per client is followed by `RestoreState`."""

    member: int
    content: Any = field(repr=False)


@dataclass(frozen=True)
class RestoreState:
    """Tells a worker to make its clients, restore their states from `saved`, if any, and record the answers
    (`answered`) that they sent after these states were saved. Both mappings are by client id."""

    saved: Mapping[int, bytes] | None = field(repr=False)
    answered: Mapping[int, list[AnswerEntry]] = field(repr=False)


@dataclass(frozen=True)
class BeginRound:
    """Tells a worker to begin a round. Clients in `alone` train now; there are none if there are sums."""

    round_info: RoundInfo
    alone: tuple[int, ...] = ()


@dataclass(frozen=True)
class JoinSession:
    """Tells a worker to connect the clients `members` for session `number`. In a run with an insecure seed,
    the secrets of a session depend on the seed and this number."""

    number: int
    members: tuple[int, ...]
    policy: Policy


@dataclass(frozen=True)
class ScheduleDropouts:
    """Tells a worker at which stage of the next sum or set-up clients drop out; replaces earlier orders."""

    at: Mapping[int, Stage]  # client -> stage


@dataclass(frozen=True)
class FinishRound:
    """Tells a worker to report the round's outcome to its clients and to reply with their states."""

    round_info: RoundInfo


# --- from a worker ---


@dataclass(frozen=True)
class CommandDone:
    """A worker's reply to every command except `FinishRound`: the command was carried out."""


@dataclass(frozen=True)
class RoundFinished:
    """Reply to `FinishRound`: the state of each client of the worker by id, and who declined to answer."""

    saved: Mapping[int, bytes] = field(repr=False)  # after the round
    silent: tuple[int, ...]  # the clients that declined to answer in the round


@dataclass(frozen=True)
class AnswerRecorded:
    """A worker's report of an answer that a client is about to send, kept in case the worker is killed."""

    member: int
    entry: AnswerEntry = field(repr=False)


@dataclass(frozen=True)
class ClientFailure:
    """A worker's report that a client's computation failed: an error of the simulation, not a drop-out."""

    text: str


WorkerReply: TypeAlias = CommandDone | RoundFinished
