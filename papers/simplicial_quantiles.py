"""How far off a quantile is that is read off a noisy histogram, beside its bound.

    python -m papers.simplicial_quantiles papers/results

Everybody's value is drawn uniformly. Noise is drawn as clients draw it: a discrete Gaussian of each, for one
sum at the epsilon of the case. Quantiles are read as in "Differentially Private Federated Quantiles with the
Distributed Discrete Gaussian Mechanism", with a known number of clients. An error is a part of all clients:
those below what was read, minus those that should be.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from protocols.histogram_quantiles import read_quantile
from secagg.distributed_noise import NoiseAssumptions
from secagg.mask_keystream import KeyStream
from secagg.noise.elementwise_calibration import calibrate_counts
from secagg.noise.gaussian import DiscreteGaussian
from secagg.noise.part_plan import Plan
from secagg.noise.privacy_goal import Goal

FILE: Final = "simplicial-quantiles.jsonl"
MISSED: Final = 0.05  # how often the bound may be missed
DELTA: Final = 1e-5  # of (epsilon, delta)-differential privacy
RUNS: Final = 40
PARTS: Final = tuple(k / 10 for k in range(1, 10))
_MOST: Final = 10.0
_DIGITS: Final = 5

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A histogram of `bins` over `clients`, with noise for `epsilon`."""

    bins: int
    clients: int
    epsilon: float


BASE: Final = Case(bins=64, clients=512, epsilon=1.0)
_BINS: Final = (8, 16, 32, 64, 128, 256)
_CLIENTS: Final = (32, 64, 128, 256, 512, 1024)
_EPSILONS: Final = (0.25, 0.5, 1.0, 2.0, 5.0)


def cases() -> tuple[Case, ...]:
    """Yield cases in which one of the three numbers varies, and the others are as in the base case."""
    bins = (Case(each, BASE.clients, BASE.epsilon) for each in _BINS)
    clients = (Case(BASE.bins, each, BASE.epsilon) for each in _CLIENTS)
    epsilons = (Case(BASE.bins, BASE.clients, each) for each in _EPSILONS)
    return tuple(dict.fromkeys((*bins, *clients, *epsilons)))


def measure(case: Case, runs: int = RUNS) -> dict[str, Any]:
    """What came of so many runs, of which each counts with the worst of nine quantiles.

    `error`    the mean of the runs.
    `high`     what all but a part `MISSED` of them stay below.
    `without`  the mean without noise: what bins alone cost.
    `bound`    that, and what the paper adds to it for the noise.
    `inside`   the part of the runs in which no quantile exceeds its own bound.
    """
    plan = _plan(case)
    added = noise_term(case, plan.sigma_released)
    rows = [_run(case, plan, number) for number in range(runs)]
    noisy, least = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    worst = noisy.max(axis=1)
    found = {
        "sigma": plan.sigma_released,
        "error": worst.mean(),
        "high": np.quantile(worst, 1 - MISSED),
        "without": least.max(axis=1).mean(),
        "bound": least.max(axis=1).mean() + added,
        "inside": (noisy <= least + added).all(axis=1).mean(),
    }
    return {**asdict(case), **{name: round(float(value), _DIGITS) for name, value in found.items()}}


def noise_term(case: Case, sigma: float) -> float:
    """Return the most that noise adds to the error, except in a part `MISSED` of all runs.

    `sigma`  of the noise in a bin of the total, in clients.
    """
    return math.sqrt(2 * case.bins * math.log(4 / MISSED)) * sigma / case.clients


def read(results: Path) -> dict[Case, dict[str, Any]]:
    """Return the measurements, by case."""
    rows = (json.loads(line) for line in (results / FILE).read_text().splitlines())
    return {Case(row["bins"], row["clients"], row["epsilon"]): row for row in rows}


def _plan(case: Case) -> Plan:
    promise = NoiseAssumptions(clients=case.clients, dropouts=0, colluders=0)
    goal = Goal(epsilon=case.epsilon, delta=DELTA)
    return calibrate_counts(promise=promise, goal=goal, bins=case.bins, limit=1, total=1)


def _run(case: Case, plan: Plan, number: int) -> tuple[Floats, Floats]:
    """Return the error of every quantile, and the least that the bins allow."""
    seed = hashlib.sha256(f"{case} {number}".encode()).digest()
    values = np.random.default_rng(list(seed)).uniform(0, _MOST, case.clients)
    edges = np.linspace(0, _MOST, case.bins + 1)
    counts = np.histogram(values, edges)[0]
    noise = DiscreteGaussian(plan.variance / case.clients).sample(KeyStream(seed), case.clients * case.bins)
    noisy = counts + noise.reshape(case.clients, case.bins).sum(axis=0) / plan.scale
    below = counts.cumsum() / case.clients
    found = [read_quantile(noisy, edges, part, count=case.clients) for part in PARTS]
    places = np.searchsorted(edges, found) - 1
    parts = np.array(PARTS)
    return np.abs(below[places] - parts), np.abs(below[:, None] - parts).min(axis=0)


def _lines() -> Iterator[str]:
    for case in cases():
        yield json.dumps(measure(case), separators=(",", ":")) + "\n"


def main() -> None:
    (Path(sys.argv[1]) / FILE).write_text("".join(_lines()))


if __name__ == "__main__":
    main()
