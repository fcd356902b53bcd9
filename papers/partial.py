"""Partial personalisation beside full and none, and robust aggregation with personal parts.

"Federated Learning with Partial Model Personalization", and the talk that shows both: its figures, which are
for other data, are read off its charts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from papers.personalisation_gain import summarised_gains
from papers.plots import Labels, Panel, bars, draw, lines
from papers.seeds import over_seeds
from sims.sweep import Record, read_records

PARTS: Final = ("input", "output", "adapter")
ORDERS: Final = ("FedAlt", "FedSim", "fine-tuning")
FULL: Final = ("Ditto", "alone")
RULES: Final = ("RFA + personal", "mean + personal", "RFA", "mean")
_NONE: Final = "none"
_MISSING: Final = "missing"
_UNKNOWN: Final = "not found"
# Errors of the talk in per cent, of input, output and adapter: next word, landmarks.
_PUBLISHED: Final[Mapping[str, tuple[float | None, ...]]] = {
    "FedAlt": (75.56, 74.95, 75.18, 46.07, 43.37, 33.59),
    "FedSim": (75.19, 74.98, 75.26, 46.36, 43.76, 33.65),
    "fine-tuning": (75.05, 75.08, 75.29, None, None, None),  # of the paper's code, with the smaller adapter
}
# Accuracies of the talk for EMNIST by writer, at corruption 0, 0.01 and 0.25.
_TALK: Final[Mapping[str, tuple[float, float, float]]] = {
    "RFA + personal": (69.8, 69.6, 66.1),
    "mean + personal": (70.2, 69.4, 24.5),
    "RFA": (62.9, 63.1, 52.8),
}
_LEVELS: Final = {"none": 0.0, "negated 0.01": 0.01, "negated 0.25": 0.25}
_OMNISCIENT: Final = "omniscient 0.25"

# Of every method, the cells of all seeds; of every corruption and rule likewise.
Cells = Mapping[str, Sequence[Record]]
Attacked = Mapping[tuple[str, str], Sequence[Record]]


def tables(results: Path) -> dict[str, str]:
    """Return methods, clients that are hurt, and corruption."""
    methods, attacked = _methods(results), _attacked(results)
    return {
        "partial-methods": _method_table(methods, _records(results, "partial-pretrain")),
        "partial-talk": _talk_table(methods),
        "partial-robust": _robust_table(attacked),
        "partial-secure": _secure(results, attacked),
    }


def figures(results: Path, out: Path) -> None:
    """Draw errors by part and order; accuracy against corruption, ours and the talk's."""
    draw(out / "partial-methods.svg", _error_panel(_methods(results)), _hurt_panel(_methods(results)))
    attacked = _attacked(results)
    honest = _robust_panel(attacked, "personal_benign", "the same, honest clients alone")
    draw(out / "partial-robust.svg", _robust_panel(attacked), honest, _talk_panel())


# --- cells ---


def _records(results: Path, name: str) -> list[Record]:
    return sorted(read_records(results / f"{name}.jsonl"), key=lambda record: int(record.settings["seed"]))


def _methods(results: Path) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in _records(results, "partial"):
        found.setdefault(record.cell["method"], []).append(record)
    return found


def _attacked(results: Path) -> dict[tuple[str, str], list[Record]]:
    found: dict[tuple[str, str], list[Record]] = {}
    for record in _records(results, "partial-robust"):
        found.setdefault((record.cell["corruption"], record.cell["rule"]), []).append(record)
    return found


def _accuracy(record: Record, series: str = "personal") -> float:
    """Return the accuracy over all test samples, in per cent, with every client's own model."""
    kinds = record.result["series"]
    found = kinds.get(series, kinds["personal"])  # where nobody is corrupt, all are benign
    return 100 * float(found["pooled_accuracy"][-1])


def _errors(record: Record) -> dict[int, float]:
    """Return the error of every client."""
    final = record.result["final"]["personal"]
    pairs = zip(final["client"], final["correct"], final["total"], strict=True)
    return {client: 1 - correct / total for client, correct, total in pairs}


def _gains(methods: Cells, name: str) -> dict[str, float]:
    """Return how personal models change clients' errors, compared with the common one of the seed."""
    before, after = [], []
    common = {record.settings["seed"]: _errors(record) for record in methods[_NONE]}
    for record in methods[name]:
        own, other = _errors(record), common[record.settings["seed"]]
        before += [other[client] for client in own]
        after += list(own.values())
    found = summarised_gains(before, after)
    return {"hurt": found.hurt, "helped": found.helped, "low": found.low, "median": found.median}


# --- tables ---


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    every = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in every)


def _names(methods: Cells) -> list[str]:
    shown = (*(f"{order} {{}}" for order in ORDERS), "FedSim {}, twice the rounds", "FedAlt {}, untuned")
    wanted = (_NONE, *(each.format(part) for each in shown for part in PARTS), *FULL)
    return [name for name in wanted if name in methods]


def _values(values: Sequence[float]) -> str:
    if not values:
        return _MISSING
    each = f" ({', '.join(f'{value:.1f}' for value in values)})" if len(values) > 1 else ""
    return f"{over_seeds(values).mean:.1f}{each}"


