"""Simplicial-FL beside its paper, "Federated Learning with Superquantile Aggregation for Heterogeneous Data".

Errors are in per cent of a client's samples, and all clients count the same. Of the clients that never train,
every third is there to choose theta by, and the others to test.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fl.metrics.clients import percentile
from papers import simplicial_quantiles as quantiles
from papers.plots import Labels, Panel, draw, histogram, lines
from papers.seeds import Comparison, over_seeds, paired
from protocols.privacy_budget import HistogramBudget
from secagg.distributed_noise import NoiseAssumptions
from secagg.noise.part_plan import Plan
from secagg.noise.privacy_goal import Goal
from secagg.noise.rho_and_epsilon import epsilon
from sims.sweep import read_records

FEDAVG: Final = "FedAvg"
PRIVATE: Final = ", private quantile"
# By samples, as it was published; and with all clients alike, as everything else here, which is theta = 1.
BASELINES: Final = (FEDAVG, "FedAvg, unweighted")
THETAS: Final = ("theta 0.8", "theta 0.7", "theta 0.5")
METHODS: Final = (*BASELINES, *THETAS, "theta 0.7" + PRIVATE)
_KINDS: Final = {
    "bound": "bound",
    "high": "95 of 100 runs are below",
    "error": "mean of the runs",
    "without": "without noise",
}
# How much the mean error may be above that of the better kind of federated averaging, in points.
ALLOWED: Final = 1.0

# Mean and 90th percentile: Tables 2 to 7 of the paper, for the linear model and the convolutional one.
_PUBLISHED: Final[Mapping[str, tuple[str, ...]]] = {
    FEDAVG: ("34.38 ± 0.38", "49.66 ± 0.67", "16.64 ± 0.50", "28.46 ± 1.07"),
    "theta 0.8": ("34.49 ± 0.26", "49.10 ± 0.24", "16.09 ± 0.40", "26.23 ± 1.15"),
    "theta 0.5": ("35.02 ± 0.20", "48.44 ± 0.38", "15.49 ± 0.30", "23.69 ± 0.94"),
}
_EVERY_THIRD: Final = 3
_MISSING: Final = "missing"

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Errors:
    """The errors of clients that never train, by seed: those for choosing theta, and for testing."""

    validation: Mapping[int, Floats]
    test: Mapping[int, Floats]

    def means(self, seeds: Iterable[int], part: str = "test") -> list[float]:
        return [float(self._of(part)[seed].mean()) for seed in seeds]

    def highs(self, seeds: Iterable[int], part: str = "test") -> list[float]:
        """Return the 90th percentile over clients."""
        return [percentile(self._of(part)[seed], 90) for seed in seeds]

    def _of(self, part: str) -> Mapping[int, Floats]:
        return self.validation if part == "validation" else self.test


class Experiment:
    """The results of the scenario, by method."""

    def __init__(self, results: Path) -> None:
        cells: dict[str, dict[int, Floats]] = {name: {} for name in METHODS}
        for record in read_records(results / "simplicial.jsonl"):
            cells[record.cell["method"]][record.cell["seed"]] = _held_out(record.result)
        self.errors = {name: _divided(found) for name, found in cells.items()}

    def seeds(self, *methods: str) -> tuple[int, ...]:
        """Return the seeds that all of these were run with."""
        return tuple(sorted(set.intersection(*(set(self.errors[each].test) for each in methods))))

    @cached_property
    def chosen(self) -> str | None:
        """Return the theta with the least 90th percentile on clients for choosing, if its mean is allowed.

        None until a seed was run with all of them, or if no mean is allowed.
        """
        seeds = self.seeds(*BASELINES, *THETAS)
        if not seeds:
            return None

        def mean(method: str) -> float:
            return over_seeds(self.errors[method].means(seeds, "validation")).mean

        def high(method: str) -> float:
            return over_seeds(self.errors[method].highs(seeds, "validation")).mean

        most = min(map(mean, BASELINES)) + ALLOWED
        return min((name for name in THETAS if mean(name) <= most), key=high, default=None)

    def against(self, baseline: str, method: str, *, high: bool) -> Comparison | None:
        """Compare with a baseline; None with fewer than two seeds."""
        ours, theirs, seeds = self.errors[method], self.errors[baseline], self.seeds(method, baseline)
        if len(seeds) < 2:
            return None
        if high:
            return paired(ours.highs(seeds), theirs.highs(seeds))
        return paired(ours.means(seeds), theirs.means(seeds))


def tables(results: Path) -> dict[str, str]:
    """Return our results beside the published ones."""
    found = Experiment(results)
    return {
        "simplicial": _errors(found),
        "simplicial-choice": _choice(found),
        "simplicial-paired": _differences(found),
        "simplicial-privacy": _privacy(results),
        "simplicial-secure": _secure(results),
        "simplicial-quantiles": _quantiles(results),
    }


def figures(results: Path, out: Path) -> None:
    """Draw clients by their errors, and quantiles beside their bound."""
    found = Experiment(results)
    theta = found.chosen or THETAS[0]
    panels = [_clients(found, theta), _clients(found, METHODS[-1])]
    draw(out / "simplicial-errors.svg", *panels, columns=1)
    draw(out / "simplicial-quantiles.svg", *_bounds(results), columns=3)


# --- what a cell says ---


def _held_out(result: Mapping[str, Any]) -> Floats:
    """Return every client's error, in the order of clients."""
    last = result["final"]["held_out_common"]
    order = np.argsort(last["client"])
    correct, total = np.array(last["correct"])[order], np.array(last["total"])[order]
    return np.asarray(100 * (total - correct) / total)


