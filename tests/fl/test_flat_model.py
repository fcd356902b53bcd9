"""A model as one vector: what shares memory with what, and which models cannot be one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl.errors import TrainingError
from fl.flat_model import FlatModel, dim_of, flatten, parameter_slices
from fl.models import build


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def flat_of(module: nn.Module, dtype: torch.dtype = torch.float32) -> FlatModel:
    return FlatModel(module, device=torch.device("cpu"), dtype=dtype)


def test_parameters_and_gradients_are_views_of_one_piece_of_memory() -> None:
    module = build("mlp", features=4, classes=3, hidden=(5,))
    before = flatten(module)
    flat = flat_of(module)
    assert flat.dim == dim_of(module) == 4 * 5 + 5 + 5 * 3 + 3
    for slot in flat.slots:
        parameter = module.get_parameter(slot.name)
        assert parameter.grad is not None
        assert parameter.data_ptr() == flat.values[slot.start :].data_ptr()
        assert parameter.grad.data_ptr() == flat.gradient[slot.start :].data_ptr()
        assert parameter.shape == slot.shape
    assert np.array_equal(flat.read(), before), "taking it over changes no weight"


def test_slots_follow_one_another_without_gaps() -> None:
    slots = parameter_slices(build("convnet", size=16, classes=3))
    assert [slot.start for slot in slots[1:]] == [slot.stop for slot in slots[:-1]]
    assert slots[0].start == 0


def test_what_is_loaded_is_what_the_model_computes_with() -> None:
    module = nn.Linear(2, 2)
    flat = flat_of(module)
    flat.load(np.array([1, 2, 3, 4, 5, 6]))
    assert module.weight.tolist() == [[1, 2], [3, 4]]
    assert module.bias.tolist() == [5, 6]
    flat.gradient.zero_()
    module(torch.tensor([[10.0, 100.0]])).sum().backward()
    assert flat.gradient.tolist() == [10, 100, 10, 100, 1, 1]


def test_a_vector_that_was_read_stays_what_it_is() -> None:
    flat = flat_of(nn.Linear(2, 1))
    flat.load(np.ones(3))
    first = flat.read()
    flat.load(np.zeros(3))
    assert first.tolist() == [1, 1, 1]
    assert first.dtype == np.float32


def test_vectors_of_the_right_kind_are_not_copied() -> None:
    flat = flat_of(nn.Linear(2, 1))
    vector = np.arange(3, dtype=np.float32)
    assert flat.tensor(vector).data_ptr() == vector.ctypes.data
    assert flat.tensor(vector.astype(np.float64)).tolist() == [0, 1, 2]


def test_vectors_that_are_read_only_are_taken_without_a_warning() -> None:
    vector = np.arange(3, dtype=np.float32)
    vector.setflags(write=False)
    shared = flat_of(nn.Linear(2, 1)).tensor(vector)
    shared += 1
    assert vector.tolist() == [0, 1, 2]


def test_other_kinds_of_numbers_are_converted() -> None:
    flat = flat_of(nn.Linear(2, 1), torch.float64)
    assert flat.tensor(np.array([True, False, True])).tolist() == [1, 0, 1]
    assert flat.tensor(np.arange(6)[::2]).tolist() == [0, 2, 4]
    flat.load(np.full(3, 0.1))
    assert flat.read().tolist() == [0.1] * 3, "nothing is lost in double precision"


@pytest.mark.parametrize("shape", [(2,), (4,), (3, 1), ()])
def test_vectors_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(TrainingError, match="a model of 3 parameters cannot be made of shape"):
        flat_of(nn.Linear(2, 1)).load(np.zeros(shape))


def test_what_is_frozen_is_no_part_of_it() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    module[0].requires_grad_(False)
    flat = flat_of(module)
    assert [slot.name for slot in flat.slots] == ["1.weight", "1.bias"]
    kept = module.get_parameter("0.weight").clone()
    flat.load(np.zeros(3))
    assert torch.equal(module.get_parameter("0.weight"), kept)


class Tied(nn.Module):
    """An autoencoder that decodes with the weights it encodes with."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(2, 2, bias=False)
        self.decode = nn.Linear(2, 2, bias=False)
        self.decode.weight = self.encode.weight

    def forward(self, x: Tensor) -> Tensor:
        decoded: Tensor = self.decode(self.encode(x))
        return decoded


def test_shared_weights_are_there_once() -> None:
    module = Tied()
    flat = flat_of(module)
    assert flat.dim == 4
    flat.load(np.array([0, 1, 2, 0]))
    assert module(torch.tensor([[1.0, 10.0]])).tolist() == [[2, 20]]


def test_a_model_without_parameters_cannot_be_trained() -> None:
    with pytest.raises(TrainingError, match="no parameters to train"):
        flat_of(nn.Sequential(nn.Flatten()))
    frozen = nn.Linear(2, 1).requires_grad_(False)
    with pytest.raises(TrainingError, match="no parameters to train"):
        dim_of(frozen)


