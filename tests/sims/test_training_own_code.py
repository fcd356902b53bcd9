"""`secagg serve` and `secagg join` train a model of the user's own, on data that only the clients have."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg.ledger import read_ledger
from sims.config_problems import ConfigError
from sims.deploy.client_setup import load_client_setup
from sims.deploy.run_terms import run_terms
from sims.deploy.training import train_as_server
from sims.deploy.training_server import load_deployment
from sims.scenario.loading_and_variants import load
from sims.simulation import simulate
from tests.sims.own_code import MODULE, write_module
from tests.sims.training_site import JOIN, SCENARIO, TrainingSite

DATA = '[data]\nkind = "digits"\n\n[partition]\nkind = "iid"\nclients = {clients}\n'
assert DATA in SCENARIO


class OwnCodeSite(TrainingSite):
    """The server has the module with the model. Only the clients call the function that loads data."""

    def __init__(self, directory: Path, data: str = "own", **more: Any) -> None:
        self.module = write_module(directory, MODULE + OWN_DATA)
        model = f'kind = "{self.module}:Net"\nhidden = 4'
        text = SCENARIO.replace(DATA, "").replace('kind = "softmax"', model)
        self.scenario_text = text.replace("[deploy]\n", "[deploy]\nclients = {clients}\n")
        self.join_text = JOIN.replace("share = {member}", f'data = "{self.module}:{data}"')
        super().__init__(directory, **more)


OWN_DATA = """

def own():
    return dataset(1), dataset(2)
"""


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])  # which gets the directories of modules


def test_a_server_without_data_trains_an_own_model(tmp_path: Path) -> None:
    site = OwnCodeSite(tmp_path)
    log = site.train()
    rounds = log.facts("round")
    assert len(rounds) == 3
    assert all("accuracy" in each for each in rounds)  # cross-entropy: there are classes
    assert site.model().shape == (4 * 4 + 4 + 4 * 3 + 3,)
    for member in site.clients:
        assert np.array_equal(site.model(f"final-{member}.npz"), site.model())
        assert read_ledger(site / f"client-{member}.ledger").rows


def test_the_same_scenario_is_simulated_with_invented_clients(tmp_path: Path) -> None:
    site = OwnCodeSite(tmp_path)
    data = f'[data]\nkind = "{site.module}:by_client"\n'
    site.change("train.toml", "[model]", f"{data}\n[model]")
    settings = load(site / "train.toml").variants[0].settings
    assert simulate(settings, root=tmp_path)["rounds"][-1] == 3
    terms = run_terms(site / "train.toml", tmp_path)  # the data are not read
    assert terms.federation is None
    assert terms.clients == 4


def test_without_a_data_set_and_without_a_number_of_clients_nothing_is_served(tmp_path: Path) -> None:
    site = OwnCodeSite(tmp_path)
    site.change("train.toml", "clients = 4\n", "")
    with pytest.raises(ConfigError) as raised:
        load_deployment(site / "train.toml")
    assert raised.value.keys == ("data",)


def test_a_program_says_for_how_many_clients_it_serves_a_scenario(tmp_path: Path) -> None:
    site = OwnCodeSite(tmp_path)
    in_file = run_terms(site / "train.toml", tmp_path)
    site.change("train.toml", "clients = 4\n", "clients = 9\n")
    with train_as_server(site / "train.toml", clients=4) as run:
        assert run._terms.digest == in_file.digest
    with pytest.raises(ConfigError, match=r"deploy\.clients"):
        train_as_server(site / "train.toml", clients=1)


@pytest.mark.parametrize("clients", ["1", "true", '"four"'])
def test_the_number_of_clients_is_checked(tmp_path: Path, clients: str) -> None:
    site = OwnCodeSite(tmp_path)
    site.change("train.toml", "clients = 4", f"clients = {clients}")
    with pytest.raises(ConfigError, match=r"deploy\.clients"):
        run_terms(site / "train.toml", tmp_path)


def test_steps_come_from_the_terms(tmp_path: Path) -> None:
    site = OwnCodeSite(tmp_path, algorithm=STEPS)
    with pytest.raises(ConfigError, match=r"training\.steps"):
        load_deployment(site / "train.toml")
    site.change("train.toml", "epochs = 1", "steps = 7")
    _, terms, _ = load_deployment(site / "train.toml")
    assert terms.digest == run_terms(site / "train.toml", tmp_path).digest
    assert any(name.endswith("steps") and text == "7" for name, text in terms.document.items())


STEPS = 'name = "scaffold"\nclip = 10.0'


def test_a_catalogue_model_needs_its_sizes(tmp_path: Path) -> None:
    site = OwnCodeSite(tmp_path)
    own = f'kind = "{site.module}:Net"\nhidden = 4'
    site.change("train.toml", own, 'kind = "softmax"')
    with pytest.raises(ConfigError):
        run_terms(site / "train.toml", tmp_path)
    site.change("train.toml", 'kind = "softmax"', 'kind = "softmax"\nfeatures = 4\nclasses = 3')
    assert run_terms(site / "train.toml", tmp_path).algorithm.dim == 15


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ("nothing", "input.data"),
        ("secret_failure", "input.data"),
        ("no_such", "input.data"),
        ("wide", "shape (7,)"),
        ("many_classes", "3 classes"),
        ("unlabelled", "input.data"),
    ],
)
def test_data_of_a_client_that_do_not_fit_are_refused(tmp_path: Path, data: str, key: str) -> None:
    site = OwnCodeSite(tmp_path, data=data)
    with pytest.raises(ConfigError) as raised:
        load_client_setup(site / "join-0.toml")
    assert key in str(raised.value)
    assert "patient" not in str(raised.value)


@pytest.mark.parametrize("data", ["dataset", "samples", "pair", "Stream"])
def test_data_of_a_client_may_be_of_several_types(tmp_path: Path, data: str) -> None:
    site = OwnCodeSite(tmp_path, data=data)
    assert load_client_setup(site / "join-0.toml").training is not None


# --- functions of projects for Flower or NVFlare ---

LOADERS = """
from torch.utils.data import DataLoader


