"""The shipped models: their sizes, their weights, and what they compute, alone and many at once."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from fl.errors import TrainingError
from fl.flat_model import dim_of, flatten
from fl.models import MODELS, build, parameters_of, size_of
from fl.models.base import fitted
from fl.models.residual import Adapter
from papers.model_setups import SETUPS, sizes

# Small ones of every kind, with the shape of an input.
SMALL: Mapping[str, tuple[str, Mapping[str, Any], tuple[int, ...]]] = {
    "linear": ("linear", {"features": 5, "zero": False}, (5,)),
    "softmax": ("softmax", {"features": 12, "classes": 3, "zero": False}, (1, 3, 4)),
    "additive": ("additive", {"features": 5, "classes": 3, "zero": False}, (5,)),
    "additive-regression": ("additive", {"features": 5, "bias": True, "zero": False}, (5,)),
    "mlp": ("mlp", {"features": 12, "classes": 3, "hidden": [7, 6]}, (1, 3, 4)),
    "mlp-linear": ("mlp", {"features": 12, "classes": 3, "hidden": ()}, (12,)),
    "mlp-dropout": ("mlp", {"features": 12, "classes": 3, "hidden": (7,), "dropout": 0.5}, (12,)),
    "cnn-mnist": ("cnn-mnist", {"size": 16}, (1, 16, 16)),
    "cnn-cifar": ("cnn-cifar", {"size": 16, "channels": 2}, (2, 16, 16)),
    "rfa-convnet": ("rfa-convnet", {"size": 4, "classes": 3}, (1, 4, 4)),
    "convnet": ("convnet", {"size": 16, "classes": 3}, (1, 16, 16)),
    "lenet": ("lenet", {"size": 16}, (3, 16, 16)),
    "resnet": ("resnet", {"size": 8, "widths": (4, 8), "blocks": 2}, (1, 8, 8)),
    "resnet-adapters": ("resnet", {"size": 8, "widths": [8, 24], "adapters": True}, (1, 8, 8)),
    "char-lstm": ("char-lstm", {"vocabulary": 9, "embedding": 3, "hidden": 5, "layers": 2}, (6,)),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Models this small gain nothing from more, and threads that wait for a busy core burn another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def small(case: str, *, seed: int = 0) -> nn.Module:
    name, parameters, _ = SMALL[case]
    return build(name, seed=seed, **parameters).eval()


def batch_for(case: str, *leading: int) -> Tensor:
    name, parameters, shape = SMALL[case]
    draw = torch.Generator().manual_seed(7)
    if name == "char-lstm":
        return torch.randint(0, parameters["vocabulary"], (*leading, *shape), generator=draw)
    return torch.randn((*leading, *shape), generator=draw)


def outputs_of(case: str) -> tuple[int, ...]:
    name, parameters, _ = SMALL[case]
    if name == "char-lstm":
        return (parameters["vocabulary"],)
    known = parameters_of(name)
    if "classes" not in known:
        return ()
    classes = parameters.get("classes", known["classes"].default)
    return () if classes is None else (classes,)


def test_every_model_is_among_the_small_ones() -> None:
    assert {name for name, _, _ in SMALL.values()} == set(MODELS)


def test_sizes_are_those_of_the_papers() -> None:
    assert sizes() == {
        "sent140-logistic": 50,
        "synthetic-softmax": 610,
        "mnist-softmax": 7_850,
        "emnist-softmax": 784 * 62 + 62,
        "emnist-softmax-no-bias": 784 * 62,
        "emnist-additive": 2 * 784 * 62,
        "mnist-1nn": 79_510,
        "emnist-2nn": 94_862,
        "mnist-dropout": 784 * 128 + 128 + 128 * 10 + 10,
        "mnist-cnn": 260 + 5_020 + 6_420 + 210,
        "cifar-cnn": 4_864 + 102_464 + 614_784 + 73_920 + 1_930,
        "cifar-lenet": 62_006,
        "emnist-rfa-convnet": 832 + 51_264 + (3_136 * 2_048 + 2_048) + (2_048 * 62 + 62),
        "emnist-convnet": 832 + 51_264 + (1_024 * 62 + 62),
        "mnist-resnet": 77_754,
        # ResNet-18 for 3 channels and 10 classes; then what differs, and a matrix and a norm per adapter.
        "emnist-resnet18": 11_173_962
        - 2 * 9 * 64
        + 52 * 513
        + 4 * sum(width**2 + 2 * width for width in (64, 128, 256, 512)),
        "shakespeare-lstm": 53 * 8 + 4 * 128 * (8 + 128 + 1) + 128 * 53 + 53,
    }


def test_size_of_resnet_18() -> None:
    widths = (64, 128, 256, 512)
    assert size_of("resnet", channels=3, size=32, widths=widths, blocks=2) == 11_173_962


@pytest.mark.parametrize("case", SMALL)
def test_size_is_that_of_the_vector(case: str) -> None:
    name, parameters, _ = SMALL[case]
    assert size_of(name, **parameters) == dim_of(small(case)) == len(flatten(small(case)))


def test_a_setup_builds_its_model() -> None:
    assert dim_of(SETUPS["mnist-cnn"].build()) == SETUPS["mnist-cnn"].size == 11_910
    first, second = (flatten(SETUPS["mnist-cnn"].build(seed=seed)) for seed in (1, 2))
    assert (first != second).any()


@pytest.mark.parametrize("case", SMALL)
def test_output_has_a_row_for_every_input(case: str) -> None:
    assert small(case)(batch_for(case, 4)).shape == (4, *outputs_of(case))
    assert small(case)(batch_for(case, 0)).shape == (0, *outputs_of(case))


@pytest.mark.parametrize("case", SMALL)
def test_a_model_is_its_parameters_alone(case: str) -> None:
    model = small(case)
    assert not list(model.buffers())
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("case", SMALL)
def test_weights_depend_on_the_seed_alone(case: str) -> None:
    before = torch.random.get_rng_state()
    one = flatten(small(case, seed=3))
    size_of(SMALL[case][0], **SMALL[case][1])
    assert torch.equal(torch.random.get_rng_state(), before)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(before[0]) + 1)
        assert (flatten(small(case, seed=3)) == one).all()
    assert (flatten(small(case, seed=4)) != one).any()


@pytest.mark.parametrize("case", SMALL)
def test_many_at_once_are_as_one_by_one(case: str) -> None:
    models = [small(case, seed=seed) for seed in range(3)]
    batches = batch_for(case, 3, 2)
    stacked, _ = stack_module_state(models)

    def forward(parameters: dict[str, Tensor], batch: Tensor) -> Tensor:
        outputs: Tensor = functional_call(models[0], parameters, (batch,))
        return outputs

    def loss(parameters: dict[str, Tensor], batch: Tensor) -> Tensor:
        return forward(parameters, batch).square().mean()

    together = vmap(forward)(stacked, batches)
    alone = torch.stack([model(batch) for model, batch in zip(models, batches, strict=True)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)
    slopes = vmap(grad(loss))(stacked, batches)
    for place, (model, batch) in enumerate(zip(models, batches, strict=True)):
        model(batch).square().mean().backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(slopes[name][place], parameter.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", SMALL)
def test_every_parameter_matters(case: str) -> None:
    model = small(case)
    model(batch_for(case, 8)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


@pytest.mark.parametrize("name", ["linear", "softmax", "additive"])
def test_linear_models_start_at_zero(name: str) -> None:
    classes = {} if name == "linear" else {"classes": 3}
    assert not flatten(build(name, features=5, bias=True, **classes)).any()
    assert flatten(build(name, features=5, bias=True, zero=False, **classes)).all()


def test_linear_models_compute_products() -> None:
    batch = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    linear = build("linear", features=2)
    softmax = build("softmax", features=2, classes=3, bias=False)
    additive = build("additive", features=2, classes=2)
    with torch.no_grad():
        linear.get_parameter("output.weight").copy_(torch.tensor([[10.0, 1.0]]))
        linear.get_parameter("output.bias").fill_(0.5)
        softmax.get_parameter("output.weight").copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
        additive.get_parameter("shared.weight").copy_(torch.eye(2))
        additive.get_parameter("personal.weight").copy_(100 * torch.eye(2))
    assert linear(batch).tolist() == [12.5, 34.5]
    assert softmax(batch).tolist() == [[1, 2, 3], [3, 4, 7]]
    assert additive(batch).tolist() == [[101, 202], [303, 404]]


def test_dropout_only_in_training() -> None:
    model = build("mlp", features=50, classes=2, hidden=(64,), dropout=0.5)
    batch = torch.ones(1, 50)
    with torch.random.fork_rng(devices=[]):
        assert not torch.equal(model(batch), model(batch))
    model.eval()
    assert torch.equal(model(batch), model(batch))


def test_mlp_against_torch() -> None:
    model = build("mlp", features=6, classes=3, hidden=(5, 4))
    same = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(model.parameters()), same.parameters())
    batch = torch.randn(7, 6, generator=torch.Generator().manual_seed(1))
    assert torch.equal(model(batch), same(batch))


def test_cnn_cifar_has_the_layers_of_its_table() -> None:
    kinds = [type(layer).__name__ for layer in build("cnn-cifar").children()]
    first = ["Conv2d", "ReLU", "MaxPool2d", "LocalResponseNorm"]
    second = ["Conv2d", "ReLU", "LocalResponseNorm", "MaxPool2d"]
    assert kinds == [*first, *second, "Flatten", *["Linear", "ReLU"] * 2, "Linear"]


def test_lstm_against_torch() -> None:
    model = small("char-lstm")
    batch = batch_for("char-lstm", 4)
    same = nn.LSTM(3, 5, num_layers=2, batch_first=True)
    # torch has the gates in another order (in, forget, value, out), and two biases of which one is enough.
    order = torch.cat([torch.arange(10), torch.arange(15, 20), torch.arange(10, 15)])
    with torch.no_grad():
        for layer in range(2):
            for mine, its in (("inputs", "weight_ih"), ("states", "weight_hh"), ("bias", "bias_ih")):
                weights = model.get_parameter(f"lstm.{layer}.{mine}")
                same.get_parameter(f"{its}_l{layer}").copy_(weights[order])
            same.get_parameter(f"bias_hh_l{layer}").zero_()
    states, _ = same(model.get_submodule("input")(batch))
    expected = model.get_submodule("output")(states[:, -1])
    torch.testing.assert_close(model(batch), expected, rtol=0, atol=1e-6)


def test_forget_gates_start_open() -> None:
    bias = small("char-lstm").get_parameter("lstm.0.bias")
    assert bias.tolist() == [0] * 5 + [1] * 5 + [0] * 10


def test_windows_have_any_length_and_whole_type() -> None:
    model = small("char-lstm")
    window = torch.tensor([[1, 2, 3]])
    assert torch.equal(model(window), model(window.to(torch.int32)))
    assert model(window[:, :1]).shape == (1, 9)
    for wrong in (window.float(), window[0], window[:, :0]):
        with pytest.raises(TrainingError, match="windows of characters as whole numbers"):
            model(wrong)


def test_adapters_start_as_next_to_nothing() -> None:
    """An adapter that adds nothing only doubles what the norm after it makes equal again."""
    parameters: dict[str, Any] = {"size": 8, "widths": (8, 16), "blocks": 1}
    plain = build("resnet", **parameters)
    adapted = build("resnet", adapters=True, **parameters)
    adapters = {name for name, _ in adapted.named_parameters() if "adapter" in name}
    assert len(adapters) == 2 * 2 * 3
    for name in adapters:
        if name.endswith("conv.weight"):
            assert 0.5e-4 < adapted.get_parameter(name).std() < 2e-4
    missing = adapted.load_state_dict(plain.state_dict(), strict=False).missing_keys
    assert set(missing) == adapters
    batch = batch_for("resnet", 3)
    torch.testing.assert_close(adapted(batch), plain(batch), rtol=0, atol=1e-3)
    with torch.no_grad():
        adapted.get_parameter("blocks.0.adapter1.conv.weight").normal_(
            generator=torch.Generator().manual_seed(1)
        )
    assert (adapted(batch) - plain(batch)).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("width", "groups"),
    [(4, 1), (8, 1), (16, 2), (24, 3), (60, 1), (64, 8), (128, 8), (256, 16), (512, 32), (1024, 32)],
)
def test_groups_of_channels(width: int, groups: int) -> None:
    assert Adapter(width).norm.num_groups == groups


def test_inputs_of_another_shape() -> None:
    images = torch.arange(48.0).reshape(3, 1, 4, 4)
    assert torch.equal(fitted(images, (16,)), images.flatten(1))
    assert torch.equal(fitted(images.flatten(1), (1, 4, 4)), images)
    assert torch.equal(fitted(images.squeeze(1), (1, 4, 4)), images)
    assert torch.equal(fitted(torch.arange(3.0), (1,)), torch.arange(3.0).reshape(3, 1))
    for wrong, shape in ((images, (15,)), (images, (2, 2, 4)), (torch.zeros(3, 4, 4, 2), (2, 4, 4))):
        with pytest.raises(TrainingError, match="do not fit a model for"):
            fitted(wrong, shape)


def test_unknown_models_and_parameters_name_the_nearest() -> None:
    with pytest.raises(
        TrainingError,
        match=r"there is no model 'sofmax'; did you mean 'softmax'\? Available: linear, softmax, additive,",
    ):
        build("sofmax")
    with pytest.raises(TrainingError, match=r"no model 'q7'. Available: linear, .*, char-lstm"):
        size_of("q7")
    with pytest.raises(
        TrainingError,
        match=r"no parameter of softmax 'feature'; did you mean 'features'\? Available: features, cl",
    ):
        build("softmax", feature=3)
    with pytest.raises(
        TrainingError, match="mlp needs features and classes: it takes features, classes, hidden"
    ):
        build("mlp", dropout=0.5)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("linear", {"features": 0}, "features must be a whole number of 1 or more, not 0"),
        ("softmax", {"features": 3, "classes": 2.0}, "classes must be a whole number"),
        ("softmax", {"features": 3, "classes": True}, "classes must be a whole number"),
        ("additive", {"features": 3, "classes": 0}, "classes must be a whole number"),
        ("linear", {"features": 3, "bias": "no"}, "bias must be true or false, not 'no'"),
        ("linear", {"features": 3, "zero": 0}, "zero must be true or false, not 0"),
        ("mlp", {"features": 3, "classes": 2, "hidden": 100}, r"hidden must be a list .* not 100"),
        ("mlp", {"features": 3, "classes": 2, "hidden": "100"}, "hidden must be a list"),
        ("mlp", {"features": 3, "classes": 2, "hidden": (5, 0)}, "hidden must be a list"),
        ("mlp", {"features": 3, "classes": 2, "dropout": 1}, "dropout must be a number from 0 to below 1"),
        ("mlp", {"features": 3, "classes": 2, "dropout": -0.1}, "dropout must be a number"),
        ("mlp", {"features": 3, "classes": 2, "dropout": float("nan")}, "dropout must be a number"),
        ("mlp", {"features": 3, "classes": 2, "dropout": "0"}, "dropout must be a number"),
        ("lenet", {"size": 15}, "images of 15 x 15 are too small: size must be 16 or more"),
        ("rfa-convnet", {"size": 3}, "images of 3 x 3 are too small: size must be 4 or more"),
        ("cnn-mnist", {"channels": -1}, "channels must be a whole number"),
        ("resnet", {"widths": ()}, "widths must name at least one stage"),
        ("resnet", {"blocks": 0}, "blocks must be a whole number"),
        ("resnet", {"adapters": 1}, "adapters must be true or false"),
        ("char-lstm", {"layers": 0}, "layers must be a whole number"),
        ("lenet", {"seed": -1}, "seed must be a whole number from 0"),
        ("lenet", {"seed": 2**63}, "seed must be a whole number from 0"),
        ("lenet", {"seed": 1.0}, "seed must be a whole number from 0"),
    ],
)
def test_wrong_values(name: str, parameters: Mapping[str, Any], message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        build(name, **parameters)
