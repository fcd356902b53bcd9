"""lp-proj beside its paper: Table 1, Figures 1, 2 and 4.

"Personalized Federated Learning towards Communication Efficiency, Robustness and Fairness". Closed forms are
in `lpproj_theory`, costs in `lpproj_costs`, attacks in `lpproj_attacks`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from papers import lpproj_attacks as attacks
from papers.lpproj_attacks import MISSING, NAMES, records, table
from papers.lpproj_costs import Cost, cost_of, first_round, value_within
from papers.lpproj_theory import ATTACKS, LinearProblem, Method
from papers.plots import Labels, Panel, draw, lines, scatter
from papers.seeds import over_seeds
from sims.sweep import Record

_NEVER: Final = "*"
_UNKNOWN: Final = "not published"
_FAIR_FROM: Final = 20  # the paper takes the best accuracy from this round on
_PULLS: Final = np.logspace(-4, 2, 61)
_IN_THEORY: Final[Mapping[str, Method]] = {"pFedMe": "pfedme", "Ditto": "ditto", "lp-proj-2": "lp-proj"}


@dataclass(frozen=True)
class Study:
    """One half of Table 1: `drawn` clients write in a round of the paper's; `published` are a method's
    accuracy at the budget and the numbers it took to the target, as printed."""

    name: str
    title: str
    budget: int
    target: float
    drawn: int
    published: Mapping[str, tuple[str, str]]


SYNTHETIC: Final = Study(
    name="lpproj-synthetic",
    title="Synthetic(0,0)",
    budget=328_020,
    target=0.6,
    drawn=10,
    published={
        "FedAvg": ("62.5", "597,800"),
        "Sketch": ("45.6", _NEVER),
        "quantised": ("11.5", "923,350"),
        "lp-proj-1, all": ("88.5", "4,620"),
        "lp-proj-2, all": ("88.8", "4,620"),
    },
)
UNIPEN: Final = Study(
    name="lpproj-unipen",
    title="UNIPEN",
    budget=4_236_900,
    target=0.7,
    drawn=25,
    published={
        "FedAvg": (_NEVER, "445,851,400"),
        "Sketch": (_NEVER, _NEVER),
        "quantised": (_NEVER, "673,302,175"),
        "lp-proj-1, all": ("90.6", "174,720"),
        "lp-proj-2, all": ("90.6", "196,560"),
        "LG-FedAvg": ("7.1", "230,786,010"),
    },
)
# Methods without a share in Table 1.
_NO_TABLE_1: Final = ("RSA", "Ditto", "pFedMe", "median")
_HIDDEN: Final = ("lp-proj-1, all", "lp-proj-2, all", "local, all")


def tables(results: Path) -> dict[str, str]:
    """Return our results beside the published ones."""
    return {
        "lpproj-theory": _theory(),
        "lpproj-validation": _chosen(results, "lpproj-validation"),
        "lpproj-synthetic": _to_target(results, SYNTHETIC),
        "lpproj-synthetic-budget": _at_budget(results, SYNTHETIC),
        "lpproj-unipen-validation": _chosen(results, "lpproj-unipen-validation"),
        "lpproj-unipen": _to_target(results, UNIPEN),
        "lpproj-unipen-budget": _at_budget(results, UNIPEN),
        "lpproj-bits": _bits(results),
        "lpproj-fairness": _fairness(results),
        "lpproj-attacks": attacks.attacks_table(results),
        "lpproj-clipped": attacks.clipped_table(results),
        "lpproj-pull": attacks.pull_table(results),
        "lpproj-forged": attacks.forged_table(results),
        "lpproj-secure": _secure(results),
    }


def figures(results: Path, out: Path) -> None:
    """Draw Figure 1 and its trained version, accuracy by numbers sent, and Figures 2 and 4."""
    draw(out / "lpproj-theory.svg", *(_theory_panel(each) for each in ATTACKS), _variance_panel())
    draw(out / "lpproj-pull.svg", *attacks.pull_panels(results))
    draw(out / "lpproj-numbers.svg", *(_numbers_panel(results, each) for each in (SYNTHETIC, UNIPEN)))
    draw(out / "lpproj-fairness.svg", *(_fairness_panel(results, each) for each in (SYNTHETIC, UNIPEN)))
    draw(out / "lpproj-attacks.svg", *attacks.attack_panels(results))


# --- what a cell says ---


def _series(record: Record) -> Mapping[str, Sequence[float]]:
    """Return the series of the clients' own models if they were measured, or else of the common one."""
    series = record.result["series"]
    return series.get("personal") or series["common"]  # type: ignore[no-any-return]


