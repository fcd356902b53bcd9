"""Training goes on after failed rounds: the rules about repeated queries cost no round."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from protocols.algorithm import AnyAlgorithm
from protocols.fedavg import FedAvg
from protocols.quadratic_learner import QuadraticLearner
from protocols.query_encoding import query_content
from protocols.rfa import RFA
from protocols.run import Run
from protocols.simplicial import SimplicialFL
from secagg.differencing_rules import SequenceRules
from secagg.errors import CorruptTotal, FalseDealing, SumFailed, Unrecoverable
from secagg.repeated_query_roster import RepeatPlanner
from secagg.sum_unmasking import Tally
from secagg.trust_levels import Trust
from sims.runtime import Setting, insecure_plain_sum, secure_sum
from sims.runtime.plain import PlainSession
from sims.runtime.sum_and_dropout_settings import DropoutLaw

CLIENTS, DIM = 20, 3
ALGORITHMS: dict[str, AnyAlgorithm] = {
    "fedavg": FedAvg(dim=DIM, clients=CLIENTS, clip=10.0),
    "rfa": RFA(dim=DIM, clients=CLIENTS, clip=10.0),
    "simplicial": SimplicialFL(dim=DIM, clients=CLIENTS, clip=10.0, loss_bound=50.0, floor=0.1),
}


def lie(tally: Tally) -> SumFailed:
    """The dealer with the least id lied; it is the only one, and is invited no more."""
    cohort, asked = tally.question.cohort, min(tally.question.roster)
    if cohort.size < CLIENTS:
        return CorruptTotal("a mask did not cancel")
    return Unrecoverable([FalseDealing(cohort.ids[asked], 0)])


Failure = Callable[[Tally], SumFailed]
FAILURES: dict[str, Failure] = {
    "corrupt total": lambda _: CorruptTotal("a mask did not cancel"),
    "a dealer lied": lie,
}


def completed(name: str, trust: Trust, *, rounds: int, channel: Any = secure_sum) -> list[bool]:
    """Which rounds were completed, of clients that drop out at 10 % per round."""
    learners = {k: QuadraticLearner(np.array([1.0, float(k), -float(k)])) for k in range(CLIENTS)}
    law = DropoutLaw(seed=b"law", training=0.1)
    setting = Setting(
        trust=trust, corrupt=2, dropout=Fraction(1, 4), dropout_law=law, insecure_seed=b"seed", sums=8
    )
    algorithm = ALGORITHMS[name]
    made = channel(algorithm, learners, setting)
    run = Run(algorithm, made, algorithm.start(np.zeros(DIM)))
    found = [run.round().completed for _ in range(rounds)]
    made.close()
    return found


def fail_every(patch: pytest.MonkeyPatch, every: int, failure: Failure) -> None:
    """Let every so many sums fail after clients have confirmed and revealed."""
    unmask, calls = Tally.unmask, [0]

    def fails(self: Tally) -> Any:
        calls[0] += 1
        if calls[0] % every == 0:
            raise failure(self)
        return unmask(self)

    patch.setattr(Tally, "unmask", fails)


def without_rules(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SequenceRules, "of_query", lambda *_: ())
    patch.setattr(RepeatPlanner, "sequences", lambda *_, **__: ())


@pytest.mark.slow  # thirty rounds twice
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("trust", list(Trust))
@pytest.mark.parametrize("name", ALGORITHMS)
def test_failed_rounds_cost_no_others(
    name: str, trust: Trust, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail_every(patch, 5, FAILURES[failure])
        with_rules = completed(name, trust, rounds=30)
    with monkeypatch.context() as patch:
        fail_every(patch, 5, FAILURES[failure])
        without_rules(patch)
        before = completed(name, trust, rounds=30)
    assert sum(with_rules) >= sum(before)
    assert not all(with_rules)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_plain_sums_leave_out_the_same_clients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round fails after it was confirmed, because too few clients stay; then the model is asked again."""
    found = {}
    for channel in (secure_sum, insecure_plain_sum):
        asked: list[tuple[int, ...]] = []
        roster = RepeatPlanner.roster

        def spy(
            self: RepeatPlanner, *given: Any, _roster: Any = roster, _asked: Any = asked, **more: Any
        ) -> Any:
            _asked.append(_roster(self, *given, **more))
            return _asked[-1]

        with monkeypatch.context() as patch:
            patch.setattr(RepeatPlanner, "roster", spy)
            patch.setattr(DropoutLaw, "missing", lose_reveals)
            rounds = completed(name, Trust.MALICIOUS, rounds=6, channel=channel)
        found[channel.__name__] = (asked, rounds)
    secure, plain = found["secure_sum"], found["insecure_plain_sum"]
    assert secure == plain
    assert not all(secure[1])
    assert min(map(len, secure[0])) < CLIENTS


def lose_reveals(_law: DropoutLaw, member: int, stage: Any, number: int, _index: int, *, later: bool) -> bool:
    """In every third round, most clients are gone after they confirmed."""
    return stage.value == "reveal" and number % 3 == 1 and member < 15 and not later


def test_what_is_no_query_is_content_as_a_whole() -> None:
    assert query_content("update", b"\xc1") == b"\xc1"
    assert PlainSession.is_plain


@pytest.mark.parametrize("trust", [Trust.CURIOUS, pytest.param(Trust.MALICIOUS, marks=pytest.mark.slow)])
def test_clients_that_compare_sets_are_asked_by_batches(trust: Trust) -> None:
    """Both channels choose the same clients, no client refuses, and rounds go on."""
    found = []
    for channel in (secure_sum, insecure_plain_sum):
        algorithm = ALGORITHMS["fedavg"]
        learners = {k: QuadraticLearner(np.array([1.0, float(k), -float(k)])) for k in range(CLIENTS)}
        law = DropoutLaw(seed=b"batches", training=0.05)
        setting = Setting(
            trust=trust,
            corrupt=2,
            dropout=Fraction(1, 4),
            dropout_law=law,
            insecure_seed=b"seed",
            sums=8,
            min_difference=4,
        )
        made = channel(algorithm, learners, setting)
        run = Run(algorithm, made, algorithm.start(np.zeros(DIM)))
        reports = [run.round() for _ in range(10)]
        made.close()
        assert not [each for record in made.asked for each in record.refusals]
        found.append([(each.clients, each.completed) for each in reports])
    assert found[0] == found[1]
    assert sum(completed for _, completed in found[0]) >= 5
    assert len({clients for clients, completed in found[0] if completed}) > 1
