"""Channels to simulated clients: sessions and their ends, draws, drop-outs, budgets, bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from protocols.algorithm import Algorithm, AnyAlgorithm, ClientRound, ModelState, Sum
from protocols.fedavg import FedAvg
from protocols.learner import Learner
from protocols.local_only_training import LocalTraining
from protocols.privacy_budget import PrivacyBudget
from protocols.quadratic_learner import QuadraticLearner
from protocols.query_encoding import encode_query
from protocols.rounds import Outcome, Query, Round, RoundInfo
from protocols.run import Run
from protocols.scaffold import Scaffold
from protocols.serialisation import Vector, as_vector
from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.errors import (
    CohortChanged,
    InputError,
    MalformedMessage,
    ParameterError,
    SumFailed,
    TooFewClients,
)
from secagg.hybrid_keys import KeyAgreement
from secagg.local_session import Stage
from secagg.noise.privacy_goal import Goal
from secagg.noise.zcdp_cost import Adjacency, rho_of
from secagg.sum_spec import COUNT_BYTES, Count, Part, SumSpec
from secagg.trust_levels import Trust
from sims.runtime import SessionChannel, Setting, insecure_plain_sum, no_dropouts, secure_sum

DIM, CLIENTS = 3, 5
Make = Callable[[AnyAlgorithm, Mapping[int, Learner], Setting], SessionChannel]
MAKES: list[Make] = [insecure_plain_sum, secure_sum]
BOTH = pytest.mark.parametrize("make", MAKES, ids=["plain", "secure"])
TRUSTS = pytest.mark.parametrize("trust", list(Trust))
FEDAVG = FedAvg(dim=DIM, clients=CLIENTS, clip=10.0, weighted=False)


@dataclass(frozen=True)
class Vote(Query):
    kind: ClassVar[str] = "vote"
    step: int


@dataclass(frozen=True)
class Votes:
    cast: int = 0


@dataclass(frozen=True, kw_only=True)
class Voting(Algorithm[ModelState, Votes]):
    """Sums of ones, `steps` of them in a group; goes on with what it has when one fails."""

    memory_type: ClassVar[type] = Votes

    steps: int = 3
    noise: bool = False
    dropouts: int = 0

    def sums(self) -> tuple[Sum, ...]:
        promise = (
            NoiseAssumptions(clients=CLIENTS, dropouts=self.dropouts, colluders=0) if self.noise else None
        )
        noise = Noise(scale=64, variance=Fraction(64**2)) if self.noise else None
        part = Part(name="x", size=1, bits=24, bound=Count(1, 1), noise=noise)
        spec = SumSpec(parts=(part,), times=self.steps, group="votes", promise=promise)
        return (Sum(query=Vote, spec=spec, reveals="votes"),)

    def start(self, model: Vector) -> ModelState:
        return ModelState(as_vector(model))

    def model(self, state: ModelState) -> Vector:
        return state.model

    def round(self, state: ModelState) -> Round[ModelState]:
        counts: list[float] = []
        failed = ""
        for step in range(self.steps):
            try:
                counts.append(float((yield Vote(step))["x"][0]))
            except SumFailed as failure:
                if not counts:
                    raise
                failed = type(failure).__name__
                break
        missing = [0.0] * (self.dim - len(counts))
        return Outcome(ModelState(as_vector(counts + missing)), {"failed": failed})

    def client(self, learner: Learner, memory: Votes) -> VotingClient:
        return VotingClient(learner, memory)


class VotingClient(ClientRound[Votes]):
    def __init__(self, learner: Learner, memory: Votes) -> None:
        self._learner = learner
        self._cast = memory.cast

    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        if self._learner.samples < 0:
            raise MalformedMessage("server", "not this one")
        self._cast += 1
        return {"x": [self._learner.samples]}

    def memory(self) -> Votes:
        return Votes(self._cast)


def learners(clients: int = CLIENTS) -> dict[int, QuadraticLearner]:
    rng = np.random.default_rng(3)
    return {k: QuadraticLearner(rng.normal(size=DIM)) for k in range(clients)}


def channel_of(make: Make, algorithm: AnyAlgorithm = FEDAVG, **chosen: Any) -> SessionChannel:
    usual: dict[str, Any] = {"insecure_seed": b"channels", "dropout": 0.4}
    return make(algorithm, learners(), Setting(**usual | chosen))


def run_of(channel: SessionChannel) -> Run[Any]:
    algorithm = channel._algorithm
    return Run(algorithm, channel, algorithm.start(as_vector(np.zeros(DIM))))


def votes_of(channel: SessionChannel) -> list[int]:
    return [participant.memory.cast for participant in channel.participants.values()]


# --- sessions ------------------------------------------------------------------------------------------


@BOTH
@TRUSTS
def test_sessions_are_renewed_when_their_sums_are_used_up(make: Make, trust: Trust) -> None:
    channel = channel_of(make, trust=trust, sums=2)
    run = run_of(channel)
    sessions = []
    for _ in range(5):
        assert run.round().completed
        sessions.append(channel.sessions)
    assert sessions == [1, 1, 2, 2, 3]


@BOTH
def test_sessions_are_renewed_between_rounds_only(make: Make) -> None:
    """Seven sums are two rounds of three: the seventh stays unused, and no group is torn apart."""
    channel = channel_of(make, Voting(dim=DIM, clients=CLIENTS), sums=7)
    run = run_of(channel)
    seen = []
    for _ in range(4):
        assert run.round().sums == {"vote": 3}
        seen.append((channel.sessions, channel.coordinator._sums_left))
    assert seen == [(1, 4), (1, 1), (2, 4), (2, 1)]
    assert votes_of(channel) == [12] * CLIENTS


@BOTH
def test_real_clients_stay_who_they_are_without_a_seed(make: Make) -> None:
    channel = channel_of(make, trust=Trust.MALICIOUS, sums=1, insecure_seed=None)
    run = run_of(channel)
    assert [run.round().completed for _ in range(3)] == [True] * 3
    assert channel.sessions == 3


@BOTH
@TRUSTS
def test_draws_open_sessions_of_their_own(make: Make, trust: Trust) -> None:
    drawn = [(0, 1, 2), (2, 1, 0), (1, 3, 4), (0, 1, 2)]
    channel = channel_of(make, trust=trust, sample_cohort=lambda number: drawn[number])
    run = run_of(channel)
    sessions = []
    for _ in drawn:
        report = run.round()
        assert (report.completed, report.clients) == (True, 3)
        sessions.append(channel.sessions)
    assert sessions == [1, 1, 2, 3]


def test_draws_give_the_same_bits_plain_and_secure() -> None:
    drawn = [(0, 1), (2, 3, 4), (0, 4), (0, 1, 2, 3, 4), (1, 3), (0, 1)]
    results = []
    for make in MAKES:
        run = run_of(channel_of(make, sample_cohort=lambda number: drawn[number]))
        results.append([(run.round().clients, run.model.tolist()) for _ in drawn])
    assert results[0] == results[1]
    assert [clients for clients, _ in results[0]] == [2, 3, 2, 5, 2, 2]


@BOTH
@pytest.mark.parametrize(
    ("drawn", "words"),
    [((0, 9), "do not exist"), ((0, 0, 1), "twice"), ((0, 1, 2, 3, 4), "at most 4")],
)
def test_draws_that_cannot_be(make: Make, drawn: tuple[int, ...], words: str) -> None:
    small = FedAvg(dim=DIM, clients=4, clip=1.0)
    run = run_of(channel_of(make, small, sample_cohort=lambda _number: drawn))
    with pytest.raises(ParameterError, match=words):
        run.round()


@BOTH
def test_a_draw_of_one_is_a_failed_round(make: Make) -> None:
    run = run_of(channel_of(make, sample_cohort=lambda number: [0] if number == 0 else [0, 1]))
    failure = run.round().failure
    assert isinstance(failure, TooFewClients)
    assert "only 1 clients are invited; 2 are needed" in str(failure)
    assert run.round().completed


@BOTH
def test_settings_that_cannot_be(make: Make) -> None:
    with pytest.raises(ParameterError, match="at most 4 clients, but there are 5"):
        channel_of(make, FedAvg(dim=DIM, clients=4, clip=1.0))
    with pytest.raises(ParameterError, match="a round of the algorithm may need 3"):
        channel_of(make, Voting(dim=DIM, clients=CLIENTS), sums=2)
    with pytest.raises(ParameterError, match="of 64 that are possible"):
        channel_of(make, sums=65)
    with pytest.raises(ParameterError, match="at least 6 are needed"):
        channel_of(make, corrupt=4)
    with pytest.raises(ParameterError):
        channel_of(make, trust="honest_server")
    with pytest.raises(ParameterError):
        channel_of(make, corrupt=-1)


@dataclass(frozen=True, kw_only=True)
class Together(Voting):
    needs_all_clients: ClassVar[bool] = True


@BOTH
def test_whoever_needs_all_clients_takes_no_draw(make: Make) -> None:
    with pytest.raises(ParameterError, match="needs all clients"):
        channel_of(make, Together(dim=DIM, clients=CLIENTS), sample_cohort=lambda _number: (0, 1))


@BOTH
def test_there_is_no_sum_before_a_session(make: Make) -> None:
    with pytest.raises(TooFewClients, match="no session"):
        channel_of(make).ask(Vote(0))


@BOTH
def test_working_alone_takes_no_session(make: Make) -> None:
    channel = channel_of(make, LocalTraining(dim=DIM, clients=CLIENTS), sample_cohort=lambda _number: (0, 1))
    run = run_of(channel)
    assert run.round().completed
    trained = [participant.memory.model is not None for participant in channel.participants.values()]
    assert trained == [True, True, False, False, False]
    assert (channel.sessions, channel.bytes_up) == (0, {})


# --- drop-outs and refusals ----------------------------------------------------------------------------


@TRUSTS
@pytest.mark.parametrize("stage", [Stage.MASK, Stage.CONFIRM, Stage.REVEAL])
@pytest.mark.parametrize("missing", [(1,), (0, 1, 2)], ids=len)
@pytest.mark.parametrize("step", [0, 1])
def test_what_clients_keep_when_an_algorithm_goes_on_without_a_sum(
    trust: Trust, stage: Stage, missing: tuple[int, ...], step: int
) -> None:
    """Real clients act when they hear who is in a sum, though it may fail after that; plain ones as well."""

    def dropouts(member: int, at: Stage, number: int, index: int) -> bool:
        return at is stage and (number, index) == (1, step) and member in missing

    found = []
    for make in MAKES:
        channel = channel_of(make, Voting(dim=DIM, clients=CLIENTS), trust=trust, dropouts=dropouts)
        run = run_of(channel)
        rounds = []
        for _ in range(3):
            report = run.round()
            failed = None if report.failure is None else (type(report.failure), str(report.failure))
            rounds.append(
                (dict(report.sums), failed, dict(report.facts), run.model.tolist(), votes_of(channel))
            )
        found.append((rounds, [(each.round, each.kind, each.count) for each in channel.asked]))
    assert found[0] == found[1]
    assert found[0][0][2][0] == {"vote": 3}, "and the round after that is whole"


STAGES = st.sampled_from(list(Stage))
LOST = st.tuples(st.integers(0, 5), STAGES, st.integers(0, 3), st.integers(-1, 2))


@settings(max_examples=8)
@given(
    lost=st.sets(LOST, max_size=25),
    trust=st.sampled_from(list(Trust)),
    corrupt=st.integers(0, 1),
    dropout=st.sampled_from([0, 0.2, 0.4]),
    sums=st.sampled_from([3, 7, 64]),
)
def test_whatever_happens_happens_in_plain_sums_as_well(
    lost: set[tuple[int, Stage, int, int]], trust: Trust, corrupt: int, dropout: float, sums: int
) -> None:
    def dropouts(*where: Any) -> bool:
        return where in lost

    found = []
    for make in MAKES:
        algorithm = Voting(dim=DIM, clients=6)
        chosen = Setting(
            trust=trust, corrupt=corrupt, dropout=dropout, sums=sums, dropouts=dropouts, insecure_seed=b"x"
        )
        channel = make(algorithm, learners(6), chosen)
        run = run_of(channel)
        rounds: list[object] = []
        for _ in range(4):
            try:
                report = run.round()
            except ParameterError as error:  # a cohort for which there is no threshold
                rounds.append((str(error), {}, [], []))
                continue
            failed = "" if report.failure is None else f"{type(report.failure)} {report.failure}"
            rounds.append((failed, dict(report.facts), run.model.tolist(), votes_of(channel)))
        found.append((rounds, [(each.round, each.kind, each.count) for each in channel.asked]))
    assert found[0] == found[1]


@BOTH
def test_a_drop_out_is_the_decimal_fraction_that_it_looks_like(make: Make) -> None:
    """Three of five are six tenths, though the float is a little less."""

    def dropouts(member: int, stage: Stage, _number: int, _sum: int) -> bool:
        return stage is Stage.MASK and member < 3

    report = run_of(channel_of(make, dropouts=dropouts, dropout=0.6)).round()
    assert (report.completed, report.clients) == (True, 2)


def test_a_plain_sum_takes_as_many_clients_as_a_ring_does() -> None:
    """More than the complete graph, where the server is no worse than curious."""
    many = 1100
    algorithm = FedAvg(dim=DIM, clients=many, clip=1.0)
    channel = insecure_plain_sum(algorithm, learners(many), Setting(sums=1))
    report = run_of(channel).round()
    assert (report.completed, report.clients) == (True, many)
    with pytest.raises(ParameterError):
        run_of(insecure_plain_sum(algorithm, learners(many), Setting(trust="malicious_server"))).round()


@BOTH
def test_a_client_that_leaves_in_mid_group_is_a_changed_cohort(make: Make) -> None:
    def dropouts(member: int, stage: Stage, _number: int, index: int) -> bool:
        return stage is Stage.MASK and index == 1 and member == 2

    channel = channel_of(make, Voting(dim=DIM, clients=CLIENTS), dropouts=dropouts)
    run = run_of(channel)
    report = run.round()
    assert report.completed
    assert report.facts == {"failed": CohortChanged.__name__}
    assert [asking.count for asking in channel.asked] == [5, None]
    assert votes_of(channel) == [2, 2, 1, 2, 2], "all were counted in the sum that stands"


@dataclass(frozen=True)
class Other(Query):
    kind: ClassVar[str] = "other"


@dataclass(frozen=True, kw_only=True)
class Interleaved(Voting):
    """Another sum between two of a group."""

    def sums(self) -> tuple[Sum, ...]:
        (votes,) = super().sums()
        return votes, Sum(query=Other, spec=SumSpec(parts=votes.spec.parts), reveals="votes")

    def round(self, state: ModelState) -> Round[ModelState]:
        yield Vote(0)
        yield Other()
        yield Vote(1)
        return Outcome(state)

    def client(self, learner: Learner, memory: Votes) -> VotingClient:
        return RefusingOther(learner, memory)


class RefusingOther(VotingClient):
    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        if isinstance(query, Other) and self._learner.rate < 0:
            raise MalformedMessage("server", "not that one")
        return super().answer(query)


@BOTH
def test_whoever_left_in_between_is_missed_by_its_group(make: Make) -> None:
    """The total of the group's next sum would show, against the last one, what it had contributed."""
    people = learners()
    people[3].rate = -1.0
    algorithm = Interleaved(dim=DIM, clients=CLIENTS, steps=2)
    channel = make(algorithm, people, Setting(insecure_seed=b"x", dropout=0.4))
    failure = run_of(channel).round().failure
    assert isinstance(failure, CohortChanged)
    assert "has left" in str(failure)
    assert [asking.count for asking in channel.asked] == [5, 4, None]