def _accuracies(record: Record) -> Sequence[float]:
    return _series(record)["mean_accuracy"]


def _by_method(results: Path, name: str) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records(results, name):
        found.setdefault(record.cell["method"], []).append(record)
    return found


# --- Figure 1 and Proposition 2 ---


def _theory() -> str:
    """Return best pulls, thresholds, and expected losses on benign clients."""
    problem, rows = LinearProblem(), []
    for attack in ("none", *ATTACKS):
        best = problem.best_pull(attack)
        row = [attack, f"{best:.3g}", f"{problem.threshold(attack):.3g}"]
        for pull in (best, 0.01, 1.0):
            both = (problem.loss(each, attack, pull) for each in ("ditto", "lp-proj"))
            row.append(", ".join(f"{loss:.4f}" for loss in both))
        rows.append(row)
    losses = [f"losses at {each}: Ditto and pFedMe, lp-proj" for each in ("the best pull", "0.01", "1")]
    return table(["attack", "best pull", "lp-proj ahead from", *losses], rows)


def _theory_panel(attack: Any) -> Panel:
    problem = LinearProblem()
    series: dict[str, Any] = {
        name: (_PULLS, [problem.loss(method, attack, pull) for pull in _PULLS])
        for name, method in _IN_THEORY.items()
    }
    labels = Labels(x="pull", y="test loss of benign clients", title=attack, log="xy")
    return lines(series, labels, names=NAMES)


def _variance_panel() -> Panel:
    problem = LinearProblem()
    series: dict[str, Any] = {
        name: (_PULLS, [problem.loss_variance(method, pull) for pull in _PULLS])
        for name, method in _IN_THEORY.items()
    }
    labels = Labels(x="pull", y="variance of clients' losses", title="no attack", log="xy")
    return lines(series, labels, names=NAMES)


# --- settings ---


def _chosen(results: Path, name: str) -> str:
    """Return every choice that was tried, and the best of each method; of equal ones, the larger."""
    tried: dict[str, list[tuple[float, str]]] = {}
    for record in records(results, name):
        method, _, choice = record.cell["choice"].partition(", ")
        tried.setdefault(method, []).append((100 * float(_accuracies(record)[-1]), choice))
    rows = []
    for method, found in tried.items():
        best = max(found, key=lambda each: (round(each[0], 2), float(each[1].split()[-1]) if each[1] else 0))
        shown = "; ".join(f"{choice} {value:.1f}".strip() for value, choice in found)
        rows.append([method, shown, best[1] or "nothing to choose"])
    return table(["method", "accuracy on validation samples", "chosen"], rows)


# --- Table 1 ---


def _to_target(results: Path, study: Study) -> str:
    """Return the cost of reaching the target, in the mean over seeds that reached it."""
    head = [
        "method", f"rounds to {100 * study.target:.0f} %", "numbers, the paper's rule", "published",
        "numbers sent", "kbit in sums", "kB up", "kB down",
    ]  # fmt: skip
    rows = []
    for method, found in _in_table_1(results, study).items():
        reached = [first_round(each.result["rounds"], _accuracies(each), study.target) for each in found]
        published = study.published.get(method, ("", _UNKNOWN))[1]
        rows.append([method, *_spent(reached, cost_of(found[0], drawn=study.drawn), published)])
    return table(head, rows)


def _in_table_1(results: Path, study: Study) -> dict[str, list[Record]]:
    return {name: found for name, found in _by_method(results, study.name).items() if name not in _NO_TABLE_1}


def _spent(reached: Sequence[int | None], cost: Cost, published: str) -> list[str]:
    rounds = [each for each in reached if each is not None]
    shown = ", ".join(_NEVER if each is None else str(each) for each in reached)
    if len(rounds) < len(reached):
        return [shown, _NEVER, published, _NEVER, _NEVER, _NEVER, _NEVER]
    mean = over_seeds(rounds).mean
    sent = over_seeds([cost.sent(each) for each in rounds]).mean
    return [
        shown,
        f"{mean * cost.counted:,.0f}",
        published,
        f"{mean * cost.numbers:,.0f}",
        f"{mean * cost.payload / 1000:,.1f}",
        f"{sent / 1000:,.1f}",
        f"{mean * cost.bytes_down / 1000:,.1f}",
    ]


