"""One client across rounds: what it answers, what it refuses, and exactly when it keeps something."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import msgpack
import numpy as np
import pytest
from numpy.typing import ArrayLike

from protocols.afl import MixtureWeight
from protocols.algorithm import Algorithm, ClientRound, ModelState, Sum
from protocols.apfl import Mixture
from protocols.averaging import Update, WeightedMean, clipped
from protocols.fedavg import FedAvg
from protocols.fedbc import ConstraintState
from protocols.learner import Learner, PenaltyTerm, Score, Steering
from protocols.local_only_training import LocalTraining
from protocols.participant import Participant
from protocols.personal_model import OwnModel
from protocols.privacy_budget import PrivacyBudget
from protocols.quadratic_learner import QuadraticLearner, steered_step
from protocols.quantised import Remainder
from protocols.query_encoding import LARGEST, encode_query
from protocols.rounds import Outcome, Query, Round, RoundInfo, UnacknowledgedAnswer
from protocols.scaffold import ControlVariate
from protocols.serialisation import RecordError, Vector, as_vector, pack
from protocols.sketched_sgd import UnsentUpdate
from protocols.splitting_clients import SplittingMemory
from secagg.distributed_noise import NoiseAssumptions
from secagg.errors import CorruptTotal, MalformedMessage, ParameterError, SpecError
from secagg.noise.privacy_goal import Goal
from secagg.sum_spec import Count, LInf, Part, SumSpec, Total
from secagg.trust_levels import Trust

DIM = 2


@dataclass(frozen=True)
class Ask(Query):
    kind: ClassVar[str] = "ask"
    step: int = 0


@dataclass(frozen=True)
class Tally:
    """How many answers completed rounds have left, and a number that may diverge."""

    answers: int = 0
    value: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Counting(Algorithm[ModelState, Tally]):
    """Clients remember how often they answered."""

    memory_type: ClassVar[type] = Tally

    least_weight: float = 1.0

    def sums(self) -> tuple[Sum, ...]:
        part = Part(name="x", size=1, bits=16, bound=LInf(1.0))
        spec = SumSpec(parts=(part,), times=3)
        return (Sum(query=Ask, spec=spec, reveals="a number", least_weight=self.least_weight),)

    def start(self, model: Vector) -> ModelState:
        return ModelState(as_vector(model))

    def model(self, state: ModelState) -> Vector:
        return state.model

    def round(self, state: ModelState) -> Round[ModelState]:
        yield Ask()
        return Outcome(state)

    def client(self, learner: Learner, memory: Tally) -> CountingClient:
        return CountingClient(learner, memory)

    def personal(self, memory: Tally, model: Vector, learner: Learner) -> Vector:
        return model + memory.answers


class CountingClient(ClientRound[Tally]):
    def __init__(self, learner: Learner, memory: Tally) -> None:
        self._learner = learner
        self._memory = memory

    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        value = float(self._learner.rate)  # whatever a test puts there
        self._memory = Tally(self._memory.answers + 1, self._memory.value + value)
        return {"x": [0.0 if value < 0 else value]}

    def memory(self) -> Tally:
        return self._memory


@dataclass(frozen=True)
class Tell(Query):
    kind: ClassVar[str] = "tell"


@dataclass(frozen=True, kw_only=True)
class TwoKinds(Counting):
    def sums(self) -> tuple[Sum, ...]:
        (first,) = super().sums()
        return first, replace(first, query=Tell)


def learner(rate: float = 0.5) -> QuadraticLearner:
    return QuadraticLearner(np.ones(DIM), rate=rate)


def client(rate: float = 0.5) -> Participant:
    return Participant(Counting(dim=DIM, clients=5), learner(rate), trust=Trust.CURIOUS)


def ask(participant: Participant, round_info: RoundInfo, step: int = 0) -> Mapping[str, ArrayLike] | None:
    return participant.answer(
        "ask", encode_query(round_info, Ask(step)), round_number=round_info.number, invited=5
    )


def kept(participant: Participant) -> int:
    answers: int = participant.memory.answers
    return answers


def restarted(participant: Participant) -> Participant:
    again = client()
    again.restore(participant.save())
    return again


DONE, FAILED = RoundInfo().next(completed=True), RoundInfo().next(completed=False)


# --- when memory is kept -------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("confirmed", [False, True])
@pytest.mark.parametrize("completed", [False, True])
@pytest.mark.parametrize("by_query", [False, True])
def test_memory_is_kept_when_the_round_was_completed_and_the_answer_confirmed(
    restart: bool, confirmed: bool, completed: bool, by_query: bool
) -> None:
    participant = client()
    assert ask(participant, RoundInfo()) == {"x": [0.5]}
    if confirmed:
        participant.confirmed()
    assert kept(participant) == 0, "nothing is kept before the round is known to be over"
    if restart:
        participant = restarted(participant)
        assert kept(participant) == 0
    after = RoundInfo().next(completed=completed)
    if by_query:
        ask(participant, after)
    else:
        participant.apply_history(after)
    assert kept(participant) == int(confirmed and completed)


def test_of_several_sums_of_a_kind_the_last_may_fail() -> None:
    participant = client()
    ask(participant, RoundInfo(), 0)
    participant.confirmed()
    ask(participant, RoundInfo(), 1)
    participant.apply_history(DONE)
    assert kept(participant) == 2


@pytest.mark.parametrize("counted", [(), ("ask",), ("tell",), ("ask", "tell")])
def test_of_several_kinds_each_must_be_counted(counted: tuple[str, ...]) -> None:
    participant = Participant(TwoKinds(dim=DIM, clients=5), learner(), trust=Trust.CURIOUS)
    for kind, query in (("ask", Ask()), ("tell", Tell())):
        participant.answer(kind, encode_query(RoundInfo(), query), round_number=0, invited=5)
        if kind in counted:
            participant.confirmed()
    participant.apply_history(DONE)
    assert kept(participant) == (2 if len(counted) == 2 else 0)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(
    ("unacknowledged", "told"),
    [
        (UnacknowledgedAnswer(7, 0, "ask"), True),
        (UnacknowledgedAnswer(8, 0, "ask"), False),  # somebody else
        (UnacknowledgedAnswer(7, 1, "ask"), False),  # another round
        (UnacknowledgedAnswer(7, 0, "tell"), False),  # another sum
    ],
)
def test_who_left_before_the_end_is_told_later_that_it_was_counted(
    unacknowledged: UnacknowledgedAnswer, told: bool, restart: bool
) -> None:
    algorithm = Counting(dim=DIM, clients=5)
    participant = Participant(algorithm, learner(), trust=Trust.CURIOUS, member=7)
    ask(participant, RoundInfo())
    if restart:
        saved = participant.save()
        participant = Participant(algorithm, learner(), trust=Trust.CURIOUS, member=7)
        participant.restore(saved)
    later = DONE.next(completed=False)
    ask(participant, replace(later, unacknowledged=(unacknowledged,)))
    assert kept(participant) == int(told)


def test_a_turn_tells_only_of_rounds_that_it_remembers() -> None:
    round_info = RoundInfo(100, 1)
    entries = [UnacknowledgedAnswer(1, number, "ask") for number in (36, 37, 99, 100)]
    assert [each.round for each in round_info.with_unacknowledged(entries).unacknowledged] == [37, 99]
    assert round_info.with_unacknowledged(entries).next(completed=True).unacknowledged == ()


def test_whoever_was_not_asked_keeps_nothing() -> None:
    participant = client()
    participant.open(RoundInfo())
    participant.apply_history(DONE)
    assert kept(participant) == 0


def test_a_client_that_missed_rounds_learns_from_the_next_query() -> None:
    participant = client()
    ask(participant, RoundInfo())
    participant.confirmed()
    round_info = DONE
    for _ in range(62):
        round_info = round_info.next(completed=False)
    ask(participant, round_info)
    assert kept(participant) == 1


@pytest.mark.parametrize("restart", [False, True])
def test_a_round_longer_ago_than_the_history_counts_as_completed(restart: bool) -> None:
    participant = client()
    ask(participant, RoundInfo())
    participant.confirmed()
    if restart:
        participant = restarted(participant)
    round_info = DONE
    for _ in range(63):
        round_info = round_info.next(completed=False)
    participant.apply_history(round_info)
    assert kept(participant) == 1


def test_hearing_the_same_twice_changes_nothing() -> None:
    participant = client()
    ask(participant, RoundInfo())
    participant.confirmed()
    for round_info in (DONE, DONE, RoundInfo(), DONE.next(completed=True)):
        participant.apply_history(round_info)
        assert kept(participant) == 1


def test_a_failed_round_is_forgotten_for_good() -> None:
    participant = client()
    ask(participant, RoundInfo())
    participant.confirmed()
    participant.apply_history(FAILED)
    participant.apply_history(RoundInfo(2, 3))  # a server that changes its mind about the past
    assert kept(participant) == 0


# --- restarts ------------------------------------------------------------------------------------------


def test_restarted_in_mid_round_a_client_sits_it_out_and_keeps_what_was_counted() -> None:
    participant = client()
    ask(participant, RoundInfo(), 0)
    participant.confirmed()
    participant = restarted(participant)
    assert ask(participant, RoundInfo(), 1) is None, "its notes are gone"
    participant.confirmed()  # of a sum that it is not in; nothing comes of it
    participant.apply_history(DONE)
    assert kept(participant) == 1
    assert ask(participant, DONE) == {"x": [0.5]}


def test_restarted_twice_before_the_round_is_over() -> None:
    participant = client()
    ask(participant, RoundInfo())
    participant.confirmed()
    participant = restarted(restarted(participant))
    participant.apply_history(DONE)
    assert kept(participant) == 1


def test_restored_in_place_nothing_of_before_is_left() -> None:
    participant = client()
    fresh = participant.save()
    ask(participant, RoundInfo())
    participant.confirmed()
    participant.restore(fresh)
    participant.apply_history(DONE)
    assert kept(participant) == 0


def test_saving_again_gives_the_same_bytes() -> None:
    participant = client()
    for round_info in (RoundInfo(), DONE):
        ask(participant, round_info)
        participant.confirmed()
        assert participant.save() == participant.save()
        assert restarted(participant).save() == participant.save()


@pytest.mark.parametrize("data", [b"", b"\x90", b"junk", pack(Tally()), b"\x93\x00\xc4\x00\xc0"])
def test_what_is_no_saved_client_is_refused_and_changes_nothing(data: bytes) -> None:
    participant = client()
    ask(participant, RoundInfo())
    participant.confirmed()
    participant.apply_history(DONE)
    before = participant.save()
    with pytest.raises(RecordError):
        participant.restore(data)
    assert participant.save() == before


def test_a_damaged_future_does_not_restore_half_a_client() -> None:
    participant = client()
    other = client()
    ask(other, RoundInfo())
    other.confirmed()
    saved = other.save()
    at = saved.rindex(pack(Tally(1, 0.5)))
    before = participant.save()
    with pytest.raises(RecordError):
        participant.restore(saved[:at] + b"\xc1" + saved[at + 1 :])
    assert participant.save() == before


# --- what cannot be answered ---------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [float("nan"), float("inf")])
def test_a_client_that_diverged_declines_and_keeps_nothing(rate: float) -> None:
    participant = client(rate)
    assert ask(participant, RoundInfo()) is None
    participant.apply_history(DONE)
    assert participant.memory == Tally()
    assert participant.save()


def test_a_memory_that_diverged_is_not_kept() -> None:
    """What was sent was in order; what would stay is not, and could not even be saved."""
    participant = client(float("-inf"))
    assert ask(participant, RoundInfo()) == {"x": [0.0]}
    participant.confirmed()
    assert participant.save()
    participant.apply_history(DONE)
    assert participant.memory == Tally()


def test_a_learner_that_diverges_declines_in_federated_averaging() -> None:
    far = QuadraticLearner(np.full(DIM, np.inf))
    for weighted in (False, True):
        algorithm = FedAvg(dim=DIM, clients=2, clip=1.0, weighted=weighted)
        participant = Participant(algorithm, far, trust="curious_server")
        with np.errstate(all="ignore"):
            assert (
                participant.answer(
                    "update", encode_query(RoundInfo(), Update(as_vector([0, 0]))), round_number=0, invited=5
                )
                is None
            )


def test_a_query_of_the_past_is_malformed() -> None:
    participant = client()
    later = DONE.next(completed=True)
    ask(participant, later)
    for round_info in (RoundInfo(), DONE):
        with pytest.raises(MalformedMessage, match="after one of 2"):
            ask(participant, round_info)
    assert ask(restarted(participant), later) is None
    with pytest.raises(MalformedMessage):
        ask(restarted(participant), DONE)


def test_the_round_of_the_sum_is_the_round_of_the_query() -> None:
    """Otherwise a vector that was trained for one group could be summed in another, over other clients."""
    participant = client()
    payload = encode_query(DONE, Ask())
    for number in (0, 2):
        with pytest.raises(MalformedMessage, match=f"in a sum of {number}"):
            participant.answer("ask", payload, round_number=number, invited=5)
    assert participant.answer("ask", payload, round_number=1, invited=5) is not None


@pytest.mark.parametrize("payload", [b"", b"\x91" * 9999, b"\xc4\xff", encode_query(RoundInfo(), Ask())[:-1]])
@pytest.mark.parametrize("kind", ["ask", "other", ""])
def test_hostile_messages_leave_a_client_as_it_was(kind: str, payload: bytes) -> None:
    participant = client()
    ask(participant, RoundInfo())
    participant.confirmed()
    before = participant.save()
    with pytest.raises(MalformedMessage):
        participant.answer(kind, payload, round_number=0, invited=5)
    assert participant.save() == before
    participant.apply_history(DONE)
    assert kept(participant) == 1


def test_repeating_a_round_needs_a_word_that_says_so() -> None:
    participant = client()
    ask(participant, DONE)
    participant.insecure_rewind(5)
    assert ask(participant, DONE) is not None, "a round of the future is not forgotten"
    participant.insecure_rewind(1)
    assert ask(participant, DONE, 1) == {"x": [0.5]}
    participant.insecure_rewind(0)
    assert ask(participant, RoundInfo()) == {"x": [0.5]}


def test_an_algorithm_that_lets_the_server_silence_clients_is_refused() -> None:
    unsafe = Counting(dim=DIM, clients=5, least_weight=0.09)
    with pytest.raises(ParameterError, match="single out one client"):
        Participant(unsafe, learner(), trust="malicious_server")
    assert Participant(unsafe, learner(), trust="curious_server").memory == Tally()
    safe = Counting(dim=DIM, clients=5, least_weight=0.1)
    assert Participant(safe, learner(), trust=Trust.MALICIOUS).memory == Tally()


# --- what a client uses --------------------------------------------------------------------------------


def test_the_model_that_a_client_would_use() -> None:
    participant = client()
    ask(participant, RoundInfo())
    participant.confirmed()
    participant.apply_history(DONE)
    assert participant.personal(as_vector([1.0, 2.0])).tolist() == [2.0, 3.0]


def test_clients_that_work_alone_keep_every_round_that_was_completed() -> None:
    alone = Participant(LocalTraining(dim=DIM, clients=2), learner(), trust="curious_server")
    alone.open(RoundInfo())
    alone.apply_history(FAILED)
    assert alone.memory == OwnModel(None)
    alone.open(FAILED)
    alone.apply_history(FAILED.next(completed=True))
    expected = learner().train(np.zeros(DIM))
    assert alone.memory.model.tolist() == expected.tolist()


# --- means, and learners to test with ------------------------------------------------------------------


def test_a_weighted_mean_is_one() -> None:
    averaging = WeightedMean(dim=DIM, clients=3, clip=10.0, cap=4)
    answers = [averaging.contribution(as_vector(v), n) for v, n in [([1, 0], 1), ([0, 1], 2), ([3, 3], 9)]]
    parts = {name: np.sum([np.asarray(each[name]) for each in answers], axis=0) for name in answers[0]}
    mean = averaging.mean(Total(parts, count=3, invited=3))
    assert mean == pytest.approx(np.average([[1, 0], [0, 1], [3, 3]], axis=0, weights=[1, 2, 4]))
    assert [averaging.weight(n) for n in (0, 1, 4, 9)] == [0, 0.25, 1, 1]


def test_an_unweighted_mean_counts_clients() -> None:
    averaging = WeightedMean(dim=DIM, clients=3, clip=10.0)
    assert [part.name for part in averaging.parts()] == ["update"]
    total = Total({"update": np.array([3.0, 6.0])}, count=3, invited=4)
    assert averaging.mean(total).tolist() == [1.0, 2.0]


def test_a_mean_of_nothing_is_a_failure_and_no_division() -> None:
    averaging = WeightedMean(dim=DIM, clients=3, clip=10.0, cap=4)
    total = Total({"update": np.zeros(2), "weight": np.zeros(1, np.uint64)}, count=3, invited=3)
    with pytest.raises(CorruptTotal, match="no samples"):
        averaging.mean(total)


def test_a_clipped_client_does_not_lose_weight() -> None:
    averaging = WeightedMean(dim=DIM, clients=3, clip=5.0, cap=4)
    values = averaging.contribution(as_vector([300.0, 400.0]), 2)
    assert np.asarray(values["update"]) == pytest.approx([1.5, 2.0])
    assert np.asarray(values["weight"]).tolist() == [2]


@pytest.mark.parametrize("size", [1e-150, 1.0, 1e150, 1e300, 1.7e308])
def test_clipping_knows_no_overflow(size: float) -> None:
    vector = as_vector([size, -size])
    expected = 2.0 if size > 2.0 else np.hypot(size, size)
    assert np.linalg.norm(clipped(vector, 2.0) * 1e10) == pytest.approx(expected * 1e10)
    assert np.sign(clipped(vector, 2.0)).tolist() == [1, -1]


def test_clipping_leaves_what_is_within_and_what_cannot_be_helped() -> None:
    short = as_vector([0.6, 0.8])
    assert clipped(short, 1.0) is short
    assert clipped(as_vector([0.0, 0.0]), 1.0).tolist() == [0.0, 0.0]
    assert not np.isfinite(clipped(as_vector([np.inf, 1.0]), 1.0)).all()
    assert not np.isfinite(clipped(as_vector([np.nan, 1.0]), 1.0)).all()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"clip": None}, "clip must be set: the largest norm"),
        ({"clip": 0.0}, "clip must be a number above 0"),
        ({"clip": float("nan")}, "clip must be a number above 0"),
        ({"clip": 10**400}, "clip must be a number above 0"),
        ({"clip": True}, "clip must be a number above 0"),
        ({"clip": 1.0, "cap": 0}, "cap must be a whole number from 1 to"),
        ({"clip": 1.0, "cap": 2.0}, "cap must be a whole number"),
        ({"clip": 1.0, "bits": 1}, "bits must be a whole number from 2 to 64"),
        ({"clip": 1.0, "bits": 65}, "bits must be a whole number from 2 to 64"),
    ],
)
def test_useless_bounds_say_what_to_set(settings: dict[str, float], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        WeightedMean(dim=DIM, clients=3, **settings)  # type: ignore[arg-type]


def test_parameters_that_make_no_sense() -> None:
    for settings in ({"dim": 0}, {"clients": 0}, {"dim": True}, {"mu": -1.0}, {"mu": 10**400}):
        with pytest.raises(ParameterError):
            FedAvg(**{"dim": 2, "clients": 2, "clip": 1.0, **settings})  # type: ignore[arg-type]


def test_a_weight_part_has_room_for_all_clients() -> None:
    (_, weight) = WeightedMean(dim=DIM, clients=100, clip=1.0, cap=1000).parts()
    assert weight.bound == Count(1000)
    weight.check_fits(100)


def test_steered_steps_are_what_they_say() -> None:
    own = QuadraticLearner(np.array([1.0, -1.0]), curvature=np.array([2.0, 1.0]), rate=0.1, samples=3)
    assert own.gradient(np.zeros(2)).tolist() == [-2.0, 1.0]
    assert own.loss(np.zeros(2)) == 1.5
    anchor, correction, target = np.ones(2), np.array([0.5, 0.5]), np.full(2, 4.0)
    steering = Steering(pull=3.0, anchor=anchor, correction=correction, mix=10.0, target=target)
    plain = np.zeros(2) - 0.1 * (np.array([-2.0, 1.0]) + 3.0 * (0 - anchor) + correction)
    expected = plain / 2 + target / 2  # keep = 1 / (1 + 0.1 * 10)
    assert steered_step(np.zeros(2), own.gradient(np.zeros(2)), steering, 0.1) == pytest.approx(expected)
    assert own.train(np.zeros(2), steps=1, rate=0.5) == pytest.approx([1.0, -0.5])
    assert own.train(np.zeros(2), steps=500) == pytest.approx([1.0, -1.0])
    assert (own.score(np.ones(2)).correct, own.score(np.array([1.0, -1.0])).correct) == (0, 3)


# --- what says something about a client's data ----------------------------------------------------------


@pytest.mark.parametrize("private", [False, True])
def test_who_diverges_is_silent_only_where_silence_costs_nothing(private: bool) -> None:
    budget = PrivacyBudget(
        promise=NoiseAssumptions(clients=5, dropouts=1, colluders=0), goal=Goal(rho=1.0), rounds=10
    )
    algorithm = FedAvg(dim=DIM, clients=5, clip=1.0, weighted=False, privacy=budget if private else None)
    lost = QuadraticLearner(np.full(DIM, np.nan))
    participant = Participant(algorithm, lost, trust="curious_server")
    payload = encode_query(RoundInfo(), Update(as_vector(np.zeros(DIM))))
    values = participant.answer("update", payload, round_number=0, invited=5)
    if private:
        assert values is not None
        assert np.asarray(values["update"]).tolist() == [0.0] * DIM
    else:
        assert values is None


def test_numbers_that_only_some_clients_can_compute_with_are_refused_by_all() -> None:
    participant = Participant(FedAvg(dim=DIM, clients=5, clip=1.0), learner(), trust="curious_server")
    for value, fine in ((LARGEST, True), (-LARGEST, True), (LARGEST * 1.01, False), (-1e300, False)):
        payload = encode_query(RoundInfo(), Update(as_vector([value] + [0.0] * (DIM - 1))))
        if fine:
            assert participant.answer("update", payload, round_number=0, invited=5) is not None
        else:
            with pytest.raises(MalformedMessage, match="numbers beyond"):
                participant.answer("update", payload, round_number=0, invited=5)


def test_a_query_has_one_way_to_be_written() -> None:
    payload = encode_query(RoundInfo(), Ask(0))
    assert payload[0] == 0x92  # a list of two, in one byte
    longer = b"\xdc\x00\x02" + payload[1:]
    assert msgpack.unpackb(longer) == msgpack.unpackb(payload)
    with pytest.raises(MalformedMessage, match="shorter"):
        client().answer("ask", longer, round_number=0, invited=5)


@pytest.mark.parametrize(
    "secret",
    [OwnModel(as_vector([7.25])), ControlVariate(as_vector([7.25])),
     MixtureWeight(7.25),
     ConstraintState(as_vector([7.25]), 7.25), Mixture(as_vector([7.25]), 7.25), Score(725, 725, 7.25),
     Remainder(as_vector([7.25])), UnsentUpdate(as_vector([7.25]), as_vector([7.25])),
     SplittingMemory(7, as_vector([7.25]), as_vector([7.25])),
     PenaltyTerm(center=as_vector([7.25]), pull=7.25),
     Steering(pull=7.25, anchor=as_vector([7.25]), correction=as_vector([7.25]))],
)  # fmt: skip
def test_what_clients_keep_is_not_shown(secret: object) -> None:
    assert "7" not in repr(secret).partition(" object at")[0]


def test_a_sum_that_was_given_up_does_not_stand_in_the_way_of_others() -> None:
    participant = Participant(TwoKinds(dim=DIM, clients=5), learner(), trust=Trust.CURIOUS)
    participant.answer("ask", encode_query(RoundInfo(), Ask()), round_number=0, invited=5)
    participant.confirmed()
    participant.answer("tell", encode_query(RoundInfo(), Tell()), round_number=0, invited=5)
    participant.abandoned()
    participant.apply_history(DONE)
    assert kept(participant) == 2


@pytest.mark.parametrize("earlier", [False, True])
def test_what_was_counted_before_a_sum_was_given_up_stays_counted(earlier: bool) -> None:
    participant = client()
    if earlier:
        ask(participant, RoundInfo(), 0)
        participant.confirmed()
    ask(participant, RoundInfo(), 1)
    participant.confirmed()  # it revealed its share, but too few others did
    participant.abandoned()
    participant.apply_history(DONE)
    assert kept(participant) == (2 if earlier else 0)


# --- what an algorithm is refused for ---


class Wide(Counting):
    """Its sum has too few bits for its clients."""

    bits: ClassVar[int] = 2

    def sums(self) -> tuple[Sum, ...]:
        part = Part(name="x", size=1, bits=self.bits, bound=Count(1000))
        return (Sum(query=Ask, spec=SumSpec(parts=(part,)), reveals="a number"),)


def test_bits_that_are_too_few_for_the_clients_are_refused_with_how_many_would_do() -> None:
    with pytest.raises(SpecError, match="set bits to 13 or more") as caught:
        Wide(dim=1, clients=5)
    assert caught.value.bits_needed == 13


def test_where_no_number_of_bits_is_enough_none_is_named() -> None:
    class Wider(Wide):
        bits: ClassVar[int] = 64

        def sums(self) -> tuple[Sum, ...]:
            part = Part(name="x", size=1, bits=64, bound=Count((1 << 63) - 1))
            return (Sum(query=Ask, spec=SumSpec(parts=(part,)), reveals="a number"),)

    with pytest.raises(SpecError) as caught:
        Wider(dim=1, clients=5)
    assert "set bits" not in str(caught.value)


def test_without_noise_rounds_have_no_cost() -> None:
    assert FedAvg(dim=1, clients=5, clip=1.0).max_rho is None


def test_noise_needs_clients_that_all_count_the_same() -> None:
    budget = PrivacyBudget(
        promise=NoiseAssumptions(clients=6, dropouts=1, colluders=0), goal=Goal(rho=1.0), rounds=10
    )
    with pytest.raises(ParameterError, match="count the same") as caught:
        FedAvg(dim=1, clients=6, clip=1.0, privacy=budget)
    assert caught.value.parameter == "weighted"


def test_a_memory_of_another_type_is_refused() -> None:
    participant = client()
    ask(participant, RoundInfo())
    participant._round = LocalTraining(dim=DIM, clients=5).client(learner(), OwnModel())
    with pytest.raises(TypeError, match="memory_type is Tally"):
        participant.save()


def test_a_client_that_trains_alone_answers_no_query() -> None:
    alone = LocalTraining(dim=DIM, clients=5).client(learner(), OwnModel())
    with pytest.raises(AssertionError, match="no queries"):
        alone.answer(Ask())