@BOTH
@pytest.mark.parametrize("gone", [2, 3])
def test_too_few_are_left_for_the_noise(make: Make, gone: int) -> None:
    """Who never dealt shares is in no roster, and noise is shared among those who are."""
    algorithm = Voting(dim=DIM, clients=CLIENTS, steps=1, noise=True, dropouts=2)

    def dropouts(member: int, stage: Stage, _number: int, _sum: int) -> bool:
        return stage is Stage.SHARE and member < gone

    report = run_of(channel_of(make, algorithm, dropouts=dropouts, dropout=0.6)).round()
    assert report.completed == (gone == 2)
    assert report.failure is None or "2 clients are left; 3 are needed" in str(report.failure)


@BOTH
def test_a_client_that_refuses_leaves_and_comes_back_with_the_next_session(make: Make) -> None:
    people = learners()
    people[3].samples = -1
    algorithm = Voting(dim=DIM, clients=CLIENTS, steps=1)
    channel = make(algorithm, people, Setting(sums=2, insecure_seed=b"x", dropout=0.4))
    run = run_of(channel)
    assert run.round().clients == 4
    people[3].samples = 1
    assert run.round().clients == 4
    assert run.round().clients == 5
    assert votes_of(channel) == [3, 3, 3, 1, 3]


@BOTH
def test_a_client_that_diverged_declines_and_the_round_goes_on(make: Make) -> None:
    people = learners()
    people[1] = QuadraticLearner(np.full(DIM, np.nan))
    channel = make(FEDAVG, people, Setting(insecure_seed=b"x", dropout=0.4))
    run = run_of(channel)
    for _ in range(2):
        report = run.round()
        assert (report.completed, report.clients) == (True, 4)
    assert np.isfinite(run.model).all()


