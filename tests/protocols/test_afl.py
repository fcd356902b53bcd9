"""AFL: the saddle point, weights that never leave their clients, and nothing without everybody."""

from __future__ import annotations

import math

import numpy as np
import pytest

from protocols.afl import AFL, NEXT, WEIGHT, Mixed, MixtureState, MixtureWeight, Presence
from protocols.averaging import UPDATE
from protocols.participant import Participant
from protocols.query_encoding import encode_query
from protocols.rounds import RoundInfo
from protocols.run import Run
from protocols.serialisation import as_vector, pack
from secagg.errors import CorruptTotal, MalformedMessage, ParameterError, TooFewClients
from secagg.local_session import Stage
from secagg.sum_spec import Total
from secagg.trust_levels import Trust
from sims.runtime import DropoutSchedule, SessionChannel, Setting, insecure_plain_sum
from tests.protocols.baselines import Learners, assert_same_bits, missing, quadratics, ran

ROOT = math.sqrt(3.0)
# Losses x^2 / 2 and 3 (4 - x)^2 / 2 are the same at this point, and there the third one is next to nothing.
MEETING = 4 * ROOT / (1 + ROOT)


def three() -> Learners:
    return quadratics([[0.0, 0.0], [4.0, 0.0], [2.5, 0.0]], [1.0, 3.0, 1.0], rate=0.5)


def afl(**other: object) -> AFL:
    settings: dict[str, object] = {"loss_cap": 30.0, "clip": 10.0, "averaged": False, "bits": 48}
    return AFL(dim=2, clients=3, **(settings | other))  # type: ignore[arg-type]


def weights(channel: SessionChannel, normaliser: float) -> list[float]:
    return [each.memory.value / normaliser for each in channel.participants.values()]


def test_the_worst_losses_become_alike_and_their_weights_balance_the_gradients() -> None:
    run, channel = ran(afl(), three(), 120)
    assert run.model == pytest.approx([MEETING, 0.0], abs=1e-6)
    # lambda_1 x = lambda_2 3 (4 - x), and both add up to 1.
    first = 3 * (4 - MEETING) / (MEETING + 3 * (4 - MEETING))
    assert weights(channel, run.state.normaliser) == pytest.approx([first, 1 - first, 0.0], abs=1e-6)


def test_the_model_may_be_the_mean_of_all_rounds() -> None:
    algorithm = afl(averaged=True)
    channel = insecure_plain_sum(algorithm, three(), Setting())
    run, seen = _begun(algorithm, channel), []
    for _ in range(5):
        run.round()
        seen.append(run.state.model)
    assert run.model == pytest.approx(np.mean(seen, axis=0), abs=1e-12)


def _begun(algorithm: AFL, channel: SessionChannel) -> Run[MixtureState]:
    return Run(algorithm, channel, algorithm.start(np.zeros(2)))


def test_one_round_by_hand() -> None:
    algorithm, learners, start = afl(step=0.5), three(), as_vector([1.0, 1.0])
    rounds = [algorithm.client(each, algorithm.first_memory()) for each in learners.values()]
    answers = [each.answer(Mixed(start, 1.0)) for each in rounds]
    for learner, each, answer in zip(learners.values(), rounds, answers, strict=True):
        raised = math.exp(0.5 * (learner.loss(start) - 30.0)) / 3
        assert answer[UPDATE] == pytest.approx((learner.train(start) - start) / 3)
        assert answer[WEIGHT] == pytest.approx([1 / 3])
        assert answer[NEXT] == pytest.approx([raised])
        assert each.memory().value == pytest.approx(raised)


def test_the_mixture_loss_that_is_reported_is_the_soft_mean_of_the_losses() -> None:
    run, _ = ran(afl(), three(), 0)
    losses = [each.loss(np.zeros(2)) for each in three().values()]
    expected = math.log(np.mean(np.exp(np.multiply(0.1, losses)))) / 0.1
    assert run.round().facts["mixture_loss"] == pytest.approx(expected, abs=1e-6)


def test_a_weight_that_has_vanished_can_come_back() -> None:
    algorithm = afl()
    (learner, *_) = three().values()
    answer = algorithm.client(learner, MixtureWeight(0.0)).answer(Mixed(as_vector([0.0, 0.0]), 1.0))
    assert answer[WEIGHT] == pytest.approx([1e-9], rel=1e-12)
    assert np.asarray(answer[NEXT])[0] > 0