def _at_budget(results: Path, study: Study) -> str:
    """Return accuracy when the budget is spent by the paper's rule, or at the end; and by numbers sent."""
    head = ["method", "round", "accuracy", "published", "round, by numbers sent", "accuracy"]
    rows = []
    for method, found in _in_table_1(results, study).items():
        cost = cost_of(found[0], drawn=study.drawn)
        published = study.published.get(method, (_UNKNOWN, ""))[0]
        rule, sent = (_paid(found, each, study.budget) for each in (cost.counted, cost.numbers))
        rows.append([method, *rule, published, *sent])
    return table(head, rows)


def _paid(found: Sequence[Record], each: float, budget: float) -> list[str]:
    paid = [value_within(one.result["rounds"], _accuracies(one), each, budget) for one in found]
    known = [one for one in paid if one is not None]
    if len(known) < len(paid):
        return [_NEVER, _NEVER]
    number, last = known[0][0], found[0].result["rounds"][-1]
    shown = f"{number}, its last" if number == last and (number + 1) * each <= budget else str(number)
    return [shown, f"{100 * over_seeds([value for _, value in known]).mean:.1f}"]


def _bits(results: Path) -> str:
    """Return what one client sends and receives in a round."""
    head = [
        "data", "method", "clients of a round", "numbers up", "bits in the sum", "bits each",
        "bytes up", "of which a new session", "bytes down",
    ]  # fmt: skip
    rows = []
    for study in (SYNTHETIC, UNIPEN):
        for method, found in _in_table_1(results, study).items():
            cost = cost_of(found[0], drawn=study.drawn)
            if not cost.payload:
                continue
            clients = found[0].settings["cohort"]["per_round"]
            up = cost.elements // clients
            payload = cost.payload // clients
            session = round(cost.set_up / cost.lasts / clients)
            shown = [up, payload, round(payload / up, 1), cost.bytes_up // clients + session, session]
            rows.append(
                [study.title, method, str(clients), *(f"{each:,}" for each in shown),
                 f"{cost.bytes_down // clients:,}"]
            )  # fmt: skip
    return table(head, rows)


# --- Figure 2 ---


def _fairest(record: Record) -> tuple[float, float]:
    """Return the best accuracy from round 20 on, and the variance over clients then."""
    series, rounds = _series(record), record.result["rounds"]
    places = [k for k, number in enumerate(rounds) if number >= _FAIR_FROM] or [len(rounds) - 1]
    best = max(places, key=lambda k: series["mean_accuracy"][k])
    return 100 * series["mean_accuracy"][best], series["variance"][best]


def _fairness(results: Path) -> str:
    rows = []
    for study in (SYNTHETIC, UNIPEN):
        for method, found in _by_method(results, study.name).items():
            points = [_fairest(each) for each in found]
            accuracy, variance = (over_seeds(each) for each in zip(*points, strict=True))
            rows.append([study.title, method, accuracy.text(), f"{variance.mean:.4f}", str(len(found))])
    return table(["data", "method", "accuracy", "variance over clients", "seeds"], rows)


def _fairness_panel(results: Path, study: Study) -> Panel:
    points: dict[str, Any] = {}
    for method, found in _by_method(results, study.name).items():
        if method not in _HIDDEN:
            pairs = [_fairest(each) for each in found]
            points[method] = [each for each, _ in pairs], [each for _, each in pairs]
    labels = Labels(x="accuracy, %", y="variance of accuracy over clients", title=study.title)
    return scatter(points, labels, names=NAMES)


def _numbers_panel(results: Path, study: Study) -> Panel:
    """Return accuracy by numbers sent, of the first seed."""
    series: dict[str, Any] = {}
    for method, found in _in_table_1(results, study).items():
        cost = cost_of(found[0], drawn=study.drawn)
        if cost.numbers and method not in _HIDDEN:
            rounds = np.array(found[0].result["rounds"][1:])
            series[method] = rounds * cost.numbers, [100 * each for each in _accuracies(found[0])[1:]]
    labels = Labels(x="numbers sent", y="accuracy, %", title=study.title, log="x")
    return lines(series, labels, levels={"target": 100 * study.target}, names=NAMES)


# --- over secure sums ---


def _secure(results: Path) -> str:
    rows = []
    for record in records(results, "lpproj-secure"):
        series = record.result["series"]["personal_benign"]
        digits = [f"{series[name][-1]:.6f}" for name in ("mean_accuracy", "mean_loss", "variance")]
        sent = sum(record.result["bytes_up"].values())
        rows.append(
            [record.cell["method"], record.cell["channel.kind"], *digits, f"{sent:,}" if sent else "none"]
        )
    return table(["method", "channel", "accuracy", "mean loss", "variance", "bytes up"], rows) or MISSING