@BOTH
def test_a_clients_own_mistake_passes_and_the_next_round_works(make: Make) -> None:
    people = learners()
    people[2].samples = 2  # beyond the bound of a vote
    algorithm = Voting(dim=DIM, clients=CLIENTS, steps=2)
    channel = make(algorithm, people, Setting(insecure_seed=b"x", dropout=0.4))
    run = run_of(channel)
    before = run.state
    with pytest.raises(InputError):
        run.round()
    assert run.state is before
    assert run.round_info == RoundInfo(1, 0)
    people[2].samples = 1
    report = run.round()
    assert (report.number, report.clients, report.sums) == (1, 5, {"vote": 2})
    assert votes_of(channel) == [2] * CLIENTS, "nothing of the round that broke is kept"
    assert channel.sessions == 1


@BOTH
def test_a_query_of_another_round_than_its_sums_is_refused(make: Make) -> None:
    """A malicious server could otherwise sum what was trained for one group in a second one."""
    channel = channel_of(make, Voting(dim=DIM, clients=CLIENTS))
    channel.begin(RoundInfo())
    assert channel.ask(Vote(0)).count == CLIENTS
    assert channel.coordinator.session is not None
    with pytest.raises(TooFewClients):
        channel.coordinator.session.ask("vote", encode_query(RoundInfo(), Vote(1)), round_number=1)


