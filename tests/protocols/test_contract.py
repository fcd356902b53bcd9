"""Every algorithm over every channel: what holds for all of them, whatever they compute."""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from itertools import combinations, product
from types import MappingProxyType
from typing import Any, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.algorithm import AnyAlgorithm
from protocols.catalogue import CATALOGUE, find, register
from protocols.catalogue_entry import CatalogueEntry
from protocols.learner import Learner
from protocols.participant import Participant
from protocols.query_encoding import LARGEST, encode_query
from protocols.rounds import Query, RoundInfo, run_round
from protocols.run import Run
from protocols.serialisation import pack
from secagg.errors import LocalError, MalformedMessage, ParameterError, TooFewClients
from secagg.input_encoding import Encoding
from secagg.local_session import Stage
from secagg.mask_keystream import KeyStream
from secagg.sum_spec import Total
from secagg.trust_levels import Trust
from sims.coordination.client_runtime import ClientRuntime
from sims.runtime import DropoutSchedule, SessionChannel
from sims.runtime.honest_or_forging_participant import SimulatedParticipant
from tests.protocols.contract import (
    CASES,
    CHANNELS,
    CLIENTS,
    DIM,
    PLAIN,
    SECURE,
    Case,
    ExactSums,
    Guarded,
    Happened,
    MakeChannel,
    Watching,
    absent,
    channel_of,
    in_batches,
    memories_of,
    play,
    rounds_of,
    run_of,
    start_of,
)

ASKING = tuple(case for case in CASES if case.asks)


def each_case(cases: tuple[Case, ...] = CASES) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


def each_trust(cases: tuple[Case, ...] = CASES) -> pytest.MarkDecorator:
    pairs = [
        pytest.param(case, trust, id=f"{case.name}-{trust}") for case in cases for trust in case.trusts()
    ]
    return pytest.mark.parametrize(("case", "trust"), pairs)


# Machines take their time, and what they change is the same for all algorithms: by default, one of each sort.
# That secure sums have the same bits as plain ones, with and without drop-outs, is shown for all.
SORTS = {"fedavg", "rfa", "rfa-private", "median", "fedgeomed+", "scaffold", "evaluated-ditto"}


def with_signatures(case: Case, trust: Trust) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if trust is Trust.MALICIOUS and case.name not in SORTS else []


def over_machines(case: Case, make: MakeChannel) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if make is SECURE and case.name not in SORTS else []


def each_channel(cases: tuple[Case, ...] = CASES) -> pytest.MarkDecorator:
    rows = [
        pytest.param(case, make, trust, id=f"{case.name}-{name}", marks=over_machines(case, make))
        for case in cases
        for name, (make, trust) in CHANNELS.items()
        if trust in case.trusts()
    ]
    return pytest.mark.parametrize(("case", "make", "trust"), rows)


@cache
def undisturbed(name: str, make: MakeChannel, trust: Trust) -> Happened:
    """Three rounds in which nobody is missing."""
    (case,) = (each for each in CASES if each.name == name)
    return play(case, make, trust)


# --- the same bits everywhere --------------------------------------------------------------------------


@each_trust()
def test_secure_equals_plain_bit_for_bit(case: Case, trust: Trust) -> None:
    plain, secure = undisturbed(case.name, PLAIN, trust), undisturbed(case.name, SECURE, trust)
    assert plain.failures == secure.failures == [False] * 3
    if case.same_bits:
        assert plain == secure
    facts = plain.reports[0][3]
    assert not case.asks or len(set(plain.states)) > 1 or facts, "nothing happened: it compares nothing"


@each_case()
def test_the_same_seed_gives_the_same_bits(case: Case) -> None:
    """And so it does in secure sums, which are equal to plain ones; but for those with noise."""
    for make in (PLAIN,) if case.same_bits else (PLAIN, SECURE):
        assert play(case, make, Trust.CURIOUS) == undisturbed(case.name, make, Trust.CURIOUS)


@each_case()
def test_another_seed_gives_other_bits_where_anything_is_rounded(case: Case) -> None:
    other = play(case, PLAIN, Trust.CURIOUS, insecure_seed=b"another")
    assert (other.states != undisturbed(case.name, PLAIN, Trust.CURIOUS).states) == case.rounding


