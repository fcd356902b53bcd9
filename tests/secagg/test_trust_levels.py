"""Thresholds: the published conditions, exactly, and sentences with numbers where there is none.

Conditions from "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (2017): a server that
follows the protocol needs t > c, one that does not needs 2t > n + c.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.errors import ParameterError
from secagg.trust_levels import MAX_COMPLETE, Trust, dropouts_allowed, liars_around

CURIOUS, MALICIOUS = Trust.CURIOUS, Trust.MALICIOUS


@given(st.integers(2, 1024), st.data())
@settings(deadline=None)
def test_a_malicious_server_needs_exactly_2t_above_n_plus_c(cohort: int, data: st.DataObject) -> None:
    corrupt = data.draw(st.integers(0, cohort - 1))
    t = MALICIOUS.least_threshold(cohort, corrupt=corrupt)
    assert 2 * t > cohort + corrupt
    assert 2 * (t - 1) <= cohort + corrupt


@given(st.integers(2, 1024), st.data())
@settings(deadline=None)
def test_a_curious_server_needs_exactly_one_more_than_the_colluders(cohort: int, data: st.DataObject) -> None:
    corrupt = data.draw(st.integers(0, cohort - 1))
    t = CURIOUS.least_threshold(cohort, corrupt=corrupt)
    assert t > corrupt
    assert t == max(corrupt + 1, 2)


@given(st.integers(2, 1024))
@settings(deadline=None)
def test_without_colluders_a_malicious_server_needs_a_majority(cohort: int) -> None:
    assert MALICIOUS.least_threshold(cohort, corrupt=0) == cohort // 2 + 1


@given(st.integers(4, 1024))
@settings(deadline=None)
def test_with_a_third_of_colluders_a_malicious_server_needs_two_thirds(cohort: int) -> None:
    """The rule floor(2n/3) + 1 for fewer than n/3 colluders: never less than the condition asks."""
    corrupt = -(-cohort // 3) - 1
    least = MALICIOUS.least_threshold(cohort, corrupt=corrupt)
    assert least <= 2 * cohort // 3 + 1
    if cohort % 3 == 1:
        assert least == 2 * cohort // 3 + 1


@pytest.mark.parametrize(
    ("cohort", "corrupt", "trust", "least"),
    [
        (2, 0, CURIOUS, 2),
        (2, 0, MALICIOUS, 2),
        (3, 0, MALICIOUS, 2),
        (4, 0, MALICIOUS, 3),
        (4, 1, MALICIOUS, 3),
        (4, 1, CURIOUS, 2),
        (5, 1, MALICIOUS, 4),
        (10, 3, MALICIOUS, 7),
        (10, 9, CURIOUS, 10),
        (100, 10, MALICIOUS, 56),
        (100, 33, MALICIOUS, 67),
        (128, 12, MALICIOUS, 71),
        (128, 42, MALICIOUS, 86),
        (3, 2, MALICIOUS, 3),
        (3, 3, MALICIOUS, 4),  # more than there are: whoever asks must notice
    ],
)
def test_a_table_of_least_thresholds(cohort: int, corrupt: int, trust: Trust, least: int) -> None:
    assert trust.least_threshold(cohort, corrupt=corrupt) == least


# --- choosing --------------------------------------------------------------------------------------


@given(st.integers(2, MAX_COMPLETE), st.sampled_from(list(Trust)), st.fractions(0, 1), st.data())
@settings(deadline=None)
def test_a_chosen_threshold_is_safe_and_can_be_met(
    cohort: int, trust: Trust, dropout: Fraction, data: st.DataObject
) -> None:
    corrupt = data.draw(st.integers(0, cohort - 1))
    if dropout == 1:
        return
    survivors = cohort - (dropout.numerator * cohort) // dropout.denominator
    least = trust.least_threshold(cohort, corrupt=corrupt)
    if least > survivors:
        with pytest.raises(ParameterError):
            trust.choose_threshold(cohort, corrupt=corrupt, dropout=dropout)
        return
    t = trust.choose_threshold(cohort, corrupt=corrupt, dropout=dropout)
    assert least <= t <= survivors
    if trust is MALICIOUS:
        assert t == least
    else:
        assert t in (least, survivors) or 2 * t > cohort


@pytest.mark.parametrize(
    ("cohort", "corrupt", "dropout", "trust", "threshold"),
    [
        (10, 0, 0, CURIOUS, 6),  # a majority, since it costs nothing
        (10, 0, 0.4, CURIOUS, 6),
        (10, 0, 0.5, CURIOUS, 5),  # fewer survive
        (10, 0, 0.8, CURIOUS, 2),
        (10, 7, 0.1, CURIOUS, 8),  # the colluders ask for more than a majority
        (10, 0, 0, MALICIOUS, 6),
        (10, 3, 0.3, MALICIOUS, 7),
        (2, 0, 0, CURIOUS, 2),
    ],
)
def test_a_table_of_choices(cohort: int, corrupt: int, dropout: float, trust: Trust, threshold: int) -> None:
    assert trust.choose_threshold(cohort, corrupt=corrupt, dropout=dropout) == threshold


def test_a_request_nothing_satisfies_says_why_with_numbers() -> None:
    why = (
        "10 clients with 3 colluders under malicious_server need 7 survivors, but a drop-out of 0.4 leaves 6"
    )
    with pytest.raises(ParameterError, match=why):
        MALICIOUS.choose_threshold(10, corrupt=3, dropout=0.4)
    with pytest.raises(ParameterError, match="need 10 survivors, but a drop-out of 1/10 leaves 9"):
        CURIOUS.choose_threshold(10, corrupt=9, dropout=Fraction(1, 10))


@pytest.mark.parametrize("cohort", [-1, 0, 1, MAX_COMPLETE + 1])
def test_the_complete_graph_has_a_largest_cohort(cohort: int) -> None:
    assert MALICIOUS.choose_threshold(MAX_COMPLETE, corrupt=0, dropout=0) == 513
    with pytest.raises(ParameterError, match=f"takes from 2 to 1024 clients, not {cohort}"):
        MALICIOUS.choose_threshold(cohort, corrupt=0, dropout=0)


@pytest.mark.parametrize("corrupt", [5, 6])
def test_somebody_must_be_left_to_protect(corrupt: int) -> None:
    with pytest.raises(ParameterError, match=f"{corrupt} colluders in a cohort of 5 leave no client"):
        CURIOUS.choose_threshold(5, corrupt=corrupt, dropout=0)


# --- fractions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cohort", "dropout", "leave"),
    [
        (10, 0.1, 1),
        (30, 0.1, 3),  # 30 times the float 0.1 is above 3, but 0.3 * 10 is below 3
        (10, 0.3, 3),
        (100, 0.29, 29),  # 100 * 0.29 is 28.999999999999996
        (1000, 0.001, 1),
        (3, Fraction(1, 3), 1),
        (3, 1 / 3, 0),  # the float is printed with 16 threes, which is less than a third
        (7, 0, 0),
        (7, 0.999, 6),
        (10**7, 1e-7, 1),
    ],
)
def test_a_decimal_means_what_it_says(cohort: int, dropout: Any, leave: int) -> None:
    assert dropouts_allowed(cohort, dropout) == leave


def test_a_decimal_may_be_a_decimal() -> None:
    exact: Any = Decimal("0.29")
    assert dropouts_allowed(100, exact) == 29


@pytest.mark.parametrize("dropout", [-0.1, 1, 1.0, 1.5, Fraction(-1, 9)])
def test_a_dropout_is_at_least_0_and_below_1(dropout: float) -> None:
    with pytest.raises(ParameterError, match="at least 0 and below 1"):
        dropouts_allowed(10, dropout)


@pytest.mark.parametrize("dropout", [math.nan, math.inf])
def test_a_dropout_is_a_number(dropout: float) -> None:
    with pytest.raises(ParameterError):
        dropouts_allowed(10, dropout)


def test_a_trust_level_is_parsed_from_its_name() -> None:
    assert [Trust.parse(str(trust)) for trust in Trust] == list(Trust)
    with pytest.raises(ParameterError, match="trust must be one of curious_server, malicious_server"):
        Trust.parse("server")


def test_trust_levels_have_the_names_that_travel() -> None:
    assert [str(trust) for trust in Trust] == ["curious_server", "malicious_server"]


def test_colluders_are_not_negative() -> None:
    with pytest.raises(ParameterError, match="must not be negative"):
        Trust.CURIOUS.choose_threshold(5, corrupt=-1, dropout=0)


@pytest.mark.parametrize(
    ("corrupt", "threshold", "liars"),
    [
        (5, 13, 5),
        (5, 6, 5),
        (5, 5, 4),  # a graph in which as many of a neighbourhood collude as open a secret is not safe
        (50, 19, 18),
        (1, 2, 1),
        (0, 2, 1),  # if two contradict each other, one of them lies after all
        (3, 1, 1),
    ],
)
def test_fewer_lie_around_a_client_than_open_its_secrets(corrupt: int, threshold: int, liars: int) -> None:
    assert liars_around(corrupt, threshold) == liars
