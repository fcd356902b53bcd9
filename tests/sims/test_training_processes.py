"""Eight `secagg join` processes and a `secagg serve` train as `secagg simulate` does with the same scenario.

Where sums have noise, the final accuracy lies in the prediction interval of 20 simulations with other seeds,
which leaves out one in 10^8 numbers if they are normal. Every test records its figures, for `--junitxml`; for
sums with noise, also the interval that leaves out a hundredth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from sims.audit.audit_run import audit_run
from tests.sims.training_processes import SEEDS, PredictionInterval, ProcessSite, SimulatedRun

pytestmark = pytest.mark.slow
RecordProperty = Callable[[str, Any], None]

CURIOUS: Final = "curious_server"
MALICIOUS: Final = "malicious_server"
CLIENTS: Final = 8
ROUNDS: Final = 5
CLOSE: Final = 1e-4  # of two models that differ by rounding only
HALF_A_POINT: Final = 0.005
NEVER: Final = 1e-8  # part of normal numbers outside of the interval of a test

ALGORITHMS: Final = {
    "fedavg": 'name = "fedavg"\nclip = 5.0',
    "rfa": 'name = "rfa"',
    "fedgeomed+": 'name = "fedgeomed+"',
    "fedbc": 'name = "fedbc"\nclip = 10.0\nlambda_max = 1.0\nlambda_min = 0.2',
    "scaffold": 'name = "scaffold"\nclip = 10.0',
    "fedpi": 'name = "fedpi"\neta = 0.1\nclip = 50.0\nmemory = 2',
    "lp-proj-1": 'name = "lp-proj-1"\nsubspace = 20',
    "fedalt": 'name = "fedalt"\nclip = 10.0\npersonal_part = "0:320"',
}
_BUDGET: Final = "\n\n[privacy]\nepsilon = {epsilon}\ndelta = 1e-5\ndropouts = 1"
_HISTOGRAM: Final = _BUDGET.format(epsilon=40.0) + "\nratio = 1.0"
_TAIL: Final = 'name = "simplicial"\nclip = 10.0\nloss_bound = 5.0\ntheta = 0.5'
PRIVATE: Final = {
    "fedavg": 'name = "fedavg"\nclip = 2.0\nweighted = false' + _BUDGET.format(epsilon=60.0),
    "simplicial": _TAIL + _HISTOGRAM,
    "simplicial-with-floor": _TAIL + "\nfloor = 0.1" + _HISTOGRAM,
}
# A malicious server could single out one client by what it sends.
REFUSED: Final = {
    "fedpi": ALGORITHMS["fedpi"],
    "simplicial": PRIVATE["simplicial"],
    "fedbc": ALGORITHMS["fedbc"].replace("\nlambda_min = 0.2", ""),
}


def both_levels(algorithms: Mapping[str, str]) -> list[tuple[str, str]]:
    """The names with each trust level under which they are not refused."""
    return [
        (name, trust)
        for name, text in algorithms.items()
        for trust in (CURIOUS, MALICIOUS)
        if trust == CURIOUS or text not in REFUSED.values()
    ]


def trained_site(directory: Path, algorithm: str, trust: str, *, unnoised: int = 10_000) -> ProcessSite:
    """A site whose processes have trained to the end, without a complaint."""
    site = ProcessSite(
        directory, clients=CLIENTS, rounds=ROUNDS, algorithm=algorithm, trust=trust, unnoised=unnoised
    )
    server, clients = site.run()
    assert server.status == 0, server.errors
    assert {member: each.status for member, each in clients.items()} == dict.fromkeys(range(CLIENTS), 0)
    assert [each["clients"] for each in server.facts("round")] == [CLIENTS] * ROUNDS
    assert audit_run(site / "run").integrity.problems == ()
    for member in site.clients:
        assert np.array_equal(site.model(f"final-{member}.npz"), site.model())
    return site


@pytest.mark.parametrize(("name", "trust"), both_levels(ALGORITHMS))
def test_processes_end_with_the_models_of_the_simulation(
    tmp_path: Path, name: str, trust: str, record_property: RecordProperty
) -> None:
    site = trained_site(tmp_path, ALGORITHMS[name], trust)
    simulated = SimulatedRun(site / "train.toml")
    served, expected = simulated.accuracy(site.model()), simulated.accuracy(simulated.model)
    difference = float(np.abs(site.model() - simulated.model).max())
    own = max(
        float(np.abs(site.model(f"personal-{member}.npz") - model).max())
        for member, model in simulated.personal.items()
    )
    record_property("row", f"{name} | {trust} | {served:.4f} | {expected:.4f} | {difference:.1e} | {own:.1e}")
    assert len(simulated.personal) == CLIENTS
    assert abs(served - expected) <= HALF_A_POINT
    assert difference < CLOSE
    assert own < CLOSE


@pytest.mark.parametrize(("name", "trust"), both_levels(PRIVATE))
def test_with_noise_the_accuracy_is_that_of_simulations(
    tmp_path: Path, name: str, trust: str, record_property: RecordProperty
) -> None:
    site = trained_site(tmp_path, PRIVATE[name], trust, unnoised=0 if name == "fedavg" else 10_000)
    runs = [SimulatedRun(site / "train.toml", seed=seed) for seed in SEEDS]
    accuracies = PredictionInterval([run.accuracy(run.model) for run in runs])
    served = SimulatedRun(site / "train.toml").accuracy(site.model())
    low, high = accuracies.at(NEVER)
    usual = "{:.4f} to {:.4f}".format(*accuracies.at(0.01))
    record_property("row", f"{name} | {trust} | {served:.4f} | {usual} | {low:.4f} to {high:.4f}")
    record_property("simulated", str(sorted(accuracies.values)))
    assert low <= served <= high


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