def _method_table(methods: Cells, first: Sequence[Record]) -> str:
    """Return accuracy, bytes, and clients that are hurt; `first` are the runs that left the first model."""
    head = [
        *("personal", "accuracy", "against none", "numbers in a sum"),
        *("clients hurt", "clients helped", "10th percentile of gains"),
    ]
    common = [100 * record.result["series"]["common"]["pooled_accuracy"][-1] for record in first]
    rows = [["the first model", _values(common), "", str(first[0].result["dim"]), "", "", ""]]
    for name in _names(methods):
        records = methods[name]
        ours = [_accuracy(record) for record in records]
        lead = over_seeds(ours).mean - over_seeds([_accuracy(each) for each in methods[_NONE]]).mean
        gains = _gains(methods, name)
        effects = [f"{100 * gains[key]:.0f} %" for key in ("hurt", "helped")]
        row = [
            name,
            _values(ours),
            f"{lead:+.1f}",
            str(_sent(records[0])),
            *effects,
            f"{100 * gains['low']:+.1f}",
        ]
        rows.append(row if name != _NONE else [*row[:2], "", row[3], "", "", ""])
    return _table(head, rows)


def _sent(record: Record) -> int:
    """Return how many numbers of a model are in a sum."""
    shared: int = record.result["dim"] - _personal_size(record)
    return shared if record.settings["algorithm"]["name"] != "local" else 0


def _personal_size(record: Record) -> int:
    from fl.models import build
    from fl.parameter_groups import Groups, layer_groups

    part = record.settings["algorithm"].get("personal_part")
    if part is None:
        return 0
    given = {key: value for key, value in record.settings["model"].items() if key not in ("kind", "start")}
    module = build("resnet", channels=1, size=14, classes=62, **given)
    return Groups.of(module, {"personal": layer_groups("resnet")[part]}).size("personal")


def _talk_table(methods: Cells) -> str:
    """Return our errors beside those of the talk."""
    head = ["", *(f"{part}, {where}" for where in ("ours", "next word", "landmarks") for part in PARTS)]
    rows = []
    for order in ORDERS:
        ours = [
            f"{100 - over_seeds([_accuracy(each) for each in methods[name]]).mean:.2f}"
            if name in methods
            else _MISSING
            for name in (f"{order} {part}" for part in PARTS)
        ]
        theirs = [_UNKNOWN if value is None else f"{value:.2f}" for value in _PUBLISHED[order]]
        rows.append([order, *ours, *theirs])
    return _table(head, rows)


def _robust_table(attacked: Attacked) -> str:
    head = ["corruption", *RULES, *(f"{rule}, honest clients" for rule in RULES[:2])]
    head += [f"{rule}, published for EMNIST" for rule in _TALK]
    rows = []
    for place, corruption in enumerate((*_LEVELS, _OMNISCIENT)):
        every = [attacked.get((corruption, rule), ()) for rule in RULES]
        ours = [_values([_accuracy(record) for record in records]) for records in every]
        honest = [
            _values([_accuracy(record, "personal_benign") for record in records]) for records in every[:2]
        ]
        theirs = [f"{row[place]:.1f}" if corruption in _LEVELS else _UNKNOWN for row in _TALK.values()]
        rows.append([corruption, *ours, *honest, *theirs])
    return _table(head, rows)


def _secure(results: Path, attacked: Attacked) -> str:
    """Compare the same cell over plain and over secure sums."""
    (secure,) = _records(results, "partial-secure")
    seed = secure.settings["seed"]
    plain = next(each for each in attacked["negated 0.25", RULES[0]] if each.settings["seed"] == seed)
    rows = []
    for kind, record in (("plain", plain), ("secure", secure)):
        series = record.result["series"]["personal"]
        numbers = [f"{series[name][-1]:.6f}" for name in ("pooled_accuracy", "mean_accuracy", "pooled_loss")]
        rows.append([f"{kind} sums", str(record.settings["rounds"]), *numbers])
    return _table(["channel", "rounds", "accuracy", "mean of clients' accuracies", "loss"], rows)


# --- figures ---


def _error_panel(methods: Cells) -> Panel:
    values: dict[str, Any] = {}
    for order in ORDERS:
        values[order] = [
            over_seeds([100 - _accuracy(each) for each in methods[name]]).mean if name in methods else np.nan
            for name in (f"{order} {part}" for part in PARTS)
        ]
    labels = Labels(x="personal part", y="error, %", title="UNIPEN by writer, a small residual network")
    return bars(PARTS, values, labels, names=ORDERS)


def _hurt_panel(methods: Cells) -> Panel:
    values = {
        order: [
            100 * _gains(methods, name)["hurt"] if name in methods else np.nan
            for name in (f"{order} {part}" for part in PARTS)
        ]
        for order in ORDERS
    }
    labels = Labels(x="personal part", y="clients hurt, %", title="with more errors than without")
    return bars(PARTS, values, labels, names=ORDERS)


def _robust_panel(attacked: Attacked, kind: str = "personal", title: str = "UNIPEN by writer") -> Panel:
    series: dict[str, Any] = {}
    for rule in RULES:
        columns = [
            [_accuracy(record, kind) for record in attacked.get((corruption, rule), ())]
            for corruption in _LEVELS
        ]
        runs = min(map(len, columns))
        series[rule] = list(_LEVELS.values()), [[column[run] for column in columns] for run in range(runs)]
    labels = Labels(x="corrupt part of all training samples", y="accuracy, %", title=title)
    return lines(series, labels, band="range", names=RULES)


def _talk_panel() -> Panel:
    series: dict[str, Any] = {rule: (list(_LEVELS.values()), [list(row)]) for rule, row in _TALK.items()}
    labels = Labels(
        x="corrupt part of all training samples", y="accuracy, %", title="EMNIST by writer, as published"
    )
    return lines(series, labels, band="range", names=RULES)
