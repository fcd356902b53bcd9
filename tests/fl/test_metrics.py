"""What an observer computes from the results of single clients, against examples worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fl.errors import FLError
from fl.metrics import clients, model_change_and_loss_line
from fl.metrics.clients import ClientScores
from fl.samples import Array
from papers import personalisation_gain, seeds
from papers.rounds_to_target import rounds_to
from protocols.learner import Score

NAN, INF = math.nan, math.inf


def scores(
    correct: Sequence[float], total: Sequence[float], loss: Sequence[float] | None = None
) -> ClientScores:
    return ClientScores(
        np.array(correct), np.array(total), np.array([1.0] * len(total) if loss is None else loss)
    )


# --- one model over clients ---


def test_accuracy_and_error_are_of_each_client() -> None:
    found = scores([1, 3, 10], [4, 4, 10])

    np.testing.assert_array_equal(found.accuracy, [0.25, 0.75, 1.0])
    np.testing.assert_array_equal(found.error, [0.75, 0.25, 0.0])
    assert len(found) == 3


def test_a_mean_counts_clients_and_a_pooled_figure_counts_samples() -> None:
    found = scores([1, 90], [10, 90], [4.0, 1.0])

    assert found.mean_accuracy == pytest.approx(0.55)
    assert found.pooled_accuracy == pytest.approx(0.91)
    assert found.mean_loss == pytest.approx(2.5)
    assert found.pooled_loss == pytest.approx(1.3)


def test_only_the_chosen_clients_count() -> None:
    found = scores([1, 2, 3], [4, 4, 4], [1.0, INF, 3.0])

    benign = found.only([True, False, True])

    np.testing.assert_array_equal(benign.accuracy, [0.25, 0.75])
    assert benign.mean_loss == 2
    assert found.mean_loss == INF


def test_scores_are_made_of_what_learners_say() -> None:
    found = ClientScores.of(Score(*each) for each in ((1, 2, 0.5), (3, 3, 0.25)))

    np.testing.assert_array_equal(found.accuracy, [0.5, 1.0])
    np.testing.assert_array_equal(found.loss, [0.5, 0.25])


def test_a_learner_whose_loss_is_not_a_number_has_seen_a_model_that_diverged() -> None:
    found = ClientScores.of([Score(1, 4, 0.5), Score(2, 4, NAN)])

    assert found.mean_loss == INF
    assert found.pooled_accuracy == pytest.approx(3 / 8)


def test_scores_do_not_follow_the_array_they_were_made_of() -> None:
    correct = np.array([1.0, 2.0])
    found = ClientScores(correct, np.array([2, 2]), np.zeros(2))
    correct[:] = 0

    np.testing.assert_array_equal(found.accuracy, [0.5, 1.0])


def test_a_spread_is_in_points() -> None:
    """Twenty clients of 100 samples with 0, 5, ..., 95 of them right, the last ten times as large."""
    right = [5 * client for client in range(20)]
    found = scores([*right[:-1], 950], [100] * 19 + [1000]).spread()

    assert found.clients == 20
    assert found.mean == pytest.approx(47.5)
    assert found.pooled == pytest.approx(100 * (sum(right[:-1]) + 950) / 2900)
    assert (found.worst, found.median, found.best) == pytest.approx((0, 47.5, 95))
    assert found.worst_tenth == pytest.approx(2.5)  # of 0 and 5
    assert found.best_tenth == pytest.approx(92.5)  # of 90 and 95
    assert found.error_90 == pytest.approx(100 - 9.5)  # between 5 and 10, at position 1.9
    assert found.variance == pytest.approx(25 * (20**2 - 1) / 12)


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1.0), (25, 2.0), (50, 3.0), (90, 7.6), (95, 8.8), (100, 10.0)]
)
def test_percentiles_are_interpolated_linearly(percent: float, expected: float) -> None:
    """Of 1, 2, 3, 4, 10: the 90th percentile is at position 3.6, so it is 0.6 of the way from 4 to 10."""
    assert clients.percentile([10, 2, 3, 1, 4], percent) == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.floats(0, 100))
def test_percentiles_of_errors_mirror_those_of_accuracies(accuracies: list[float], percent: float) -> None:
    errors = [1 - each for each in accuracies]

    mirrored = 1 - clients.percentile(accuracies, 100 - percent)

    assert clients.percentile(errors, percent) == pytest.approx(mirrored, abs=1e-9)


@pytest.mark.parametrize(
    ("count", "share", "averaged"),
    [(30, 0.1, 3), (29, 0.1, 2), (70, 0.1, 7), (5, 0.1, 1), (1, 0.1, 1), (10, 0.25, 2), (10, 1.0, 10)],
)
def test_a_tail_has_the_whole_clients_in_it(count: int, share: float, averaged: int) -> None:
    values = np.random.default_rng(1).permutation(count).astype(float)

    assert clients.worst_share(values, share) == pytest.approx(np.arange(averaged).mean())
    assert clients.best_share(values, share) == pytest.approx(np.arange(count - averaged, count).mean())


def test_a_variance_in_points_is_that_of_percentages() -> None:
    """As q-FFL prints it: all clients are there, so the sum is divided by their number."""
    fractions = np.array([0.2, 0.8, 0.5])

    assert clients.variance_points(fractions) == pytest.approx(600)
    assert clients.variance(100 * fractions) == pytest.approx(600)


# --- personal models ---


def test_clients_whose_error_rises_are_hurt() -> None:
    common, own = [0.3, 0.3, 0.3, 0.3, 0.3], [0.1, 0.3, 0.31, 0.4, 0.5]

    np.testing.assert_allclose(
        personalisation_gain.gains(common, own), [0.2, 0, -0.01, -0.1, -0.2], atol=1e-12
    )
    assert personalisation_gain.hurt_share(common, own) == pytest.approx(0.6)
    assert personalisation_gain.hurt_share(common, own, margin=0.05) == pytest.approx(0.4)
    # 0.4 - 0.3 is a little above 0.1 in floating point, but no client got worse by more than that.
    assert personalisation_gain.hurt_share(common, own, margin=0.1) == pytest.approx(0.2)


def test_a_summary_of_gains() -> None:
    found = personalisation_gain.summarised_gains([0.5] * 5, [0.1, 0.3, 0.5, 0.5, 0.6])

    assert (found.hurt, found.helped, found.same) == pytest.approx((0.2, 0.4, 0.4))
    assert (found.worst, found.median, found.best) == pytest.approx((-0.1, 0, 0.4), abs=1e-12)
    assert (found.low, found.high) == pytest.approx((-0.06, 0.32))
    assert found.mean == pytest.approx(0.1)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=30), st.floats(0, 0.5)
)
def test_every_client_is_hurt_or_helped_or_the_same(wrong: list[tuple[int, int]], margin: float) -> None:
    common, own = ([pair[side] / 20 for pair in wrong] for side in (0, 1))

    found = personalisation_gain.summarised_gains(common, own, margin=margin)

    assert found.hurt + found.helped + found.same == pytest.approx(1)
    assert found.hurt == personalisation_gain.hurt_share(common, own, margin=margin)
    assert found.helped == personalisation_gain.hurt_share(own, common, margin=margin)


# --- from round to round ---


def test_change_at_an_aggregation_that_gives_all_the_common_model() -> None:
    before = np.array([[3.0, 0.0], [0.0, 8.0]], dtype=np.float32)

    found = model_change_and_loss_line.change(np.array([3.0, 4.0]), before)

    assert (found.mean, found.std) == pytest.approx((4.5, 0.5))  # moves of 4 and 5
    assert found.relative == pytest.approx((4 / 3 + 5 / 8) / 2)


def test_change_where_each_goes_on_from_its_own_model() -> None:
    before = [[1.0, 0.0], [0.0, 2.0]]

    found = model_change_and_loss_line.change([[1.0, 0.0], [0.0, 3.0]], before)

    assert (found.mean, found.std, found.relative) == pytest.approx((0.5, 0.5, 0.25))


def test_change_of_a_single_model_and_of_one_that_is_zero() -> None:
    assert model_change_and_loss_line.change([3.0, 4.0], [0.0, 4.0]).relative == pytest.approx(0.75)

    from_zero = model_change_and_loss_line.change([3.0, 4.0], [0.0, 0.0])

    assert from_zero.mean == pytest.approx(5)
    assert from_zero.relative is None


def test_losses_on_the_line_from_local_to_common() -> None:
    local, common = np.array([1.0, 1.0]), np.array([5.0, 1.0])

    line = model_change_and_loss_line.line_losses(lambda model: float((model[0] - 2) ** 2), local, common, 5)

    np.testing.assert_allclose(line.shares, [0, 0.25, 0.5, 0.75, 1])
    np.testing.assert_allclose(line.losses, [1, 0, 1, 4, 9])


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_line_has_both_models_in_it_exactly(kind: type[np.floating]) -> None:
    rng = np.random.default_rng(3)
    local, common = (rng.normal(size=50).astype(kind) for _ in range(2))
    seen: list[Array] = []

    def loss(model: Array) -> float:
        seen.append(model)
        return 0.0

    model_change_and_loss_line.line_losses(loss, local, common, 7)

    assert len(seen) == 7
    assert all(model.dtype == kind for model in seen)
    np.testing.assert_array_equal(seen[0], local)
    np.testing.assert_array_equal(seen[-1], common)


def test_a_line_between_models_of_whole_numbers_has_fractions_on_it() -> None:
    line = model_change_and_loss_line.line_losses(
        lambda model: float(model[0]), np.array([0]), np.array([1]), 3
    )

    np.testing.assert_allclose(line.losses, [0, 0.5, 1])


def test_rounds_to_a_target() -> None:
    accuracies = [0.1, 0.5, 0.4, 0.8]

    assert rounds_to(accuracies, 0.5) == 1
    assert rounds_to(accuracies, 0.6, rounds=[0, 10, 20, 30]) == 30
    assert rounds_to(accuracies, 0.9) is None
    assert rounds_to([INF, 3, 1], 2, falling=True) == 2


# --- over seeds ---


def test_a_mean_over_seeds() -> None:
    found = seeds.over_seeds([1, 2, 6])

    assert found.seeds == 3
    assert (found.mean, found.std, found.error) == pytest.approx((3, math.sqrt(7), math.sqrt(7 / 3)))
    assert found.text() == "3.00 ± 2.65"
    assert found.text(0) == "3 ± 3"


def test_one_seed_has_no_spread() -> None:
    found = seeds.over_seeds([83.615])

    assert (found.std, found.error) == (None, None)
    assert found.text(1) == "83.6"


def test_differences_by_seed() -> None:
    first, second = seeds.by_seed({3: 30.0, 1: 10.0}, {1: 11.0, 3: 33.0})

    np.testing.assert_array_equal(first, [10, 30])
    np.testing.assert_array_equal(second, [11, 33])


@pytest.mark.parametrize("count", [2, 3, 5, 12, 31])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_a_paired_comparison_is_that_of_another_library(count: int, level: float) -> None:
    rng = np.random.default_rng(count)
    first = rng.normal(0.3, 1, size=count)
    second = first + rng.normal(0.5, 1, size=count)

    found = seeds.paired(first, second, level=level)

    other = stats.ttest_rel(first, second)
    interval = other.confidence_interval(level)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert found.p == pytest.approx(other.pvalue, abs=1e-12)
    assert found.mean == pytest.approx((first - second).mean())
    assert found.median == pytest.approx(np.median(first - second))
    assert found.ahead == (first > second).sum()
    assert found.sign_p == pytest.approx(stats.binomtest(found.ahead, count).pvalue)


def test_ties_are_left_out_of_the_sign_test() -> None:
    found = seeds.paired([1, 2, 3, 4, 5], [1, 1, 2, 3, 6])

    assert (found.ahead, found.behind, found.equal) == (3, 1, 1)
    assert found.sign_p == pytest.approx(2 * 5 / 16)


def test_equal_methods_do_not_differ_and_a_constant_lead_is_certain() -> None:
    same, ahead = seeds.paired([1, 2, 3], [1, 2, 3]), seeds.paired([2, 3, 4], [1, 2, 3])

    assert (same.low, same.high, same.p, same.sign_p) == (0, 0, 1, 1)
    assert (ahead.low, ahead.high, ahead.p) == (1, 1, 0)


@pytest.mark.parametrize("count", [1, 2, 5, 6, 9, 20])
@pytest.mark.parametrize("level", [0.1, 0.5, 0.95, 0.99])
def test_the_interval_of_a_median_is_the_narrowest_with_its_confidence(count: int, level: float) -> None:
    values = np.random.default_rng(2).permutation(count).astype(float)

    low, high = seeds.median_interval(values, level)

    # With the k-th lowest value, the true median is missed on either side if fewer than k are below.
    enough = [k for k in range(1, count + 1) if 1 - 2 * stats.binom.cdf(k - 1, count, 0.5) >= level]
    if enough:
        assert (low, high) == (max(enough) - 1, count - max(enough))
    else:
        assert (low, high) == (-INF, INF)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 10, 57])
def test_student_is_that_of_another_library(freedom: int) -> None:
    for statistic in (0.0, 0.1, -1.0, 2.5, 40.0, INF):
        expected = 2 * stats.t.sf(abs(statistic), freedom)
        assert seeds.two_sided_p(statistic, freedom) == pytest.approx(expected, abs=1e-13)
    for level in (0.01, 0.5, 0.95, 0.9999):
        expected = stats.t.ppf((1 + level) / 2, freedom)
        assert seeds.two_sided_quantile(level, freedom) == pytest.approx(expected, rel=1e-9)


def test_less_is_certain_with_fewer_seeds() -> None:
    widths = [seeds.two_sided_quantile(0.95, freedom) for freedom in range(1, 12)]

    assert all(wider > narrower for wider, narrower in pairwise(widths))


# --- what nothing can be computed from ---

MODEL = np.ones(2)
REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "no clients": (lambda: scores([], []), "there are no counts"),
    "no scores": (lambda: ClientScores.of([]), "no scores"),
    "fewer counts than totals": (lambda: scores([1], [1, 2]), "1 counts of correct samples and 2 totals"),
    "fewer losses than totals": (lambda: scores([1, 1], [1, 2], [0.5]), "1 losses and 2 totals"),
    "a client without samples": (lambda: scores([1, 0], [1, 0]), "the first at index 1: leave them out"),
    "more right than there are": (lambda: scores([1, 3], [1, 2]), "at index 1, 3 of 2"),
    "fewer right than none": (lambda: scores([-1], [2]), "at index 0, -1 of 2"),
    "a loss of NaN": (
        lambda: scores([1, 1], [1, 2], [0.5, NAN]),
        "1 of 2 losses are NaN, the first at index 1",
    ),
    "an infinite total": (lambda: scores([1], [INF]), "totals are not finite"),
    "numbers in a table": (lambda: scores([[1]], [[2]]), r"not an array of shape \(1, 1\)"),  # type: ignore[list-item]
    "words": (lambda: clients.variance(["a", "b"]), "must be numbers"),
    "rows of several lengths": (lambda: clients.variance([[1.0], [1.0, 2.0]]), "the same length"),
    "a mask of indices": (
        lambda: scores([1, 1], [1, 2]).only([0, 1]),
        "give a list of booleans, one for each client",
    ),
    "a short mask": (lambda: scores([1, 1], [1, 2]).only([True]), "1 choices and 2 clients"),
    "a mask of none": (lambda: scores([1, 1], [1, 2]).only([False, False]), "at least one"),
    "a percentile above 100": (lambda: clients.percentile([1], 101), "from 0 to 100"),
    "a percentile of NaN": (lambda: clients.percentile([1], NAN), "from 0 to 100"),
    "a percentile of nothing": (lambda: clients.percentile([], 50), "no values"),
    "an infinite value": (lambda: clients.percentile([1, INF], 50), "1 of 2 values are not finite"),
    "a share of none": (lambda: clients.worst_share([1.0], 0), "above 0"),
    "a share of more than all": (lambda: clients.best_share([1.0], 1.1), "at most 1"),
    "a common error missing": (lambda: personalisation_gain.gains([0.1], [0.1, 0.2]), "the same order"),
    "a negative margin": (lambda: personalisation_gain.hurt_share([0.1], [0.1], margin=-1), "give 0"),
    "a margin of NaN": (
        lambda: personalisation_gain.summarised_gains([0.1], [0.1], margin=NAN),
        "margin is nan",
    ),
    "a model in layers": (
        lambda: model_change_and_loss_line.line_losses(np.sum, np.ones((2, 2)), MODEL),
        "flat vector",
    ),
    "an empty model": (
        lambda: model_change_and_loss_line.line_losses(np.sum, np.ones(0), np.ones(0)),
        "at least one element",
    ),
    "a diverged model": (
        lambda: model_change_and_loss_line.line_losses(np.sum, np.array([1, NAN]), MODEL),
        "elements of the local model are not finite",
    ),
    "no models": (lambda: model_change_and_loss_line.change(MODEL, np.ones((0, 2))), "at least one"),
    "models in layers": (
        lambda: model_change_and_loss_line.change(MODEL, np.ones((1, 2, 2))),
        "rows of one array",
    ),
    "a model too few after": (
        lambda: model_change_and_loss_line.change(np.ones((2, 2)), np.ones((3, 2))),
        "3 models before and 2 models after",
    ),
    "another size after": (
        lambda: model_change_and_loss_line.change(np.ones(3), np.ones((3, 2))),
        "2 elements of a model before",
    ),
    "a diverged client": (
        lambda: model_change_and_loss_line.change(MODEL, [[1.0, 1.0], [1.0, INF]]),
        "elements of model 1 before",
    ),
    "a line of a point": (
        lambda: model_change_and_loss_line.line_losses(np.sum, MODEL, MODEL, 1),
        "at least 2",
    ),
    "a line to another size": (
        lambda: model_change_and_loss_line.line_losses(np.sum, MODEL, np.ones(3)),
        "2 elements",
    ),
    "a line of NaN": (
        lambda: model_change_and_loss_line.line_losses(lambda _: NAN, MODEL, MODEL),
        "losses on the line are NaN",
    ),
    "rounds out of order": (lambda: rounds_to([1, 2], 1, rounds=[1, 1]), "in order"),
    "rounds missing": (lambda: rounds_to([1, 2], 1, rounds=[1]), "2 values and 1 rounds"),
    "a target of NaN": (lambda: rounds_to([1, 2], NAN), "the target is nan"),
    "no seeds": (lambda: seeds.over_seeds([]), "no values"),
    "a seed that diverged": (lambda: seeds.over_seeds([1, NAN]), "index 1"),
    "one pair": (lambda: seeds.paired([1], [2]), "at least 2 seeds"),
    "pairs missing": (lambda: seeds.paired([1, 2], [2]), "2 values of the first and 1"),
    "full confidence": (lambda: seeds.paired([1, 2], [2, 2], level=1), "between 0 and 1"),
    "confidence below none": (lambda: seeds.median_interval([1, 2], -1), "between 0 and 1"),
    "another seed": (lambda: seeds.by_seed({1: 1.0, 2: 1.0}, {1: 1.0, 3: 1.0}), r"seeds \[2, 3\]"),
    "no common seeds": (lambda: seeds.by_seed({}, {}), "no values"),
    "a negative count": (lambda: seeds.sign_p(-1, 2), "negative"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_with_what_to_do(case: str) -> None:
    compute, message = REFUSED[case]

    with pytest.raises(FLError, match=message):
        compute()
