"""What clients really put into their sums, to compare totals with, and seeded machines to sum it.

Every member fills a bucket of its own in every part, with a value of its own for every query: a client that
is lost, counted twice or taken from another sum shows in the total.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secagg import messages as m
from secagg.client_memory import Memory, VolatileMemory
from secagg.errors import PeerError
from secagg.events import Asked, SessionReady, SumReleased
from secagg.graph_parameters import GraphChoice
from secagg.hashing import digest
from secagg.hybrid_keys import KeyAgreement
from secagg.input_encoding import Encoding
from secagg.insecure_seeds import seeded_identity, seeded_registry
from secagg.policy import Policy
from secagg.session_params import SessionParams
from secagg.sum_spec import L2, Bound, Count, LInf, Part, Residue, SumSpec, Table, Total
from secagg.testing import InsecureSeededClient, InsecureSeededServer
from secagg.testing.faulty_wire import Packet, Schedule, faultless
from secagg.trust_levels import Trust
from tests.attacks.rig import residue_table
from tests.secagg.share_log import LoggedWire

NO_LIMIT = 1 << 32


# --- specs -------------------------------------------------------------------------------------------


def levels(bits: int, cohort: int) -> int:
    """What one of `cohort` clients may add to a real part, counted in grid points."""
    return ((1 << (bits - 1)) - 1) // cohort


def bound_of(bits: int, members: int, cohort: int, choice: int) -> Bound:
    """One of the four bounds for a part of `bits` bits, or a residue where the chosen one has no room.

    The limit of a real part makes its grid the whole numbers, so that whole values need no rounding.
    """
    if choice == 1 and (1 << bits) - 1 >= members:
        return Count(((1 << bits) - 1) // members)
    if choice in (2, 3) and bits > members.bit_length():
        limit = float(levels(bits, cohort))
        return L2(limit) if choice == 2 else LInf(limit)
    return Residue()


def mixed_parts(bits: Sequence[int], members: int, cohort: int, choice: int) -> tuple[Part, ...]:
    """One part for every entry of `bits`, with bounds in turn, for all of `members` or fewer."""
    return tuple(
        Part(
            name=f"p{at}", size=members, bits=width, bound=bound_of(width, members, cohort, (at + choice) % 4)
        )
        for at, width in enumerate(bits)
    )


# --- values ------------------------------------------------------------------------------------------


class Truth:
    """The private values of all members, and what their totals must be."""

    def __init__(self, members: Collection[int], table: Table, cohort: int) -> None:
        self._bucket = {member: at for at, member in enumerate(members)}
        self.table = table
        self._cohort = cohort

    def answer(self, member: int, asked: Asked) -> dict[str, NDArray[Any]]:
        return {part.name: self._values(member, asked.payload, part) for part in asked.spec.parts}

    def _values(self, member: int, payload: bytes, part: Part) -> NDArray[Any]:
        real = isinstance(part.bound, (L2, LInf))
        values = np.zeros(part.size, np.float64 if real else np.uint64)
        values[self._bucket[member]] = self._value(member, payload, part)
        return values

    def _value(self, member: int, payload: bytes, part: Part) -> int:
        draw = int.from_bytes(digest("test value", payload, part.name.encode(), b"%d" % member), "big")
        match part.bound:
            case Residue():
                return 1 + draw % ((1 << part.bits) - 1) if part.bits > 1 else 1
            case Count(limit):
                return 1 + draw % limit
            case _:
                # Below 2^52 every whole number is a float.
                most = min(levels(part.bits, self._cohort), 1 << 52)
                return (1 + draw % most) * (-1 if draw >> 255 else 1)

    def total(self, kind: str, payload: bytes, contributors: Collection[int]) -> dict[str, list[int]]:
        """The plain sum, in Python's integers."""
        return {
            part.name: [
                self._value(member, payload, part) if member in contributors else 0 for member in self._bucket
            ]
            for part in self.table[kind].parts
        }


def tampering(wire: LoggedWire, released: SumReleased, spec: SumSpec) -> list[NDArray[np.uint64]]:
    """What the wire itself added to a total: bits changed in masked inputs on their way, by part.

    Under `curious_server` they are not signed: a damaged one is the same as a client that lies about its
    input. (A change of its words, or of its hidden count, does not lead to a total.)
    """
    encoding = Encoding(spec, cohort=1)  # which matters to real parts only
    session = [event.session for event in wire.server_events if isinstance(event, SessionReady)][-1]
    added = [np.zeros(part.size, np.uint64) for part in spec.parts]
    for member in released.contributors:
        sent = _first_input(wire.sent, member, session, released.sum_index)
        arrived = _first_input(wire.transcript, member, session, released.sum_index)
        before, after = encoding.unpack(sent), encoding.unpack(arrived)
        for total, one, other in zip(added, after, before, strict=False):  # the hidden count is the last
            total += one.astype(np.uint64) - other.astype(np.uint64)
    return added


def _first_input(packets: Sequence[Packet], member: int, session: bytes, sum_index: int) -> bytes:
    """The first well-formed masked input that `member` sent for a sum, or that arrived in its name."""
    return next(
        message.data
        for packet in packets
        if packet.sender == member
        and isinstance(message := decoded(packet.frame), m.MaskedInput)
        and (message.context, message.sum_index) == (session, sum_index)
    )