# --- budgets -------------------------------------------------------------------------------------------


@BOTH
def test_clients_stop_when_their_budget_is_spent(make: Make) -> None:
    """Each sum costs a rho of a half, at five clients."""
    algorithm = Voting(dim=DIM, clients=CLIENTS, steps=1, noise=True)
    channel = channel_of(make, algorithm, max_rho=1.0, dropout=0)
    run = run_of(channel)
    assert [run.round().completed for _ in range(4)] == [True, True, False, False]
    spent = {rho_of(memory.spend.charge) for memory in channel._memories.values()}
    assert list(spent) == [pytest.approx(1.0, rel=1e-9)]


@BOTH
def test_noise_that_is_planned_for_fewer_colluders_is_refused(make: Make) -> None:
    algorithm = Voting(dim=DIM, clients=CLIENTS, steps=1, noise=True)
    run = run_of(channel_of(make, algorithm, corrupt=1, dropout=0))
    with pytest.raises(Exception, match="planned for 0 colluders"):
        run.round()


@BOTH
@pytest.mark.parametrize("gone", [1, 2, 3])
def test_too_few_for_the_noise_that_was_promised(make: Make, gone: int) -> None:
    algorithm = Voting(dim=DIM, clients=CLIENTS, steps=1, noise=True, dropouts=2)

    def dropouts(member: int, stage: Stage, _number: int, _sum: int) -> bool:
        return stage is Stage.MASK and member < gone

    report = run_of(channel_of(make, algorithm, dropouts=dropouts, dropout=0)).round()
    assert report.completed == (gone <= 2)
    assert report.failure is None or "only 2 clients sent inputs; 3 are needed" in str(report.failure)


