"""Operator splitting beside its chapter, "A Unifying Framework for Federated Learning": its tables.

The chapter prints no numbers, only curves. What least squares are compared with was computed by a program
that shares nothing with this one, and by closed forms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from papers import splitting_figures
from papers.rounds_to_target import rounds_to
from papers.seeds import over_seeds
from papers.splitting_cells import (
    CATALOGUE,
    LOGISTIC,
    METHODS,
    NETWORKS,
    USERS,
    Gaps,
    gaps,
    grouped,
    limits,
    losses,
    records,
    rows_of,
)
from sims.sweep import Record

TARGET: Final = 1e-6
_LONGEST: Final = "FedAvg, k = 100"
_NOTHING: Final = 1e-12
_MISSING: Final = "missing"
_NEVER: Final = "never"
_DIVERGED: Final = "diverged"
# Least squares of the chapter, without and with a memory of 2: rounds to a gap of 1e-6, and the last gap.
_REFERENCE: Final[Mapping[tuple[str, int], tuple[str, str]]] = {
    ("FedAvg, k = 1", 0): ("289", "0"),
    ("FedAvg, k = 1", 2): ("10", "0"),
    ("FedAvg, k = 5", 0): (_NEVER, "6.01e-4"),
    ("FedAvg, k = 5", 2): (_NEVER, "6.01e-4"),
    ("FedAvg, k = 100", 0): (_NEVER, "5.65e-2"),
    ("FedAvg, k = 100", 2): (_NEVER, "5.65e-2"),
    ("FedProx", 0): (_NEVER, "1.365e-4"),
    ("FedProx", 2): (_NEVER, "1.365e-4"),
    ("FedSplit", 0): ("148", "0"),
    ("FedSplit", 2): ("46", "0"),
    ("FedRP", 0): (_NEVER, "1.365e-4"),
    ("FedRP", 2): (_NEVER, "1.365e-4"),
}


def tables(results: Path) -> dict[str, str]:
    """Return our results beside known ones."""
    return {
        "splitting-squares": _squares(results),
        "splitting-secure": _secure(results),
        "splitting-logistic": _logistic(results),
        "splitting-heterogeneity": _heterogeneity(results),
        "splitting-schedules": _schedules(results),
        "splitting-mnist": _mnist(results),
        "splitting-mnist-accelerated": _accelerated(results),
        "splitting-cifar": _cifar(results),
    }


def figures(results: Path, out: Path) -> None:
    """Draw Figures 1 to 7."""
    splitting_figures.draw_all(results, out)


# --- words ---


def _reached(found: Gaps, target: float = TARGET) -> str:
    numbers, values = zip(*found, strict=True)
    first = rounds_to(values, target, rounds=numbers, falling=True)
    return _NEVER if first is None else f"{first:.0f}"


def _at(found: Gaps, *numbers: int) -> list[str]:
    values = dict(found)
    return [_short(values[number]) for number in numbers]


def _short(gap: float) -> str:
    """Format with four digits; a gap below double precision is zero."""
    if gap < _NOTHING:
        return "0"
    if 0.1 <= gap < 1e4:
        return f"{gap:.4g}"
    digits, power = f"{gap:.3e}".split("e")
    return f"{digits}e{int(power)}"


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(each)} |" for each in lines)


# --- convex problems ---


def _squares(results: Path) -> str:
    closed = {f"FedAvg, k = {each['steps']}": each["gap"] for each in limits(results) if _is_usual(each)}
    rows = []
    for method, memory, found in _compared(results, "splitting-squares"):
        reference = _REFERENCE.get((method, memory), ("", ""))
        ours = [_MISSING] * 4 if found is None else [*_at(found, 10, 50, 605), _reached(found)]
        limit = _short(closed[method]) if method in closed else ""
        rows.append([method, _acceleration(memory), *ours, *reference, limit])
    head = ["method", "accelerated", "gap in round 10", "50", "605", "rounds to 1e-6"]
    return _markdown([*head, "the same, reference", "last gap, reference", "last gap by (21)"], rows)


def _is_usual(limit: Mapping[str, Any]) -> bool:
    return "steps" in limit and "product" not in limit


def _compared(results: Path, name: str) -> Iterator[tuple[str, int, Gaps | None]]:
    """Return every method, without and with acceleration."""
    keys = "method", "algorithm.memory"
    found = {tuple(each.cell[key] for key in keys): gaps(each) for each in records(results, name)}
    for memory in (0, 2):
        for method in METHODS:
            if name != LOGISTIC or method != _LONGEST:
                yield method, memory, found.get((method, memory))


def _acceleration(memory: int) -> str:
    return f"tau = {memory}" if memory else "no"


def _secure(results: Path) -> str:
    rows = []
    for each in records(results, "splitting-secure"):
        found = gaps(each)
        rows.append(
            [
                CATALOGUE[each.cell["algorithm.name"]],
                each.cell["channel.kind"],
                *(f"{dict(found)[number]:.5g}" for number in (10, 30, 60)),
                _reached(found),
            ]
        )
    return _markdown(["method", "channel", "round 10", "round 30", "round 60", "to 1e-6"], rows)


def _logistic(results: Path) -> str:
    rows = []
    for method, memory, found in _compared(results, LOGISTIC):
        ours = [_MISSING] * 5 if found is None else [*_at(found, 10, 50, 100, 305), _reached(found, 1e-3)]
        rows.append([method, _acceleration(memory), *ours])
    head = ["method", "accelerated", "gap in round 10", "50", "100", "305", "rounds to 1e-3"]
    return _markdown(head, rows)


def _heterogeneity(results: Path) -> str:
    found = {(each.cell["data.noise"], each.cell["method"]): gaps(each)
             for each in records(results, "splitting-heterogeneity")}  # fmt: skip
    spreads = {each["noise"]: each["heterogeneity"] for each in limits(results) if "noise" in each}
    rows = []
    for method in METHODS:
        if method != _LONGEST:
            own = (found.get((noise, method)) for noise in spreads)
            rows.append([method, *(_MISSING if each is None else _short(each[-1][1]) for each in own)])
    head = [f"noise {noise:g}, H = {spread:.4g}" for noise, spread in spreads.items()]
    return _markdown(["last gap", *head], rows)


def _schedules(results: Path) -> str:
    rows = []
    for name, scenario in (("least squares", "squares"), ("logistic", "logistic")):
        for each in records(results, f"splitting-{scenario}-schedules"):
            ends = (gaps(each, what)[-1][1] for what in ("optimality-gap", "ergodic-gap"))
            first = each.settings["algorithm"]["eta"] / rows_of(each)
            method, rounds = CATALOGUE[each.cell["algorithm.name"]], str(each.settings["rounds"])
            rows.append([name, method, each.cell["step"], f"{first:g}", rounds, *map(_short, ends)])
    head = ["problem", "method", "step sizes", "first, as in the chapter", "rounds", "last gap", "averaged"]
    return _markdown(head, rows)


# --- networks ---


def _final_loss(record: Record) -> float:
    return losses(record)[-1][1]


def _accuracy(record: Record) -> float:
    return 100 * float(record.result["series"]["common"]["pooled_accuracy"][-1])


def _estimate(cells: Sequence[Record] | None, value: Callable[[Record], float], digits: int) -> str:
    """Return the mean, and the value of every seed in brackets."""
    if not cells:
        return _MISSING
    values = [value(each) for each in cells]
    if not all(map(math.isfinite, values)):
        return _DIVERGED
    seeds = ", ".join(f"{each:.{digits}f}" for each in values)
    return f"{over_seeds(values).mean:.{digits}f} ({seeds})"


def _mnist(results: Path) -> str:
    found = grouped(results, "splitting-mnist", "users", "method")
    present = [users for users in USERS if any((users, method) in found for method in NETWORKS)]
    rows = []
    for method in NETWORKS:
        row = [method]
        for users in present:
            cells = found.get((users, method))
            row += [_estimate(cells, _final_loss, 3), _estimate(cells, _accuracy, 1)]
        rows.append(row)
    head = [f"{what}, {users}" for users in present for what in ("loss", "accuracy")]
    return _markdown(["after 50 rounds", *head], rows)


def _accelerated(results: Path) -> str:
    plain = grouped(results, "splitting-mnist", "users", "method")
    faster = grouped(results, "splitting-mnist-accelerated", "method")
    rows = []
    for method in NETWORKS[1:]:
        pair = plain.get((USERS[1], method)), faster.get((method,))
        losses, accuracies = ([_estimate(each, value, digits) for each in pair]
                              for value, digits in ((_final_loss, 3), (_accuracy, 1)))  # fmt: skip
        rows.append([method, *losses, *accuracies])
    return _markdown(["method", "loss", "accelerated", "accuracy", "accelerated"], rows)


def _cifar(results: Path) -> str:
    rows = []
    for (steps,), cells in grouped(results, "splitting-cifar", "algorithm.steps").items():
        rows.append([str(steps), _estimate(cells, _final_loss, 3), _estimate(cells, _accuracy, 1)])
    return _markdown(["k", "loss after 50 rounds", "accuracy on training images"], rows)
