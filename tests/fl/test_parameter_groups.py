"""Groups of parameters by pattern, and those that papers make personal."""

import pickle
from typing import Any

import numpy as np
import pytest
from torch import nn

from fl.errors import TrainingError
from fl.flat_model import flatten
from fl.models import MODELS, build, registry
from fl.parameter_groups import Groups, layer_groups


def module() -> nn.Module:
    """Parameters at places 0-5 and 6-7 (body), 8-9 and 10-11 (norm), 12-13 and 14 (head)."""
    parts = nn.Module()
    parts.body = nn.Linear(3, 2)
    parts.norm = nn.LayerNorm(2)
    parts.head = nn.Linear(2, 1)
    return parts


def test_rest_is_what_no_pattern_names() -> None:
    groups = Groups.of(module(), {"personal": "head.*"})
    assert groups.dim == 15
    assert groups.names == ("personal", "shared")
    assert groups.slices == {"personal": (slice(12, 15),), "shared": (slice(0, 12),)}
    assert (groups.size("personal"), groups.size("shared")) == (3, 12)


def test_several_patterns_and_gaps() -> None:
    groups = Groups.of(module(), {"biases": ["*.bias"], "ends": ("body.w*", "head.w*")}, rest="middle")
    assert groups.slices == {
        "biases": (slice(6, 8), slice(10, 12), slice(14, 15)),
        "ends": (slice(0, 6), slice(12, 14)),
        "middle": (slice(8, 10),),
    }


def test_patterns_of_one_group_may_overlap() -> None:
    groups = Groups.of(module(), {"personal": ("head.*", "*.bias")})
    assert groups.size("personal") == 2 + 2 + 3


def test_without_a_rest() -> None:
    groups = Groups.of(module(), {"a": "body.*", "b": ("norm.*", "head.*")}, rest=None)
    assert groups.slices == {"a": (slice(0, 8),), "b": (slice(8, 15),)}
    with pytest.raises(TrainingError, match=r"no group has norm\.weight, norm\.bias: add a pattern"):
        Groups.of(module(), {"a": "body.*", "b": "head.*"}, rest=None)


def test_masks_are_a_partition() -> None:
    groups = Groups.of(module(), {"biases": "*.bias", "head": "head.weight"})
    masks = [groups.mask(name) for name in groups.names]
    assert (np.sum(masks, axis=0) == 1).all()
    assert np.flatnonzero(groups.mask("biases")).tolist() == [6, 7, 10, 11, 14]


def test_take_and_put() -> None:
    groups = Groups.of(module(), {"biases": "*.bias"})
    vector = np.arange(15, dtype=np.float32)
    taken = groups.take(vector, "biases")
    assert taken.tolist() == [6, 7, 10, 11, 14]
    assert taken.dtype == np.float32
    changed = groups.put(vector, "biases", -taken)
    assert vector.tolist() == list(range(15))
    assert changed.tolist() == [0, 1, 2, 3, 4, 5, -6, -7, 8, 9, -10, -11, 12, 13, -14]
    assert changed.dtype == np.float32


def test_taken_numbers_are_a_copy() -> None:
    groups = Groups.of(module(), {"personal": "head.*"})
    vector = np.zeros(15)
    groups.take(vector, "personal")[:] = 1
    assert not vector.any()


def test_stacks_of_vectors() -> None:
    groups = Groups.of(module(), {"biases": "*.bias"})
    stack = np.arange(30).reshape(2, 15)
    assert groups.take(stack, "biases").tolist() == [[6, 7, 10, 11, 14], [21, 22, 25, 26, 29]]
    assert groups.put(stack, "biases", np.zeros((2, 5)))[:, groups.mask("biases")].tolist() == [[0] * 5] * 2


def test_places_are_those_of_the_flat_model() -> None:
    model = build("mlp", features=4, classes=3, hidden=(5,))
    groups = Groups.of(model, {"personal": "output.*"})
    weights = model.get_parameter("output.weight").detach().numpy()
    bias = model.get_parameter("output.bias").detach().numpy()
    assert (groups.take(flatten(model), "personal") == np.append(weights.ravel(), bias)).all()


def test_frozen_parameters_are_in_no_group() -> None:
    model = module()
    model.get_submodule("body").requires_grad_(False)
    assert Groups.of(model, {"personal": "head.*"}).slices["shared"] == (slice(0, 4),)


