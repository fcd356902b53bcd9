"""Eight `secagg join` processes and a `secagg serve` train as `secagg simulate` does with the same scenario.

Where sums have noise, the final accuracy lies in the prediction interval of 20 simulations with other seeds.
It leaves out 5 in 10^8 of normal numbers: all of these tests together fail by chance less than once in a
million times. `-rP --log-level=INFO` shows the figures, with the interval that leaves out a hundredth.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from secagg.ledger import read_ledger
from sims.audit.audit_run import audit_run
from sims.deploy.run_terms import run_terms
from tests.sims.training_processes import IID, SEEDS, SKEWED, PredictionInterval, ProcessSite, SimulatedRun

pytestmark = pytest.mark.slow
LOG = logging.getLogger(__name__)

CURIOUS: Final = "curious_server"
MALICIOUS: Final = "malicious_server"
CLIENTS: Final = 8
ROUNDS: Final = 5
CLOSE: Final = 1e-4  # of two models that differ by rounding only
HALF_A_POINT: Final = 0.005
LEARNED: Final = 0.5  # an accuracy that no untrained model has
NEVER: Final = 5e-8  # part of normal numbers outside of the interval of a test

ALGORITHMS: Final = {
    "fedavg": 'name = "fedavg"\nclip = 5.0',
    "rfa": 'name = "rfa"',
    "fedgeomed+": 'name = "fedgeomed+"',
    "fedbc": 'name = "fedbc"\nclip = 10.0\nlambda_max = 1.0\nlambda_min = 0.2',
    "scaffold": 'name = "scaffold"\nclip = 10.0',
    "fedpi": 'name = "fedpi"\neta = 1.0\nclip = 50.0\nmemory = 2',
    "lp-proj-1": 'name = "lp-proj-1"\nsubspace = 20',
    "fedalt": 'name = "fedalt"\nclip = 10.0\npersonal_part = "0:320"',
}
_BUDGET: Final = "\n\n[privacy]\nepsilon = {epsilon}\ndelta = 1e-5\ndropouts = 1"
_HISTOGRAM: Final = _BUDGET.format(epsilon=40.0) + "\nratio = 1.0"
_TAIL: Final = 'name = "simplicial"\nclip = 10.0\nloss_bound = 5.0\ntheta = 0.5'
PRIVATE: Final = {
    "fedavg": 'name = "fedavg"\nclip = 2.0\nweighted = false' + _BUDGET.format(epsilon=45.0),
    "simplicial": _TAIL + _HISTOGRAM,
    "simplicial-with-floor": _TAIL + "\nfloor = 0.1" + _HISTOGRAM,
}
UNNOISED: Final = {"fedavg": 0, "simplicial": ROUNDS, "simplicial-with-floor": ROUNDS}  # sums without noise
# A malicious server could single out one client by what it sends.
REFUSED: Final = {
    "fedpi": ALGORITHMS["fedpi"],
    "simplicial": PRIVATE["simplicial"],
    "fedbc": ALGORITHMS["fedbc"].replace("\nlambda_min = 0.2", ""),
}


class IidSite(ProcessSite):
    """A site whose clients have samples of one distribution, so that accuracies vary little."""

    scenario_text = ProcessSite.scenario_text.replace(SKEWED, IID)


def both_levels(algorithms: Mapping[str, str]) -> list[tuple[str, str]]:
    """The names with each trust level under which they are not refused."""
    return [
        (name, trust)
        for name, text in algorithms.items()
        for trust in (CURIOUS, MALICIOUS)
        if trust == CURIOUS or text not in REFUSED.values()
    ]


def train(site: ProcessSite) -> None:
    """Let the processes of `site` train to the end. None of them complains, and all have the same model."""
    server, clients = site.run()
    assert server.status == 0, server.errors
    assert {member: each.status for member, each in clients.items()} == dict.fromkeys(range(CLIENTS), 0)
    assert [each["clients"] for each in server.facts("round")] == [CLIENTS] * ROUNDS
    assert audit_run(site / "run").integrity.problems == ()
    for member in site.clients:
        assert np.array_equal(site.model(f"final-{member}.npz"), site.model())


@pytest.mark.parametrize(("name", "trust"), both_levels(ALGORITHMS))
def test_processes_end_with_the_models_of_the_simulation(tmp_path: Path, name: str, trust: str) -> None:
    site = ProcessSite(tmp_path, clients=CLIENTS, rounds=ROUNDS, algorithm=ALGORITHMS[name], trust=trust)
    train(site)
    simulated = SimulatedRun(site / "train.toml")
    served, expected = simulated.accuracy(site.model()), simulated.accuracy(simulated.model)
    difference = float(np.abs(site.model() - simulated.model).max())
    personal = {member: site.model(f"personal-{member}.npz") for member in site.clients}
    own = max(float(np.abs(personal[member] - model).max()) for member, model in simulated.personal.items())
    adapted = simulated.accuracy(personal)
    LOG.info(
        f"{name} | {trust} | {served:.4f} | {expected:.4f} | {adapted:.4f} | {difference:.1e} | {own:.1e}"
    )
    assert len(simulated.personal) == CLIENTS
    assert abs(served - expected) <= HALF_A_POINT
    assert abs(adapted - simulated.accuracy(simulated.personal)) <= HALF_A_POINT
    assert max(served, adapted) > LEARNED
    assert difference < CLOSE
    assert own < CLOSE


class PrivateRuns:
    """A scenario with noise, simulated with 20 seeds that also determine keys and noise: the accuracies, and
    how far the final models are from those without noise."""

    def __init__(self, directory: Path, algorithm: str) -> None:
        noisy = scenario(directory / "noisy.toml", algorithm)
        self.exact = scenario(directory / "exact.toml", algorithm.partition("[privacy]")[0])
        runs = {seed: SimulatedRun(noisy, seed=seed, insecure_seed=True) for seed in SEEDS}
        self.accuracy = PredictionInterval([run.accuracy(run.model) for run in runs.values()])
        self.distance = PredictionInterval(
            [distance(run.model, SimulatedRun(self.exact, seed=seed).model) for seed, run in runs.items()]
        )


def scenario(path: Path, algorithm: str) -> Path:
    settings = {
        "clients": CLIENTS,
        "rounds": ROUNDS,
        "trust": CURIOUS,
        "more": "",
        "port": 1,
        "metrics": "off",
    }
    path.write_text(IidSite.scenario_text.format(algorithm=algorithm, **settings))
    return path


def distance(one: Any, other: Any) -> float:
    return float(np.linalg.norm(one - other))


@pytest.fixture(scope="module")
def simulated_with_noise(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], PrivateRuns]:
    """The simulations of an algorithm; its trust level changes no sum."""
    return lru_cache(lambda name: PrivateRuns(tmp_path_factory.mktemp("simulated"), PRIVATE[name]))


@pytest.mark.parametrize(("name", "trust"), both_levels(PRIVATE))
def test_with_noise_the_model_is_like_those_of_simulations(
    tmp_path: Path,
    name: str,
    trust: str,
    simulated_with_noise: Callable[[str], PrivateRuns],
) -> None:
    site = IidSite(
        tmp_path,
        clients=CLIENTS,
        rounds=ROUNDS,
        algorithm=PRIVATE[name],
        trust=trust,
        unnoised=UNNOISED[name],
    )
    train(site)
    runs = simulated_with_noise(name)
    exact = SimulatedRun(runs.exact)
    served = exact.accuracy(site.model())
    low, high = runs.accuracy.at(NEVER)
    usual = "{:.4f} to {:.4f}".format(*runs.accuracy.at(0.01))
    LOG.info(f"{name} | {trust} | {served:.4f} | {usual} | {low:.4f} to {high:.4f}")
    assert low <= served <= high
    if UNNOISED[name] == 0:  # noise in every coordinate, so that distances hardly vary
        moved, (least, most) = distance(site.model(), exact.model), runs.distance.at(NEVER)
        LOG.info(f"{moved:.3f} | {least:.3f} to {most:.3f}")
        assert least <= moved <= most
    check_charges(site)


def check_charges(site: ProcessSite) -> None:
    """Every client has paid for the sums with noise, and for no others."""
    table = run_terms(site / "train.toml", site.directory).table
    for member in site.clients:
        rows = [row.body for row in read_ledger(site / f"client-{member}.ledger").rows]
        paid = Counter(row["charge"] is not None for row in rows if row["entry"] == "answer")
        assert paid == Counter(spec.is_private for spec in table.values() for _ in range(spec.times * ROUNDS))


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_malicious_server_could_abuse_is_refused_by_every_process(tmp_path: Path, name: str) -> None:
    site = ProcessSite(tmp_path, clients=CLIENTS, rounds=ROUNDS, algorithm=REFUSED[name], trust=MALICIOUS)
    before = {path.name for path in tmp_path.iterdir()}
    server, clients = site.run()
    for each in (server, *clients.values()):
        assert each.status == 2
        assert not each.log
        assert "channel.trust" in each.errors
        assert len(each.errors.splitlines()) == 1
    assert {path.name for path in tmp_path.iterdir()} == before