@each_case()
def test_it_does_not_matter_whether_server_and_clients_share_an_instance(case: Case) -> None:
    """`run_of` gives the server one of its own, so that nothing can pass but totals."""
    channel = channel_of(case, PLAIN, Trust.CURIOUS)
    shared: AnyAlgorithm = channel._algorithm
    run: Run[Any] = Run(shared, channel, start_of(shared))
    assert rounds_of(run, channel, 3) == undisturbed(case.name, PLAIN, Trust.CURIOUS)


# --- drop-outs -----------------------------------------------------------------------------------------

Loss = tuple[Stage, int]  # and in which sum of the round; -1 in the set-up
SETUP: list[Loss] = [(Stage.ADVERTISE, -1), (Stage.SHARE, -1)]


def losses(case: Case, trust: Trust) -> list[Loss]:
    """Every stage of the set-up, and of every sum of a round."""
    stages = (
        [Stage.MASK, Stage.REVEAL] if trust is Trust.CURIOUS else [Stage.MASK, Stage.CONFIRM, Stage.REVEAL]
    )
    return SETUP + [(stage, k) for k in range(case.algorithm().most_sums) for stage in stages]


def one_after_another(schedule: list[Loss], missing: tuple[int, ...]) -> DropoutSchedule:
    """A round for each loss; in the first and in the last one, everybody is there."""

    def dropouts(member: int, stage: Stage, number: int, index: int) -> bool:
        lost = 1 <= number <= len(schedule) and schedule[number - 1] == (stage, index)
        return lost and member in missing

    return dropouts


def compare_losses(case: Case, trust: Trust, missing: tuple[int, ...], **more: Any) -> Happened:
    """State, facts, class and words of a failure, and what every client keeps: plain and secure, the same."""
    schedule = losses(case, trust)
    more |= {"dropouts": one_after_another(schedule, missing), "rounds": len(schedule) + 2}
    plain, secure = play(case, PLAIN, trust, **more), play(case, SECURE, trust, **more)
    for number, (one, other) in enumerate(zip(plain.rounds(), secure.rounds(), strict=True)):
        lost = [None, *schedule, None][number]
        if case.same_bits:
            assert one == other, f"{missing} missing at {lost}"
        else:
            assert one[2][4] == other[2][4], f"{missing} missing at {lost}"
    assert not plain.failures[0], "with everybody there, a round must go well"
    assert not plain.failures[-1], "with everybody back, a round must go well"
    return plain


@pytest.mark.parametrize(
    ("case", "trust"),
    [
        pytest.param(
            case,
            trust,
            id=f"{case.name}-{trust}",
            marks=with_signatures(case, trust),
        )
        for case in ASKING
        for trust in case.trusts()
    ],
)
def test_one_client_missing_at_any_stage(case: Case, trust: Trust) -> None:
    happened = compare_losses(case, trust, (3,), sessions=1)
    if not case.algorithm().needs_all_clients:
        assert not any(happened.failures[1:3]), "of five, one may stay away"


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name, marks=over_machines(case, SECURE)) for case in ASKING]
)
def test_most_clients_missing_at_any_stage(case: Case) -> None:
    """Too few for a sum. What a round had reached before, it may keep."""
    happened = compare_losses(case, Trust.CURIOUS, (0, 2, 4), sessions=1)
    assert all(happened.failures[2:5])  # two that advertise are a cohort still


@pytest.mark.slow
@each_trust(ASKING)
@pytest.mark.parametrize("missing", [(3,), (0, 4), (0, 2, 4), (1, 2, 3, 4)], ids=len)
@pytest.mark.parametrize("sessions", [1, 2])
def test_clients_missing_at_any_stage(
    case: Case, trust: Trust, missing: tuple[int, ...], sessions: int
) -> None:
    compare_losses(case, trust, missing, sessions=sessions)


