"""Figures 1 to 7 of "A Unifying Framework for Federated Learning", drawn anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from papers.plots import Labels, Panel, draw, lines
from papers.splitting_cells import (
    CATALOGUE,
    METHODS,
    NETWORKS,
    USERS,
    Gaps,
    gaps,
    grouped,
    limits,
    losses,
    records,
)
from sims.sweep import Record

_LEAST: Final = 1e-12  # gaps below are drawn here: double precision tells no more
_SOON: Final = 120  # rounds, after which nothing happens any more to what is accelerated
_GAP: Final = "optimality gap"
_LOSS: Final = "loss on all training data"
_SQUARES: Final = "least squares"
_LOGISTIC: Final = "logistic regression"
_NAMES: Final = tuple(dict.fromkeys((*METHODS, *NETWORKS)))

Series = dict[str, tuple[Sequence[float], Any]]


def draw_all(results: Path, out: Path) -> None:
    """Draw every figure that has results."""
    figures = {
        "splitting-ends.svg": (_ends(results), 3),
        "splitting-steps.svg": (_steps(results), 2),
        "splitting-cifar.svg": (_cifar(results), 1),
        "splitting-fedprox.svg": (_schedules(results, "FedProx"), 2),
        "splitting-fedrp.svg": (_schedules(results, "FedRP"), 2),
        "splitting-heterogeneity.svg": (_heterogeneity(results), 3),
        "splitting-anderson.svg": (_anderson(results), 2),
    }
    for name, (panels, columns) in figures.items():
        if panels:
            draw(out / name, *panels, columns=columns)


def _panel(series: Series, labels: Labels, names: Sequence[str] = ()) -> list[Panel]:
    """Return a panel, unless it is empty."""
    return [lines(series, labels, names=names, band="range")] if series else []


def _curve(found: Gaps) -> tuple[Sequence[float], Any]:
    numbers, values = zip(*found, strict=True)
    return numbers, np.maximum(values, _LEAST)


def _by(found: Iterable[Record], key: str) -> Series:
    return {str(each.cell[key]): _curve(gaps(each)) for each in found}


# --- Figures 1 to 3: local steps ---


def _ends(results: Path) -> list[Panel]:
    """Return Figure 1: the limit of federated averaging, against eta (k - 1)."""
    closed: dict[int, list[tuple[float, float]]] = {}
    for limit in limits(results):
        if "product" in limit:
            closed.setdefault(limit["steps"], []).append((limit["product"], limit["gap"]))
    logistic: dict[int, list[tuple[float, float]]] = {}
    for each in records(results, "splitting-logistic-final"):
        steps, product = each.cell["setting"].split()
        logistic.setdefault(int(steps), []).append((float(product), gaps(each)[-1][1]))
    names = [f"k = {steps}" for steps in (2, 5, 10, 20, 50, 100)]
    x = "eta (k - 1)"
    return [
        *_panel(_product_curves(closed), Labels(x=x, y=_GAP, title=_SQUARES, log="xy"), names),
        *_panel(_product_curves(logistic), Labels(x=x, y=_GAP, title=_LOGISTIC, log="xy"), names),
        *_panel(_network_ends(results), Labels(x=x, y=_LOSS, title="network on MNIST"), names),
    ]


def _product_curves(found: Mapping[int, Sequence[tuple[float, float]]]) -> Series:
    return {f"k = {steps}": tuple(zip(*sorted(pairs), strict=True)) for steps, pairs in found.items()}  # type: ignore[misc]


def _network_ends(results: Path) -> Series:
    found: dict[str, list[tuple[float, list[float]]]] = {}
    for (setting,), cells in grouped(results, "splitting-mnist-steps", "setting").items():
        steps, product = setting.split()
        found.setdefault(f"k = {steps}", []).append((float(product), [losses(each)[-1][1] for each in cells]))
    return {
        name: ([product for product, _ in pairs], np.array([runs for _, runs in pairs]).T)
        for name, pairs in found.items()
    }


def _steps(results: Path) -> list[Panel]:
    """Return Figure 2: federated averaging by round, for several k on the left and eta on the right."""
    panels = []
    for title, scenario in ((_SQUARES, "squares"), (_LOGISTIC, "logistic")):
        found = _by(records(results, f"splitting-{scenario}-steps"), "setting")
        halves = {
            "eta as it is": {name: each for name, each in found.items() if "eta" not in name},
            "k = 5": {_smaller(name): each for name, each in found.items() if name.startswith("k = 5")},
        }
        for what, series in halves.items():
            panels += _panel(series, Labels(x="round", y=_GAP, title=f"{title}, {what}", log="y"))
    return panels


def _smaller(name: str) -> str:
    return name.partition(", ")[2] or "eta"


def _cifar(results: Path) -> list[Panel]:
    """Return Figure 3."""
    found = grouped(results, "splitting-cifar", "algorithm.steps")
    series = {f"k = {steps}": _runs(cells) for (steps,), cells in found.items()}
    return _panel(series, Labels(x="round", y=_LOSS))


def _runs(cells: Sequence[Record]) -> tuple[Sequence[float], Any]:
    """Return the losses of all seeds."""
    numbers, _ = zip(*losses(cells[0]), strict=True)
    return numbers, np.array([[loss for _, loss in losses(each)] for each in cells])


# --- Figures 4 and 5: step sizes ---


def _schedules(results: Path, method: str) -> list[Panel]:
    """Return the last models above, and their averages (Theorem 3) below."""
    panels = []
    for what, words in (("optimality-gap", ""), ("ergodic-gap", ", averaged")):
        for title, scenario in ((_SQUARES, "squares"), (_LOGISTIC, "logistic")):
            series = {
                each.cell["step"]: _curve(gaps(each, what))
                for each in records(results, f"splitting-{scenario}-schedules")
                if CATALOGUE[each.cell["algorithm.name"]] == method
            }
            panels += _panel(series, Labels(x="round", y=_GAP, title=f"{title}{words}", log="y"))
    return panels


# --- Figure 6: heterogeneity ---


def _heterogeneity(results: Path) -> list[Panel]:
    panels = []
    for (noise,), cells in grouped(results, "splitting-heterogeneity", "data.noise").items():
        title = f"{_SQUARES}, noise {noise:g}"
        panels += _panel(_by(cells, "method"), Labels(x="round", y=_GAP, title=title, log="y"), _NAMES)
    found = grouped(results, "splitting-mnist", "users", "method")
    for users in USERS:
        series = {name: _runs(found[users, name]) for name in NETWORKS if (users, name) in found}
        panels += _panel(series, Labels(x="round", y=_LOSS, title=f"MNIST, {users}"), _NAMES)
    return panels


# --- Figure 7: Anderson acceleration ---


def _anderson(results: Path) -> list[Panel]:
    """Return the runs without acceleration on the left, and with it on the right."""
    panels = []
    for title, scenario in ((_SQUARES, "squares"), (_LOGISTIC, "logistic")):
        found = grouped(results, f"splitting-{scenario}", "algorithm.memory")
        for memory, words in ((0, ""), (2, ", accelerated")):
            labels = Labels(x="round", y=_GAP, title=f"{title}{words}", log="y")
            cells = {each.cell["method"]: gaps(each) for each in found.get((memory,), [])}
            last = _SOON if memory else None
            series = {name: _curve(cells[name][:last]) for name in _NAMES if name in cells}
            panels += _panel(series, labels, _NAMES)
    plain = grouped(results, "splitting-mnist", "users", "method")
    faster = grouped(results, "splitting-mnist-accelerated", "method")
    pairs = {
        "MNIST": {name: plain.get((USERS[1], name)) for name in NETWORKS[1:]},
        "MNIST, accelerated": {name: faster.get((name,)) for name in NETWORKS[1:]},
    }
    for title, own in pairs.items():
        series = {name: _runs(each) for name, each in own.items() if each}
        panels += _panel(series, Labels(x="round", y=_LOSS, title=title), _NAMES)
    return panels
