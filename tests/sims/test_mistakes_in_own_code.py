"""Mistakes in the code of operators who train: one sentence names the key and says what to do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from sims.config_problems import ConfigError
from sims.deploy.client_setup import load_client_setup
from sims.deploy.run_terms import run_terms
from sims.imported_object import called, check_arguments, imported
from sims.scenario.loading_and_variants import load
from tests.sims.mistaken_site import MistakenSite
from tests.sims.own_code import write_module


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])  # which gets the directories of modules


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> MistakenSite:
    return MistakenSite(tmp_path_factory.mktemp("original"), clients=3, algorithm='name = "fedgeomed+"')


@pytest.fixture
def site(original: MistakenSite, tmp_path: Path) -> MistakenSite:
    return original.copied(tmp_path)


# --- modules ---


@pytest.mark.parametrize("error", ["ImportError", "RuntimeError", "ModuleNotFoundError", "GeneratorExit"])
def test_a_module_that_fails_when_it_is_asked_for_an_object(tmp_path: Path, error: str) -> None:
    name = write_module(tmp_path, f"def __getattr__(name):\n    raise {error}('late')\n")
    with pytest.raises(ConfigError, match=name):
        imported(f"{name}:f", tmp_path)


def test_a_module_without_an_object_says_so(tmp_path: Path) -> None:
    name = write_module(tmp_path, "def __getattr__(name):\n    raise AttributeError(name)\n\nf = None\n")
    with pytest.raises(ConfigError, match="no function or class 'g': add one"):
        imported(f"{name}:g", tmp_path)
    with pytest.raises(ConfigError, match="only a NoneType"):
        imported(f"{name}:f", tmp_path)


PANIC = """
class Panic(BaseException):
    pass


def f():
    raise {error}
"""


def test_errors_of_every_kind_are_those_of_the_user(tmp_path: Path) -> None:
    name = write_module(tmp_path, PANIC.format(error="Panic()"))
    with pytest.raises(ConfigError, match=f"Panic in {name}.py, line 7"):
        called("f", imported(f"{name}:f", tmp_path), private=True)
    name = write_module(tmp_path, PANIC.format(error="Panic()") + "\n\nf()\n")
    with pytest.raises(ConfigError, match=f"Panic in {name}.py, line 7"):
        imported(f"{name}:f", tmp_path)


def test_an_interrupt_of_the_user_is_none(tmp_path: Path) -> None:
    name = write_module(tmp_path, PANIC.format(error="KeyboardInterrupt()"))
    with pytest.raises(KeyboardInterrupt):
        called("f", imported(f"{name}:f", tmp_path), private=True)
    name = write_module(tmp_path, "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        imported(f"{name}:f", tmp_path)


@pytest.mark.parametrize("text", ['x = "\0"\n', "# coding: nonsense\n"])
def test_a_file_that_is_no_python(tmp_path: Path, text: str) -> None:
    name = write_module(tmp_path, text)
    with pytest.raises(ConfigError, match=name) as raised:
        imported(f"{name}:f", tmp_path)
    assert "?" not in str(raised.value)
    assert "None" not in str(raised.value)


def test_a_place_is_in_the_code_of_the_user(tmp_path: Path) -> None:
    """Also if an error is raised in this project, or in text that the user's code parses."""
    name = write_module(tmp_path, "import fl.models\n\ndef f():\n    fl.models.build_from(None)\n")
    with pytest.raises(ConfigError, match=f"TypeError in {name}.py, line 4"):
        called("f", imported(f"{name}:f", tmp_path), private=True)
    name = write_module(tmp_path, "def f():\n    eval('patient 17')\n")
    with pytest.raises(ConfigError, match=f"SyntaxError in {name}.py, line 2"):
        called("f", imported(f"{name}:f", tmp_path), private=True)


# --- models ---

MODELS = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, parameter):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        if parameter is not None:
            self.extra = nn.Parameter(parameter)

    def forward(self, x):
        return self.layer(x)


def empty():
    return nn.Flatten()


def frozen():
    return Net(None).requires_grad_(False)


def lazy():
    return nn.Sequential(nn.Linear(4, 3), nn.LazyLinear(3))


def computed():
    layer = nn.Linear(4, 3)
    layer.held = layer.weight * 2
    return layer


def valueless():
    return nn.Linear(4, 3, device="meta")


def undefined():
    return Net(torch.tensor([1.0, float("nan")]))


def infinite():
    return Net(torch.tensor([1.0, float("inf")]))


def complex_numbers():
    return Net(torch.ones(2, dtype=torch.complex64))


def short():
    return Net(None).to(torch.bfloat16)


def panic():
    raise BaseException("no weights")


