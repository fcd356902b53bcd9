"""Medians and trimmed means by counting, against numpy with everything in the open."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from protocols.order_statistics import Below, Inside, MedianByCounts, OrderStatistics, TrimmedMean
from protocols.participant import Participant
from protocols.quadratic_learner import QuadraticLearner
from protocols.query_encoding import encode_query
from protocols.rounds import RoundInfo
from protocols.run import RoundReport, Run
from protocols.serialisation import Vector
from secagg.errors import CohortChanged, CorruptTotal, MalformedMessage, ParameterError
from secagg.local_session import Stage
from secagg.messages import MAX_SUMS
from secagg.sum_spec import Count, Total
from secagg.trust_levels import Trust
from sims.runtime import DropoutSchedule, SessionChannel, Setting, insecure_plain_sum, no_dropouts, secure_sum

REACH = 4.0
MODEL = np.array([0.5, -3.0, 1e3])


def one_round(
    algorithm: OrderStatistics,
    updates: Vector,
    make: Callable[..., SessionChannel] = insecure_plain_sum,
    *,
    dropouts: DropoutSchedule = no_dropouts,
    dropout: float = 0.0,
) -> tuple[Vector, RoundReport]:
    """How the model moves, if clients come to these updates."""
    start = np.resize(MODEL, algorithm.dim)
    learners = {
        member: QuadraticLearner(start + update, rate=1.0, steps=1) for member, update in enumerate(updates)
    }
    setting = Setting(insecure_seed=b"counts", sums=algorithm.most_sums, dropouts=dropouts, dropout=dropout)
    run = Run(algorithm, make(algorithm, learners, setting), algorithm.start(start))
    report = run.round()
    return run.model - start, report


def lower_median(updates: Vector) -> Vector:
    return np.asarray(np.sort(np.clip(updates, -REACH, REACH), axis=0)[(len(updates) - 1) // 2], np.float64)


def trimmed_mean(updates: Vector, trim: float) -> Vector:
    out = int(trim * len(updates))
    kept = np.sort(np.clip(updates, -REACH, REACH), axis=0)[out : len(updates) - out]
    return np.asarray(kept.mean(axis=0), np.float64)


def some_updates(clients: int, dim: int = 6, seed: int = 0) -> Vector:
    """With ties, with values beyond the range, and with some at its edges."""
    updates = np.random.default_rng(seed).normal(size=(clients, dim)) * 2
    updates[:, 0] = np.round(updates[:, 0])
    updates[:, 1] = 9.0
    updates[: clients // 2, 2] = -REACH
    updates[clients // 2 :, 2] = REACH
    updates[:, 3] = -0.3
    return updates


# Subtracting a model of a thousand from what it has become rounds by so much.
NOISE = 1e-12


@pytest.mark.parametrize("make", [secure_sum, insecure_plain_sum])
@pytest.mark.parametrize("clients", [3, 4, 9])
def test_median_is_numpys_lower_one(clients: int, make: Callable[..., SessionChannel]) -> None:
    updates = some_updates(clients)
    algorithm = MedianByCounts(dim=6, clients=clients, reach=REACH, steps=20)
    moved, report = one_round(algorithm, updates, make)
    assert np.abs(moved - lower_median(updates)).max() <= REACH * 2.0**-20 + NOISE
    assert report.sums == {"below": 20}
    assert report.facts["resolution"] == algorithm.bisection.resolution == REACH * 2.0**-19


@pytest.mark.parametrize("make", [secure_sum, insecure_plain_sum])
@pytest.mark.parametrize(("clients", "trim"), [(3, 0.0), (5, 0.2), (9, 0.25), (8, 0.49)])
def test_trimmed_mean_is_numpys(clients: int, trim: float, make: Callable[..., SessionChannel]) -> None:
    updates = some_updates(clients, seed=1)
    algorithm = TrimmedMean(dim=6, clients=clients, reach=REACH, steps=20, trim=trim, bits=48)
    moved, report = one_round(algorithm, updates, make)
    assert np.abs(moved - trimmed_mean(updates, trim)).max() <= REACH * 2.0**-20 + NOISE
    assert report.sums == {"below": 20, "inside": 1}


VALUES = hnp.arrays(
    np.float64,
    st.tuples(st.integers(2, 9), st.just(3)),
    elements=st.sampled_from([-9.0, -4.0, -1.0, -0.5, 0.0, 0.125, 0.13, 1.0, 4.0]) | st.floats(-5, 5),
)


@settings(max_examples=30, deadline=None)
@given(VALUES, st.integers(1, 24))
def test_every_median_is_within_half_a_bracket(updates: Vector, steps: int) -> None:
    algorithm = MedianByCounts(dim=3, clients=len(updates), reach=REACH, steps=steps)
    moved, _ = one_round(algorithm, updates)
    assert np.abs(moved - lower_median(updates)).max() <= REACH * 2.0**-steps + NOISE


@settings(max_examples=30, deadline=None)
@given(VALUES, st.integers(1, 24), st.floats(0, 0.49))
def test_every_trimmed_mean_is_within_half_a_bracket(updates: Vector, steps: int, trim: float) -> None:
    algorithm = TrimmedMean(dim=3, clients=len(updates), reach=REACH, steps=steps, trim=trim, bits=56)
    moved, _ = one_round(algorithm, updates)
    assert np.abs(moved - trimmed_mean(updates, trim)).max() <= REACH * 2.0**-steps + NOISE


@pytest.mark.parametrize("clients", [2, 3, 4, 7, 8, 100, 127, 128, 1000])
def test_counts_take_no_more_bits_than_the_number_of_clients(clients: int) -> None:
    """ceil(log2(n + 1)) per coordinate and step."""
    for algorithm in (
        MedianByCounts(dim=7, clients=clients, reach=1.0),
        TrimmedMean(dim=7, clients=clients, reach=1.0),
    ):
        for part in algorithm.sums()[0].spec.parts:
            assert part.bits == math.ceil(math.log2(clients + 1))
            assert part.size == 7
            assert part.bound == Count(1)


def test_all_sums_of_a_round_are_one_group_and_fit_a_session() -> None:
    for steps in (1, 16, 52):
        algorithm = TrimmedMean(dim=2, clients=5, reach=1.0, steps=steps)
        assert algorithm.most_sums == steps + 1 <= MAX_SUMS
        assert len({each.spec.group for each in algorithm.sums()}) == 1


def gone_from(sum_number: int) -> DropoutSchedule:
    """Client 0 is missing from that sum of the round on."""
    return lambda member, stage, _round, number: member == 0 and stage is Stage.MASK and number >= sum_number


@pytest.mark.parametrize("make", [secure_sum, insecure_plain_sum])
def test_a_median_cut_short_moves_no_farther_than_it_must(make: Callable[..., SessionChannel]) -> None:
    """After three halvings of [-4, 4], the median 2.7 is known to be from 2 to 3, and -0.4 from -1 to 0."""
    updates = np.tile([2.7, -0.4], (6, 1))
    algorithm = MedianByCounts(dim=2, clients=6, reach=REACH, steps=20)
    moved, report = one_round(algorithm, updates, make, dropouts=gone_from(3), dropout=0.2)
    assert moved == pytest.approx(np.array([2.0, 0.0]), abs=NOISE)
    assert report.facts["halvings"] == 3
    assert report.facts["resolution"] == 1.0
    assert "left" in str(report.facts["stopped"])


@pytest.mark.parametrize("sum_number", [2, 8])
def test_a_trimmed_mean_cut_short_is_given_up(sum_number: int) -> None:
    algorithm = TrimmedMean(dim=2, clients=6, reach=REACH, steps=8)
    dropouts = gone_from(sum_number)
    moved, report = one_round(algorithm, np.ones((6, 2)), dropouts=dropouts, dropout=0.2)
    assert isinstance(report.failure, CohortChanged)
    assert not moved.any()


def test_an_in_range_sum_is_refused_under_a_malicious_server() -> None:
    """Clients outside a range that the server chose contribute zero: one could be alone in it."""
    algorithm = TrimmedMean(dim=2, clients=6, reach=1.0)
    algorithm.check_trust(Trust.CURIOUS)
    with pytest.raises(ParameterError, match="single out one client"):
        algorithm.check_trust(Trust.MALICIOUS)
    MedianByCounts(dim=2, clients=6, reach=1.0).check_trust(Trust.MALICIOUS)


def test_it_is_said_that_a_median_is_the_value_of_somebody() -> None:
    for algorithm in (
        MedianByCounts(dim=2, clients=6, reach=1.0),
        TrimmedMean(dim=2, clients=6, reach=1.0),
    ):
        assert "locates some client's value" in algorithm.sums()[0].reveals
    updates = some_updates(7)
    moved, _ = one_round(MedianByCounts(dim=6, clients=7, reach=REACH, steps=40), updates)
    somebodys = np.abs(np.clip(updates, -REACH, REACH) - moved).min(axis=0)
    assert somebodys.max() < 1e-10


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: MedianByCounts(dim=2, clients=5), "reach must be set"),
        (lambda: MedianByCounts(dim=2, clients=5, reach=1.0, steps=53), "steps"),
        (lambda: TrimmedMean(dim=2, clients=5, reach=1.0, trim=0.5), "trim"),
        (lambda: TrimmedMean(dim=2, clients=5, reach=1.0, trim=-0.1), "trim"),
        (lambda: TrimmedMean(dim=2, clients=5, reach=1.0, bits=1), "bits"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(make: Callable[[], OrderStatistics], what: str) -> None:
    with pytest.raises(ParameterError, match=what):
        make()


def test_counts_that_cannot_be_are_discarded() -> None:
    """Somebody who forges residues may say that more are below -2 than below 0."""
    algorithm = MedianByCounts(dim=1, clients=5, reach=4.0)
    steps = algorithm.round(algorithm.start(np.zeros(1)))
    query = next(steps)
    assert isinstance(query, Below)
    assert query.model is not None
    assert list(query.lower) == [0.0]
    query = steps.send(Total({"lower": np.array([4], np.uint64)}, count=5, invited=5))
    assert isinstance(query, Below)
    assert query.model is None
    assert list(query.lower) == [-2.0]
    with pytest.raises(CorruptTotal, match="rise with the border"):
        steps.send(Total({"lower": np.array([5], np.uint64)}, count=5, invited=5))


def test_a_client_answers_nothing_before_it_knows_the_model() -> None:
    algorithm = TrimmedMean(dim=1, clients=5, reach=4.0)
    for query in (Below(1, None, np.zeros(1), np.zeros(1)), Inside(-np.ones(1), np.ones(1))):
        client = Participant(algorithm, QuadraticLearner(np.ones(1)), trust="curious_server")
        with pytest.raises(MalformedMessage, match="before the model"):
            client.answer(query.kind, encode_query(RoundInfo(), query), round_number=0, invited=5)


def test_a_client_whose_training_diverged_declines() -> None:
    """No number is neither below nor above: it must not be counted as either."""
    algorithm = MedianByCounts(dim=2, clients=5, reach=4.0)
    learner = QuadraticLearner(np.array([1.0, np.nan]))
    client = Participant(algorithm, learner, trust="curious_server")
    query = Below(0, np.zeros(2), np.zeros(2), None)
    assert client.answer(query.kind, encode_query(RoundInfo(), query), round_number=0, invited=5) is None