@each_channel(ASKING)
def test_rounds_without_clients_change_nothing_and_the_next_one_works(
    case: Case, make: MakeChannel, trust: Trust
) -> None:
    schedule = [*SETUP, (Stage.MASK, 0), (Stage.REVEAL, 0)]
    dropouts = one_after_another(schedule, tuple(range(CLIENTS)))
    happened = play(case, make, trust, dropouts=dropouts, sessions=1, rounds=6)
    assert happened.failures == [False, True, True, True, True, False]
    for _, _, report in happened.rounds()[1:-1]:
        assert isinstance(report[4], tuple)
        assert report[4][0] is TooFewClients
    assert len(set(happened.states[:-1])) == 1
    assert all(memories == happened.memories[0] for memories in happened.memories[:-1])


@each_channel()
def test_one_client_is_no_cohort(case: Case, make: MakeChannel, trust: Trust) -> None:
    with pytest.raises(ParameterError, match="at least 2 are needed"):
        channel_of(case, make, trust, clients=1)
    with pytest.raises(ParameterError, match="at least 4 are needed"):
        channel_of(case, make, trust, clients=3, corrupt=2)
    if case.asks:
        dropouts = absent((0, 1, 2, 3), Stage.ADVERTISE, sum_index=-1, round_number=0)
        failure = run_of(case, channel_of(case, make, trust, dropouts=dropouts)).round().failure
        assert isinstance(failure, TooFewClients)
        assert "2 are needed" in str(failure)


# --- restarts ------------------------------------------------------------------------------------------


@each_channel()
def test_saved_and_resumed_in_the_midst_it_comes_to_the_same(
    case: Case, make: MakeChannel, trust: Trust
) -> None:
    channel = channel_of(case, make, trust)
    run = run_of(case, channel)
    rounds_of(run, channel, 1)
    saved = run.save()
    clients = {member: each.save() for member, each in channel.participants.items()}

    again = channel_of(case, make, trust)
    for member, each in clients.items():
        again.participants[member].restore(each)
    resumed: Run[Any] = Run.resume(case.algorithm(), again, saved)
    assert resumed.round_info == run.round_info
    whole, rest = undisturbed(case.name, make, trust), rounds_of(resumed, again, 2)
    assert rest.failures == [False, False]
    if case.same_bits or make is PLAIN:  # noise that is removed or rotated is another in another session
        assert rest.states == whole.states[1:]
        assert rest.memories == whole.memories[1:]
        assert rest.reports == whole.reports[1:]


@each_case()
def test_clients_that_restart_before_they_hear_of_the_end_keep_the_same(case: Case) -> None:
    """They answered, restarted, and learn only from the next round that the last one was completed."""
    channel = channel_of(case, PLAIN, Trust.CURIOUS)
    saved: dict[int, bytes] = {}

    class Restarting(Watching):
        def finish(self, round_info: RoundInfo) -> None:
            if not saved:
                saved.update({member: each.save() for member, each in channel.participants.items()})
                for member, learner in case.learners(DIM, CLIENTS).items():
                    fresh = SimulatedParticipant(case.algorithm(), learner, trust=Trust.CURIOUS)
                    fresh.restore(saved[member])
                    channel.participants[member] = fresh
                    channel.runtimes[member] = ClientRuntime(fresh)
                return  # nobody tells them
            super().finish(round_info)

    happened = rounds_of(run_of(case, Restarting(channel)), channel, 3)
    whole = undisturbed(case.name, PLAIN, Trust.CURIOUS)
    assert happened.states == whole.states
    assert happened.memories[1:] == whole.memories[1:]


@each_case()
def test_saving_a_client_at_any_time_changes_nothing(case: Case) -> None:
    """Even one whose training has a state of its own."""

    def happened(*, saving: bool) -> Happened:
        learners = in_batches(DIM, CLIENTS)
        channel = channel_of(case, PLAIN, Trust.CURIOUS, learners=learners)

        class Saving(Watching):
            def ask(self, query: Query) -> Total:
                total = super().ask(query)
                self.save()
                return total

            def finish(self, round_info: RoundInfo) -> None:
                self.save()
                super().finish(round_info)

            def save(self) -> None:
                for participant in channel.participants.values() if saving else ():
                    participant.save()

        return rounds_of(run_of(case, Saving(channel)), channel, 3)

    assert happened(saving=True) == happened(saving=False)


# --- what is summed, and who sees it -------------------------------------------------------------------