class Rows:
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        x, y = self.data[index]
        return {"img": x, "label": y}


def load_data(partition_id: int, num_partitions: int, batch_size: int = 32):
    assert partition_id < num_partitions
    parts = (Rows(dataset(2 * partition_id + each)) for each in range(2))
    train, test = (DataLoader(each, batch_size=batch_size, shuffle=True) for each in parts)
    return train, test
"""
ARGUMENTS = "[input.arguments]\npartition_id = 3\nnum_partitions = 5\n"


def drop_in(tmp_path: Path, arguments: str, function: str = "load_data") -> TrainingSite:
    site = OwnCodeSite(tmp_path)
    module = write_module(tmp_path, MODULE + LOADERS)
    site.change("join-0.toml", f'data = "{site.module}:own"', f'data = "{module}:{function}"')
    path = site / "join-0.toml"
    path.write_text(f"{path.read_text()}\n{arguments}")
    return site


def test_loaders_of_a_project_are_used_as_they_are(tmp_path: Path) -> None:
    site = drop_in(tmp_path, ARGUMENTS)
    training = load_client_setup(site / "join-0.toml").training
    assert training is not None
    assert training.runtime._participant.learner.samples == 40


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "load_data needs partition_id, num_partitions: set it in [input.arguments]"),
        ("[input.arguments]\npartition_id = 3", "load_data needs num_partitions: set it"),
        (f"{ARGUMENTS}partition = 3", "has no parameter partition; it has partition_id, num_partitions, b"),
        ('[input.arguments]\npartition_id = "a"\nnum_partitions = 5', "TypeError in own_code"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(tmp_path: Path, arguments: str, said: str) -> None:
    site = drop_in(tmp_path, arguments)
    with pytest.raises(ConfigError) as raised:
        load_client_setup(site / "join-0.toml")
    assert said in str(raised.value)
    assert raised.value.keys == ("input.data",)


def test_arguments_are_for_functions_only(tmp_path: Path) -> None:
    site = OwnCodeSite(tmp_path)
    site.change("join-0.toml", f'data = "{site.module}:own"', "share = 0")
    path = site / "join-0.toml"
    path.write_text(f"{path.read_text()}\n{ARGUMENTS}")
    with pytest.raises(ConfigError, match="for data and learner") as raised:
        load_client_setup(path)
    assert raised.value.keys == ("input.arguments",)


def test_a_share_needs_the_data_set(tmp_path: Path) -> None:
    site = OwnCodeSite(tmp_path)
    site.change("join-0.toml", f'data = "{site.module}:own"', "share = 0")
    with pytest.raises(ConfigError, match=r"input\.share"):
        load_client_setup(site / "join-0.toml")


def test_a_model_with_batch_statistics_is_refused(tmp_path: Path) -> None:
    site = OwnCodeSite(tmp_path)
    site.change("train.toml", ":Net", ":normalised")
    site.change("train.toml", "hidden = 4", "")
    with pytest.raises(ConfigError, match="GroupNorm"):
        load_deployment(site / "train.toml")


def test_a_client_refuses_a_model_whose_buffers_training_changes(tmp_path: Path) -> None:
    site = OwnCodeSite(tmp_path)
    site.change("train.toml", ":Net", ":Averaging")
    site.change("train.toml", "hidden = 4", "")
    load_deployment(site / "train.toml")  # a server without data cannot know
    with pytest.raises(ConfigError, match="training changes the values of mean"):
        load_client_setup(site / "join-0.toml")
