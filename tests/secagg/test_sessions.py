"""Whole sessions under every pattern of drop-outs: the total is exact, or nothing is released.

A small model of the protocol, a dozen lines of sets, predicts from the absences alone what every sum must
come to. The machines, joined by the fake wire, must agree with it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import messages as m
from secagg.errors import (
    SERVER,
    CohortChanged,
    OutOfOrder,
    ParameterError,
    StateError,
    SumFailed,
    TooFewClients,
)
from secagg.events import Abandoned, Missing, SatOut, SumReleased
from secagg.local_session import Absent, LocalSession, Stage
from secagg.sum_spec import SumSpec, Table
from secagg.testing import faulty_wire as schedules
from secagg.testing.faulty_wire import (
    SET_UP,
    Packet,
    losing,
)
from secagg.transitions import ClientState, ServerState
from secagg.trust_levels import Trust
from tests.attacks.rig import Rig, residue_table
from tests.secagg.share_log import LoggedWire
from tests.secagg.truth import (
    GROUPED,
    MEMBERS,
    Question,
    Session,
    Truth,
    check_exact,
    check_share_log,
    mixed_parts,
    seeded_machines,
    session_of,
    without,
)

BOTH = pytest.mark.parametrize("trust", list(Trust))
DROPOUT = 0.2
QUICK = settings(deadline=None, derandomize=True, database=None)
Result: TypeAlias = frozenset[int] | type[SumFailed]  # the contributors, or why there are none

# --- the model ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """A session, who is absent from it when, and what is asked."""

    trust: Trust
    members: tuple[int, ...]
    corrupt: int
    absences: frozenset[tuple[int, Stage, int]]
    questions: tuple[Question, ...]
    sums: int
    bits: tuple[int, ...]
    choice: int

    @property
    def absent(self) -> Absent:
        return schedules.explicit(*self.absences)

    def present(self, members: Collection[int], stage: Stage, sum_index: int) -> frozenset[int]:
        return frozenset(k for k in members if (k, stage, sum_index) not in self.absences)

    @property
    def cohort(self) -> frozenset[int]:
        return self.present(self.members, Stage.ADVERTISE, SET_UP)

    @property
    def table(self) -> Table:
        """One kind asked once, and two that share a private vector."""
        parts = mixed_parts(self.bits, len(self.members), max(len(self.cohort), 1), self.choice)
        return Table(
            {
                "once": SumSpec(parts=parts),
                "first": SumSpec(parts=parts, times=2, group="pair"),
                "second": SumSpec(parts=parts[:1], group="pair"),
            }
        )


@dataclass
class Model:
    """What must happen, computed from sets alone."""

    plan: Plan
    groups: dict[str, tuple[int, frozenset[int], bool]] = field(default_factory=dict)
    next_sum: int = 0
    members: frozenset[int] = frozenset()

    def set_up(self) -> bool:
        plan = self.plan
        try:
            self.threshold = plan.trust.choose_threshold(
                len(plan.cohort), corrupt=plan.corrupt, dropout=DROPOUT
            )
        except ParameterError:
            return False
        self.least = max(self.threshold, plan.corrupt + 2)
        self.members = plan.present(plan.cohort, Stage.SHARE, SET_UP)
        return len(plan.cohort) >= plan.corrupt + 2 and len(self.members) >= self.least

    def ask(self, question: Question) -> Result:
        group = self.plan.table.group_of(question.kind)
        known = self.groups.get(group)
        later = known is not None and known[0] == question.round_number
        roster = self.members
        if known is not None and later:
            if not known[2]:
                return CohortChanged
            roster = known[1]
        index, self.next_sum = self.next_sum, self.next_sum + 1
        result, survivors, intact = self._sum(index, roster, later)
        self.groups[group] = (question.round_number, survivors, intact)
        return result

    def _sum(self, index: int, roster: frozenset[int], later: bool) -> tuple[Result, frozenset[int], bool]:
        plan = self.plan
        survivors = plan.present(roster, Stage.MASK, index)
        if len(survivors) < self.least:
            return TooFewClients, survivors, False
        if later and survivors != roster:
            return CohortChanged, survivors, False
        signers = survivors
        if plan.trust is Trust.MALICIOUS:
            signers = plan.present(survivors, Stage.CONFIRM, index)
        if len(signers) < self.threshold:
            return TooFewClients, survivors, False
        revealers = plan.present(signers, Stage.REVEAL, index)
        if len(revealers) < self.threshold:
            return TooFewClients, survivors, False
        return survivors, survivors, revealers == survivors


# --- strategies --------------------------------------------------------------------------------------

SET_UP_STAGES = (Stage.ADVERTISE, Stage.SHARE)
SUM_STAGES = (Stage.MASK, Stage.CONFIRM, Stage.REVEAL)
KINDS = ("once", "first", "second", "first")


@st.composite
def plans(draw: st.DrawFn, *, most_bits: int = 4) -> Plan:
    """Any session of up to four sums in one or two rounds, with any absences."""
    members = draw(
        st.lists(st.integers(0, (1 << 32) - 1), min_size=draw(st.integers(2, 7)), max_size=7, unique=True)
    )
    rounds = draw(st.lists(st.permutations(range(4)), min_size=1, max_size=2))
    questions = tuple(
        Question(KINDS[at], number, b"%d %d" % (number, at))
        for number, row in enumerate(rounds)
        for at in row
    )[draw(st.integers(0, 2)) :][: draw(st.integers(0, 4))]
    # Rates rather than lists of absences: of those, small ones are drawn far more often than large ones.
    rates = {stage: draw(st.sampled_from((0.0, 0.05, 0.2, 0.5))) for stage in SUM_STAGES}
    rates |= dict.fromkeys(SET_UP_STAGES, draw(st.sampled_from((0.0, 0.05, 0.2))))
    absent = schedules.at_random(draw(st.binary(min_size=8, max_size=8)), rates)
    moments = [(stage, SET_UP) for stage in SET_UP_STAGES]
    moments += [(stage, k) for stage in SUM_STAGES for k in range(len(questions))]
    absences = frozenset((k, *moment) for k in members for moment in moments if absent(k, *moment))
    return Plan(
        trust=draw(st.sampled_from(Trust)),
        members=tuple(members),
        corrupt=draw(st.integers(0, min(1, len(members) - 2))),
        absences=absences,
        questions=questions,
        sums=max(len(questions), 1),
        bits=tuple(draw(st.lists(st.integers(1, 64), min_size=1, max_size=most_bits))),
        choice=draw(st.integers(0, 3)),
    )


# --- running a plan ----------------------------------------------------------------------------------


def wire_for(plan: Plan, truth: Truth) -> LoggedWire:
    server, clients = seeded_machines(
        members=plan.members,
        table=plan.table,
        trust=plan.trust,
        corrupt=plan.corrupt,
        dropout=DROPOUT,
        sums=plan.sums,
    )
    return LoggedWire(server, clients, truth.answer, schedule=losing(plan.absent))


def run_plan(plan: Plan) -> None:
    """The machines do what the model says, and release nothing else."""
    truth, model = Truth(plan.members, plan.table, len(plan.cohort)), Model(plan)
    wire = wire_for(plan, truth)
    if not model.set_up():
        with pytest.raises(TooFewClients):
            wire.open()
        assert wire.server.state is ServerState.FAILED
        assert wire.shares.entries == []
        return
    wire.open()
    for question in plan.questions:
        ask_and_compare(wire, truth, model, question)
    # No client found fault with an honest server; the wire lost frames, but forged none.
    assert wire.failures == {}
    assert wire.server.members == tuple(sorted(model.members))


def ask_and_compare(wire: LoggedWire, truth: Truth, model: Model, question: Question) -> None:
    index, result = model.next_sum, model.ask(question)
    if isinstance(result, frozenset):
        total = wire.ask(question.kind, question.payload, round_number=question.round_number)
        released = wire.server_events[-1]
        assert isinstance(released, SumReleased)
        assert released.sum_index == index
        assert released.contributors == tuple(sorted(result))
        check_exact(total, truth, question, result)
    else:
        with pytest.raises(result) as failure:
            wire.ask(question.kind, question.payload, round_number=question.round_number)
        assert type(failure.value) is result
        check_nothing_released(wire, model, index)
    check_share_log(wire)
    assert wire.server.state is ServerState.READY


def check_nothing_released(wire: LoggedWire, model: Model, index: int) -> None:
    assert all(event.sum_index < index for event in wire.server_events if isinstance(event, SumReleased))
    session = session_of(wire)
    assert wire.shares.most_shares(session, index) < model.threshold


@settings(QUICK, max_examples=100)
@given(plans())
def test_any_pattern_of_absences_gives_an_exact_total_or_a_clean_abort(plan: Plan) -> None:
    run_plan(plan)


@pytest.mark.slow
@settings(QUICK, max_examples=5000)
@given(plans(most_bits=16))
def test_any_pattern_of_absences_gives_an_exact_total_or_a_clean_abort_at_length(plan: Plan) -> None:
    run_plan(plan)


@BOTH
@pytest.mark.parametrize("choice", range(4))
def test_every_number_of_bits_in_one_session(trust: Trust, choice: int) -> None:
    absences = {(7, Stage.MASK, 0), (9, Stage.REVEAL, 0), (3, Stage.MASK, 1), (7, Stage.CONFIRM, 1)}
    run_plan(
        Plan(
            trust=trust,
            members=(3, 7, 9, 1 << 31, 5),
            corrupt=0,
            absences=frozenset(absences),
            questions=(Question("once", 0, b"one"), Question("once", 1, b"two")),
            sums=2,
            bits=tuple(range(1, 65)),
            choice=choice,
        )
    )


@settings(QUICK, max_examples=60)
@given(plans())
def test_a_local_session_comes_to_the_same_results(plan: Plan) -> None:
    truth, model = Truth(plan.members, plan.table, len(plan.cohort)), Model(plan)
    server, clients = seeded_machines(
        members=plan.members,
        table=plan.table,
        trust=plan.trust,
        corrupt=plan.corrupt,
        dropout=DROPOUT,
        sums=plan.sums,
    )
    session = LocalSession(server, clients, truth.answer, absent=plan.absent)
    if not model.set_up():
        with pytest.raises(TooFewClients):
            session.open()
        return
    session.open()
    for question in plan.questions:
        result = model.ask(question)
        if isinstance(result, frozenset):
            total = session.ask(question.kind, question.payload, round_number=question.round_number)
            check_exact(total, truth, question, result)
        else:
            with pytest.raises(result):
                session.ask(question.kind, question.payload, round_number=question.round_number)
    session.end()
    assert {client.state for client in clients.values()} == {ClientState.ENDED}


# --- drop-outs by hand -------------------------------------------------------------------------------


@BOTH
def test_a_client_that_misses_one_sum_is_back_in_the_next(trust: Trust) -> None:
    session = Session(trust)
    wire = session.opened(losing(schedules.returns_next_sum({5: (Stage.MASK, 0), 7: (Stage.REVEAL, 1)})))
    assert session.ask(wire, b"0", round_number=0) == without(5)
    assert session.ask(wire, b"1", round_number=1) == MEMBERS  # 7 left after its input arrived
    assert session.ask(wire, b"2", round_number=2) == MEMBERS
    assert wire.failures == {}


@BOTH
def test_a_client_that_leaves_for_good_is_asked_again_but_not_waited_for(trust: Trust) -> None:
    session = Session(trust)
    wire = session.opened(losing(schedules.leaves_for_good({3: (Stage.CONFIRM, 0)})))
    assert session.ask(wire, b"0", round_number=0) == MEMBERS
    assert session.ask(wire, b"1", round_number=1) == without(3)
    assert Missing((3,), "masking") in wire.server_events


@BOTH
def test_a_drop_in_the_midst_of_a_group_ends_the_group_and_not_the_session(trust: Trust) -> None:
    session = Session(trust, table=GROUPED)
    wire = session.opened(losing(schedules.explicit((5, Stage.MASK, 1))))
    assert session.ask(wire, b"0", round_number=0) == MEMBERS
    with pytest.raises(CohortChanged, match="in the midst"):
        session.ask(wire, b"1", round_number=0)
    assert {member for member, event in wire.client_events if event == Abandoned(1)} == set(without(5))
    assert wire.shares.most_shares(session_of(wire), 1) == 0
    with pytest.raises(CohortChanged, match="last total stands"):
        session.ask(wire, b"2", round_number=0)
    assert session.ask(wire, b"3", round_number=1) == MEMBERS
    assert wire.failures == {}


@BOTH
def test_a_client_that_did_not_see_a_sum_confirmed_sits_the_group_out(trust: Trust) -> None:
    rig = Rig(clients=4, trust=trust, table=residue_table(times=3))
    cohort = rig.set_up(threshold=3)
    rig.masked(rig.query(cohort, 0, range(4), payload=b"0"), [0])
    (declined,) = rig.send(0, rig.query(cohort, 1, range(4), payload=b"1"))
    assert declined == m.Decline(cohort.session, 1)
    assert rig.events[0][-1] == SatOut(1, "vector")
    assert rig.machines[0].state is ClientState.READY
    # The next round is another group: it takes part again.
    assert rig.masked(rig.query(cohort, 2, range(4), payload=b"2", round_number=1), [0])


@BOTH
def test_a_client_may_decline_and_the_sum_goes_on_without_it(trust: Trust) -> None:
    session = Session(trust)
    wire = session.opened()
    wire.begin("sum", b"0", round_number=0)
    for packet in [packet for packet in wire.waiting if packet.receiver == 5]:
        wire.waiting.remove(packet)
        wire.clients[5].receive(packet.frame)
        wire.send(5, SERVER, wire.clients[5].decline(0))
    wire.run()
    (released,) = wire.finish()
    assert released.contributors == without(5)
    assert not any(isinstance(event, Missing) for event in wire.server_events)
    assert session.ask(wire, b"1", round_number=1) == MEMBERS


TOO_FEW = [
    (Trust.CURIOUS, Stage.MASK, 0),
    (Trust.CURIOUS, Stage.REVEAL, 2),
    (Trust.MALICIOUS, Stage.MASK, 0),
    (Trust.MALICIOUS, Stage.CONFIRM, 0),
    (Trust.MALICIOUS, Stage.REVEAL, 2),
]


@pytest.mark.parametrize(("trust", "stage", "shares"), TOO_FEW)
def test_too_few_at_any_stage_release_nothing_and_the_session_lives_on(
    trust: Trust, stage: Stage, shares: int
) -> None:
    session = Session(trust)
    wire = session.opened(losing(schedules.explicit(*((k, stage, 0) for k in (2, 3, 5)))))
    with pytest.raises(TooFewClients):
        session.ask(wire, b"0", round_number=0)
    assert wire.shares.most_shares(session_of(wire), 0) == shares  # the threshold is 3
    assert session.ask(wire, b"1", round_number=1) == MEMBERS


@pytest.mark.parametrize("asked_again", [False, True])
@pytest.mark.parametrize(("trust", "stage", "shares"), TOO_FEW)
def test_after_an_abort_no_client_reveals_anything_for_that_sum(
    trust: Trust, stage: Stage, shares: int, asked_again: bool
) -> None:
    session = Session(trust)
    wire = session.opened(losing(schedules.explicit(*((k, stage, 0) for k in (2, 3, 5)))))
    with pytest.raises(TooFewClients):
        session.ask(wire, b"0", round_number=0)
    heard = set(without(2, 3, 5))
    if asked_again:  # then also those who missed that the sum was given up
        wire.begin("sum", b"1", round_number=1)
        wire.run()
        heard = set(MEMBERS)
    before = list(wire.shares.entries)
    survivors = m.Survivors(session_of(wire), 0, b"\x1f").encode()
    for member in heard:
        wire.deliver(Packet(len(wire.sent), SERVER, member, survivors, stage, 0))
    assert wire.shares.entries == before
    assert {type(error) for error in wire.failures.values()} == {OutOfOrder}
    assert set(wire.failures) == heard


@pytest.mark.parametrize("stage", [Stage.ADVERTISE, Stage.SHARE])
@BOTH
def test_too_few_in_set_up_fail_the_session_and_tell_those_who_came(trust: Trust, stage: Stage) -> None:
    absent = schedules.explicit(*((k, stage, SET_UP) for k in (2, 3, 5, 7)))
    wire = Session(trust).wire(losing(absent))
    with pytest.raises(TooFewClients):
        wire.open()
    assert wire.server.state is ServerState.FAILED
    assert wire.clients[11].state is ClientState.ENDED
    assert wire.shares.entries == []
    with pytest.raises(StateError):
        wire.ask("sum")


# --- schedules ---------------------------------------------------------------------------------------

MOMENTS = [(k, stage, index) for k in range(40) for stage in Stage for index in range(-1, 4)]


def test_a_random_schedule_depends_on_nothing_but_its_seed_and_the_moment() -> None:
    rates = {Stage.MASK: 0.25, Stage.REVEAL: 1.0}
    one, again = schedules.at_random(b"seed", rates), schedules.at_random(b"seed", rates)
    answers = {moment: one(*moment) for moment in MOMENTS}
    assert {moment: again(*moment) for moment in reversed(MOMENTS)} == answers
    assert answers != {moment: schedules.at_random(b"other", rates)(*moment) for moment in MOMENTS}
    assert all(answers[k, Stage.REVEAL, index] for k, stage, index in MOMENTS)
    assert not any(answers[k, Stage.SHARE, index] for k, stage, index in MOMENTS)
    masked = [answers[moment] for moment in MOMENTS if moment[1] is Stage.MASK]
    # 200 tosses of a coin that is 1/4: outside of 15 to 95 with a probability below 1e-8.
    assert 15 < sum(masked) < 95


def test_schedules_combine() -> None:
    gone = schedules.leaves_for_good({1: (Stage.CONFIRM, 1)})
    away = schedules.returns_next_sum({2: (Stage.MASK, 0)})
    both = schedules.either(gone, away)
    assert {moment for moment in MOMENTS if both(*moment)} == {
        *((1, stage, 1) for stage in (Stage.CONFIRM, Stage.REVEAL)),
        *((1, stage, index) for stage in Stage for index in (2, 3)),
        *((2, stage, 0) for stage in (Stage.MASK, Stage.CONFIRM, Stage.REVEAL)),
    }