# --- what is counted -----------------------------------------------------------------------------------


def test_bytes_are_counted_as_they_are_sent_over_all_sessions() -> None:
    channel = channel_of(secure_sum, trust=Trust.MALICIOUS, sums=1, key_agreement=KeyAgreement.HYBRID)
    run = run_of(channel)
    seen = []
    for _ in range(3):
        run.round()
        seen.append((dict(channel.bytes_up), dict(channel.bytes_down)))
    up, down = seen[0]
    assert set(up) == set(down) == set(Stage)
    for number, (later_up, later_down) in enumerate(seen, start=1):
        assert later_up == {stage: number * count for stage, count in up.items()}
        for stage in set(Stage) - {Stage.MASK}:
            assert later_down[stage] == number * down[stage]
    before = channel.bytes_up
    channel.close()
    channel.close()
    assert channel.bytes_up == before


def test_a_masked_input_has_the_bytes_that_its_spec_says() -> None:
    channel = channel_of(secure_sum)
    run_of(channel).round()
    assert FEDAVG.table is not None
    words = COUNT_BYTES * (CLIENTS - 1)
    most = CLIENTS * (FEDAVG.table["update"].packed_bytes + words)
    assert most < channel.bytes_up[Stage.MASK] < most + CLIENTS * 64


def test_a_plain_sum_sends_nothing() -> None:
    channel = channel_of(insecure_plain_sum)
    run_of(channel).round()
    assert channel.bytes_up == channel.bytes_down == {}


