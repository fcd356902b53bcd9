"""A server's run: every round is a transaction, and a restart goes on where the last one ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from protocols.algorithm import AnyAlgorithm, ModelState, NoMemory
from protocols.averaging import Update
from protocols.ditto import Ditto
from protocols.fedavg import FedAvg
from protocols.learner import Learner
from protocols.local_only_training import LocalTraining
from protocols.quadratic_learner import QuadraticLearner
from protocols.rounds import Outcome, Query, RoundInfo
from protocols.run import Run
from protocols.serialisation import RecordError, as_vector
from secagg.errors import CohortChanged, CorruptTotal, ParameterError, StateError, SumFailed, TooFewClients
from secagg.local_session import Stage
from secagg.sum_spec import Total
from secagg.trust_levels import Trust
from sims.runtime import SessionChannel, Setting, insecure_plain_sum, secure_sum

DIM = 3
ALGORITHM = FedAvg(dim=DIM, clients=4, clip=10.0, weighted=False)
Make = Callable[[AnyAlgorithm, dict[int, Learner], Setting], SessionChannel]
BOTH = pytest.mark.parametrize("make", [insecure_plain_sum, secure_sum], ids=["plain", "secure"])


class Scripted:
    """A channel that does what it is told, and notes what it hears."""

    def __init__(self, *answers: float | BaseException, begins: BaseException | None = None) -> None:
        self._answers = list(answers)
        self._begins = begins
        self.begun: list[RoundInfo] = []
        self.finished: list[RoundInfo] = []

    def begin(self, round_info: RoundInfo) -> None:
        self.begun.append(round_info)
        if self._begins is not None:
            raise self._begins

    def ask(self, query: Query) -> Total:
        assert isinstance(query, Update)
        answer = self._answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return Total({"update": np.full(DIM, answer)}, count=2, invited=3)

    def finish(self, round_info: RoundInfo) -> None:
        self.finished.append(round_info)


def run_over(channel: Any, round_info: RoundInfo | None = None) -> Run[Any]:
    return Run(ALGORITHM, channel, ALGORITHM.start(as_vector(np.zeros(DIM))), round_info)


def test_a_round_that_completes() -> None:
    channel = Scripted(2.0, 4.0)
    run = run_over(channel)
    report = run.round()
    assert report.completed
    assert (report.number, report.sums, report.clients, report.failure) == (0, {"update": 1}, 2, None)
    assert run.model.tolist() == [1.0] * DIM
    assert run.round_info == RoundInfo(1, 1)
    run.round()
    assert run.model.tolist() == [3.0] * DIM
    assert channel.begun == [RoundInfo(0), RoundInfo(1, 1)]
    assert channel.finished == [RoundInfo(1, 1), RoundInfo(2, 3)]


@pytest.mark.parametrize(
    "failure", [TooFewClients("few"), CohortChanged("left"), CorruptTotal("odd"), SumFailed("so")]
)
def test_a_sum_that_fails_leaves_everything_and_uses_the_number_up(failure: SumFailed) -> None:
    channel = Scripted(2.0, failure, 2.0)
    run = run_over(channel)
    run.round()
    before = run.state
    report = run.round()
    assert report.failure is failure
    assert not report.completed
    assert (report.number, report.sums, report.clients) == (1, {}, 0)
    assert run.state is before
    assert run.round_info == channel.finished[-1] == RoundInfo(2, 0b10)
    assert run.round().completed
    assert run.round_info == RoundInfo(3, 0b101)


def test_a_round_to_which_nobody_comes() -> None:
    channel = Scripted(begins=TooFewClients("nobody"))
    run = run_over(channel)
    assert isinstance(run.round().failure, TooFewClients)
    assert run.round_info == channel.finished[0] == RoundInfo(1, 0)


@pytest.mark.parametrize("where", ["begin", "ask"])
@pytest.mark.parametrize("error", [RuntimeError("bug"), KeyboardInterrupt(), StateError("asked before")])
def test_other_exceptions_pass_and_the_number_is_used_up(error: BaseException, where: str) -> None:
    channel = Scripted(error) if where == "ask" else Scripted(begins=error)
    run = run_over(channel, RoundInfo(5, 1))
    before = run.state
    with pytest.raises(type(error)):
        run.round()
    assert run.state is before
    assert run.round_info == RoundInfo(6, 2)
    assert channel.finished == []


def test_an_algorithm_that_asks_nothing() -> None:
    alone = LocalTraining(dim=DIM, clients=2)
    channel = Scripted()
    report = Run(alone, channel, alone.start(as_vector(np.zeros(DIM)))).round()
    assert (report.completed, report.sums, report.clients) == (True, {}, 0)


# --- restarts ------------------------------------------------------------------------------------------


def learners(clients: int = 4) -> dict[int, Learner]:
    rng = np.random.default_rng(5)
    return {k: QuadraticLearner(rng.normal(size=DIM), samples=k + 1) for k in range(clients)}


def channel_of(make: Make, **settings: Any) -> SessionChannel:
    return make(ALGORITHM, learners(), Setting(**{"sums": 4, "insecure_seed": b"run", **settings}))


def models(run: Run[Any], rounds: int) -> list[list[float]]:
    found = []
    for _ in range(rounds):
        assert run.round().completed
        found.append(run.model.tolist())
    return found


@BOTH
def test_resumed_it_gives_the_same_bits(make: Make) -> None:
    whole = models(run_over(channel_of(make)), 6)
    channel = channel_of(make)
    run = run_over(channel)
    first = models(run, 3)
    again: Run[Any] = Run.resume(ALGORITHM, channel, run.save())
    assert first + models(again, 3) == whole
    elsewhere: Run[Any] = Run.resume(ALGORITHM, channel_of(make), run.save())
    assert models(elsewhere, 3) == whole[3:]


def test_an_interruption_skips_a_number() -> None:
    run = run_over(Scripted(2.0))
    run.round()
    saved = run.save()
    assert Run.resume(ALGORITHM, Scripted(), saved).round_info == RoundInfo(1, 1)
    assert Run.resume(ALGORITHM, Scripted(), saved, interrupted=True).round_info == RoundInfo(2, 2)
    assert run.save() == Run.resume(ALGORITHM, Scripted(), saved).save() == saved


@BOTH
def test_after_an_interruption_clients_answer_under_the_next_number(make: Make) -> None:
    """The server fell over in the midst of a round, of which its save knows nothing."""
    channel = channel_of(make)
    run = run_over(channel)
    run.round()
    saved = run.save()
    run.round()  # what happened here is lost
    channel.close()
    ignorant: Run[Any] = Run.resume(ALGORITHM, channel, saved)
    assert isinstance(ignorant.round().failure, TooFewClients)
    knowing: Run[Any] = Run.resume(ALGORITHM, channel, saved, interrupted=True)
    assert knowing.round().completed


@pytest.mark.parametrize("data", [b"", b"\x90", b"\x92\x92\x00\x00\xc4\x00", b"\x92\x92\x00\x01\xc4\x00"])
def test_what_is_no_saved_run_is_refused(data: bytes) -> None:
    with pytest.raises(RecordError):
        Run.resume(ALGORITHM, Scripted(), data)


# --- repeating a round is differencing -----------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("trust", list(Trust))
def test_going_back_within_a_session_is_refused(make: Make, trust: Trust) -> None:
    channel = channel_of(make, trust=trust)
    run = run_over(channel)
    run.round()
    saved = run.save()
    run.round()
    back: Run[Any] = Run.resume(ALGORITHM, channel, saved)
    with pytest.raises(StateError):
        back.round()
    assert back.round_info == RoundInfo(2, 2)
    assert back.round().completed, "a number that was never used is no repetition"


@BOTH
@pytest.mark.parametrize("trust", list(Trust))
@pytest.mark.parametrize("change", [False, True], ids=["the same state", "another state"])
@pytest.mark.parametrize("restored", [False, True])
def test_going_back_is_refused_across_sessions_and_restarts(
    make: Make, trust: Trust, change: bool, restored: bool
) -> None:
    channel = channel_of(make, trust=trust)
    clients = {k: each.save() for k, each in channel.participants.items()}
    run = run_over(channel)
    saved = run.save()
    models(run, 2)
    channel.close()
    for member, participant in channel.participants.items():
        if restored:
            participant.restore(clients[member])
    back: Run[Any] = Run.resume(ALGORITHM, channel, saved)
    if change:
        back.state = ALGORITHM.start(as_vector(np.ones(DIM)))
    failure = back.round().failure
    assert isinstance(failure, TooFewClients)
    assert channel.asked[-1].count is None
    assert "only 0 clients sent inputs" in str(failure)


@BOTH
@pytest.mark.parametrize("trust", list(Trust))
@pytest.mark.parametrize("closed", [False, True])
def test_going_back_by_a_setting_that_is_named_insecure(make: Make, trust: Trust, closed: bool) -> None:
    channel = channel_of(make, trust=trust, insecure_replay=True)
    run = run_over(channel)
    saved = run.save()
    once = models(run, 3)
    if closed:
        channel.close()
    assert models(Run.resume(ALGORITHM, channel, saved), 3) == once
    middle = Run.resume(ALGORITHM, channel, saved)
    models(middle, 2)
    assert models(Run.resume(ALGORITHM, channel, middle.save()), 1) == once[2:]


@BOTH
def test_a_round_repeated_after_it_failed(make: Make) -> None:
    missing = {"now": True}
    channel = channel_of(
        make,
        insecure_replay=True,
        dropouts=lambda _member, stage, number, _sum: missing["now"] and stage is Stage.MASK and number == 1,
    )
    run = run_over(channel)
    models(run, 1)
    saved = run.save()
    assert isinstance(run.round().failure, TooFewClients)
    missing["now"] = False
    whole = models(run_over(channel_of(make)), 2)
    assert models(Run.resume(ALGORITHM, channel, saved), 1) == whole[1:]


# --- mistakes of who writes an algorithm --------------------------------------------------------------


class NoGenerator(FedAvg):
    def round(self, state: ModelState) -> Any:
        return Outcome(state)


class NoOutcome(FedAvg):
    def round(self, state: ModelState) -> Any:
        yield from ()
        return state


class OtherState(FedAvg):
    def round(self, state: ModelState) -> Any:
        yield from ()
        return Outcome(NoMemory())


@pytest.mark.parametrize(
    ("kind", "said"),
    [(NoGenerator, "generator"), (NoOutcome, "must return an Outcome"), (OtherState, "must be a ModelState")],
)
def test_a_round_that_is_none_is_noticed_at_once(kind: type[FedAvg], said: str) -> None:
    algorithm = kind(dim=2, clients=3, clip=1.0)
    learners = {k: QuadraticLearner(np.ones(2)) for k in range(3)}
    run = Run(algorithm, insecure_plain_sum(algorithm, learners, Setting()), algorithm.start(np.zeros(2)))
    before = run.state
    with pytest.raises(TypeError, match=said):
        run.round()
    assert run.state is before


def test_a_model_of_another_size_is_noticed_at_once() -> None:
    algorithm = FedAvg(dim=3, clients=3, clip=1.0)
    channel = insecure_plain_sum(algorithm, {k: QuadraticLearner(np.ones(3)) for k in range(3)}, Setting())
    with pytest.raises(ParameterError, match="the model has 5 parameters, but the algorithm is for 3"):
        Run(algorithm, channel, algorithm.start(np.zeros(5)))
    other = FedAvg(dim=4, clients=3, clip=1.0)
    saved = Run(other, channel, other.start(np.zeros(4))).save()
    with pytest.raises(ParameterError, match="4 parameters"):
        Run.resume(algorithm, channel, saved)


def test_a_memory_of_another_type_is_noticed_at_once() -> None:
    class Forgetful(Ditto):
        memory_type = NoMemory

    algorithm = Forgetful(dim=2, clients=3, clip=1.0)
    learners = {k: QuadraticLearner(np.ones(2)) for k in range(3)}
    run = Run(algorithm, insecure_plain_sum(algorithm, learners, Setting()), algorithm.start(np.zeros(2)))
    with pytest.raises((TypeError, AttributeError), match=r"memory_type|NoMemory"):
        run.round()