class Rotated(nn.Module):
    """A linear layer whose inputs are turned by a fixed complex number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.register_buffer("turn", torch.tensor(1j))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: nn.LazyLinear(3), "weight has no size yet: give every layer its sizes"),
        (lambda: nn.Linear(2, 1, dtype=torch.complex64), "weight has complex numbers"),
        (lambda: nn.Linear(2, 1, dtype=torch.complex64).requires_grad_(False), "weight has complex numbers"),
        (Rotated, "turn has complex numbers"),
        (lambda: nn.Linear(2, 1).bfloat16(), r"weight is bfloat16, .* with \.float\(\)"),
    ],
)
def test_tensors_that_cannot_be_trained_are_named(make: Callable[[], nn.Module], said: str) -> None:
    for use in (flat_of, flatten, dim_of):
        with pytest.raises(TrainingError, match=said):
            use(make())


def test_fixed_tensors_may_be_of_any_real_kind() -> None:
    module = nn.Sequential(nn.Linear(2, 2).bfloat16().requires_grad_(False), nn.Linear(2, 1).half())
    assert flatten(module).dtype == np.float16
    assert flat_of(module).read().dtype == np.float32


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.BatchNorm1d(3),
        lambda: nn.BatchNorm2d(3, track_running_stats=False),
        lambda: nn.BatchNorm3d(3),
        lambda: nn.SyncBatchNorm(3),
        lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
    ],
)
def test_statistics_of_batches_are_in_no_sum(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(
        TrainingError,
        match="the model keeps batch statistics, which are not trained parameters and not part of any sum",
    ):
        flat_of(make())
    with pytest.raises(TrainingError, match=r"^1 keeps batch statistics"):
        flat_of(nn.Sequential(nn.Linear(3, 3), make()))


@pytest.mark.parametrize(
    "make",
    [lambda: nn.GroupNorm(1, 3), lambda: nn.LayerNorm(3), lambda: nn.InstanceNorm2d(3, affine=True)],
)
def test_statistics_of_single_samples_are_fine(make: Callable[[], nn.Module]) -> None:
    assert flat_of(make()).dim == 6


@pytest.mark.parametrize("norm", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm])
def test_spectral_norm_is_known_to_have_state(norm: Callable[[nn.Module], nn.Module]) -> None:
    with pytest.raises(TrainingError, match=r"^0.* keeps vectors of spectral_norm, .*: use .*weight_norm"):
        flat_of(nn.Sequential(norm(nn.Linear(2, 1))))


class Centred(nn.Module):
    """A linear layer with tensors that are not trained. `change` says what happens to them in training."""

    mean: Tensor
    count: Tensor
    later: Tensor | None

    def __init__(self, change: Callable[[Centred, Tensor], None]) -> None:
        super().__init__()
        self.layer, self.frozen = nn.Linear(2, 1), nn.Linear(2, 1).requires_grad_(False)
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("count", torch.tensor(0), persistent=False)
        self.register_buffer("unknown", torch.tensor([float("nan"), -float("inf")]))
        self.register_buffer("graph", torch.eye(2).to_sparse())
        self.register_buffer("later", None)
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.change(self, x.detach())
        moved: Tensor = self.layer(x - self.mean)
        return moved


def _average(module: Centred, x: Tensor) -> None:
    module.mean = 0.9 * module.mean + 0.1 * x.mean(0)


def _average_in_place(module: Centred, x: Tensor) -> None:
    if torch.is_grad_enabled():
        module.mean.mul_(0.9).add_(x.mean(0))


def _count(module: Centred, x: Tensor) -> None:
    module.count += len(x)


def _begin(module: Centred, x: Tensor) -> None:
    module.later = x.mean(0)


def _follow(module: Centred, _: Tensor) -> None:
    module.frozen.weight.data.mul_(0.9).add_(module.layer.weight.data)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (_average, "mean"),
        (_average_in_place, "mean"),
        (_count, "count"),
        (_begin, "later"),
        (_follow, r"frozen\.weight"),
    ],
)
def test_state_that_training_changes_is_in_no_sum(
    change: Callable[[Centred, Tensor], None], name: str
) -> None:
    torch.manual_seed(1)  # or once in 16 times, dropout leaves nothing that could change a mean
    for module in (Centred(change), nn.Sequential(nn.Dropout(0.5), Centred(change))):
        with pytest.raises(TrainingError, match=f"changes the values of (1.)?{name}, .* of any sum: make"):
            flat_of(module).watch(torch.ones(5, 2))


def test_tensors_that_training_leaves_alone_are_fine() -> None:
    flat = flat_of(Centred(lambda module, x: None))
    flat.watch(torch.ones(5, 2))
    assert not flat.draws


@pytest.mark.parametrize(
    ("part", "draws"),
    [
        (nn.Dropout(0.5), True),
        (nn.Dropout2d(0.1), True),
        (nn.AlphaDropout(0.1), True),
        (nn.Dropout(0.0), False),
        (nn.ReLU(), False),
        (nn.LSTM(2, 2, num_layers=2, dropout=0.1), True),
        (nn.LSTM(2, 2, num_layers=2), False),
        (nn.MultiheadAttention(2, 1, dropout=0.1), True),
        (nn.RReLU(), True),
    ],
)
def test_whether_a_model_uses_chance_is_known(part: nn.Module, draws: bool) -> None:
    assert flat_of(nn.Sequential(nn.Linear(2, 2), nn.Sequential(part))).draws is draws