@each_channel(ASKING)
def test_what_is_summed_is_what_the_table_says(case: Case, make: MakeChannel, trust: Trust) -> None:
    watching = Watching(channel_of(case, make, trust))
    rounds_of(run_of(case, watching), watching.channel, 3)
    table = case.algorithm().table
    assert table is not None
    for _, query, total in watching.asked:
        sizes = {part.name: part.size for part in table[query.kind].parts}
        assert {name: values.shape for name, values in total.parts.items()} == {
            name: (size,) for name, size in sizes.items()
        }
    times = Counter((number, query.kind) for number, query, _ in watching.asked)
    assert {kind for _, kind in times} == set(table)
    for (_, kind), count in times.items():
        assert count <= table[kind].times
        assert kind in case.fewer or count == table[kind].times
    payloads = [(query.kind, encode_query(RoundInfo(number), query)) for number, query, _ in watching.asked]
    assert len(set(payloads)) == len(payloads), "clients refuse to be asked the same twice"


@each_channel(ASKING)
def test_only_totals_reach_the_servers_side(case: Case, make: MakeChannel, trust: Trust) -> None:
    algorithm, seen = case.algorithm(), []
    watching: list[Watching] = []
    guarded = {
        member: Guarded(learner, lambda: watching[0].is_servers_turn)
        for member, learner in case.learners(DIM, CLIENTS).items()
    }
    channel = channel_of(case, make, trust, learners=guarded)
    watching.append(Watching(channel))
    round_info = RoundInfo()
    state = start_of(algorithm)
    for _ in range(2):
        watching[0].begin(round_info)
        steps = algorithm.round(state)
        state = run_round(steps, watching[0].ask).state
        round_info = round_info.next(completed=True)
        watching[0].finish(round_info)
        seen += held_by(state)
    for _, query, total in watching[0].asked:
        assert type(total) is Total
        assert type(total.count) is int
        assert type(total.invited) is int
        assert all(type(each) is np.ndarray for each in total.parts.values())
        assert all(each.dtype in (np.float64, np.uint64) for each in total.parts.values())
        seen += held_by(query)
    assert all(each.touched for each in guarded.values())
    assert not [each for each in seen if isinstance(each, Participant | Guarded)]


def held_by(value: object, depth: int = 6) -> list[object]:
    """All that can be reached from a value, within limits; types and modules lead everywhere."""
    found, edge = [value], [value]
    for _ in range(depth):
        edge = [each for each in gc.get_referents(*edge) if not isinstance(each, type | type(gc))]
        found += edge[:10_000]
    return found


@each_case(ASKING)
def test_a_servers_round_cannot_reach_its_clients(case: Case) -> None:
    """Not through its generator's variables, at any of its yields."""
    channel = channel_of(case, PLAIN, Trust.CURIOUS)
    algorithm, round_info = case.algorithm(), RoundInfo()
    channel.begin(round_info)
    steps = algorithm.round(start_of(algorithm))
    query = next(steps)
    while True:
        reachable = held_by(dict(steps.gi_frame.f_locals))  # type: ignore[attr-defined]
        assert not [each for each in reachable if isinstance(each, Participant | SessionChannel)]
        try:
            query = steps.send(channel.ask(query))
        except StopIteration:
            return


@each_case(ASKING)
def test_equal_totals_give_equal_states_whatever_the_clients_hold(case: Case) -> None:
    """A canary: other clients behind the same totals leave no trace on the server's side."""
    first = Watching(channel_of(case, PLAIN, Trust.CURIOUS))
    honest = rounds_of(run_of(case, first), first.channel, 3)
    totals = [total for _, _, total in first.asked]
    others = {k: learner for k, learner in enumerate(case.learners(DIM, CLIENTS + 4).values()) if k >= 4}
    moved = dict(zip(range(CLIENTS), others.values(), strict=True))
    second = Watching(channel_of(case, PLAIN, Trust.CURIOUS, learners=moved), canned=totals)
    canned = rounds_of(run_of(case, second), second.channel, 3)
    assert canned.states == honest.states
    assert [report[:4] for report in canned.reports] == [report[:4] for report in honest.reports]


