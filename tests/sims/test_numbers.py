"""Numbers on the command line."""

import argparse
from fractions import Fraction

import pytest

from sims.cli.options import fraction, number_or_proportion, proportion, whole
from sims.text_format import counted


@pytest.mark.parametrize(("text", "number"), [("2", 2), ("5", 5), ("9", 9)])
def test_whole_number_within_limits(text: str, number: int) -> None:
    assert whole(2, 9)(text) == number


@pytest.mark.parametrize("text", ["1", "10", "-3", "2.0", "two", ""])
def test_other_whole_number_says_the_limits(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a whole number from 2 to 9"):
        whole(2, 9)(text)


def test_fraction_is_exact() -> None:
    assert fraction("0.1") == fraction("1/10") == Fraction(1, 10)
    assert fraction("0.1") != 0.1


@pytest.mark.parametrize("text", ["a tenth", "1/0", ""])
def test_no_fraction(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"is not a number such as 0\.1 or 1/10"):
        fraction(text)


@pytest.mark.parametrize("text", ["1", "1.0", "-0.1", "3/2"])
def test_proportion_is_below_one(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not at least 0 and below 1"):
        proportion(text)


def test_whole_number_is_no_proportion() -> None:
    number, part = number_or_proportion("1"), number_or_proportion("0.25")

    assert (number, type(number)) == (1, int)
    assert (part, type(part)) == (Fraction(1, 4), Fraction)


@pytest.mark.parametrize("text", ["-1", "1.5", "3/2", "1/0", "half", "", "9" * 5000])
def test_neither_number_nor_proportion(text: str) -> None:
    sentence = r"is neither a whole number nor a part of all such as 0\.1 or 1/10"
    with pytest.raises(argparse.ArgumentTypeError, match=sentence):
        number_or_proportion(text)


def test_one_is_singular() -> None:
    assert [counted(number, "sum") for number in (0, 1, 2)] == ["0 sums", "1 sum", "2 sums"]


@pytest.mark.parametrize("text", ["1e999999999", "1e-999999999", "1" * 1001])
def test_a_number_of_absurd_length_is_refused_at_once(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a number"):
        fraction(text)
