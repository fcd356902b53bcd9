"""Every algorithm of the catalogue is trained by `secagg serve` as by `secagg simulate`, or refused by both.

A new algorithm is tried by itself: its scenario has the example values of its entry.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from protocols.catalogue import CATALOGUE
from sims.config_problems import ConfigError
from sims.deploy.client_setup import load_client_setup
from sims.deploy.training_server import load_deployment
from sims.scenario.loading_and_variants import load
from tests.sims.training_processes import SEEDS, PredictionInterval, SimulatedRun
from tests.sims.training_site import SCENARIO, TrainingSite

pytestmark = pytest.mark.slow

CURIOUS: Final = "curious_server"
MALICIOUS: Final = "malicious_server"
CLOSE: Final = 1e-4  # of two models that differ by rounding only
NEVER: Final = 1e-8  # part of normal numbers outside of the interval of a test
FROM_TRAINING: Final = ("rate", "steps")  # parameters whose example would contradict [training]
WITHOUT_SUMS: Final = {"local"}
# Clients of these round at random, so that two runs differ.
RANDOM: Final = {"quantised"}
# Clients of these compare numbers. A batch of clients is trained with other last bits than a single client,
# and a comparison turns a last bit into a whole count.
COMPARING: Final = {"rsa", "lp-proj-1", "median", "trimmed-mean"}
# What makes algorithms safe against a malicious server that are refused without it.
SAFE: Final[dict[str, dict[str, object]]] = {
    "simplicial": {"floor": 0.1},
    "fedbc": {"lambda_min": 0.1},
    "per-fedbc": {"lambda_min": 0.1},
    "qffl": {"q": 0.0},
    "term": {"least": 0.4, "most": 4.0},
    "afl": {"floor": 0.1},
    "quantised": {"adaptive": False},
}


class OneByOne(TrainingSite):
    """A site whose simulated clients train one after another, as real ones do."""

    scenario_text = SCENARIO.replace("batch = 16", 'batch = 16\nway = "one-by-one"')


def site_of(directory: Path, name: str, trust: str, **more: object) -> TrainingSite:
    example = {key: value for key, value in CATALOGUE[name].example.items() if key not in FROM_TRAINING}
    lines = [f"{key} = {json.dumps(value)}" for key, value in {"name": name, **example, **more}.items()]
    kind = OneByOne if name in COMPARING else TrainingSite
    return kind(directory, algorithm="\n".join(lines), trust=trust, rounds=2)


def check_training(site: TrainingSite, name: str) -> None:
    log = site.train()
    assert [each["clients"] for each in log.facts("round")] == [len(site.clients)] * 2
    simulated = SimulatedRun(site / "train.toml")
    personal = {member: site.model(f"personal-{member}.npz") for member in site.clients}
    assert all(each.any() for each in personal.values())  # the first model is 0
    if name in RANDOM:
        runs = [SimulatedRun(site / "train.toml", seed=seed) for seed in SEEDS]
        low, high = PredictionInterval([each.accuracy(each.model) for each in runs]).at(NEVER)
        assert low <= simulated.accuracy(site.model()) <= high
        return
    assert np.abs(site.model() - simulated.model).max() < CLOSE
    assert simulated.personal.keys() == set(site.clients)
    for member, own in simulated.personal.items():
        assert np.abs(personal[member] - own).max() < CLOSE


def check_refusal(site: TrainingSite) -> None:
    with pytest.raises(ConfigError):
        load_deployment(site / "train.toml")
    for member in site.clients:
        with pytest.raises(ConfigError):
            load_client_setup(site / f"join-{member}.toml")
    assert not (site / "run").exists()


@pytest.mark.parametrize("trust", [CURIOUS, MALICIOUS])
@pytest.mark.parametrize("name", CATALOGUE)
def test_it_is_trained_as_simulated_or_refused(tmp_path: Path, name: str, trust: str) -> None:
    site = site_of(tmp_path, name, trust)
    if name in WITHOUT_SUMS:
        check_refusal(site)
        return
    try:
        load(site / "train.toml")
    except ConfigError:
        assert trust == MALICIOUS
        check_refusal(site)
        return
    check_training(site, name)


@pytest.mark.parametrize("name", SAFE)
def test_what_makes_it_safe_makes_it_trained(tmp_path: Path, name: str) -> None:
    check_training(site_of(tmp_path, name, MALICIOUS, **SAFE[name]), name)
