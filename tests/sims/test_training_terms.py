"""What `training_terms` makes of a model: the terms tell apart what must not be trained together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sims.config_problems import ConfigError
from sims.deploy.run_terms import RunTerms
from sims.deploy.training import training_terms


class Scaled(nn.Module):
    """A linear model on inputs that are scaled by `scale`, which is not trained."""

    def __init__(self, scale: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        if scale is not None:
            self.scale = scale


def buffer(value: float, *, persistent: bool = True, dtype: torch.dtype = torch.float32) -> nn.Module:
    made = Scaled(None)
    made.register_buffer("scale", torch.full((4,), value, dtype=dtype), persistent=persistent)
    return made


def frozen(value: float) -> nn.Module:
    return Scaled(nn.Parameter(torch.full((4,), value), requires_grad=False))


def terms(make: Any, **changes: Any) -> RunTerms:
    given: dict[str, Any] = {"algorithm": {"name": "fedavg", "clip": 1.0}, "training": {"rate": 0.1}}
    return training_terms(make, clients=3, rounds=2, **{**given, **changes})


@pytest.mark.parametrize(
    "make",
    [
        frozen,
        buffer,
        lambda value: buffer(value, persistent=False),
        lambda value: buffer(value, dtype=torch.bfloat16),
    ],
    ids=["frozen", "buffer", "not persistent", "bfloat16"],
)
def test_values_that_are_not_trained_are_part_of_the_terms(make: Any) -> None:
    client, server, same = (terms(lambda value=value: make(value)) for value in (1.0, 2.0, 1.0))
    assert client.digest == same.digest
    assert client.digest != server.digest
    (told,) = client.differences(server.text)
    assert told.startswith("model.scale (not trained): the server has other values than this client: load")


def test_a_parameter_that_one_side_trains_is_named() -> None:
    trained, fixed = terms(lambda: Scaled(nn.Parameter(torch.ones(4)))), terms(lambda: frozen(1.0))
    assert "model.scale (not trained): only at the server" in trained.differences(fixed.text)
    assert "model.scale (not trained): only at this client" in fixed.differences(trained.text)


def test_a_model_that_is_trained_as_a_whole_has_terms_of_shapes_only() -> None:
    names = [name for name in terms(lambda: Scaled(None)).document if name.startswith("model.")]
    assert names == ["model.kind", "model.layer.weight", "model.layer.bias"]


@pytest.mark.parametrize("kind", [str, Path])
def test_a_run_starts_from_the_weights_of_another(tmp_path: Path, kind: Any) -> None:
    weights = np.arange(10.0)
    np.savez(tmp_path / "model.npz", model=weights)
    agreed = terms(lambda: Scaled(None), model={"start": kind(tmp_path)})
    assert np.array_equal(agreed.initial, weights)


@pytest.mark.parametrize(
    ("model", "key"),
    [
        ({"kind": "mlp"}, "model.kind: .*make_module"),
        ({"hidden": 8}, "model.hidden: .*make_module"),
        ({"start": 3}, "model.start"),
        ({"start": "no-such-run"}, "model.start: no-such-run"),
        ("mlp", "model: "),
    ],
)
def test_what_a_table_of_the_model_cannot_say_is_refused(model: Any, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        terms(lambda: Scaled(None), model=model)