instance = Net(None)
"""


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("empty", "no parameters"),
        ("frozen", "no parameters"),
        ("lazy", "1.weight has no size yet"),
        ("valueless", "make it on the CPU"),
        ("computed", "torch cannot copy the model"),
        ("undefined", "extra has numbers that are infinite or NaN"),
        ("infinite", "extra has numbers that are infinite or NaN"),
        ("complex_numbers", "complex numbers"),
        ("short", "convert the model"),
        ("panic", "BaseException"),
        ("instance", "name its class"),
    ],
)
def test_a_model_that_cannot_be_trained(site: MistakenSite, name: str, why: str) -> None:
    """Server, client and simulation refuse it in the same words."""
    kind = f"{write_module(site.directory, MODELS)}:{name}"
    site.change("train.toml", f'kind = "{site.module}:Net"\nhidden = 4', f'kind = "{kind}"')
    with pytest.raises(ConfigError) as served:
        run_terms(site / "train.toml", site.directory)
    site.change("train.toml", "[model]", f'[data]\nkind = "{site.module}:by_client"\n\n[model]')
    with pytest.raises(ConfigError) as simulated:
        load(site / "train.toml")
    for raised in (served, simulated):
        assert f"model.kind: {kind}" in str(raised.value)
        assert why in str(raised.value)
        assert len(str(raised.value).splitlines()) == 1


# --- data and learners of clients ---

LEARNER = """
import numpy as np


class Learner:
    samples, rate, steps = 40, 0.1, 2

    def loss(self, model):
        return np.float32(0.5)

    def gradient(self, model):
        raise AssertionError("nobody trains during a check")

    train = score = gradient

    {more}
"""


def refusal(site: MistakenSite, source: str) -> str:
    site.change("join-0.toml", f'data = "{site.module}:own"', source)
    with pytest.raises(ConfigError) as raised:
        load_client_setup(site / "join-0.toml", with_ledger=False)
    assert len(str(raised.value).splitlines()) == 1
    return str(raised.value)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("samples = property(lambda self: 1 / 0)", "ZeroDivisionError"),
        ("samples = None", "samples of Learner must be a whole number from 1"),
        ("samples = 0", "samples of Learner must be a whole number from 1"),
        ("samples = -5", "samples of Learner must be a whole number from 1"),
        ("samples = True", "samples of Learner must be a whole number from 1"),
        ("train = None", "train must be a method"),
        ("gradient = score = 3", "gradient, score must be a method"),
        ("loss = lambda self, model: None", "must be a number, not NoneType"),
        ("loss = lambda self, model: float('nan')", "infinite or NaN"),
        ("loss = lambda self, model: model", "must be a number, not ndarray"),
    ],
)
def test_a_learner_that_cannot_learn(site: MistakenSite, more: str, why: str) -> None:
    module = write_module(site.directory, LEARNER.format(more=more))
    said = refusal(site, f'learner = "{module}:Learner"')
    assert "input.learner" in said
    assert why in said


def test_a_learner_is_not_trained_during_a_check(site: MistakenSite) -> None:
    module = write_module(site.directory, LEARNER.format(more=""))
    site.change("join-0.toml", f'data = "{site.module}:own"', f'learner = "{module}:Learner"')
    assert load_client_setup(site / "join-0.toml", with_ledger=False).training is not None


@pytest.mark.parametrize("key", ["data", "learner"])
def test_a_function_that_needs_arguments(site: MistakenSite, key: str) -> None:
    module = write_module(site.directory, "def f(path, more=1, *others, **options):\n    return None\n")
    said = refusal(site, f'{key} = "{module}:f"')
    assert "f needs path: set it in [input.arguments], or give default values" in said


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ("path, /", "takes path by position only: remove the /"),
        ("", "has no parameter rate; it has none: correct [input.arguments]"),
        ("other=1", "has no parameter rate; it has other"),
        ("rate, seed", "needs seed"),
        ("seed, **more", "needs seed"),
    ],
)
def test_arguments_that_a_function_does_not_take(parameters: str, why: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def f({parameters}): pass", scope)  # noqa: S102
    arguments = () if "/" in parameters else ("rate",)
    with pytest.raises(ConfigError) as raised:
        check_arguments("m:f", scope["f"], arguments, "input.arguments")
    assert why in str(raised.value)


def test_a_learner_gets_its_arguments(site: MistakenSite) -> None:
    text = LEARNER.format(more="def __init__(self, *, rate):\n        self.rate = rate")
    module = write_module(site.directory, text)
    own = f'learner = "{module}:Learner"\narguments = {{ rate = 0.25 }}'
    site.change("join-0.toml", f'data = "{site.module}:own"', own)
    training = load_client_setup(site / "join-0.toml", with_ledger=False).training
    assert training is not None
    assert training.runtime._participant.learner.rate == 0.25
