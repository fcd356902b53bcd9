"""Simulations in which a subspace, signs or the last layers are shared: what is sent, and what is learnt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sims.cli import main
from sims.scenario import Settings
from sims.simulation import simulate

SYNTHETIC = """
seed = 1
rounds = 1
[data]
kind = "synthetic"
clients = 6
[model]
kind = "softmax"
[training]
rate = 0.1
steps = 2
batch = 8
[algorithm]
name = "lp-proj-1"
subspace = {subspace}
rounds = 1
personal_steps = 2
pull = 0.1
[output]
keep = "table"
"""


def settings(algorithm: dict[str, Any], **more: Any) -> Settings:
    document: dict[str, Any] = {
        "seed": 3,
        "insecure_seed": True,
        "rounds": 3,
        "data": {"kind": "digits"},
        "partition": {"kind": "dirichlet", "clients": 6, "alpha": 0.5},
        "model": {"kind": "mlp", "hidden": [8]},
        "training": {"rate": 0.3, "steps": 10, "batch": 16},
        "algorithm": algorithm,
        "evaluation": {"what": "personal", "every": 3},
    }
    return Settings.model_validate(document | more)


LP: dict[str, Any] = {"subspace": 20, "pull": 0.1, "rounds": 2, "personal_steps": 10}
NAMED: dict[str, dict[str, Any]] = {
    "lp-proj-1": LP,
    "lp-proj-2": LP | {"clip": 100.0},
    "rsa": {"pull": 0.01},
    "lg-fedavg": {"clip": 100.0, "shared_part": "output"},
}


@pytest.mark.parametrize("name", NAMED)
def test_personal_models_learn(name: str) -> None:
    result = simulate(settings({"name": name, **NAMED[name]}))
    accuracy = result["series"]["personal"]["pooled_accuracy"]
    assert result["completed"] == 3
    assert accuracy[-1] > accuracy[0] + 0.2


@pytest.mark.parametrize(
    ("name", "up", "down"), [("lp-proj-1", 20 * 5 / 8, 20 * 8), ("lg-fedavg", 90 * 32 / 8, 90 * 8)]
)
def test_secure_sums_give_the_numbers_of_plain_ones_and_few_bytes(name: str, up: float, down: int) -> None:
    """Up, the numbers of the sum in the bits that it has, and a word for each other client; down, what they
    are about."""
    secure = {"kind": "secure", "corrupt": 1, "dropout": 0.2}
    algorithm = {"name": name, **NAMED[name]}
    plain, sent = simulate(settings(algorithm)), simulate(settings(algorithm, channel=secure))
    assert plain["series"] == sent["series"]
    for each, most in (("bytes_up", up + 8 * 5), ("bytes_down", down)):
        assert most <= sent[each]["Stage.MASK"] / (6 * 3) < most + 80  # with what is around them


def test_a_subspace_may_have_more_dimensions_than_a_model_that_is_not_known_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = tmp_path / "mine.toml"
    scenario.write_text(SYNTHETIC.format(subspace=40))
    assert main(["simulate", str(scenario), "--out", str(tmp_path / "out")]) == 0
    scenario.write_text(
        SYNTHETIC.format(subspace=651).replace("synthetic", "digits").replace("clients = 6", "")
    )
    assert main(["simulate", str(scenario), "--out", str(tmp_path / "out")]) == 2
    assert "subspace must be at most 650, the number of the model's parameters" in capsys.readouterr().err
