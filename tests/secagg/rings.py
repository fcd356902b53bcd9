"""Small rings for tests: how they are set up, who will stand where, and what their sums must come to.

The model of a session is plain sets. It reads from the server's frames who is whose neighbour, and predicts
from the absences alone who is stranded, what every sum comes to and which shares get out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from secagg import messages as m
from secagg.errors import CohortChanged, ParameterError, SumFailed, TooFewClients
from secagg.events import SumReleased
from secagg.graph_parameters import RingParameters, least_connected, ring_parameters
from secagg.insecure_seeds import SeededRandom
from secagg.local_session import Absent, Stage
from secagg.message_records import Format, parse_neighbours
from secagg.sum_spec import SumSpec, Table
from secagg.testing import faulty_wire as schedules
from secagg.testing.faulty_wire import SET_UP, Packet, Schedule, faultless
from secagg.topology import RingGraph
from secagg.trust_levels import MAX_COMPLETE, Trust, dropouts_allowed
from tests.attacks.rig import residue_table
from tests.secagg.share_log import Kind, LoggedWire
from tests.secagg.truth import Question, Truth, check_exact, decoded, mixed_parts, seeded_machines

NONCE_BYTES = 32
Result: TypeAlias = frozenset[int] | type[SumFailed]  # the contributors, or why there are none


@dataclass(frozen=True)
class Ring:
    """What a session on a ring is set up with. The bits are few, or no ring would be small."""

    members: tuple[int, ...]
    corrupt: int = 0
    dropout: float = 0.2
    min_neighbours: int = 2
    security_bits: int = 4
    liveness_bits: int = 2
    seed: bytes = b"seed"

    def machines(self, table: Table, *, sums: int) -> tuple[Any, dict[int, Any]]:
        return seeded_machines(
            members=self.members,
            table=table,
            trust=Trust.CURIOUS,
            corrupt=self.corrupt,
            dropout=self.dropout,
            sums=sums,
            seed=self.seed,
            graph="ring",
            min_neighbours=self.min_neighbours,
            security_bits=self.security_bits,
            liveness_bits=self.liveness_bits,
        )

    def parameters(self, cohort: int) -> RingParameters:
        """What the finder chooses for a cohort of this size; raises where there is no ring."""
        return ring_parameters(
            cohort,
            corrupt=self.corrupt,
            dropped=dropouts_allowed(cohort, self.dropout),
            sigma=self.security_bits,
            eta=self.liveness_bits,
            min_neighbours=self.min_neighbours,
        )

    def least(self, cohort: int) -> int:
        """The fewest survivors of a sum."""
        found = self.parameters(cohort)
        connected = least_connected(cohort, found.neighbours, corrupt=self.corrupt, sigma=self.security_bits)
        return max(found.threshold, self.corrupt + 2, connected)

    def around(self, cohort: Collection[int]) -> list[int]:
        """The ids of a cohort in the order in which the seeded server will put them around the circle."""
        random = SeededRandom(self.seed, b"server")
        random(NONCE_BYTES)  # of the invitation
        drawn = RingGraph.draw(len(cohort), self.parameters(len(cohort)).neighbours, random)
        ids = sorted(cohort)
        return [ids[position] for position in drawn._order]


# --- absences ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arc:
    """So many in a row around the circle are missing, from a place on."""

    start: int
    length: int
    stage: Stage
    sum_index: int

    def absences(self, circle: list[int]) -> Iterable[tuple[int, Stage, int]]:
        for step in range(self.length):
            yield circle[(self.start + step) % len(circle)], self.stage, self.sum_index


@dataclass(frozen=True)
class RingPlan:
    """A session on a ring, who is absent from it when, and what is asked."""

    ring: Ring
    scattered: frozenset[tuple[int, Stage, int]] = frozenset()
    arcs: tuple[Arc, ...] = ()
    questions: tuple[Question, ...] = ()
    bits: tuple[int, ...] = (20,)
    choice: int = 0

    @property
    def sums(self) -> int:
        return max(len(self.questions), 1)

    @property
    def cohort(self) -> frozenset[int]:
        missing = {member for member, stage, _ in self.scattered if stage is Stage.ADVERTISE}
        return frozenset(self.ring.members) - missing

    def absences(self) -> frozenset[tuple[int, Stage, int]]:
        try:
            circle = self.ring.around(self.cohort)
        except ParameterError:
            return self.scattered  # there will be no ring
        return self.scattered.union(*(arc.absences(circle) for arc in self.arcs))

    @property
    def absent(self) -> Absent:
        return schedules.explicit(*self.absences())

    @property
    def table(self) -> Table:
        """One kind asked once, and two that share a private vector."""
        parts = mixed_parts(self.bits, len(self.ring.members), max(len(self.cohort), 1), self.choice)
        return Table(
            {
                "once": SumSpec(parts=parts),
                "first": SumSpec(parts=parts, times=2, group="pair"),
                "second": SumSpec(parts=parts[:1], group="pair"),
            }
        )


# --- the model ---------------------------------------------------------------------------------------


def neighbourhoods(packets: Iterable[Packet], sums: int) -> dict[int, frozenset[int]]:
    """Whom each client was told about, itself included."""
    told: dict[int, frozenset[int]] = {}
    for packet in packets:
        message = decoded(packet.frame)
        if isinstance(message, m.Neighbours) and isinstance(packet.receiver, int):
            adverts = parse_neighbours(
                message.adverts, Format(sums, signed=False), size=message.size, most=MAX_COMPLETE
            )
            told[packet.receiver] = frozenset(advert.member for advert in adverts.values())
    return told


@dataclass
class RingModel:
    """What must happen, computed from sets alone."""

    plan: RingPlan
    groups: dict[str, tuple[int, frozenset[int], bool]] = field(default_factory=dict)
    next_sum: int = 0
    members: frozenset[int] = frozenset()
    hoods: Mapping[int, frozenset[int]] = field(default_factory=dict)
    shares: Counter[tuple[int, Kind]] = field(default_factory=Counter)  # that got out in the last sum

    def __post_init__(self) -> None:
        self._absences = self.plan.absences()

    def present(self, members: Collection[int], stage: Stage, sum_index: int) -> frozenset[int]:
        return frozenset(k for k in members if (k, stage, sum_index) not in self._absences)

    def set_up(self) -> bool:
        """Whether there will be a session, but for who is stranded."""
        ring, cohort = self.plan.ring, self.plan.cohort
        try:
            found = ring.parameters(len(cohort))
        except ParameterError:
            return False
        self.threshold, self.neighbours = found.threshold, found.neighbours
        self.least = ring.least(len(cohort))
        self.members = self.present(cohort, Stage.SHARE, SET_UP)
        return len(cohort) >= ring.corrupt + 2 and len(self.members) >= self.least

    def meet(self, hoods: Mapping[int, frozenset[int]]) -> frozenset[int]:
        """Learn who is whose neighbour; who is stranded."""
        self.hoods = hoods
        shared = self.members
        while lonely := {k for k in self.members if not self._reaches(k, self.members)}:
            self.members -= lonely
        return shared - self.members

    def _reaches(self, member: int, present: frozenset[int]) -> bool:
        return len(self.hoods[member] & present) >= self.threshold

    def _is_connected(self, present: frozenset[int]) -> bool:
        found: frozenset[int] = frozenset()
        edge = frozenset(sorted(present)[:1])
        while edge:
            found |= edge
            edge = present & {k for one in edge for k in self.hoods[one]} - found
        return found == present

    def ask(self, question: Question) -> Result:
        group = self.plan.table.group_of(question.kind)
        known = self.groups.get(group)
        later = known is not None and known[0] == question.round_number
        roster = self.members
        self.shares.clear()
        if known is not None and later:
            if not known[2]:
                return CohortChanged
            roster = known[1]
        if len(roster) < self.least:
            return TooFewClients  # nobody is asked
        index, self.next_sum = self.next_sum, self.next_sum + 1
        result, survivors, intact = self._sum(index, roster, later)
        self.groups[group] = (question.round_number, survivors, intact)
        return result

    def _sum(self, index: int, roster: frozenset[int], later: bool) -> tuple[Result, frozenset[int], bool]:
        survivors = self.present(roster, Stage.MASK, index)
        if len(survivors) < self.least:
            return TooFewClients, survivors, False
        if later and survivors != roster:
            return CohortChanged, survivors, False
        if not all(self._reaches(k, survivors) for k in roster) or not self._is_connected(survivors):
            return TooFewClients, survivors, False
        revealers = self.present(survivors, Stage.REVEAL, index)
        self._count_shares(roster, survivors, revealers)
        if not all(self._reaches(k, revealers) for k in roster):
            return TooFewClients, survivors, False
        return survivors, survivors, revealers == survivors

    def _count_shares(
        self, roster: frozenset[int], survivors: frozenset[int], revealers: frozenset[int]
    ) -> None:
        """Every revealer lets one share go for each of its neighbourhood in the roster."""
        for dealer in roster:
            kind = Kind.SELF_MASK if dealer in survivors else Kind.MASK_KEY
            self.shares[dealer, kind] = len(self.hoods[dealer] & revealers)
        self.shares = +self.shares


# --- sessions by hand --------------------------------------------------------------------------------

# Six neighbours each and a threshold of three; fourteen must survive, so that six may drop: three on either
# side of somebody, or twice three in a row, which is what cuts the ring.
SMALL = Ring(tuple(range(140, 160)), corrupt=2, min_neighbours=4, security_bits=1, liveness_bits=1)
HALF, THRESHOLD, LEAST = 3, 3, 14


@dataclass
class RingSession:
    """Twenty clients on a ring, each sum asked with a payload of its own."""

    ring: Ring = SMALL
    sums: int = 4

    def __post_init__(self) -> None:
        size = len(self.ring.members)
        assert (self.ring.parameters(size).neighbours, self.ring.parameters(size).threshold) == (6, THRESHOLD)
        assert self.ring.least(size) == LEAST
        self.table = residue_table(size, times=3, kinds=("sum",))
        self.truth = Truth(self.ring.members, self.table, size)
        self.circle = self.ring.around(self.ring.members)

    def wire(self, schedule: Schedule = faultless) -> LoggedWire:
        server, clients = self.ring.machines(self.table, sums=self.sums)
        return LoggedWire(server, clients, self.truth.answer, schedule=schedule)

    def opened(self, schedule: Schedule = faultless) -> LoggedWire:
        wire = self.wire(schedule)
        wire.open()
        return wire

    def ask(self, wire: LoggedWire, payload: bytes, *, round_number: int) -> set[int]:
        """The contributors of an exact total."""
        total = wire.ask("sum", payload, round_number=round_number)
        released = [event for event in wire.server_events if isinstance(event, SumReleased)][-1]
        check_exact(total, self.truth, Question("sum", round_number, payload), released.contributors)
        return set(released.contributors)

    def without(self, *members: int) -> set[int]:
        return set(self.ring.members) - set(members)

    def at(self, *places: int) -> list[int]:
        """Who stands at these places around the circle."""
        return [self.circle[place % len(self.circle)] for place in places]
