"""Messages between the main process, where the supervisor runs, and the worker processes of a channel.

They control the simulation: which clients a worker hosts, when a round begins, which clients drop out. They
also carry the states that observers need. The messages of the secure sums go over other sockets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from secagg.client_memory import AnswerEntry
from secagg.local_session import Stage
from secagg.net.settings import Address, Patience
from secagg.policy import Policy
from secagg.trust_levels import Trust
from sims.runtime.hosted_clients import MakeWorkerClients, RoundFinished

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


# --- from a worker ---


@dataclass(frozen=True)
class CommandDone:
    """A worker's reply to every command except `FinishRound`: the command was carried out."""


@dataclass(frozen=True)
class AnswerRecorded:
    """A worker's report of an answer that a client is about to send, kept in case the worker is killed."""

    member: int
    entry: AnswerEntry = field(repr=False)


WorkerReply: TypeAlias = CommandDone | RoundFinished
