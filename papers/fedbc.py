"""FedBC beside its paper, "FedBC: Federated Learning Beyond Consensus".

Table 1, Figures 2 and 3, and a cell of Table 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from papers.plots import Labels, bars, draw, lines, scatter
from papers.seeds import over_seeds
from sims.sweep import Record, read_records

METHODS: Final = ("FedAvg", "q-FedAvg", "FedProx", "Scaffold", "FedBC")
EPOCHS: Final = (1, 5, 10, 25, 50)
# Tables 1, 2 and 3 of the paper.
_TABLE_1: Final[Mapping[str, tuple[str, ...]]] = {
    "FedAvg": ("83.61 ± 0.43", "83.42 ± 0.58", "83.49 ± 0.70", "83.73 ± 0.57", "82.94 ± 0.66"),
    "q-FedAvg": ("87.12 ± 0.25", "86.76 ± 0.15", "86.46 ± 0.28", "86.76 ± 0.12", "86.71 ± 0.12"),
    "FedProx": ("86.23 ± 0.42", "85.59 ± 0.37", "85.34 ± 0.61", "85.00 ± 0.63", "85.34 ± 0.48"),
    "Scaffold": ("83.84 ± 0.09", "82.95 ± 0.30", "83.48 ± 0.21", "83.60 ± 0.21", "82.80 ± 0.62"),
    "FedBC": ("87.83 ± 0.35", "87.48 ± 0.18", "87.43 ± 0.20", "86.99 ± 0.11", "87.26 ± 0.12"),
}
_CIFAR_GLOBAL: Final = {"FedAvg": "60.96 ± 0.95", "FedBC": "66.23 ± 0.65"}
_CIFAR_LOCAL: Final = {"FedBC": "74.56 ± 0.90"}
_MISSING: Final = "missing"

Value = Callable[[Mapping[str, Any]], float]


def tables(results: Path) -> dict[str, str]:
    """Return our results beside the published ones."""
    table_1 = _table_1(results)
    return {
        "fedbc-table-1": _by_epochs(table_1, _global, published=True),
        "fedbc-local": _by_epochs(table_1, _local),
        "fedbc-spread": _by_epochs(table_1, _spread),
        "fedbc-gamma": _gamma(results),
        "fedbc-cifar": _cifar(results),
        "fedbc-secure": _secure(results),
    }


def figures(results: Path, out: Path) -> None:
    """Draw Table 1 as bars, Figure 2 and Figure 3."""
    draw(out / "fedbc-table-1.svg", _bars(results))
    draw(out / "fedbc-gamma.svg", _by_gamma(results))
    panels = _losses(results), _shares(results), _multipliers(results), _spreads(results)
    draw(out / "fedbc-users.svg", *panels)


# --- what a cell says, in per cent ---


def _global(result: Mapping[str, Any]) -> float:
    """Return the accuracy of the common model on all clients' test samples, after the last round."""
    return 100 * float(result["series"]["common"]["pooled_accuracy"][-1])


def _local(result: Mapping[str, Any]) -> float:
    """Return the accuracy of users' last local models on their own test samples, users weighted equally."""
    return 100 * float(result["observed"]["local-accuracy"][-1][1][0])


def _local_pooled(result: Mapping[str, Any]) -> float:
    """Return the same with equal weight for test samples, as in the authors' program."""
    return 100 * float(result["observed"]["local-accuracy"][-1][1][1])


def _spread(result: Mapping[str, Any]) -> float:
    """Return the standard deviation over users of the common model's accuracy."""
    return 100 * math.sqrt(result["series"]["common"]["variance"][-1])


def _personal(name: str) -> Value:
    """Return the accuracy of the users' own models, if the algorithm has any."""
    return lambda result: 100 * float(result["series"]["personal"][name][-1])


# --- tables ---


def _table_1(results: Path) -> dict[tuple[str, int], list[Record]]:
    found: dict[tuple[str, int], list[Record]] = {}
    for name in ("fedbc", "fedbc-long", "fedbc-scaffold"):
        for record in _records(results, name):
            place = record.cell.get("method", "Scaffold"), record.cell["epochs"]
            found.setdefault(place, []).append(record)
    return found


def _records(results: Path, name: str) -> Iterator[Record]:
    path = results / f"{name}.jsonl"
    if path.exists():
        yield from read_records(path)


def _by_epochs(
    found: Mapping[tuple[str, int], Sequence[Record]], value: Value, *, published: bool = False
) -> str:
    rows = [_row("local epochs", map(str, EPOCHS)), _row("---", ["---"] * len(EPOCHS))]
    rows.append(_row("rounds", (_rounds(found, epochs) for epochs in EPOCHS)))
    for method in METHODS:
        rows.append(_row(method, (_estimate(found.get((method, each), ()), value) for each in EPOCHS)))
        if published:
            rows.append(_row(f"{method}, published", _TABLE_1[method]))
    return "\n".join(rows)


def _rounds(found: Mapping[tuple[str, int], Sequence[Record]], epochs: int) -> str:
    runs = [each for (_, number), records in found.items() if number == epochs for each in records]
    return ", ".join(map(str, sorted({each.settings["rounds"] for each in runs}))) or _MISSING


def _estimate(records: Sequence[Record], value: Value) -> str:
    """Return the mean, the standard deviation, and the number of seeds."""
    if not records:
        return _MISSING
    values = [value(each.result) for each in records]
    return f"{over_seeds(values).text()} ({len(values)})"


def _row(name: str, cells: Any) -> str:
    return f"| {' | '.join([name, *cells])} |"


