"""Samples and federations: what is refused, and how they are put together."""

from __future__ import annotations

import numpy as np
import pytest

from fl.errors import DataError, FLError, TrainingError
from fl.federation import ClientData, Federation
from fl.samples import Array, Samples
from tests.fl.clients import client, samples


def test_samples_are_taken_in_the_order_of_the_indices() -> None:
    pool = Samples(np.arange(6.0).reshape(3, 2), np.array([7, 8, 9]))
    taken = pool.take(np.array([2, 0, 2]))
    assert taken.x.tolist() == [[4, 5], [0, 1], [4, 5]]
    assert taken.y.tolist() == [9, 7, 9]
    assert (len(pool), len(taken)) == (3, 3)


def test_samples_are_joined_one_after_another() -> None:
    first, second = samples(3, 1), samples(2, 2)
    joined = Samples.join(iter([first, second, first]))
    assert np.array_equal(joined.x, np.concatenate([first.x, second.x, first.x]))
    assert np.array_equal(joined.y, np.concatenate([first.y, second.y, first.y]))
    with pytest.raises(DataError, match="no samples"):
        Samples.join([])


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.zeros((3, 2)), np.zeros(2)),
        (np.zeros(()), np.zeros(1)),
        (np.zeros(1), np.zeros(())),
    ],
    ids=["lengths", "input", "target"],
)
def test_there_is_one_target_for_every_input(x: Array, y: Array) -> None:
    with pytest.raises(DataError, match="one target for every input"):
        Samples(x, y)


@pytest.mark.parametrize("kind", [bool, complex, object, "U3"])
def test_samples_are_numbers(kind: type | str) -> None:
    good, bad = np.zeros(2), np.zeros(2).astype(kind)
    with pytest.raises(DataError, match="inputs must be numbers"):
        Samples(bad, good)
    with pytest.raises(DataError, match="targets must be numbers"):
        Samples(good, bad)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_pointed_at(value: float) -> None:
    x, y = np.zeros((5, 2, 2)), np.zeros(5)
    x[3, 0, 1] = x[3, 1, 1] = x[4, 0, 0] = value
    with pytest.raises(DataError, match="2 of 5 inputs are not finite, the first in row 3"):
        Samples(x, y)
    y[1] = value
    with pytest.raises(DataError, match="1 of 5 targets are not finite, the first in row 1: drop"):
        Samples(np.zeros(5), y)


@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.float16, np.float64])
def test_numbers_of_every_kind_will_do(kind: type) -> None:
    assert len(Samples(np.zeros((0, 3), kind), np.zeros(0, kind))) == 0
    assert Samples(np.ones((2, 3), kind), np.ones(2, kind)).x.dtype == kind


def test_lists_are_made_arrays() -> None:
    made = Samples([[0.5, 1.0], [2.0, 3.0]], [1, 0])  # type: ignore[arg-type]
    assert made.x.tolist() == [[0.5, 1], [2, 3]]
    assert made.y.dtype == np.int64
    with pytest.raises(
        DataError,
        match=r"inputs are not an array: give rows of equal length \(setting an array element with a",
    ):
        Samples([[0.5], [1.0, 2.0]], [1, 0])  # type: ignore[arg-type]
    with pytest.raises(DataError, match="targets must be numbers, not <U1"):
        Samples([[0.5]], ["a"])  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [">f4", ">f8", ">i2", np.longdouble])
def test_numbers_are_in_the_format_of_the_machine(kind: str | type) -> None:
    made = Samples(np.array([[1, 2]], kind), np.array([3], kind))
    assert made.x.tolist() == [[1, 2]]
    assert made.y.tolist() == [3]
    assert made.x.dtype.isnative
    assert made.x.dtype.itemsize <= 8


def test_longer_floats_must_fit_a_double() -> None:
    with pytest.raises(DataError, match="1 of 2 inputs are not finite, the first in row 1"):
        Samples(np.array([1, np.longdouble("1e400")]), np.zeros(2))


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (Samples(np.zeros((2, 3)), np.zeros(2)), r"\(2,\) with targets \(\), \(3,\) with targets \(\)"),
        (Samples(np.zeros((2, 2)), np.zeros((2, 1))), r"\(2,\) with targets \(1,\)"),
        (Samples(np.zeros(2), np.zeros(2)), r"\(\) with targets \(\), "),
    ],
)
def test_only_samples_of_one_shape_are_joined(second: Samples, words: str) -> None:
    with pytest.raises(DataError, match=f"different shapes cannot be joined: .*{words}"):
        Samples.join([Samples(np.zeros((2, 2)), np.zeros(2)), second])


def test_samples_are_private_in_logs() -> None:
    shown = repr(Samples(np.full((2, 3), 17.25), np.array([17.25, 17.25])))
    assert shown == "Samples(2 of shape (3,))"
    assert "17" not in repr(client(3))


def test_a_client_needs_training_data() -> None:
    some, none = samples(2, 0), samples(0, 0)
    ClientData(some, none, none)
    with pytest.raises(DataError, match="leave it out"):
        ClientData(none, some, some)


def test_a_federation_has_clients_who_train_or_are_held_out() -> None:
    federation = Federation({4: client(3), 7: client(5)}, {5: client(2)}, classes=3)
    assert federation.samples == {4: 3, 7: 5}
    with pytest.raises(DataError, match="a federation needs at least one client"):
        Federation({})
    with pytest.raises(DataError, match=r"clients \[4, 7\] both train and are held out"):
        Federation({7: client(3), 4: client(5), 1: client(1)}, {4: client(2), 7: client(1), 2: client(1)})


def test_errors_are_value_errors_of_this_package() -> None:
    for error in (DataError, TrainingError):
        assert issubclass(error, FLError)
        assert issubclass(error, ValueError)
