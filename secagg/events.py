"""The events that client and server machines return to their callers. No event contains a secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self, TypeAlias

from secagg.differencing_rules import SumSequence
from secagg.errors import Lie, PeerError, SumFailed
from secagg.evidence import Evidence
from secagg.query_context import Question
from secagg.sum_spec import SumSpec, Total

# --- a client's ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Joined:
    """Set-up is done: this client and others, `cohort` in all, exchanged keys and shares of secrets."""

    session: bytes
    cohort: int
    threshold: int


@dataclass(frozen=True)
class EnvelopeLost:
    """Client `peer`'s encrypted shares could not be decrypted, so this client holds no shares of `peer`."""

    peer: int


@dataclass(frozen=True)
class Asked:
    """A query to `invited` clients passed this client's checks. Call `answer` with values, or `decline`."""

    sum_index: int
    round: int
    kind: str
    payload: bytes = field(repr=False)
    spec: SumSpec
    invited: int

    @classmethod
    def to(cls, question: Question) -> Self:
        query = question.query
        return cls(
            query.sum_index, query.round, query.kind, query.payload, question.spec, len(question.roster)
        )


@dataclass(frozen=True)
class Answer:
    """The result of `ClientMachine.answer`: the frame to send, and `clipped`, which is private: by name of
    each part beyond its bound, the factor that scaled it (bound `L2`) or its largest element (`LInf`)."""

    frame: bytes = field(repr=False)
    clipped: Mapping[str, float] = field(repr=False)


@dataclass(frozen=True)
class SatOut:
    """This client declined a query: it did not learn which clients were in the last sum of that vector."""

    sum_index: int
    kind: str


@dataclass(frozen=True)
class Confirmed:
    """This client sent the shares that unmask a sum of `contributors` inputs, its own among them."""

    sum_index: int
    contributors: int


@dataclass(frozen=True)
class Abandoned:
    """The server gave up this sum and later ones of its vector this round. The sum's secrets are erased."""

    sum_index: int


@dataclass(frozen=True)
class SessionOver:
    """The server ended the session."""


ClientEvent: TypeAlias = Joined | EnvelopeLost | Asked | SatOut | Confirmed | Abandoned | SessionOver


@dataclass(frozen=True)
class ClientStep:
    """The result of a call of a `ClientMachine`: frames to send to the server, in order, and events."""

    frames: tuple[bytes, ...] = field(default=(), repr=False)
    events: tuple[ClientEvent, ...] = ()


# --- the server's ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class StageFull:
    """All clients that were asked in this stage have answered or left, so the caller may close it early."""


@dataclass(frozen=True)
class Excluded:
    """Client `peer` broke the protocol or left. It takes no further part in the session."""

    peer: int
    error: PeerError


@dataclass(frozen=True)
class Late:
    """Client `peer` sent a message for a stage that is over. The server ignored the message."""

    peer: int


@dataclass(frozen=True)
class Declined:
    """Client `peer` declined to answer the query of this sum. It takes part in the session as before."""

    peer: int


@dataclass(frozen=True)
class Convicted:
    """Client `peer` lied, whatever others did. It takes no further part, and should not be invited again.
    `evidence` proves it to others; there is none unless messages are signed (`malicious_server`)."""

    peer: int
    error: Lie
    evidence: Evidence | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Missing:
    """The clients `peers` did not answer before the caller closed the stage of the protocol named `stage`."""

    peers: tuple[int, ...]
    stage: str


@dataclass(frozen=True)
class Stranded:
    """The clients `peers` will not be asked again: too many of their neighbours on the ring have left."""

    peers: tuple[int, ...]


@dataclass(frozen=True)
class SessionReady:
    """Set-up is done: the server can ask `members` (ids) for sums. `threshold` shares open a secret.
    `exchanged` has how many clients were sent shares, by the number of neighbours who dealt them, and whether
    the client made a deposit. They determine the sizes of the messages of set-up."""

    session: bytes
    members: tuple[int, ...]
    threshold: int
    neighbours: int  # the number of neighbours of each member
    exchanged: Mapping[tuple[int, bool], int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class SurvivorsFixed:
    """It is known whose inputs are in a sum. A server's ledger must record this before clients are told: they
    refuse later sums of `sequence` (sums with equal values, query or kind) over nearly the same clients."""

    sequence: SumSequence
    survivors: tuple[int, ...]


@dataclass(frozen=True)
class SumReleased:
    """The server computed a total. `contributors` are the ids of the clients in the sum."""

    sum_index: int
    total: Total
    contributors: tuple[int, ...]


@dataclass(frozen=True)
class SumAborted:
    """A sum failed, and no total was released. The session continues."""

    sum_index: int
    error: SumFailed


@dataclass(frozen=True)
class SessionFailed:
    """The session ended during set-up, because too few clients were left."""

    error: SumFailed


ServerEvent: TypeAlias = (
    StageFull
    | Excluded
    | Late
    | Declined
    | Convicted
    | Missing
    | Stranded
    | SessionReady
    | SurvivorsFixed
    | SumReleased
    | SumAborted
    | SessionFailed
)


@dataclass(frozen=True)
class Outgoing:
    """A frame that is to be sent to each client in `receivers` (ids)."""

    receivers: tuple[int, ...]
    frame: bytes = field(repr=False)


@dataclass(frozen=True)
class ServerStep:
    """The result of a call of a `ServerMachine`: frames to send to clients, in order, and events."""

    outgoing: tuple[Outgoing, ...] = ()
    events: tuple[ServerEvent, ...] = ()