def _gamma(results: Path) -> str:
    rows = ["| gamma | global | local | local, pooled |", "|---|---|---|---|"]
    for gamma, records in _grouped(results, "fedbc-gamma", "algorithm.gamma").items():
        values = (_estimate(records, each) for each in (_global, _local, _local_pooled))
        rows.append(_row(f"{gamma:g}", values))
    return "\n".join(rows)


def _cifar(results: Path) -> str:
    rows = [
        "| method | global | global, published | local | local, pooled | local, published |",
        "|---|---|---|---|---|---|",
    ]
    for method, records in _grouped(results, "fedbc-cifar", "method").items():
        local = [_estimate(records, _personal(each)) for each in ("mean_accuracy", "pooled_accuracy")]
        if method not in _CIFAR_LOCAL:
            local = ["", ""]  # it has no models of users
        published = _CIFAR_GLOBAL[method], _CIFAR_LOCAL.get(method, "")
        rows.append(_row(method, (_estimate(records, _global), published[0], *local, published[1])))
    return "\n".join(rows)


def _secure(results: Path) -> str:
    rows = ["| channel | global | local | mean loss |", "|---|---|---|---|"]
    for kind, (record,) in _grouped(results, "fedbc-secure", "channel.kind").items():
        loss = record.result["series"]["common"]["mean_loss"][-1]
        rows.append(
            _row(kind, (f"{_global(record.result):.4f}", f"{_local(record.result):.4f}", f"{loss:.6f}"))
        )
    return "\n".join(rows)


def _grouped(results: Path, name: str, key: str) -> dict[Any, list[Record]]:
    found: dict[Any, list[Record]] = {}
    for record in _records(results, name):
        found.setdefault(record.cell[key], []).append(record)
    return found


# --- figures ---


def _bars(results: Path) -> Any:
    """Return one group for every number of epochs that was run."""
    found = _table_1(results)
    epochs = [each for each in EPOCHS if any(number == each for _, number in found)]
    heights, errors, published = {}, {}, {}
    for method in METHODS:
        estimates = [_over(found.get((method, each), ())) for each in epochs]
        heights[method] = [mean for mean, _ in estimates]
        errors[method] = [std for _, std in estimates]
        published[method] = [float(_TABLE_1[method][EPOCHS.index(each)].split()[0]) for each in epochs]
    labels = Labels(x="local epochs", y="accuracy of the common model, %")
    groups = [str(each) for each in epochs]
    least = 10 * math.floor(min(np.nanmin(each) for each in heights.values()) / 10)
    return bars(groups, heights, labels, errors=errors, published=published, bottom=least)


def _over(records: Sequence[Record]) -> tuple[float, float]:
    if not records:
        return float("nan"), float("nan")
    estimate = over_seeds([_global(each.result) for each in records])
    return estimate.mean, estimate.std or 0.0


_GAMMA_CURVES: Final[Mapping[str, Value]] = {
    "common model": _global,
    "users' own models": _local,
    "the same, pooled": _local_pooled,
}


def _by_gamma(results: Path) -> Any:
    groups = _grouped(results, "fedbc-gamma", "algorithm.gamma")
    series: Any = {
        name: (
            list(groups),
            np.array([[value(each.result) for each in group] for group in groups.values()]).T,
        )
        for name, value in _GAMMA_CURVES.items()
    }
    return lines(series, Labels(x="gamma", y="accuracy, %"), band="range")


def _users(results: Path) -> dict[str, Record]:
    return {record.cell["method"]: record for record in _records(results, "fedbc-users")}


def _losses(results: Path) -> Any:
    """Return Figure 3a."""
    series: Any = {}
    for method, record in _users(results).items():
        rounds, losses = zip(*record.result["observed"]["training-loss"], strict=True)
        series[method] = rounds, losses
    return lines(series, Labels(x="round", y="loss on all training data", title="a"), names=METHODS)


def _bonds(results: Path) -> tuple[list[int], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return rounds, the samples of every user, and all multipliers (a row for each round)."""
    observed = _users(results)["FedBC"].result["observed"]["multipliers"]
    samples = np.array([samples for samples, _ in observed[0][1].values()])
    values = np.array([[value for _, value in bonds.values()] for _, bonds in observed])
    return [number for number, _ in observed], samples, values


def _shares(results: Path) -> Any:
    """Return Figure 3b: the weight of the smallest and the largest user, by multipliers and by samples."""
    rounds, samples, values = _bonds(results)
    shares = 100 * values / values.sum(axis=1, keepdims=True)
    parts = 100 * samples / samples.sum()
    series: Any = {}
    for name, user in {"smallest": samples.argmin(), "largest": samples.argmax()}.items():
        series[f"{name}, by multipliers"] = rounds, shares[:, user]
        series[f"{name}, by samples"] = rounds, np.full(len(rounds), parts[user])
    return lines(series, Labels(x="round", y="share of all users' weights, %", title="b", log="y"))


def _multipliers(results: Path) -> Any:
    """Return Figure 3c."""
    _, samples, values = _bonds(results)
    points: Any = {
        "by multipliers": (samples, 100 * values[-1] / values[-1].sum()),
        "by samples": (samples, 100 * samples / samples.sum()),
    }
    labels = Labels(x="training samples of a user", y="share of all users' weights, %", title="c", log="xy")
    return scatter(points, labels)


def _spreads(results: Path) -> Any:
    """Return Figure 3d."""
    found = _table_1(results)
    series: Any = {}
    for method in METHODS:
        epochs = [each for each in EPOCHS if (method, each) in found]
        runs = [[_spread(each.result) for each in found[method, number]] for number in epochs]
        series[method] = epochs, [over_seeds(each).mean for each in runs]
    labels = Labels(x="local epochs", y="std of accuracy over users, points", title="d", log="x")
    return lines(series, labels, names=METHODS)
