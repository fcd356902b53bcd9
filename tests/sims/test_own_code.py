"""Scenarios and clients use functions of the user's own, named as "module:object"."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import Dataset, random_split

from fl.errors import DataError
from fl.torch_datasets import client_data_of, federation_of, samples_of
from sims.config_problems import ConfigError
from sims.imported_object import called, imported
from sims.scenario.federated_data import federation
from sims.scenario.loading_and_variants import load
from sims.scenario.settings import Settings
from sims.simulation import simulate
from sims.simulation.simulate import SimulationError
from tests.sims.own_code import write_module

SCENARIO = """
seed = 1
rounds = 2

[data]
kind = "{module}:{data}"
{more}

[model]
kind = "{module}:{model}"

[training]
rate = 0.2
epochs = 1
batch = 10

[algorithm]
name = "fedavg"
clip = 5.0
"""
PARTITION = '[partition]\nkind = "iid"\nclients = 4'


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])  # which gets the directories of modules


def scenario(tmp_path: Path, *, data: str = "by_client", model: str = "Net", more: str = "") -> Path:
    path = tmp_path / "scenario.toml"
    text = SCENARIO.format(module=write_module(tmp_path), data=data, model=model, more=more)
    path.write_text(text, encoding="utf-8")
    return path


def settings(path: Path) -> Settings:
    return load(path, data=path.parent).variants[0].settings


@pytest.mark.parametrize(
    ("data", "model", "more"),
    [
        ("by_client", "Net", ""),
        ("by_client", "sized", ""),
        ("dataset", "Net", f"samples = 80\n{PARTITION}"),
        ("samples", "sized", PARTITION),
    ],
)
def test_a_simulation_trains_an_own_model_on_own_data(
    tmp_path: Path, data: str, model: str, more: str
) -> None:
    result = simulate(settings(scenario(tmp_path, data=data, model=model, more=more)), root=tmp_path)
    assert result["rounds"][-1] == 2


def test_a_simulation_refuses_a_model_whose_buffers_training_changes(tmp_path: Path) -> None:
    given = settings(scenario(tmp_path, model="Averaging"))
    with pytest.raises(SimulationError, match="training changes the values of mean"):
        simulate(given, root=tmp_path)


def test_the_seed_of_the_scenario_gives_data_and_weights(tmp_path: Path) -> None:
    path = scenario(tmp_path)
    first, again = (federation(settings(path), tmp_path) for _ in range(2))
    other = federation(settings(path).model_copy(update={"seed": 2}), tmp_path)
    assert np.array_equal(first.clients[0].train.x, again.clients[0].train.x)
    assert not np.array_equal(first.clients[0].train.x, other.clients[0].train.x)
    assert first.classes == 3


@pytest.mark.slow
def test_worker_processes_find_the_module(tmp_path: Path) -> None:
    path = scenario(tmp_path)
    changes = {"channel.kind": "processes", "channel.workers": 2, "evaluation.what": "common"}
    assert simulate(load(path, changes).variants[0].settings, root=tmp_path)["rounds"][-1] == 2


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        (":Net", ":Nett", "model.kind"),
        (":Net", ":NUMBER", "model.kind"),
        (":Net", ":nothing", "model.kind"),
        (":Net", ":broken_model", "model.kind"),
        (":Net", ":lazy", "model.kind"),
        (":Net", ":imaginary", "model.kind"),
        (":Net", ":short_floats", "model.kind"),
        (':Net"', ':Net"\nhiden = 3', "model.hiden"),
        (':Net"', ':Net"\nhidden = "many"', "model.hidden"),
        (":by_client", ":nobody", "data.kind"),
        (':by_client"', ':by_client"\nsede = 1', "data.sede"),
        ("own_code_of_a_user", "no_such_module", "data.kind"),
    ],
)
def test_a_problem_names_its_key(tmp_path: Path, old: str, new: str, key: str) -> None:
    path = scenario(tmp_path)
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ConfigError) as raised:
        settings(path)
    assert key in raised.value.keys


@pytest.mark.parametrize("data", ["nothing", "secret_failure", "unlabelled", "pair"])
def test_data_that_cannot_be_used_are_refused(tmp_path: Path, data: str) -> None:
    path = scenario(tmp_path, data=data, more=PARTITION)
    with pytest.raises(ConfigError) as raised:
        federation(settings(path), tmp_path)
    assert str(raised.value).startswith("data.kind")
    assert "patient" not in str(raised.value)


def test_an_error_says_where_it_was_raised(tmp_path: Path) -> None:
    name = write_module(tmp_path, "import no_such_library\n")
    with pytest.raises(ConfigError, match="no_such_library"):
        imported(f"{name}:f", tmp_path)
    name = write_module(tmp_path, "def f(:\n")
    with pytest.raises(ConfigError, match=f"SyntaxError in {name}.py, line 1"):
        imported(f"{name}:f", tmp_path)
    name = write_module(tmp_path, "\n\ndef f():\n    return [][1]\n")
    with pytest.raises(ConfigError, match=f"IndexError in {name}.py, line 4"):
        called("f", imported(f"{name}:f", tmp_path), private=True)


def test_a_module_beside_a_scenario_replaces_no_library(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("def f(): pass\n")
    with pytest.raises(ConfigError):
        imported("numpy:f", tmp_path)


# --- data sets ---


def test_data_sets_become_samples(tmp_path: Path) -> None:
    module = write_module(tmp_path)
    dataset = imported(f"{module}:dataset", tmp_path)()
    stream = imported(f"{module}:Stream", tmp_path)()
    for made in (samples_of(dataset), samples_of(stream), client_data_of(dataset).test):
        assert np.array_equal(made.x, dataset.tensors[0].numpy())
        assert np.array_equal(made.y, dataset.tensors[1].numpy())
    train, test = imported(f"{module}:pair", tmp_path)()
    own = client_data_of((train, test))
    assert np.array_equal(own.train.x, train.tensors[0].numpy())
    assert np.array_equal(own.test.x, test.tensors[0].numpy())
    assert client_data_of(own) is own


def test_a_data_set_that_torch_splits_is_a_pair(tmp_path: Path) -> None:
    dataset = imported(f"{write_module(tmp_path)}:dataset", tmp_path)()
    split = random_split(dataset, [30, 10])
    assert isinstance(split, list)
    own = federation_of({3: split}).clients[3]
    assert np.array_equal(own.train.x, samples_of(split[0]).x)
    assert np.array_equal(own.test.x, samples_of(split[1]).x)
    with pytest.raises(DataError, match=r"a pair \(train, test\), not list"):
        client_data_of(random_split(dataset, [20, 10, 10]))


def test_float_targets_have_no_classes(tmp_path: Path) -> None:
    dataset = imported(f"{write_module(tmp_path)}:dataset", tmp_path)()
    numbers = [(x, float(y)) for x, y in dataset]
    made = samples_of(_List(numbers))
    assert federation_of({0: made}).classes is None


class _List(Dataset[Any]):
    def __init__(self, items: Sequence[object]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> object:
        return self._items[index]


@pytest.mark.parametrize("items", [[], [(1.0,)], [([1.0], 0), ([1.0, 2.0], 0)]])
def test_items_that_are_no_samples_are_refused(items: list[object]) -> None:
    with pytest.raises(DataError):
        samples_of(_List(items))


@pytest.mark.parametrize("items", [[], [(1.0,)], [([1.0], 0), ([1.0, 2.0], 0)]])
def test_a_message_says_which_data_set_of_a_pair_is_wrong(items: list[object]) -> None:
    right, wrong = _List([([1.0], 0)]), _List(items)
    with pytest.raises(DataError, match="the test set"):
        client_data_of((right, wrong))
    with pytest.raises(DataError, match="the training set"):
        client_data_of((wrong, right))
    with pytest.raises(DataError, match="the data set"):
        client_data_of(wrong)


def test_ids_and_data_of_clients_are_checked() -> None:
    with pytest.raises(DataError):
        federation_of({"a": _List([([1.0], 0)])})  # type: ignore[dict-item]
    with pytest.raises(DataError):
        client_data_of("a file")  # type: ignore[arg-type]