def _divided(cells: Mapping[int, Floats]) -> Errors:
    """Clients were drawn at random, so their order is as good as another draw.

    It goes by where they wrote: every third is a fair share of every place.
    """
    first = {seed: np.arange(len(each)) % _EVERY_THIRD == 0 for seed, each in cells.items()}
    return Errors(
        validation={seed: each[first[seed]] for seed, each in cells.items()},
        test={seed: each[~first[seed]] for seed, each in cells.items()},
    )


# --- tables ---


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    texts = (heads, ["---"] * len(heads), *rows)
    return "\n".join(f"| {' | '.join(each)} |" for each in texts)


def _errors(found: Experiment) -> str:
    rows = []
    for name in METHODS:
        own, seeds = found.errors[name], found.seeds(name)
        ours = [_over(values(seeds)) for values in (own.means, own.highs)]
        rows.append((name, str(len(seeds)), *ours, *_PUBLISHED.get(name, ("",) * 4)))
    heads = ("", "seeds", "mean", "90th percentile")
    published = ("EMNIST, linear: mean", "90th", "EMNIST, convolutional: mean", "90th")
    return _table((*heads, *published), rows)


def _choice(found: Experiment) -> str:
    rows = []
    seeds = found.seeds(*BASELINES, *THETAS)
    for name in (*BASELINES, *THETAS):
        own = found.errors[name]
        numbers = (_over(values(seeds, "validation")) for values in (own.means, own.highs))
        rows.append((name, *numbers, "chosen" if name == found.chosen else ""))
    return _table(("", "mean", "90th percentile", ""), rows)


def _over(values: Sequence[float]) -> str:
    return over_seeds(values).text() if values else _MISSING


def _differences(found: Experiment) -> str:
    rows = []
    for baseline in BASELINES:
        for name in (*THETAS, METHODS[-1]):
            for what, high in (("mean", False), ("90th percentile", True)):
                each = found.against(baseline, name, high=high)
                rows.append((f"{name}, minus {baseline}", what, *_difference(each)))
    return _table(("", "of the errors", "difference", "95 % interval", "seeds in which lower"), rows)


def _difference(each: Comparison | None) -> tuple[str, str, str]:
    if each is None:
        return _MISSING, "", ""
    interval = f"{each.low:+.2f} to {each.high:+.2f}"
    return f"{each.mean:+.2f}", interval, f"{each.behind} of {each.seeds}"


