"""How much work convolutions are, and up to how much of it clients share their steps."""

import pytest
import torch

from fl.flat_model import FlatModel
from fl.stacking_policy import AUTO, TOGETHER, client_batches, convolution_work
from papers.model_setups import SETUPS

MNIST_CNN = 24 * 24 * 10 * 25 + 8 * 8 * 20 * 250  # multiplications: places, filters, inputs of each


def flat_of(name: str) -> FlatModel:
    return FlatModel(SETUPS[name].build(), device=torch.device("cpu"), dtype=torch.float32)


def test_work_of_convolutions_is_that_of_one_sample() -> None:
    images = torch.zeros(7, 1, 28, 28)
    module = SETUPS["mnist-cnn"].build()

    assert convolution_work(module, images) == MNIST_CNN
    assert convolution_work(module, images) == MNIST_CNN  # the first count left nothing behind
    assert convolution_work(SETUPS["mnist-1nn"].build(), images) == 0


@pytest.mark.parametrize(
    ("work", "width", "shared"),
    [(MNIST_CNN, 10, True), (MNIST_CNN, 11, False), (0, 1000, True), (None, 1, False)],
)
def test_clients_share_steps_with_small_convolutions(work: int | None, width: int, shared: bool) -> None:
    flat = flat_of("mnist-cnn")
    together = [list(range(6))]

    chosen = client_batches(flat, AUTO, [width] * 6, [3] * 6, work)

    assert chosen == (together if shared else [[client] for client in range(6)])
    assert client_batches(flat, TOGETHER, [width] * 6, [3] * 6, work) == together


def test_work_of_convolutions_says_nothing_of_other_models() -> None:
    assert client_batches(flat_of("mnist-1nn"), AUTO, [50] * 6, [3] * 6) == [list(range(6))]