@each_case(ASKING)
def test_who_is_who_does_not_matter(case: Case) -> None:
    """The clients' learners change places; sums that are exact stay the same, and so does all else."""

    def states(order: list[int]) -> tuple[list[bytes], list[dict[int, bytes]]]:
        learners = case.learners(DIM, CLIENTS)
        placed: dict[int, Learner] = {k: learners[member] for k, member in enumerate(order)}
        channel = ExactSums(case.algorithm(), placed)
        run, seen, kept = run_of(case, channel), [], []
        for _ in range(3):
            assert run.round().completed
            seen.append(pack(run.state))
            kept.append({member: pack(channel.participants[k].memory) for k, member in enumerate(order)})
        return seen, kept

    assert states([0, 1, 2, 3, 4]) == states([3, 0, 4, 1, 2])


# --- what clients refuse -------------------------------------------------------------------------------


@each_case()
@pytest.mark.parametrize("make", [PLAIN, SECURE], ids=["plain", "secure"])
def test_self_selection_to_zero_is_refused_where_the_server_may_be_malicious(
    case: Case, make: MakeChannel
) -> None:
    if not case.self_selecting:
        assert channel_of(case, make, Trust.MALICIOUS).participants
        return
    with pytest.raises(ParameterError, match="single out one client"):
        channel_of(case, make, Trust.MALICIOUS)
    learner = case.learners(DIM, CLIENTS)[0]
    with pytest.raises(ParameterError, match="single out one client"):
        Participant(case.algorithm(), learner, trust=Trust.MALICIOUS)
    assert Participant(case.algorithm(), learner, trust=Trust.CURIOUS).memory is not None


def first_queries(case: Case) -> list[Query]:
    """One query of each kind, as honest rounds ask them."""
    watching = Watching(channel_of(case, PLAIN, Trust.CURIOUS))
    rounds_of(run_of(case, watching), watching.channel, 2)
    return list({query.kind: query for _, query, _ in reversed(watching.asked)}.values())


def fresh(case: Case) -> Participant:
    return Participant(case.algorithm(), case.learners(DIM, CLIENTS)[0], trust=Trust.CURIOUS)


@each_case()
def test_a_foreign_kind_is_refused(case: Case) -> None:
    for kind in ("", "foreign", "Update", "update\0"):
        with pytest.raises(MalformedMessage):
            fresh(case).answer(kind, encode_query(RoundInfo(), Query()), round_number=0, invited=CLIENTS)


@each_case(ASKING)
def test_the_payload_of_another_kind_is_refused_or_means_what_it_says(case: Case) -> None:
    """Kinds of equal fields cannot be told apart by their payload; the kind of the sum decides."""
    for one, other in combinations(first_queries(case), 2):
        hints = [list(get_type_hints(type(each)).values())[1:] for each in (one, other)]
        if hints[0] != hints[1]:
            with pytest.raises(MalformedMessage):
                fresh(case).answer(
                    one.kind, encode_query(RoundInfo(), other), round_number=0, invited=CLIENTS
                )


@each_case(ASKING)
def test_a_vector_of_another_length_is_refused(case: Case) -> None:
    for query, length in product(first_queries(case), [0, 1, DIM - 1, DIM + 1, 100 * DIM]):
        wrong = np.zeros(length)
        for field in fields(query):
            value = getattr(query, field.name)
            if isinstance(value, np.ndarray) and len(value) != length:
                changed = replace(query, **{field.name: wrong})
                with pytest.raises(MalformedMessage, match=f"{length} elements"):
                    fresh(case).answer(
                        query.kind, encode_query(RoundInfo(), changed), round_number=0, invited=CLIENTS
                    )


@each_case(ASKING)
def test_every_query_may_come_first_and_none_crashes_a_client(case: Case) -> None:
    """A malicious server need not keep to the order of a round."""
    for query in first_queries(case):
        try:
            values = fresh(case).answer(
                query.kind, encode_query(RoundInfo(), query), round_number=0, invited=CLIENTS
            )
        except MalformedMessage:
            continue
        assert values is None or set(values) == parts_of(case, query.kind)


