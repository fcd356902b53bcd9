"""One registration adds an algorithm, a data set, an attack or a channel; scenarios then name it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fl import attacks, data, models, partition
from fl.attacks import ATTACKS, Attack
from fl.data.digits import digits
from fl.errors import FLError
from fl.samples import Samples
from protocols import catalogue
from protocols.algorithm import AnyAlgorithm
from protocols.catalogue import CATALOGUE
from protocols.catalogue_entry import CatalogueEntry
from protocols.fedavg import FedAvg
from secagg.errors import ParameterError
from sims.cli import main
from sims.runtime import ObservedChannel, Setting, insecure_plain_sum
from sims.scenario import load, settings
from sims.simulation import register_channel, setup, simulate

SCENARIO = """
rounds = 1
[data]
kind = "digits"
[partition]
kind = "iid"
clients = 4
[model]
kind = "softmax"
[training]
rate = 0.1
steps = 1
[algorithm]
name = "fedavg"
clip = 10.0
"""


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """Put the registries back to what they were."""
    tables: list[dict[str, Any]] = [
        catalogue._registered,
        data.SOURCES,
        ATTACKS,
        models.registry._MODELS,
        partition._PARTITIONS,
        setup._CHANNELS,
    ]
    before = [dict(each) for each in tables]
    kinds = list(settings.CHANNEL_KINDS)
    yield
    for table, old in zip(tables, before, strict=True):
        table.clear()
        table.update(old)
    settings.CHANNEL_KINDS[:] = kinds


def run(tmp_path: Path, *changes: str) -> None:
    """As `secagg simulate` would."""
    path = tmp_path / "mine.toml"
    path.write_text(SCENARIO)
    options = [word for each in ("output.keep=table", *changes) for word in ("--set", each)]
    assert main(["simulate", str(path), "--out", str(tmp_path / "out"), *options]) == 0


def test_an_algorithm(tmp_path: Path) -> None:
    catalogue.register(
        CatalogueEntry("my-mean", "My mean", FedAvg, "the mean of all updates", {"clip": 10.0})
    )
    run(tmp_path, "algorithm.name=my-mean")
    with pytest.raises(ParameterError):
        catalogue.register(CATALOGUE["fedavg"])


def test_a_data_set(tmp_path: Path) -> None:
    seen = []

    def few(count: int = 100) -> Samples:
        seen.append(count)
        return digits().take(np.arange(count))

    data.register("few-digits", few)
    run(tmp_path, "data={kind='few-digits', count=60}")
    assert seen == [60]
    with pytest.raises(FLError):
        data.register("digits", few)


def test_an_attack(tmp_path: Path) -> None:
    seen = []

    def poison(samples: Samples, _classes: int | None, _rng: np.random.Generator) -> Samples:
        seen.append(len(samples.y))
        return replace(samples, y=np.zeros_like(samples.y))

    attacks.register("all-zero", lambda: Attack(poison=poison))
    run(tmp_path, "attack.kind=all-zero", "attack.fraction=0.5")
    assert len(seen) == 2
    with pytest.raises(FLError):
        attacks.register("sign-flip", Attack)


def test_a_channel(tmp_path: Path) -> None:
    made: list[str] = []

    def make(given: setup.ChannelClients, algorithm: AnyAlgorithm, setting: Setting) -> ObservedChannel:
        made.append(given.settings.channel.kind)
        return insecure_plain_sum(algorithm, given.learners, setting)

    register_channel("carrier-pigeon", make)
    run(tmp_path, "channel.kind=carrier-pigeon")
    assert made == ["carrier-pigeon"]
    with pytest.raises(ParameterError):
        register_channel("secure", make)


def test_a_model_and_a_partition(tmp_path: Path) -> None:
    class Tiny(torch.nn.Module):
        def __init__(self, features: int, classes: int) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(features, classes)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.layer(x.flatten(1))
            return found

    def in_order(labels: Any, clients: int, rng: np.random.Generator) -> tuple[Any, ...]:
        return tuple(np.array_split(np.arange(len(labels)), clients))

    models.register("tiny", Tiny)
    partition.register("in_order", in_order)
    run(tmp_path, "model.kind=tiny", "partition.kind=in-order")
    with pytest.raises(FLError):
        models.register("softmax", Tiny)
    with pytest.raises(FLError):
        partition.register("iid", in_order)


def test_what_is_not_registered_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(SCENARIO)
    assert main(["simulate", str(path), "--set", "channel.kind=carrier-pigeon"]) == 2
    assert simulate(load(path).variants[0].settings)["completed"] == 1