@BOTH
def test_what_was_asked_is_noted(make: Make) -> None:
    channel = channel_of(make, dropouts=lambda _k, stage, number, _sum: stage is Stage.MASK and number == 1)
    run = run_of(channel)
    for _ in range(3):
        run.round()
    noted = [(asking.round, asking.kind, asking.count) for asking in channel.asked]
    assert noted == [(0, "update", 5), (1, "update", None), (2, "update", 5)]


def test_nobody_is_missing_by_default() -> None:
    assert not no_dropouts(0, Stage.MASK, 0, 0)
    assert Setting().dropouts is no_dropouts
    assert Setting(trust="malicious_server").trust is Trust.MALICIOUS


# --- without a seed ------------------------------------------------------------------------------------


@BOTH
@TRUSTS
def test_without_a_seed_rounding_differs_and_the_mean_is_the_same(make: Make, trust: Trust) -> None:
    """Twelve rounds of three sums each: that all of them are rounded alike has a chance below 1e-9."""
    models, ways = [], []
    for _ in range(2):
        run = run_of(channel_of(make, trust=trust, insecure_seed=None))
        way = []
        for _ in range(12):
            run.round()
            way.append(run.model.tolist())
        models.append(run.model)
        ways.append(way)
    assert ways[0] != ways[1]
    assert models[0] == pytest.approx(models[1], abs=1e-7)


# --- budgets -------------------------------------------------------------------------------------------


def private_fedavg(**goal: Any) -> FedAvg:
    promise = NoiseAssumptions(clients=CLIENTS, dropouts=1, colluders=0)
    budget = PrivacyBudget(promise=promise, goal=Goal(rho=1.0, **goal), rounds=2)
    return FedAvg(dim=DIM, clients=CLIENTS, clip=1.0, weighted=False, privacy=budget)


@BOTH
def test_clients_spend_what_noise_is_planned_for_and_no_more(make: Make) -> None:
    run = run_of(channel_of(make, private_fedavg()))
    assert [run.round().completed for _ in range(4)] == [True, True, False, False]


@BOTH
def test_a_budget_leaves_no_sum_without_noise(make: Make) -> None:
    assert not run_of(channel_of(make, max_rho=1.0)).round().completed


@BOTH
def test_what_noise_is_about_must_be_said_twice(make: Make) -> None:
    algorithm = private_fedavg(adjacency=Adjacency.REPLACE)
    with pytest.raises(ParameterError, match="set its adjacency"):
        channel_of(make, algorithm)
    run = run_of(channel_of(make, algorithm, adjacency=Adjacency.REPLACE))
    assert [run.round().completed for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize(
    "wrong",
    [{"dropout": 2}, {"dropout": "0.1"}, {"dropout": -0.1}, {"insecure_seed": "abc"}, {"corrupt": -1}],
)
def test_settings_are_checked_when_they_are_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=next(iter(wrong)).replace("dropout", "drop-?out")):
        Setting(**wrong)


@BOTH
def test_learners_need_ids(make: Make) -> None:
    with pytest.raises(ParameterError, match="mapping"):
        make(FEDAVG, list(learners(CLIENTS).values()), Setting())  # type: ignore[arg-type]


@BOTH
def test_a_draw_may_hold_numpy_numbers(make: Make) -> None:
    run = run_of(channel_of(make, sample_cohort=lambda number: np.array([0, 2, 4])))
    assert run.round().clients == 3


def test_with_a_draw_scaffold_needs_its_population() -> None:
    settings: dict[str, Any] = {"dim": DIM, "clients": CLIENTS, "clip": 1.0, "steps": 2, "rate": 0.1}
    some = Setting(sample_cohort=lambda number: range(3))
    with pytest.raises(ParameterError, match="set the population of Scaffold: 5"):
        insecure_plain_sum(Scaffold(**settings), learners(CLIENTS), some)
    insecure_plain_sum(Scaffold(**settings, population=5), learners(CLIENTS), some)
