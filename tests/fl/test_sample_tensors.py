"""Samples as tensors: what no longer fits is said, and not trained on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fl.errors import DataError
from fl.sample_tensors import SampleTensors
from fl.samples import Samples
from fl.training_settings import Training

CPU = torch.device("cpu")


@pytest.mark.parametrize("what", ["inputs", "targets"])
def test_numbers_that_become_infinite_are_pointed_at(what: str) -> None:
    x, y = np.zeros((5, 2, 2)), np.zeros(5)
    if what == "inputs":
        x[2, 0, 1] = x[2, 1, 1] = 1e300
        x[4, 0, 0] = -1e300
    else:
        y[2] = y[4] = 1e300
    samples = Samples(x, y)
    words = f"2 of 5 {what} are too large for float32, the first in row 2: scale them down, or .*float64"
    with pytest.raises(DataError, match=words):
        SampleTensors.of(samples, Training(loss="squared"), CPU)
    exact = SampleTensors.of(samples, Training(loss="squared", precision="float64"), CPU)
    assert exact.inputs.isfinite().all()
    assert exact.targets.max() == y.max()


def test_the_largest_single_float_is_fine() -> None:
    largest = float(np.finfo(np.float32).max)
    store = SampleTensors.of(Samples(np.array([[largest]]), np.array([0])), Training(), CPU)
    assert store.inputs.item() == largest
    assert store.inputs.dtype is torch.float32


@pytest.mark.parametrize("kind", [">f8", ">i4", np.longdouble, np.float16, np.uint64])
def test_numbers_of_every_format_come_through(kind: str | type) -> None:
    made = Samples(np.array([[1, 2]], kind), np.array([3], ">i8"))
    store = SampleTensors.of(made, Training(), CPU)
    assert store.inputs.tolist() == [[1, 2]]
    assert store.targets.tolist() == [3]


def test_nothing_is_fine() -> None:
    assert len(SampleTensors.of(Samples(np.zeros((0, 3)), np.zeros(0, int)), Training(), CPU)) == 0