def decoded(frame: bytes) -> m.Message | None:
    """The message in `frame`, if there is one."""
    try:
        return m.decode(frame, sender="server", limit=NO_LIMIT)
    except PeerError:
        return None


# --- machines ----------------------------------------------------------------------------------------


def seeded_machines(
    *,
    members: Sequence[int],
    table: Table,
    trust: Trust,
    corrupt: int = 0,
    dropout: Fraction | float = 0.5,
    sums: int = 3,
    seed: bytes = b"seed",
    max_query_bytes: int = 1 << 12,
    max_cohort: int = 0,
    memories: Mapping[int, Memory] | None = None,
    graph: GraphChoice | str = GraphChoice.AUTO,
    min_neighbours: int = 2,
    security_bits: int = 40,
    liveness_bits: int = 30,
    key_agreement: KeyAgreement = KeyAgreement.X25519,
    name_members: bool = False,
    min_difference: int = 0,
) -> tuple[InsecureSeededServer, dict[int, InsecureSeededClient]]:
    """A server and its clients; everything they draw comes from `seed`.

    Few bits of security make small rings: what they are to show does not depend on luck.
    """
    registry = seeded_registry(b"registry", list(members)) if trust is Trust.MALICIOUS else None
    policy = Policy(
        trust=trust,
        corrupt=corrupt,
        min_cohort=corrupt + 2,
        max_cohort=max_cohort or len(members),
        min_contributors=corrupt + 2,
        max_sums=sums,
        unnoised_sums=1 << 20,
        max_query_bytes=max_query_bytes,
        security_bits=security_bits,
        key_agreement=key_agreement,
        min_difference=min_difference,
    )
    server = InsecureSeededServer(
        seed=seed,
        table=table,
        registry=registry,
        params=SessionParams(
            trust=trust,
            sums=sums,
            corrupt=corrupt,
            dropout=dropout,
            min_cohort=corrupt + 2,
            max_cohort=max_cohort or len(members),
            min_contributors=corrupt + 2,
            graph=GraphChoice.parse(graph),
            min_neighbours=min_neighbours,
            security_bits=security_bits,
            liveness_bits=liveness_bits,
            key_agreement=key_agreement,
            name_members=name_members,
        ),
    )
    clients = {
        member: InsecureSeededClient(
            seed=seed,
            member=member,
            table=table,
            policy=policy,
            memory=memories[member] if memories else VolatileMemory(),
            identity=seeded_identity(b"registry", member) if registry else None,
            registry=registry,
        )
        for member in members
    }
    return server, clients


# --- sessions ---


@dataclass(frozen=True)
class Question:
    kind: str
    round_number: int
    payload: bytes


def check_exact(total: Total, truth: Truth, question: Question, contributors: Collection[int]) -> None:
    expected = truth.total(question.kind, question.payload, contributors)
    assert {name: [int(v) for v in values] for name, values in total.parts.items()} == expected
    assert total.count == len(contributors)


def check_total(wire: LoggedWire, truth: Truth, question: Question, total: Total) -> None:
    """A total that went over a hostile wire: exact, but for what the wire did to inputs on their way."""
    event = [event for event in wire.server_events if isinstance(event, SumReleased)][-1]
    spec = truth.table[question.kind]
    expected = truth.total(question.kind, question.payload, event.contributors)
    for part, added in zip(spec.parts, tampering(wire, event, spec), strict=True):
        wanted = np.array(expected[part.name], np.uint64) + added
        assert list(total[part.name]) == list(wanted & np.uint64((1 << part.bits) - 1))
    assert total.count == len(event.contributors)


def check_share_log(wire: LoggedWire) -> None:
    assert wire.shares.both_kinds() == set()
    assert wire.shares.repeated() == set()


def session_of(wire: LoggedWire) -> bytes:
    return next(event.session for event in wire.server_events if isinstance(event, SessionReady))


MEMBERS = (2, 3, 5, 7, 11)
RESIDUES = Table({"sum": SumSpec(parts=(Part(name="x", size=5, bits=32, bound=Residue()),))})
GROUPED = residue_table(5, times=3, kinds=("sum",))


@dataclass
class Session:
    """Five clients on a wire, each sum asked with a payload of its own."""

    trust: Trust
    table: Table = RESIDUES
    sums: int = 4

    def wire(self, schedule: Schedule = faultless) -> LoggedWire:
        self.truth = Truth(MEMBERS, self.table, len(MEMBERS))
        server, clients = seeded_machines(
            members=MEMBERS, table=self.table, trust=self.trust, dropout=0.2, sums=self.sums
        )
        return LoggedWire(server, clients, self.truth.answer, schedule=schedule)

    def opened(self, schedule: Schedule = faultless) -> LoggedWire:
        wire = self.wire(schedule)
        wire.open()
        return wire

    def ask(self, wire: LoggedWire, payload: bytes, *, round_number: int) -> tuple[int, ...]:
        """The contributors of an exact total."""
        total = wire.ask("sum", payload, round_number=round_number)
        released = [event for event in wire.server_events if isinstance(event, SumReleased)][-1]
        check_exact(total, self.truth, Question("sum", round_number, payload), released.contributors)
        return released.contributors


def without(*members: int) -> tuple[int, ...]:
    return tuple(k for k in MEMBERS if k not in members)