def _privacy(results: Path) -> str:
    """Return the cost of the histograms for a client that takes part in all rounds, which is the largest."""
    records = read_records(results / "simplicial.jsonl")
    settings = next(each.settings for each in records if "privacy" in each.settings)
    budget, rounds = settings["privacy"], settings["rounds"]
    plan = _plan(settings)
    once = epsilon([plan.rho], delta=budget["delta"])
    rows = [
        ("histogram, one round", f"{once:.2f}", f"{plan.sigma_released:.2f} clients in every bin"),
        (f"histogram, all {rounds} rounds", f"{budget['epsilon']:g}", "the same in every round"),
        ("sum of updates, and size of the tail", "none", "no noise"),
    ]
    return _table(("", f"epsilon, at delta {budget['delta']:g}", "noise"), rows)


def _plan(settings: Mapping[str, Any]) -> Plan:
    """Return the noise of one histogram."""
    budget, algorithm = settings["privacy"], settings["algorithm"]
    rounds = HistogramBudget(
        promise=NoiseAssumptions(clients=settings["cohort"]["per_round"], dropouts=0, colluders=0),
        goal=Goal(epsilon=budget["epsilon"], delta=budget["delta"]),
        rounds=settings["rounds"],
        ratio=budget["ratio"],
    )
    return rounds.histogram(algorithm["bins"])


def _secure(results: Path) -> str:
    rows = []
    for record in read_records(results / "simplicial-secure.jsonl"):
        result = record.result
        own = result["series"]["held_out_common"]
        sent = sum(result["bytes_up"].values()) / 1e6
        rows.append(
            (
                record.cell["channel.kind"],
                f"{100 - 100 * own['mean_accuracy'][-1]:.4f}",
                f"{100 * own['error_90'][-1]:.4f}",
                f"{own['mean_loss'][-1]:.6f}",
                f"{sent:.0f} MB",
            )
        )
    return _table(("channel", "mean error", "90th percentile", "mean loss", "sent by clients"), rows)


def _quantiles(results: Path) -> str:
    rows = []
    for case, found in quantiles.read(results).items():
        numbers = (found[name] for name in ("without", "error", "high", "bound"))
        texts = (f"{each:.3f}" for each in numbers)
        case_texts = (str(case.bins), str(case.clients), f"{case.epsilon:g}")
        rows.append((*case_texts, *texts, f"{100 * found['inside']:.0f} %"))
    heads = (
        "bins",
        "clients",
        "epsilon",
        "without noise",
        "with noise",
        "95 of 100 below",
        "bound",
        "inside",
    )
    return _table(heads, rows)


# --- figures ---


def _clients(found: Experiment, method: str) -> Panel:
    """Return test clients of all seeds by error, beside both kinds of federated averaging."""
    names = {"FedAvg": BASELINES[0], "unweighted": BASELINES[1], "Simplicial": method}
    seeds = found.seeds(*names.values())
    pooled = {
        short: np.concatenate([found.errors[name].test[seed] for seed in seeds])
        for short, name in names.items()
    }
    labels = Labels(x="error of a client that never trained, %", y="% of the clients", title=method)
    return histogram(pooled, labels, bins=15)


def _bounds(results: Path) -> list[Panel]:
    """Return a panel for each of the three numbers, with the others as in the base case."""
    found, base = quantiles.read(results), quantiles.BASE
    axes = {"bins": "bins", "clients": "clients", "epsilon": "epsilon of one histogram"}
    panels = []
    for name, label in axes.items():
        varied = sorted((getattr(case, name), case) for case in found if _differs_by(case, name))
        places = [place for place, _ in varied]
        series: dict[str, Any] = {
            text: (places, [found[case][key] for _, case in varied]) for key, text in _KINDS.items()
        }
        fixed = ", ".join(f"{each}: {getattr(base, each):g}" for each in axes if each != name)
        panels.append(lines(series, Labels(x=label, y="worst error, part of all", title=fixed, log="xy")))
    return panels


def _differs_by(case: quantiles.Case, name: str) -> bool:
    """Return the difference from the base case, if any."""
    return replace(case, **{name: getattr(quantiles.BASE, name)}) == quantiles.BASE
