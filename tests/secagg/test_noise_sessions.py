"""Whole sessions with noise under every pattern of drop-outs: the surplus is removed exactly, or not at all.

A small model of sets predicts what every sum must come to, as in the sessions without noise. The total is
then compared, bit for bit, with what a witness saw the contributors encode, less the layers that are surplus;
and every share that left a client is compared with those that were dealt to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.errors import CohortChanged, ParameterError, SumFailed, TooFewClients
from secagg.events import Asked, SumReleased
from secagg.local_session import LocalSession, Stage
from secagg.server import ServerMachine
from secagg.sum_spec import L2, Count, LInf, Part, Residue, SumSpec, Table
from secagg.testing import faulty_wire as schedules
from secagg.testing.faulty_wire import SET_UP, losing
from secagg.transitions import ClientState, ServerState
from secagg.trust_levels import Trust
from tests.secagg.noisy import Witness, same
from tests.secagg.share_log import Kind, LoggedWire
from tests.secagg.truth import Question, check_share_log, seeded_machines, session_of

BOTH = pytest.mark.parametrize("trust", list(Trust))
QUICK = settings(deadline=None, derandomize=True, database=None)
Result: TypeAlias = frozenset[int] | type[SumFailed]  # the contributors, or why there are none

# --- sums -------------------------------------------------------------------------------------------


def noisy_parts(bits: int) -> tuple[Part, ...]:
    """One of every kind: rotated and padded, element by element, and counted."""
    return (
        Part(name="l2", size=3, bits=bits, bound=L2(2.0), noise=Noise(scale=40, variance=Fraction(99999, 7))),
        Part(name="linf", size=2, bits=bits, bound=LInf(0.5), noise=Noise(scale=30, variance=Fraction(8000))),
        Part(
            name="count", size=4, bits=bits, bound=Count(2, 3), noise=Noise(scale=16, variance=Fraction(5000))
        ),
    )


BARE = Part(name="bare", size=2, bits=7, bound=Residue())


def make_table(one: NoiseAssumptions, other: NoiseAssumptions, *, bits: int = 24) -> Table:
    """A kind with noise everywhere, one that lacks it in a part, one without; and two that form a group."""
    parts = noisy_parts(bits)
    return Table(
        {
            "noisy": SumSpec(parts=parts, promise=one),
            "mixed": SumSpec(parts=(parts[2], BARE, parts[0]), promise=other),
            "bare": SumSpec(parts=(BARE,)),
            "first": SumSpec(parts=parts[:1], times=2, group="pair", promise=one),
            "second": SumSpec(parts=parts[1:], group="pair", promise=other),
        }
    )


KINDS = ("noisy", "mixed", "bare", "first", "second", "first")


def answer(member: int, asked: Asked) -> dict[str, Any]:
    """Values that fill their bounds and sometimes exceed them."""
    rng = np.random.default_rng([member, *asked.payload])
    values: dict[str, Any] = {
        "l2": rng.normal(size=3) * 2,
        "linf": rng.normal(size=2),
        "count": np.roll([2, 1, 0, 0], member),
        "bare": rng.integers(0, 128, 2),
    }
    return {part.name: values[part.name] for part in asked.spec.parts}


# --- plans ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """A session, who is absent from it when, and what is asked."""

    trust: Trust
    members: tuple[int, ...]
    promises: tuple[NoiseAssumptions, NoiseAssumptions]
    absences: frozenset[tuple[int, Stage, int]] = frozenset()
    questions: tuple[Question, ...] = ()
    corrupt: int = 1
    dropout: float = 0.3
    ring: bool = False
    bits: int = 24

    @property
    def table(self) -> Table:
        return make_table(*self.promises, bits=self.bits)

    def present(self, members: Collection[int], stage: Stage, sum_index: int) -> frozenset[int]:
        return frozenset(k for k in members if (k, stage, sum_index) not in self.absences)

    def machines(self) -> tuple[ServerMachine, Mapping[int, Any]]:
        """Few bits make a small ring."""
        return seeded_machines(
            members=self.members,
            table=self.table,
            trust=self.trust,
            corrupt=self.corrupt,
            dropout=self.dropout,
            sums=max(len(self.questions), 1),
            graph="ring" if self.ring else "complete",
            min_neighbours=4 if self.ring else 2,
            security_bits=2,
            liveness_bits=1,
        )


def any_promise(rng: Random, clients: int, colluders: int) -> NoiseAssumptions:
    most = (clients - colluders - 1) // 2
    return NoiseAssumptions(
        clients=clients,
        dropouts=rng.choice((0, 1, most, most)),
        colluders=colluders,
        removable=rng.random() < 0.75,
    )


def any_absences(rng: Random, members: tuple[int, ...], sums: int) -> frozenset[tuple[int, Stage, int]]:
    """Everybody is absent on its own, at a rate of the stage and the sum; sometimes all are."""
    moments = [(Stage.ADVERTISE, SET_UP), (Stage.SHARE, SET_UP)]
    moments += [(stage, k) for stage in (Stage.MASK, Stage.CONFIRM, Stage.REVEAL) for k in range(sums)]
    rates = {moment: rng.choice((0.0, 0.0, 0.0, 0.1)) for moment in moments}
    rates |= {(Stage.MASK, k): rng.choice((0.0, 0.1, 0.1, 0.2, 0.2, 0.4, 1.0)) for k in range(sums)}
    return frozenset(
        (member, *moment) for moment, rate in rates.items() for member in members if rng.random() < rate
    )


def make_plan(seed: int) -> Plan:
    rng = Random(seed)
    ring = rng.random() < 0.3
    members = tuple(rng.sample(range(1 << 32), rng.randint(12, 16) if ring else rng.randint(5, 9)))
    corrupt = rng.randint(0, 1)
    kinds = rng.sample(KINDS, rng.randint(1, 4))
    questions = tuple(Question(kind, at // 3, b"%d" % at) for at, kind in enumerate(kinds))
    return Plan(
        trust=Trust.CURIOUS if ring else rng.choice(list(Trust)),
        members=members,
        promises=(any_promise(rng, len(members), corrupt), any_promise(rng, len(members), corrupt)),
        absences=any_absences(rng, members, len(questions)),
        questions=questions,
        corrupt=corrupt,
        dropout=rng.choice((0.2, 0.4, 0.5)),
        ring=ring,
        bits=rng.choice((18, 24, 33, 64)),
    )


PLANS = st.integers(0, (1 << 64) - 1).map(make_plan)

# --- the model --------------------------------------------------------------------------------------


@dataclass
class Model:
    """What must happen from set-up on, computed from sets alone."""

    plan: Plan
    server: ServerMachine
    groups: dict[str, tuple[int, frozenset[int], bool]] = field(default_factory=dict)
    next_sum: int = 0
    survivors: frozenset[int] = frozenset()  # of the last sum

    def __post_init__(self) -> None:
        topology, ids = self.server._topology, self.server._cohort.ids
        self.members = frozenset(self.server.members)
        self.threshold, self.least = self.server._cohort.threshold, topology.least
        self.hoods = {
            member: frozenset(ids[other] for other in topology.graph.neighbourhood(position))
            for position, member in enumerate(ids)
        }

    def ask(self, question: Question) -> Result:
        group = self.plan.table.group_of(question.kind)
        known = self.groups.get(group)
        later = known is not None and known[0] == question.round_number
        roster, promise = self.members, self.plan.table[question.kind].promise
        if known is not None and later:
            if not known[2]:
                return CohortChanged
            roster = known[1]
        if len(roster) < max(self.least, promise.least_roster if promise else 0):
            return TooFewClients  # nobody is asked
        index, self.next_sum = self.next_sum, self.next_sum + 1
        self.survivors = self.plan.present(roster, Stage.MASK, index)
        result, intact = self._sum(index, roster, promise, later=later)
        self.groups[group] = (question.round_number, self.survivors, intact)
        return result

    def _sum(
        self, index: int, roster: frozenset[int], promise: NoiseAssumptions | None, *, later: bool
    ) -> tuple[Result, bool]:
        survivors = self.survivors
        stay = len(roster) - promise.dropouts if promise else 0
        if len(survivors) < max(self.least, stay):
            return TooFewClients, False
        if later and survivors != roster:
            return CohortChanged, False
        if not self._all_reach(roster, survivors) or not self._are_joined(survivors):
            return TooFewClients, False
        signers = survivors
        if self.plan.trust is Trust.MALICIOUS:
            signers = self.plan.present(survivors, Stage.CONFIRM, index)
        revealers = self.plan.present(signers, Stage.REVEAL, index)
        if len(signers) < self.threshold or not self._all_reach(roster, revealers):
            return TooFewClients, False
        return survivors, revealers == survivors

    def _all_reach(self, roster: frozenset[int], present: frozenset[int]) -> bool:
        return all(len(self.hoods[member] & present) >= self.threshold for member in roster)

    def _are_joined(self, present: frozenset[int]) -> bool:
        found: frozenset[int] = frozenset()
        edge = frozenset(sorted(present)[:1])
        while edge:
            found |= edge
            edge = present & {k for one in edge for k in self.hoods[one]} - found
        return found == present


# --- running a plan ---------------------------------------------------------------------------------


def run_plan(plan: Plan) -> int:
    """The machines do what the model says. Returns how many sums were released."""
    with pytest.MonkeyPatch.context() as patch:
        witness = Witness(patch)
        server, clients = plan.machines()
        wire = LoggedWire(server, clients, answer, schedule=losing(schedules.explicit(*plan.absences)))
        try:
            wire.open()
        except TooFewClients:
            return 0  # which sessions there are is for other tests to say
        witness.look(clients)
        model = Model(plan, server)
        released = sum(ask_and_compare(wire, witness, model, question) for question in plan.questions)
    assert wire.failures == {}
    return released


def ask_and_compare(wire: LoggedWire, witness: Witness, model: Model, question: Question) -> bool:
    index, result = model.next_sum, model.ask(question)
    spec = model.plan.table[question.kind]
    if isinstance(result, frozenset):
        total = wire.ask(question.kind, question.payload, round_number=question.round_number)
        released = wire.server_events[-1]
        assert isinstance(released, SumReleased)
        assert (released.sum_index, frozenset(released.contributors)) == (index, result)
        roster = len(witness.questions[index].roster)
        surplus = spec.promise.surplus(roster, len(result)) if spec.promise else ()
        assert same(total.parts, witness.total(index, result, surplus).parts)
        assert (total.count, total.invited) == (len(result), roster)
        check_enough_stays(spec, roster, len(result))
    else:
        with pytest.raises(result) as failure:
            wire.ask(question.kind, question.payload, round_number=question.round_number)
        assert type(failure.value) is result
        releases = [event for event in wire.server_events if isinstance(event, SumReleased)]
        assert all(event.sum_index < index for event in releases)
    check_shares(wire, witness, model, index)
    assert wire.server.state is ServerState.READY
    return isinstance(result, frozenset)


def check_enough_stays(spec: SumSpec, roster: int, survivors: int) -> None:
    """What honest survivors leave is the target at least, even if all colluders are among them."""
    promise = spec.promise
    if promise is None:
        return
    removed = promise.surplus(roster, survivors)
    kept = sum(share for layer, share in enumerate(promise.components(roster)) if layer not in removed)
    assert (survivors - promise.colluders) * kept >= 1


def check_shares(wire: LoggedWire, witness: Witness, model: Model, index: int) -> None:
    """Whoever revealed let go of one share of every secret that is due, and of no other."""
    check_share_log(wire)
    session, position = session_of(wire), model.server._cohort.position
    released: dict[tuple[int, int], list[int]] = {}
    for entry in wire.shares.entries:
        if (entry.session, entry.sum_index) == (session, index):
            column = witness.column(entry.holder, index, position[entry.dealer], entry.share)
            released.setdefault((entry.holder, entry.dealer), []).append(column)
    if not released:
        return
    question = witness.questions[index]
    surplus = (
        question.spec.promise.surplus(len(question.roster), len(model.survivors))
        if question.spec.promise
        else ()
    )
    due = [0, *(1 + layer for layer in surplus)]
    for (holder, dealer), columns in released.items():
        assert holder in model.survivors
        assert columns == (due if dealer in model.survivors else [1])


@settings(QUICK, max_examples=40)
@given(PLANS)
def test_any_pattern_of_absences_removes_the_surplus_or_aborts_cleanly(plan: Plan) -> None:
    run_plan(plan)


@pytest.mark.slow
@settings(QUICK, max_examples=3000)
@given(PLANS)
def test_any_pattern_of_absences_removes_the_surplus_or_aborts_cleanly_at_length(plan: Plan) -> None:
    run_plan(plan)


# --- by hand ----------------------------------------------------------------------------------------

SEVEN = tuple(range(10, 17))
REMOVABLE = NoiseAssumptions(clients=7, dropouts=2, colluders=1, removable=True)
FIXED = NoiseAssumptions(clients=7, dropouts=1, colluders=1)


def away(stage: Stage, sum_index: int, count: int) -> set[tuple[int, Stage, int]]:
    return {(member, stage, sum_index) for member in SEVEN[:count]}


@BOTH
@pytest.mark.parametrize("promises", [(REMOVABLE, FIXED), (FIXED, REMOVABLE)])
@pytest.mark.parametrize("dropped", [0, 1, 2])
def test_every_number_of_drop_outs(
    trust: Trust, promises: tuple[NoiseAssumptions, NoiseAssumptions], dropped: int
) -> None:
    """Two sums, with each of the promises; while a threshold is left, survivors may vanish too."""
    absences = away(Stage.MASK, 0, dropped) | away(Stage.MASK, 1, dropped)
    absences |= {(16, Stage.REVEAL, 0)} if dropped < 2 else set()
    questions = (Question("noisy", 0, b"0"), Question("mixed", 0, b"1"))
    plan = Plan(trust, SEVEN, promises, frozenset(absences), questions)
    assert run_plan(plan) == sum(dropped <= promise.dropouts for promise in promises)


@BOTH
@pytest.mark.parametrize("promise", [REMOVABLE, FIXED])
@pytest.mark.parametrize("absent", [3, 7])
def test_too_many_drop_outs_release_nothing_and_the_session_goes_on(
    trust: Trust, promise: NoiseAssumptions, absent: int
) -> None:
    """Also if nobody at all is left of the sum."""
    questions = (Question("noisy", 0, b"0"), Question("noisy", 1, b"1"))
    plan = Plan(trust, SEVEN, (promise, promise), frozenset(away(Stage.MASK, 0, absent)), questions)
    assert run_plan(plan) == 1


@BOTH
def test_the_later_sums_of_a_group_draw_noise_for_a_smaller_roster(trust: Trust) -> None:
    """Who dropped from the first sum is not in the second, whose noise is planned for those who are left."""
    questions = (Question("first", 0, b"0"), Question("second", 0, b"1"), Question("first", 0, b"2"))
    absences = away(Stage.MASK, 0, 1)
    plan = Plan(trust, SEVEN, (REMOVABLE, REMOVABLE), frozenset(absences), questions)
    assert run_plan(plan) == 3


@BOTH
def test_a_group_that_shrank_too_far_for_its_noise_is_not_asked_again(trust: Trust) -> None:
    """Five of seven stay, and the noise of the next sum needs a roster of six."""
    wide = NoiseAssumptions(clients=7, dropouts=2, colluders=1)
    narrow = NoiseAssumptions(clients=7, dropouts=4, colluders=1, removable=True)
    questions = (Question("first", 0, b"0"), Question("second", 0, b"1"), Question("noisy", 1, b"2"))
    plan = Plan(trust, SEVEN, (wide, narrow), frozenset(away(Stage.MASK, 0, 2)), questions)
    assert run_plan(plan) == 2


def test_thirty_drop_outs_are_tolerated_and_one_more_is_not() -> None:
    """The sum that lost too many fails cleanly, and the next one is released."""
    promise = NoiseAssumptions(clients=64, dropouts=30, colluders=1, removable=True)
    part = Part(name="x", size=2, bits=24, bound=LInf(1.0), noise=Noise(scale=64, variance=Fraction(10**6)))
    table = Table({"sum": SumSpec(parts=(part,), promise=promise)})
    server, clients = seeded_machines(
        members=range(64), table=table, trust=Trust.CURIOUS, corrupt=1, dropout=0.9, sums=2, graph="complete"
    )
    with pytest.MonkeyPatch.context() as patch:
        witness = Witness(patch)
        session = LocalSession(
            server,
            clients,
            lambda member, _: {"x": [member / 64, -1]},
            absent=lambda member, stage, k: stage is Stage.MASK and member < 31 - k,
        )
        session.open()
        witness.look(clients)
        with pytest.raises(TooFewClients, match="only 33 clients sent inputs; 34 are needed"):
            session.ask("sum", b"0")
        assert server.state is ServerState.READY
        total = session.ask("sum", b"1", round_number=1)
    assert total.count == 34
    assert promise.surplus(64, 34) == ()
    assert same(total.parts, witness.total(1, range(30, 64), ()).parts)
    assert {client.state for client in clients.values()} == {ClientState.READY}


def test_a_server_needs_noise_that_is_planned_for_its_cohort() -> None:
    with pytest.raises(ParameterError, match="the noise of 'noisy' is planned for 7 clients, not for 8"):
        Plan(Trust.CURIOUS, tuple(range(8)), (REMOVABLE, REMOVABLE)).machines()


@BOTH
def test_only_shares_of_masks_leave_where_noise_stays(trust: Trust) -> None:
    """Noise that is not removable, or of which nothing is surplus, costs no share."""
    for promise, dropped in ((FIXED, 1), (REMOVABLE, 2)):
        with pytest.MonkeyPatch.context() as patch:
            plan = Plan(trust, SEVEN, (promise, promise), questions=(Question("noisy", 0, b"0"),))
            Witness(patch)
            server, clients = plan.machines()
            absent = schedules.explicit(*away(Stage.MASK, 0, dropped))
            wire = LoggedWire(server, clients, answer, schedule=losing(absent))
            wire.open()
            wire.ask("noisy", b"0")
            kinds = {entry.kind for entry in wire.shares.entries}
            assert kinds == {Kind.SELF_MASK, Kind.MASK_KEY}
