"""The events that machines return to their callers. None holds a secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self, TypeAlias

from secagg.errors import PeerError, SumFailed
from secagg.query_context import Question
from secagg.sequence_rules import SumSequence
from secagg.sum_spec import SumSpec, Total

# --- a client's ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Joined:
    """Keys and shares are exchanged; the session can begin."""

    session: bytes
    cohort: int
    threshold: int


@dataclass(frozen=True)
class EnvelopeLost:
    """An envelope did not open. This client holds no share for `peer`; the session goes on."""

    peer: int


@dataclass(frozen=True)
class Asked:
    """A query passed all checks: compute the values and call `answer`, or call `decline`."""

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
    """What `ClientMachine.answer` returns: a masked input to send, and which parts were clipped.

    The latter never leaves the client.
    """

    frame: bytes = field(repr=False)
    clipped: Mapping[str, float] = field(repr=False)


@dataclass(frozen=True)
class SatOut:
    """This client declined: it does not know the survivors of this group's last sum."""

    sum_index: int
    kind: str


@dataclass(frozen=True)
class Confirmed:
    """Our input is in the sum, together with that of `contributors - 1` others."""

    sum_index: int
    contributors: int


@dataclass(frozen=True)
class Abandoned:
    """The server closed the group; this sum's secrets are erased."""

    sum_index: int


@dataclass(frozen=True)
class SessionOver:
    """The server ended the session."""


ClientEvent: TypeAlias = Joined | EnvelopeLost | Asked | SatOut | Confirmed | Abandoned | SessionOver


@dataclass(frozen=True)
class ClientStep:
    """Frames to send to the server, in order, and what happened."""

    frames: tuple[bytes, ...] = field(default=(), repr=False)
    events: tuple[ClientEvent, ...] = ()


# --- the server's ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class StageFull:
    """All clients that were expected have answered: the stage may be closed early."""


@dataclass(frozen=True)
class Excluded:
    """A client broke the protocol or left; it takes no further part."""

    peer: int
    error: PeerError


@dataclass(frozen=True)
class Late:
    """A message for a stage that is over. It was ignored; the client stays in the session."""

    peer: int


@dataclass(frozen=True)
class WrongShares:
    """`holders` revealed shares that do not fit the others of `dealer`; either side may have lied."""

    dealer: int
    holders: tuple[int, ...]


@dataclass(frozen=True)
class Missing:
    """Clients that did not answer before the stage was closed."""

    peers: tuple[int, ...]
    stage: str


@dataclass(frozen=True)
class Stranded:
    """Too many neighbours of these clients have gone: they take no further part."""

    peers: tuple[int, ...]


@dataclass(frozen=True)
class SessionReady:
    """Set-up is done."""

    session: bytes
    members: tuple[int, ...]
    threshold: int
    neighbours: int  # of each member: all others, or those on a ring


@dataclass(frozen=True)
class SurvivorsFixed:
    """Clients are about to confirm `survivors` for a query of `sequence`; they refuse sets close to it.

    A server that keeps a ledger records this before it goes on.
    """

    sequence: SumSequence
    survivors: tuple[int, ...]


@dataclass(frozen=True)
class SumReleased:
    """A total was released; `contributors` are the clients in it."""

    sum_index: int
    total: Total
    contributors: tuple[int, ...]


@dataclass(frozen=True)
class SumAborted:
    """Nothing was released. The session continues."""

    sum_index: int
    error: SumFailed


@dataclass(frozen=True)
class SessionFailed:
    """Set-up left too few clients; there is no session."""

    error: SumFailed


ServerEvent: TypeAlias = (
    StageFull
    | Excluded
    | Late
    | WrongShares
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
    """One frame for each of `receivers`."""

    receivers: tuple[int, ...]
    frame: bytes = field(repr=False)


@dataclass(frozen=True)
class ServerStep:
    """Frames to send, in order, and what happened."""

    outgoing: tuple[Outgoing, ...] = ()
    events: tuple[ServerEvent, ...] = ()