def test_another_process_can_have_them() -> None:
    groups = pickle.loads(pickle.dumps(Groups.of(module(), {"personal": "head.*"})))  # noqa: S301
    assert groups.size("personal") == 3


def test_wrong_patterns() -> None:
    with pytest.raises(
        TrainingError, match=r"pattern 'tail\.\*' of 'a' matches none of body\.weight, body\.bias"
    ):
        Groups.of(module(), {"a": ("head.*", "tail.*")})
    with pytest.raises(TrainingError, match=r"head\.bias is both in 'a' and in 'b': narrow a pattern"):
        Groups.of(module(), {"a": "*.bias", "b": "head.*"})
    with pytest.raises(TrainingError, match="nothing is left for 'shared'"):
        Groups.of(module(), {"a": "*"})
    with pytest.raises(
        TrainingError, match="'shared' is the name of the remaining group: rename the other group"
    ):
        Groups.of(module(), {"shared": "head.*"})
    with pytest.raises(TrainingError, match="group 'a' has no pattern"):
        Groups.of(module(), {"a": ()})
    with pytest.raises(TrainingError, match="no parameters to train"):
        Groups.of(nn.Flatten(), {"a": "*"})


def test_wrong_vectors_and_names() -> None:
    groups = Groups.of(module(), {"personal": "head.*"})
    with pytest.raises(
        TrainingError,
        match=r"there is no group 'persnal'; did you mean 'personal'\? Available: personal, shared",
    ):
        groups.mask("persnal")
    with pytest.raises(TrainingError, match=r"15 parameters has no vector of shape \(14,\)"):
        groups.take(np.zeros(14), "personal")
    with pytest.raises(TrainingError, match=r"15 parameters has no vector of shape \(\)"):
        groups.put(np.zeros(()), "personal", np.zeros(3))
    for wrong in (np.zeros(2), np.zeros(1), np.zeros((1, 3))):
        with pytest.raises(TrainingError, match=r"'personal' takes values of shape \(3,\)"):
            groups.put(np.zeros(15), "personal", wrong)


@pytest.mark.parametrize("name", MODELS)
def test_layers_of_every_model(name: str) -> None:
    parameters: dict[str, dict[str, Any]] = {
        "linear": {"features": 3},
        "softmax": {"features": 3, "classes": 2},
        "additive": {"features": 3, "classes": 2},
        "mlp": {"features": 3, "classes": 2},
        "rfa-convnet": {"size": 4},
        "resnet": {"adapters": True},
    }
    model = build(name, **parameters.get(name, {}))
    layers = layer_groups(name)
    assert layers
    for part, patterns in layers.items():
        only = name in ("linear", "softmax")
        groups = Groups.of(model, {part: patterns}, rest=None if only else "rest")
        assert 0 < groups.size(part) <= groups.dim
    if "input" in layers:
        first, last = layers["input"], layers["output"]
        ends = Groups.of(model, {"input": first, "output": last})
        assert ends.slices["input"][0].start == 0
        assert ends.slices["output"][0].stop == ends.dim


def test_additive_model_is_two_halves() -> None:
    model = build("additive", features=3, classes=2)
    groups = Groups.of(model, layer_groups("additive"), rest=None)
    assert groups.slices == {"shared": (slice(0, 6),), "personal": (slice(6, 12),)}


def test_adapters_come_with_norms_but_not_those_of_projections() -> None:
    model = build("resnet", size=8, widths=(8, 16), adapters=True)
    groups = Groups.of(model, {"personal": layer_groups("resnet")["adapter"]})
    # A matrix and a norm per adapter, two norms per block, and that of the stem.
    assert groups.size("personal") == 2 * (8 * 8 + 16) + 2 * (16 * 16 + 32) + 2 * 16 + 2 * 32 + 16
    with pytest.raises(TrainingError, match=r"input\.norm\.weight is both in 'input' and in 'adapter'"):
        Groups.of(model, layer_groups("resnet"))
    with pytest.raises(TrainingError, match="matches none"):
        Groups.of(build("resnet", size=8), {"personal": layer_groups("resnet")["adapter"]})


def test_layers_of_an_unknown_model() -> None:
    with pytest.raises(
        TrainingError,
        match=r"there is no model 'lenett'; did you mean 'lenet'\? Available: linear, softmax, additive,",
    ):
        layer_groups("lenett")


def test_a_registered_model_has_no_named_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._MODELS, "outside", MODELS["linear"])
    assert layer_groups("outside") == {}
