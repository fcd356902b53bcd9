"""The table [server] of a scenario: an optimiser around its algorithm, and what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protocols.rfa import RFA
from protocols.serialisation import Vector
from protocols.server_optimiser import ServerOptimiser, WithServerOptimiser
from sims.cli import main
from sims.scenario import load
from sims.simulation.setup import SimulationSetup

BASE = """
seed = 3
rounds = 3
[data]
kind = "digits"
[partition]
clients = 4
[model]
kind = "softmax"
[training]
rate = 0.2
steps = 2
batch = 8
[algorithm]
name = "fedavg"
clip = 10.0
"""
ADAM = '[server]\nkind = "adam"\nrate = 0.05\n'


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(BASE)


def simulated(name: str, *changes: str) -> Vector:
    """The last model of a run."""
    options = [part for change in (f"name={name}", *changes) for part in ("--set", change)]
    assert main(["simulate", "mine.toml", "--out", "out", *options]) == 0
    return np.asarray(np.load(Path("out", name, "model.npz"))["model"], np.float64)


def test_it_is_around_the_algorithm() -> None:
    Path("mine.toml").write_text(BASE.replace('"fedavg"\nclip = 10.0', '"rfa"') + ADAM)
    setup = SimulationSetup.of(load(Path("mine.toml")).variants[0].settings, Path())
    assert isinstance(setup.algorithm, WithServerOptimiser)
    assert isinstance(setup.algorithm.algorithm, RFA)
    assert setup.algorithm.optimiser == ServerOptimiser(kind="adam", rate=0.05)


def test_it_makes_fedavg_what_the_catalogue_has() -> None:
    named = simulated("named", "algorithm.name=fedadam", "algorithm.server_rate=0.05")
    Path("mine.toml").write_text(BASE + ADAM)
    wrapped = simulated("wrapped")
    assert np.array_equal(named, wrapped)


def test_momentum_moves_further_than_averaging_and_no_optimiser_no_further() -> None:
    plain = simulated("plain")
    same = simulated("same", "server.kind=sgd")
    further = simulated("further", "server.kind=sgd", "server.momentum=0.9")
    assert same == pytest.approx(plain, abs=1e-7)
    assert np.linalg.norm(further) > 1.1 * np.linalg.norm(plain)


def test_secure_sums_give_the_same_model() -> None:
    Path("mine.toml").write_text(BASE + ADAM)
    plain = simulated("plain", "insecure_seed=true")
    secure = simulated("secure", "insecure_seed=true", "channel.kind=secure")
    assert np.array_equal(plain, secure)


def test_a_scenario_without_it_is_the_cell_that_it_was() -> None:
    (cell,) = load(Path("mine.toml")).variants
    assert "server" not in cell.settings.model_dump(exclude_defaults=True)
    Path("mine.toml").write_text(BASE + ADAM)
    (other,) = load(Path("mine.toml")).variants
    assert cell.digest != other.digest


LP_PROJ = 'name = "lp-proj-1"\nsubspace = 3\n'


@pytest.mark.parametrize(
    ("table", "algorithm", "said"),
    [
        ('kind = "adma"', "", "server.kind: 'adma' is not known; did you mean adam?"),
        ("rate = 1.0", "", "server.kind: is missing"),
        ('kind = "adam"', "", "server.rate: rate must be set"),
        ('kind = "adam"\nrate = 0.1\nmomentum = 0.9', "", "server.momentum: is not a parameter of adam"),
        (
            'kind = "sgd"\nbeta1 = 0.9',
            "",
            "server.beta1: is not a parameter of sgd; there are rate, momentum",
        ),
        (
            'kind = "sgd"\nmomentun = 0.9',
            "",
            "server.momentun: is not a parameter of sgd; did you mean momentum?",
        ),
        ('kind = "sgd"\nmomentum = 1.0', "", "server.momentum: momentum must be less than 1"),
        ('kind = "yogi"\nrate = "fast"', "", "server.rate: rate must be a number above 0"),
        ('kind = "yogi"\nrate = 0.1\ncorrected = 1', "", "server.corrected: corrected must be true or false"),
        ('kind = "sgd"', 'name = "local"', "server: local: clients that work alone have no common model"),
        ('kind = "sgd"', LP_PROJ, "server: lp-proj-1: LpProj1 has no common model that could be moved"),
        (
            'kind = "sgd"',
            'name = "afl"\nclip = 1.0\nloss_cap = 5.0',
            "server: afl: set averaged to False",
        ),
    ],
)
def test_mistakes_are_told_before_anything_runs(
    table: str, algorithm: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = BASE
    if algorithm:
        text = text.replace('name = "fedavg"\nclip = 10.0', algorithm) + '[evaluation]\nwhat = "personal"\n'
    Path("mine.toml").write_text(f"{text}[server]\n{table}\n")
    assert main(["simulate", "mine.toml", "--out", "out"]) == 2
    assert said in capsys.readouterr().err
    assert not Path("out").exists()
