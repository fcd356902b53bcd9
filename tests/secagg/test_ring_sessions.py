"""Whole sessions on a ring under every pattern of drop-outs: the total is exact, or nothing is released.

As on the complete graph, a small model of sets predicts what every sum must come to. On a ring it matters
*who* is missing: a client whose neighbours are gone is stranded, and a ring that is broken in two places
falls apart. So drop-outs come scattered, and in a row around the circle.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.errors import ParameterError, TooFewClients
from secagg.events import SessionReady, Stranded, SumReleased
from secagg.local_session import LocalSession, Stage
from secagg.server import ServerMachine
from secagg.testing.faulty_wire import SET_UP, losing
from secagg.transitions import ClientState, ServerState
from tests.secagg.rings import Arc, Ring, RingModel, RingPlan, neighbourhoods
from tests.secagg.share_log import LoggedWire
from tests.secagg.truth import Question, Truth, check_exact, check_share_log, session_of

QUICK = settings(deadline=None, derandomize=True, database=None)
KINDS = ("once", "first", "second", "first")
SUM_STAGES = (Stage.MASK, Stage.REVEAL)

# --- plans --------------------------------------------------------------------------------------


def small_ring(rng: Random, most: int) -> Ring:
    """Any ring of ten clients or more that the finder has parameters for."""
    size = rng.randint(10, most)
    fixed: dict[str, Any] = {
        "members": tuple(rng.sample(range(1 << 32), size)),
        "dropout": rng.choice((0.0, 0.1, 0.2, 0.3)),
        "min_neighbours": min(rng.choice((2, 4, 6, 7, 10)), size - 2),
        "security_bits": rng.choice((1, 2, 4, 8)),
        "liveness_bits": rng.randint(1, 4),
        "seed": rng.randbytes(4),
    }
    for corrupt in range(rng.randint(0, size // 4), 0, -1):
        with suppress(ParameterError):
            Ring(**fixed, corrupt=corrupt).parameters(size)
            return Ring(**fixed, corrupt=corrupt)
    return Ring(**fixed)


def sparse_ring(rng: Random, most: int) -> Ring:
    """One of few neighbours that may lose so many clients that it can be cut."""
    members = tuple(rng.sample(range(1 << 32), rng.randint(18, most)))
    return Ring(members, rng.randint(0, 2), 0.2, 4, security_bits=1, liveness_bits=1, seed=rng.randbytes(4))


def late_moments(sums: int) -> list[tuple[Stage, int]]:
    return [(Stage.SHARE, SET_UP), *((stage, k) for k in range(sums) for stage in SUM_STAGES)]


def scattered(rng: Random, ring: Ring, sums: int) -> frozenset[tuple[int, Stage, int]]:
    """Everybody is absent on its own, at a rate of the stage."""
    rates = {stage: rng.choice((0.0, 0.0, 0.05, 0.15)) for stage in (Stage.SHARE, *SUM_STAGES)}
    rates |= {Stage.ADVERTISE: rng.choice((0.0, 0.0, 0.1, 0.5))}
    moments = [(Stage.ADVERTISE, SET_UP), *late_moments(sums)]
    return frozenset(
        (k, *moment) for k in ring.members for moment in moments if rng.random() < rates[moment[0]]
    )


def gap(rng: Random, ring: Ring, sums: int) -> list[Arc]:
    """Two arcs at one moment: if long enough, they strand whoever is between them, or cut the ring."""
    size = len(ring.members)
    set_up, *in_sums = late_moments(sums)
    moment, found = rng.choice((set_up, rng.choice(in_sums))), ring.parameters(size)
    half = found.neighbours // 2
    start, lengths = rng.randrange(size), rng.choices((half, half, half, half - 1, half + 1), k=2)
    between = rng.choice((1, found.threshold - 1, found.threshold, half, size // 2))
    return [Arc(start, lengths[0], *moment), Arc(start + lengths[0] + between, lengths[1], *moment)]


def questions(rng: Random) -> tuple[Question, ...]:
    """Up to four, of any kinds, in one or two rounds."""
    asked = [
        Question(kind, number, b"%d %d" % (number, at))
        for number in range(rng.randint(1, 2))
        for at, kind in rng.sample(list(enumerate(KINDS)), len(KINDS))
    ]
    return tuple(asked[rng.randint(0, 2) :][: rng.randint(1, 4)])


def make_plan(seed: int, *, most: int, most_bits: int) -> RingPlan:
    """Any session of up to four sums with any absences; every other one is aimed at the weak places."""
    rng = Random(seed)
    asked, weak = questions(rng), rng.random() < 0.5
    ring = sparse_ring(rng, most) if weak else small_ring(rng, most)
    pairs = [gap(rng, ring, len(asked)) for _ in range(rng.randint(int(weak), 2))]
    return RingPlan(
        ring,
        scattered=frozenset() if weak else scattered(rng, ring, len(asked)),
        arcs=tuple(arc for pair in pairs for arc in pair),
        questions=asked,
        bits=tuple(rng.choices(range(1, 65), k=rng.randint(1, most_bits))),
        choice=rng.randrange(4),
    )


def plans(*, most: int = 24, most_bits: int = 3) -> st.SearchStrategy[RingPlan]:
    """Hypothesis chooses a number, and that number everything else, evenly: small rings are seldom sparse."""
    seeds = st.integers(0, (1 << 64) - 1)
    return seeds.map(lambda seed: make_plan(seed, most=most, most_bits=most_bits))


# --- running a plan ----------------------------------------------------------------------------------


def run_plan(plan: RingPlan) -> None:
    """The machines do what the model says, and release nothing else."""
    truth, model = Truth(plan.ring.members, plan.table, len(plan.cohort)), RingModel(plan)
    server, clients = plan.ring.machines(plan.table, sums=plan.sums)
    wire = LoggedWire(server, clients, truth.answer, schedule=losing(plan.absent))
    if not model.set_up():
        with pytest.raises(TooFewClients):
            wire.open()
        assert wire.server.state is ServerState.FAILED
        assert wire.shares.entries == []
        return
    try:
        wire.open()
    except TooFewClients:
        model.meet(neighbourhoods(wire.sent, plan.sums))
        assert len(model.members) < model.least  # too many are stranded
        return
    check_set_up(wire, model)
    for question in plan.questions:
        ask_and_compare(wire, truth, model, question)
    # No client found fault with an honest server; the wire lost frames, but forged none.
    assert wire.failures == {}
    assert wire.server.members == tuple(sorted(model.members))


def check_set_up(wire: LoggedWire, model: RingModel) -> None:
    """The neighbours are a symmetric relation of the right degree, and only the stranded are left out."""
    hoods = neighbourhoods(wire.sent, model.plan.sums)
    assert hoods.keys() == model.plan.cohort
    for member, hood in hoods.items():
        assert len(hood) == model.neighbours + 1
        assert all(member in hoods[other] for other in hood)
    stranded = model.meet(hoods)
    assert len(model.members) >= model.least
    events = [event for event in wire.server_events if isinstance(event, (Stranded, SessionReady))]
    assert events[:-1] == ([Stranded(tuple(sorted(stranded)))] if stranded else [])
    received = Counter(len(hoods[k] & (model.members | stranded)) - 1 for k in model.members)
    assert events[-1] == SessionReady(
        session_of(wire),
        tuple(sorted(model.members)),
        model.threshold,
        model.neighbours,
        {(count, False): clients for count, clients in received.items()},
    )


def ask_and_compare(wire: LoggedWire, truth: Truth, model: RingModel, question: Question) -> None:
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
        releases = [event for event in wire.server_events if isinstance(event, SumReleased)]
        assert all(event.sum_index < index for event in releases)
    check_shares(wire, model, index, released=isinstance(result, frozenset))
    assert wire.server.state is ServerState.READY


def check_shares(wire: LoggedWire, model: RingModel, index: int, *, released: bool) -> None:
    """Exactly the shares that the model expects got out, of one kind for each dealer.

    Without a total, there is somebody whose mask cannot be removed.
    """
    check_share_log(wire)
    assert wire.shares.counts(session_of(wire), index) == model.shares
    assert released or min(model.shares.values(), default=0) < model.threshold


@settings(QUICK, max_examples=50)
@given(plans())
def test_any_pattern_of_absences_gives_an_exact_total_or_a_clean_abort(plan: RingPlan) -> None:
    run_plan(plan)


@pytest.mark.slow
@settings(QUICK, max_examples=2000)
@given(plans(most=40, most_bits=8))
def test_any_pattern_of_absences_gives_an_exact_total_or_a_clean_abort_at_length(plan: RingPlan) -> None:
    run_plan(plan)


@pytest.mark.parametrize("choice", range(4))
def test_every_number_of_bits_in_one_session(choice: int) -> None:
    ring = Ring(tuple(range(3, 40, 3)), corrupt=1)
    plan = RingPlan(
        ring,
        arcs=(Arc(2, 2, Stage.MASK, 0), Arc(8, 1, Stage.REVEAL, 0), Arc(5, 1, Stage.MASK, 1)),
        questions=(Question("once", 0, b"one"), Question("once", 1, b"two")),
        bits=tuple(range(1, 65)),
        choice=choice,
    )
    run_plan(plan)


def neighbours_of(server: ServerMachine) -> dict[int, frozenset[int]]:
    graph, ids = server._topology.graph, server._cohort.ids
    return {ids[k]: frozenset(ids[p] for p in graph.neighbourhood(k)) for k in range(server._cohort.size)}


@settings(QUICK, max_examples=25)
@given(plans())
def test_a_local_session_comes_to_the_same_results(plan: RingPlan) -> None:
    truth, model = Truth(plan.ring.members, plan.table, len(plan.cohort)), RingModel(plan)
    server, clients = plan.ring.machines(plan.table, sums=plan.sums)
    session = LocalSession(server, clients, truth.answer, absent=plan.absent)
    if not model.set_up():
        with pytest.raises(TooFewClients):
            session.open()
        return
    try:
        session.open()
    except TooFewClients:
        model.meet(neighbours_of(server))
        assert len(model.members) < model.least  # too many are stranded
        return
    model.meet(neighbours_of(server))
    assert len(model.members) >= model.least
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
