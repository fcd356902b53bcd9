"""lp-proj under attack: Figure 4 of its paper, what bounds do beyond it, and what equal pulls show.

Accuracies are means over benign clients of their own models, where a method has such, on test samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from papers.plots import Labels, Panel, lines
from papers.seeds import over_seeds
from sims.sweep import Record, read_records

METHODS: Final = ("lp-proj-1", "lp-proj-2", "RSA", "Ditto", "median", "FedAvg", "local")
CLIPPED: Final = ("lp-proj-2, clip 1", "FedAvg, clip 10")
PULLED: Final = ("lp-proj-1", "lp-proj-2", "Ditto", "pFedMe")
KINDS: Final = ("same value", "sign flip", "Gaussian", "poisoning")
MISSING: Final = "missing"
# So that a method looks the same in all figures.
NAMES: Final = (*METHODS, "pFedMe", "quantised", "Sketch", "LG-FedAvg")


def records(results: Path, name: str) -> Iterator[Record]:
    path = results / f"{name}.jsonl"
    if path.exists():
        yield from read_records(path)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    every = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in every)


def accuracy(record: Record) -> float:
    """Return the accuracy of benign clients after the last round, in per cent."""
    series = record.result["series"]
    name = next(each for each in ("personal_benign", "common_benign") if each in series)
    return 100 * float(series[name]["mean_accuracy"][-1])


def attacks_table(results: Path) -> str:
    """Return a row for every corruption: the mean over seeds, with each of them in brackets.

    The first row is without corruption, over all clients, after as many rounds and with the same seeds.
    """
    found = _by_corruption(results, "lpproj-attacks")
    rows = [["none", *_without_attack(results)]]
    rows += [[each, *(_values(cells.get(name, ())) for name in METHODS)] for each, cells in found.items()]
    return table(["corruption", *METHODS], rows)


def _without_attack(results: Path) -> list[str]:
    attacked = list(records(results, "lpproj-attacks"))
    seeds = {each.settings["seed"] for each in attacked}
    rounds = max((each.settings["rounds"] for each in attacked), default=0)
    shown = []
    for method in METHODS:
        values = [
            100 * float(next(iter(each.result["series"].values()))["mean_accuracy"][rounds])
            for each in records(results, "lpproj-synthetic")
            if each.cell["method"] == method and each.settings["seed"] in seeds
        ]
        shown.append(_shown(values))
    return shown


def clipped_table(results: Path) -> str:
    """Return the results beside those of the same methods without such a bound, with the same seed."""
    narrow, wide = (_by_corruption(results, f"lpproj-{each}", seed=4) for each in ("clipped", "attacks"))
    names = [pair for each in CLIPPED for pair in ((wide, each.partition(",")[0]), (narrow, each))]
    rows = [[each, *(_values(cells.get(each, {}).get(name, ())) for cells, name in names)] for each in narrow]
    return table(["corruption", *(name for _, name in names)], rows)


def forged_table(results: Path) -> str:
    rows = [
        [
            record.cell["method"],
            record.cell["corruption"],
            f"{record.result['completed']} of {record.settings['rounds']}",
            f"{accuracy(record):.1f}",
        ]
        for record in records(results, "lpproj-forged")
    ]
    return table(["method", "what a tenth of the clients add", "rounds completed", "accuracy"], rows)


def pull_table(results: Path) -> str:
    found = _by_pull(results)
    pulls = sorted({pull for _, _, pull in found})
    rows = [
        [corruption, method, *(_values([found[corruption, method, pull]]) for pull in pulls)]
        for corruption in dict.fromkeys(each for each, _, _ in found)
        for method in PULLED
        if all((corruption, method, pull) in found for pull in pulls)
    ]
    return table(["attack", "method", *(f"pull {each:g}" for each in pulls)], rows)


def attack_panels(results: Path) -> list[Panel]:
    """Return a panel for every attack; a band is from the least to the largest seed."""
    found = _by_corruption(results, "lpproj-attacks")
    return [_attack_panel(found, kind) for kind in KINDS]


def _attack_panel(found: Mapping[str, Mapping[str, list[Record]]], kind: str) -> Panel:
    levels = {each: float(each.removeprefix(kind)) for each in found if each.startswith(kind)}
    series: dict[str, Any] = {}
    for method in METHODS:
        columns = [[accuracy(one) for one in found[each].get(method, ())] for each in levels]
        runs = min(map(len, columns), default=0)
        if runs:
            series[method] = list(levels.values()), [[col[run] for col in columns] for run in range(runs)]
    labels = Labels(x="corrupt part of the clients", y="accuracy of benign clients, %", title=kind)
    return lines(series, labels, band="range", names=NAMES)


def pull_panels(results: Path) -> list[Panel]:
    found = _by_pull(results)
    panels = []
    for corruption in dict.fromkeys(each for each, _, _ in found):
        series: dict[str, Any] = {}
        for method in PULLED:
            points = {
                p: accuracy(record) for (c, m, p), record in found.items() if (c, m) == (corruption, method)
            }
            series[method] = sorted(points), [points[each] for each in sorted(points)]
        title = f"{corruption}, a fifth of the clients"
        labels = Labels(x="pull", y="accuracy of benign clients, %", title=title, log="x")
        panels.append(lines(series, labels, names=NAMES))
    return panels


def _by_corruption(results: Path, name: str, seed: int | None = None) -> dict[str, dict[str, list[Record]]]:
    found: dict[str, dict[str, list[Record]]] = {}
    for record in sorted(records(results, name), key=lambda each: int(each.settings["seed"])):
        if seed is None or record.settings["seed"] == seed:
            cells = found.setdefault(record.cell["corruption"], {})
            cells.setdefault(record.cell["method"], []).append(record)
    return found


def _by_pull(results: Path) -> dict[tuple[str, str, float], Record]:
    return {
        (each.cell["corruption"], each.cell["method"], each.cell["algorithm.pull"]): each
        for each in records(results, "lpproj-pull")
    }


def _values(found: Sequence[Record]) -> str:
    return _shown([accuracy(each) for each in found])


def _shown(values: Sequence[float]) -> str:
    """Return the mean, and each value if there are several."""
    if not values:
        return MISSING
    each = f" ({', '.join(f'{value:.1f}' for value in values)})" if len(values) > 1 else ""
    return f"{over_seeds(values).mean:.1f}{each}"
