"""Fed+ beside its paper, "Robustness and Personalization in Federated Learning: A Unified Approach via
Regularization": Table 2, parties that are late, and fewer parties.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from papers.plots import Labels, Panel, draw, lines
from papers.seeds import over_seeds
from sims.sweep import Record, read_records

Found = dict[tuple[str, str], list[float]]  # one value for each seed, by data set and method

_PLUS: Final = ("FedAvg+", "FedGeoMed+", "FedCoMed+")
_METHODS: Final = ("Local", "Scaffold", "pFedMe", "perFedAvg", "APFL", *_PLUS)
_REGRESSION: Final = "Synthetic-regression"
# Table 2 of the paper, in the order of the methods. It has nobody who trains alone.
_TABLE_2: Final[Mapping[str, tuple[float | None, ...]]] = {
    "MNIST-robust-N10": (None, 81.4, 89.4, 87.3, 88.3, 87.0, 91.5, 80.5),
    "MNIST-robust-N50": (None, 82.3, 85.5, 85.7, 81.3, 86.7, 91.4, 79.4),
    "MNIST-personal-N10": (None, 72.0, 72.3, 70.6, 75.7, 71.9, 78.3, 66.7),
    "MNIST-personal-N50": (None, 63.8, 66.3, 68.9, 72.7, 69.4, 76.2, 52.3),
    _REGRESSION: (None, 2764, 4268, 2780, 1606, 1966, 1048, 1074),
}
_MNIST: Final = tuple(name for name in _TABLE_2 if name != _REGRESSION)
# Section 5.2: the mean over the three variants of Fed+.
_PARTIES: Final[Mapping[tuple[str, int], float]] = {
    ("synthetic", 3): 70.22,
    ("synthetic", 15): 90.73,
    ("synthetic", 30): 98.03,
    ("MNIST", 100): 69.80,
    ("MNIST", 500): 81.34,
    ("MNIST", 1000): 83.36,
}
_LATE: Final = ("FedAvg", "FedProx", "RFA", "coordinate median", *_PLUS)
_WATCHED: Final = ("Local", "FedAvg", "RFA", "coordinate median", "FedAvg+", "FedGeoMed+")
_NAMES: Final = {
    "fedavg+": "FedAvg+",
    "fedgeomed+": "FedGeoMed+",
    "fedcomed+": "FedCoMed+",
    "pfedme": "pFedMe",
    "per-fedavg": "perFedAvg",
    "apfl": "APFL",
}
_ALL_MNIST_PARTIES: Final = 1000
_TUNED: Final = ", tuned"


def tables(results: Path) -> dict[str, str]:
    """Return our results beside the published ones, and how settings were chosen."""
    return {
        "fedplus-table-2": _table_2(results),
        "fedplus-validation": _validation(results),
        "fedplus-regression-validation": _regression_validation(results),
        "fedplus-baselines": _baselines(results),
        "fedplus-rounds": _rounds(results),
        "fedplus-stragglers": _stragglers(results),
        "fedplus-parties": _parties(results),
        "fedplus-secure": _secure(results),
    }


def figures(results: Path, out: Path) -> None:
    """Draw accuracy by rounds, in Table 2 and with stragglers (Figure 4); and jumps (Figures 1 and 3)."""
    draw(out / "fedplus-table-2.svg", *(_training(results, name) for name in _MNIST))
    draw(out / "fedplus-stragglers.svg", *(_lateness(results, name) for name in ("synthetic", "MNIST")))
    draw(out / "fedplus-jumps.svg", _jumps(results), _lines_between(results))


# --- Table 2 ---


def _table_2(results: Path) -> str:
    printed, tuned = _found(results, "fedplus"), _found(results, "fedplus-tuned")
    for (_, method), values in _errors(results).items():
        chosen = tuned if method.endswith(_TUNED) else printed
        chosen[_REGRESSION, method.removesuffix(_TUNED)] = values
    for method in _PLUS:  # where nothing did better than what is printed, that was not run twice
        tuned.setdefault((_REGRESSION, method), printed.get((_REGRESSION, method), []))
    rows = []
    for name, published in _TABLE_2.items():
        digits = 0 if name == _REGRESSION else 1
        rows.append([name, "published", *(_number(each, digits) for each in published)])
        for kind, found in (("ours, printed settings", printed), ("ours, tuned", tuned)):
            rows.append(["", kind, *(_mean(found.get((name, each)), digits) for each in _METHODS)])
    return _markdown(["data set", "", *_METHODS], rows)


def _found(results: Path, scenario: str) -> Found:
    """Return accuracies in per cent after the last round."""
    return _by_seed(_records(results, scenario), lambda each: 100 * _last(each, "mean_accuracy"))


def _errors(results: Path) -> Found:
    """Return mean squared errors: a loss is half of one."""
    return _by_seed(_records(results, "fedplus-regression"), lambda each: 2 * _last(each, "mean_loss"))


def _by_seed(records: Iterable[Record], value: Callable[[Record], float]) -> Found:
    found: Found = {}
    for record in records:
        cell = record.cell
        name = (str(cell.get("dataset", "")), str(cell["method"]))
        found.setdefault(name, []).append(value(record))
    return found


# --- how settings were chosen ---


def _validation(results: Path) -> str:
    scores: dict[tuple[str, float, float], dict[str, float]] = {}
    for record in _records(results, "fedplus-validation"):
        own = record.settings["algorithm"]
        key = (_NAMES[own["name"]], own["sigma"], own["delta"])
        scores.setdefault(key, {})[record.cell["dataset"]] = 100 * _last(record, "mean_accuracy")
    names = ("MNIST-personal-N10", "MNIST-personal-N50")
    best = {(method, name): _best(scores, method, name) for method in _PLUS for name in names}
    rows = [
        [method, f"{sigma:g}", f"{delta:g}"]
        + [_marked(values.get(name), bold=values.get(name) == best[method, name]) for name in names]
        for (method, sigma, delta), values in scores.items()
    ]
    return _markdown(["method", "sigma", "delta", *names], rows)


def _best(scores: Mapping[tuple[str, float, float], Mapping[str, float]], method: str, name: str) -> float:
    return max(values.get(name, 0.0) for key, values in scores.items() if key[0] == method)


def _marked(value: float | None, *, bold: bool) -> str:
    text = _number(value, 1)
    return f"**{text}**" if bold else text


def _regression_validation(results: Path) -> str:
    rows = [
        [
            _NAMES[record.settings["algorithm"]["name"]],
            _parameters(record),
            _number(2 * _last(record, "mean_loss"), 0),
        ]
        for record in _records(results, "fedplus-regression-validation")
    ]
    return _markdown(["method", "settings", "mean squared error"], rows)


def _baselines(results: Path) -> str:
    rows = [
        [
            _NAMES[record.settings["algorithm"]["name"]],
            _parameters(record),
            f"{100 * _last(record, 'mean_accuracy'):.1f}",
        ]
        for record in _records(results, "fedplus-baselines")
    ]
    return _markdown(["method", "settings", "validation accuracy"], rows)


def _parameters(record: Record) -> str:
    own = record.settings["algorithm"]
    return ", ".join(f"{name} {value}" for name, value in own.items() if name not in ("name", "clip"))


# --- rounds ---


def _rounds(results: Path) -> str:
    shown = (50, 100, 200, 300, 400, 500)
    rows = []
    for record in _records(results, "fedplus-long"):
        series = dict(zip(record.result["rounds"], _series(record, "mean_accuracy"), strict=True))
        rows.append([record.cell["dataset"], *(f"{100 * series[number]:.1f}" for number in shown)])
    return _markdown(["FedGeoMed+ after", *(f"{number} rounds" for number in shown)], rows)


# --- the second experiment ---


def _stragglers(results: Path) -> str:
    last = _found(results, "fedplus-stragglers")
    best = _by_seed(
        _records(results, "fedplus-stragglers"), lambda each: 100 * max(_series(each, "mean_accuracy"))
    )
    names = ("synthetic", "MNIST")
    columns = [f"{name}, {what}" for name in names for what in ("last round", "best round")]
    rows = [
        [method, *(_mean(found.get((name, method)), 1) for name in names for found in (last, best))]
        for method in _LATE
    ]
    return _markdown(["method", *columns], rows)


def _parties(results: Path) -> str:
    # The published figures are means over all variants, so there is none of ours without one of them.
    found = {key: each for key, each in _found_parties(results).items() if len(each["own"]) >= len(_PLUS)}
    rows = []
    for (name, parties), published in _PARTIES.items():
        training, everybody = (found.get((name, parties), {}).get(whom, []) for whom in ("own", "all"))
        rows.append([name, str(parties), f"{published:.2f}", _mean(training, 1), _mean(everybody, 1)])
    return _markdown(["data set", "parties", "published", "ours, those who train", "ours, all 1000"], rows)


def _found_parties(results: Path) -> dict[tuple[str, int], dict[str, list[float]]]:
    """Return accuracies of the variants of Fed+: of parties that train, and with held-out ones."""
    found: dict[tuple[str, int], dict[str, list[float]]] = {}
    for record in [*_records(results, "fedplus-parties"), *_records(results, "fedplus-stragglers")]:
        if record.cell["method"] not in _PLUS:
            continue
        own, parties = _last(record, "mean_accuracy"), len(record.result["samples"])
        name = str(record.cell.get("dataset") or record.cell["parties"]).split()[0]
        values = found.setdefault((name, parties), {"own": [], "all": []})
        values["own"].append(100 * own)
        if name == "MNIST":
            held_out = record.result["series"].get("held_out_personal", {"mean_accuracy": [0.0]})
            share = parties / _ALL_MNIST_PARTIES
            values["all"].append(100 * (share * own + (1 - share) * held_out["mean_accuracy"][-1]))
    return found


# --- over secure sums ---


def _secure(results: Path) -> str:
    by_case: dict[str, dict[str, Record]] = {}
    for record in _records(results, "fedplus-secure"):
        by_case.setdefault(record.cell["case"], {})[record.cell["channel.kind"]] = record
    rows = []
    for case, both in by_case.items():
        losses = [f"{_last(both[kind], 'mean_loss'):.6f}" for kind in ("plain", "secure")]
        same = "yes" if both["plain"].result["final"] == both["secure"].result["final"] else "no"
        rows.append([case, str(both["plain"].result["rounds"][-1]), *losses, same])
    return _markdown(
        ["cell", "rounds", "loss, plain", "loss, secure", "every party's figures the same"], rows
    )


# --- figures ---


def _training(results: Path, name: str) -> Panel:
    best = f"FedGeoMed+{_TUNED}"
    tuned = {best: _courses(results, "fedplus-tuned", name)["FedGeoMed+"]}
    return _curves(_courses(results, "fedplus", name) | tuned, name, (*_METHODS, best))


def _lateness(results: Path, name: str) -> Panel:
    return _curves(_courses(results, "fedplus-stragglers", name), name, _LATE)


def _courses(results: Path, scenario: str, name: str) -> dict[str, tuple[list[int], list[list[float]]]]:
    """Return by method the rounds in which accuracy was measured, and its values for each seed."""
    found: dict[str, tuple[list[int], list[list[float]]]] = {}
    for record in _records(results, scenario):
        if record.cell["dataset"] == name:
            _, runs = found.setdefault(record.cell["method"], (record.result["rounds"][1:], []))
            runs.append([100 * each for each in _series(record, "mean_accuracy")[1:]])
    return found


def _curves(found: Mapping[str, Any], name: str, methods: Sequence[str]) -> Panel:
    ordered = {method: found[method] for method in methods if method in found}
    return lines(ordered, Labels(x="round", y="accuracy, %", title=name), names=methods)


def _jumps(results: Path) -> Panel:
    """Return how far models jump at every aggregation."""
    found: Any = {}
    for method, seen in _seen(results).items():
        found[method] = ([number for number, _ in seen], [each["mean"] for _, each in seen])
    return lines(found, Labels(x="round", y="change at aggregation", title="Figure 1"), names=_WATCHED)


def _lines_between(results: Path) -> Panel:
    """Return losses from parties' own models to the common one, at the end."""
    found: Any = {}
    for method, seen in _seen(results).items():
        losses = [each["line"] for _, each in seen if "line" in each][-1]
        found[method] = ([place / (len(losses) - 1) for place in range(len(losses))], losses)
    found.pop("Local")  # nobody makes a common model of theirs
    labels = Labels(x="share of the common model", y="training loss", title="Figure 3")
    return lines(found, labels, names=_WATCHED)


def _seen(results: Path) -> dict[str, list[Any]]:
    return {
        record.cell["method"]: record.result["observed"]["jumps"]
        for record in _records(results, "fedplus-jumps")
    }


# --- records and texts ---


def _records(results: Path, scenario: str) -> list[Record]:
    return list(read_records(results / f"{scenario}.jsonl"))


def _series(record: Record, what: str) -> list[float]:
    values: list[float] = record.result["series"]["personal"][what]
    return values


def _last(record: Record, what: str) -> float:
    return _series(record, what)[-1]


def _mean(values: Sequence[float] | None, digits: int) -> str:
    return _number(over_seeds(values).mean if values else None, digits)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    table = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in table)