def parts_of(case: Case, kind: str) -> set[str]:
    table = case.algorithm().table
    assert table is not None
    return {part.name for part in table[kind].parts}


REALS = st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-320, 1e-9, 1e9, -1e30, 1e160, -1e200, 1.7e308, -1.7e308])
READ = st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-320, 1e-9, 0.5, 3.0, 40.0, 1e9, LARGEST, -LARGEST])
WHOLES = st.sampled_from([-(2**63), -(2**31), -1, 0, 1, 2, 3, 1000, 2**31, 2**53 + 1, 2**63 - 1])


def vectors_of(length: int) -> st.SearchStrategy[Any]:
    """Those that are read at all, most of the time: of any numbers, all the same, coordinates, weights."""
    mixed = (st.lists(each, min_size=length, max_size=length) for each in (READ, READ, REALS))
    same = READ.map(lambda each: [each] * length)
    usual = st.sampled_from([np.arange(length), np.full(length, 1 / length)])
    return st.one_of(*mixed, same, usual).map(lambda each: np.array(each, np.float64))


def values_of(hint: Any, length: int = DIM) -> st.SearchStrategy[Any]:
    """Whatever a malicious server could put there, extreme or not; vectors have the length that is read."""
    if hint is float:
        return REALS
    if hint is int:
        return WHOLES
    if hint is bool:
        return st.booleans()
    if hint is str:
        return st.sampled_from(["", "a", "\0" * 40])
    if hint is bytes:
        return st.binary(max_size=9)
    if get_origin(hint) is np.ndarray:
        return vectors_of(length)
    if get_origin(hint) is tuple:
        return st.lists(values_of(hint.__args__[0]), max_size=9).map(tuple)
    if is_dataclass(hint):
        return records_of(hint)  # type: ignore[arg-type]
    return st.none() | values_of(next(each for each in hint.__args__ if each is not type(None)), length)


def records_of(kind: type, lengths: Mapping[str, int] = MappingProxyType({})) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind)
    return st.fixed_dictionaries(
        {each.name: values_of(hints[each.name], lengths.get(each.name, DIM)) for each in fields(kind)}
    )


@each_case(ASKING)
@settings(max_examples=15)
@given(data=st.data())
def test_no_query_that_can_be_read_crashes_a_client(case: Case, data: st.DataObject) -> None:
    """It answers, declines, or refuses; whatever numbers a server makes up, and in whichever order."""
    client = fresh(case)
    sums = {each.query: each.spec for each in case.algorithm().sums()}
    lengths = {each.query: each.lengths for each in case.algorithm().sums()}
    for kind in data.draw(st.lists(st.sampled_from(list(sums)), min_size=1, max_size=3)):
        made = data.draw(records_of(kind, lengths[kind]))
        try:
            payload = encode_query(RoundInfo(), kind(**made))
        except LocalError:
            return  # not even a malicious server can ask that: it would not be read
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # numbers overflow here, as they should
            try:
                values = client.answer(kind.kind, payload, round_number=0, invited=CLIENTS)
            except MalformedMessage:
                return
        if values is None:
            continue
        if sums[kind].promise is None:  # what is said can be summed
            Encoding(sums[kind], cohort=CLIENTS).encode(values, KeyStream(bytes(32)))
        client.confirmed()
        client.save()
    client.apply_history(RoundInfo().next(completed=True))
    client.save()


def test_every_algorithm_that_there_is_is_held_to_the_contract() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert set(CATALOGUE) <= set(names)


def test_memories_are_compared_at_all() -> None:
    (local,) = (case for case in CASES if case.name == "local")
    channel = channel_of(local, PLAIN, Trust.CURIOUS)
    before = memories_of(channel)
    run_of(local, channel).round()
    assert memories_of(channel) != before


def test_an_algorithm_of_the_users_own_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocols.catalogue._registered", registered := dict(CATALOGUE))
    monkeypatch.setattr("protocols.catalogue.CATALOGUE", registered)
    own = CatalogueEntry(
        "my-average", "My average", CATALOGUE["fedavg"].make, "the mean of my own", {"clip": 1.0}
    )
    register(own)
    assert find("my-average") is own
    with pytest.raises(ParameterError, match="'my-average' already"):
        register(own)
