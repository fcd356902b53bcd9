"""What the main process sends to the actors of Ray, and what they reply.

A command is an argument of an actor's method, so Ray carries it, and large ones lie in its object store. They
hold what a server or a supervisor of worker processes sends, too: frames, queries, clients' data and saved
states. No command or reply holds a key or a seed of a client's machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from secagg.client_memory import AnswerEntry
from secagg.events import ClientEvent
from secagg.policy import Policy
from secagg.trust_levels import Trust
from sims.records.sum_records import Refusal
from sims.runtime.hosted_clients import BeginRound, FinishRound, MakeWorkerClients, RestoreState
from sims.runtime.plain_addition import EncodedSum, PartialSum


@dataclass(frozen=True)
class ActorConfig:
    """What an actor makes its clients from. It is pickled after the actor has set its module path."""

    algorithm: bytes = field(repr=False)  # made by `pack_algorithm`
    trust: Trust
    make: MakeWorkerClients
    shared: Any = field(repr=False)
    owned: Mapping[int, Any] = field(repr=False)  # the data of each client, by id
    insecure_seed: bytes | None = field(repr=False)


@dataclass(frozen=True)
class LoadClients:
    """Tells an actor to make and restore its clients. `config` is a pickled `ActorConfig`, and `path` has the
    directories of modules that it needs. The reply is `ClientsLoaded`."""

    path: tuple[str, ...]
    config: bytes = field(repr=False)
    state: RestoreState


@dataclass(frozen=True)
class ClientsLoaded:
    """The actor's process, the digest of its secagg (see `sims.runtime.ray.sources`), and the public signing
    keys that its clients have drawn, by client id."""

    pid: int
    sources: str
    keys: Mapping[int, bytes]


@dataclass(frozen=True)
class DeliverEvent:
    """Tells clients of a plain sum what a client of a secure one learns from the server's messages."""

    event: ClientEvent
    members: list[int]


@dataclass(frozen=True)
class AddAnswers:
    """Tells an actor to add up the answers of clients `members` to a query, whose payload comes apart. The
    reply is `AnswersAdded`."""

    encoded: EncodedSum
    sum_index: int
    round_number: int
    members: tuple[int, ...]


@dataclass(frozen=True)
class AnswersAdded:
    """The sum of the answers, the clients that refused the query, and those that declined to answer."""

    partial: PartialSum
    refusals: tuple[Refusal, ...]
    silent: tuple[int, ...]


@dataclass(frozen=True)
class OpenSession:
    """Tells an actor to make new machines for the clients `members`, for session `number`. `keys` has the
    public keys of all clients, in a registry of this `version`."""

    number: int
    members: tuple[int, ...]
    policy: Policy
    keys: Mapping[int, bytes] = field(repr=False)
    version: int


@dataclass(frozen=True)
class ExchangeFrames:
    """Tells an actor to deliver frames, in order, and to compute the clients' replies. A frame that goes to
    many comes apart, and has its position there in place of its bytes. The reply is `Replies`."""

    frames: tuple[tuple[int, bytes | int], ...] = field(repr=False)  # (client, frame)


@dataclass(frozen=True)
class Replies:
    """The frames that clients send to the server, in order, and what happened meanwhile.

    `confirmed`  clients that know that they are in the total.
    `refusals`   clients that refused a frame and left.
    `left`       clients that take no further part in the session.
    `silent`     clients that declined to answer in this round.
    `answered`   records of the answers among the frames, so that a killed actor does not forget them.
    """

    frames: list[tuple[int, bytes]] = field(default_factory=list, repr=False)
    confirmed: list[int] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    silent: list[int] = field(default_factory=list)
    answered: list[tuple[int, AnswerEntry]] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class EndSession:
    """Tells an actor to end the session at its clients, which erases their secrets."""


# Those without a reply.
SilentCommand: TypeAlias = RestoreState | BeginRound | DeliverEvent | OpenSession | EndSession
ActorCommand: TypeAlias = LoadClients | AddAnswers | ExchangeFrames | FinishRound | SilentCommand