# --- somebody is missing ---


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize(
    ("dropouts", "asked"),
    [
        (missing(1, Stage.MASK, 2, 0), [("presence", 2)]),
        (missing(1, Stage.MASK, 2, 1), [("presence", 3), ("mixed", None)]),
    ],
)
def test_without_everybody_nothing_is_revealed_and_nothing_changes(
    dropouts: DropoutSchedule, asked: list[tuple[str, int | None]], secure: bool
) -> None:
    run, channel = ran(afl(), three(), 2, secure=secure, dropouts=dropouts)
    before = pack(run.state), [pack(each.memory) for each in channel.participants.values()]
    report = run.round()
    assert not report.completed
    assert [(each.kind, each.count) for each in channel.asked if each.round == 2] == asked
    assert (pack(run.state), [pack(each.memory) for each in channel.participants.values()]) == before
    assert all(run.round().completed for _ in range(2))
    undisturbed, _ = ran(afl(), three(), 4)
    assert run.model == pytest.approx(undisturbed.model, abs=1e-10)
    assert run.state.normaliser == pytest.approx(undisturbed.state.normaliser, rel=1e-10)


def test_the_failure_says_how_many_are_needed() -> None:
    steps = afl().round(afl().start(np.zeros(2)))
    assert isinstance(next(steps), Presence)
    with pytest.raises(TooFewClients, match=r"only 2 clients are there.*3 are needed"):
        steps.send(Total({}, 2, 3))


def test_a_client_that_missed_the_end_of_its_sum_is_told_that_it_was_counted() -> None:
    run, channel = ran(afl(), three(), 3, dropouts=missing(1, Stage.REVEAL, 3, 1))
    before = [each.memory for each in channel.participants.values()]
    assert run.round().completed
    after = [each.memory for each in channel.participants.values()]
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, False, False]
    for _ in range(120):
        run.round()
    assert run.model == pytest.approx([MEETING, 0.0], abs=1e-6)


def test_draws_are_refused() -> None:
    with pytest.raises(ParameterError, match="all clients"):
        insecure_plain_sum(afl(), three(), Setting(sample_cohort=lambda number: [0, 1]))


# --- guards ---


@pytest.mark.parametrize("empty", [WEIGHT, NEXT])
def test_weights_that_add_up_to_nothing_are_no_total(empty: str) -> None:
    steps = afl().round(afl().start(np.zeros(2)))
    next(steps)
    steps.send(Total({}, 3, 3))
    parts = {UPDATE: np.ones(2), WEIGHT: np.ones(1), NEXT: np.ones(1)} | {empty: np.zeros(1)}
    with pytest.raises(CorruptTotal, match="nothing"):
        steps.send(Total(parts, 3, 3))


def test_no_client_divides_by_nothing() -> None:
    (learner, *_) = three().values()
    client = afl().client(learner, MixtureWeight(0.3))
    with pytest.raises(MalformedMessage, match="nothing"):
        client.answer(Mixed(as_vector([0.0, 0.0]), 0.0))


def test_secure_and_plain_sums_give_the_same_bits() -> None:
    assert_same_bits(afl(bits=32), three())


def test_a_malicious_server_is_refused_unless_weights_have_a_floor() -> None:
    with pytest.raises(ParameterError, match="floor"):
        afl().check_trust(Trust.MALICIOUS)
    afl(floor=0.1).check_trust(Trust.MALICIOUS)


@pytest.mark.parametrize("name", ["loss_cap", "clip"])
def test_bounds_must_be_set(name: str) -> None:
    with pytest.raises(ParameterError, match=f"{name} must be set: .*such as"):
        afl(**{name: None})


@pytest.mark.parametrize("wrong", [{"step": 0.0}, {"floor": 0.0}, {"floor": 0.5}])
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        afl(**wrong)


def test_a_client_answers_only_if_all_are_asked() -> None:
    """Whether somebody is missing is not for the server alone to say."""
    participant = Participant(afl(), three()[0], trust="curious_server")
    payload = encode_query(RoundInfo(), Presence())
    with pytest.raises(MalformedMessage, match="2 clients are asked, not all 3"):
        participant.answer("presence", payload, round_number=0, invited=2)
    assert participant.answer("presence", payload, round_number=0, invited=3) is not None
