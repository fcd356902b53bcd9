"""One run of a report: its audit, the numbers that plots show, and how it is read from a run directory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from protocols.catalogue import CATALOGUE
from secagg.noise.conversion import epsilon
from sims.audit.audit_result import Audit, Spent
from sims.audit.audit_run import audit_run
from sims.records import RunDirectory, find_runs
from sims.records.directory import read_file
from sims.records.run_paths import CLIENTS, METRICS, RESULT, SCENARIO, SUMS
from sims.records.sums import SumHistory, SumRecord
from sims.text_format import values_of

_BENIGN: Final = "_benign"
# In words, and in the order in which a reader cares.
MEASURES: Final = {
    "common": "Common model, all clients",
    "common_benign": "Common model, benign clients",
    "personal": "Personal models, all clients",
    "personal_benign": "Personal models, benign clients",
    "held_out_common": "Common model, clients that never train",
    "held_out_personal": "Personal models, clients that never train",
}


def algorithm_label(name: str) -> str:
    """Return the catalogue's label of an algorithm, or its name if the catalogue does not have it."""
    return CATALOGUE[name].label if name in CATALOGUE else name


@dataclass(frozen=True)
class Chapter:
    """One run. `title` tells it from the other runs of the page.

    `cell`      what was swept, with its values here.
    `metrics`   one mapping for each round, as in the run's `metrics.jsonl`; `sums` one record for each sum.
    `clients`   every client's numbers at the end, by what was measured: an observer's view.
    `corrupt`   the clients that attacked.
    `scenario`  its settings as TOML.
    """

    title: str
    audit: Audit
    cell: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    sums: Sequence[SumRecord]
    clients: Mapping[str, Mapping[str, Sequence[Any]]]
    corrupt: frozenset[int]
    scenario: str
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def algorithm(self) -> str:
        return algorithm_label(self.audit.subject.algorithm)

    @property
    def attacked(self) -> bool:
        return self.audit.subject.attackers > 0

    @property
    def measures(self) -> tuple[str, ...]:
        """What was measured, in the order of `MEASURES`."""
        found = {name for line in self.metrics for name in (line.get("measured") or {})}
        return (*(name for name in MEASURES if name in found), *sorted(found - MEASURES.keys()))

    @property
    def headline(self) -> str | None:
        """The measure that a run is judged by: of the models that clients would use, of honest clients."""
        found = [name for name in self.measures if not self.is_copy(name)]
        order = ("personal", "common") if not self.attacked else ("personal_benign", "common_benign")
        return next((name for name in (*order, "personal", "common") if name in found), None)

    def is_copy(self, measure: str) -> bool:
        """Whether it is about personal models that are the common one all along."""
        common = measure.replace("personal", "common")
        lines = [line.get("measured") or {} for line in self.metrics]
        return common != measure and all(each.get(measure) == each.get(common) for each in lines)

    @property
    def classifies(self) -> bool:
        return any(
            "mean_accuracy" in scores
            for line in self.metrics
            for scores in (line.get("measured") or {}).values()
        )

    def curve(self, measure: str, key: str) -> dict[float, float]:
        """By round, one number of what was measured; not a number where training has diverged."""
        lines = ((line["round"], (line.get("measured") or {}).get(measure)) for line in self.metrics)
        found = {float(number): scores.get(key) for number, scores in lines if scores and key in scores}
        return {number: math.nan if value is None else float(value) for number, value in found.items()}

    def final(self, key: str, measure: str | None = None) -> float | None:
        """The last such number; by default, of the headline."""
        measure = measure or self.headline
        curve = self.curve(measure, key) if measure else {}
        value = list(curve.values())[-1] if curve else math.nan
        return value if math.isfinite(value) else None

    def errors(self, measure: str, *, include_corrupt: bool = False) -> list[float]:
        """Of every client that was measured, its part of wrong answers at the end; of benign clients alone
        where some attacked, unless `include_corrupt` is set.
        """
        table = self.clients.get(measure.removesuffix(_BENIGN), {})
        rows = zip(table.get("client", ()), table.get("total", ()), table.get("correct", ()), strict=False)
        left_out = frozenset() if include_corrupt else self.corrupt
        return [1 - right / total for client, total, right in rows if total and client not in left_out]

    @property
    def training_spent(self) -> Spent | None:
        """What the noise of the algorithm's own sums has cost; None if they carry none.

        By the larger of two counts: a client also pays for a sum that failed after its input had left.
        """
        return self._budget("algorithm", self.audit.spending.most)

    @property
    def tail_spent(self) -> Spent | None:
        """The same of the histogram of errors, whose budget covers nothing of the training."""
        return self._budget("tail", self.audit.spending.most_of_tail)

    @property
    def all_spent(self) -> Spent | None:
        """What both have cost together, at the delta of the training; None unless both carry noise."""
        training, tail = self.training_spent, self.tail_spent
        if training is None or tail is None or training.delta is None:
            return None
        rho = training.rho + tail.rho
        return replace(training, rho=rho, epsilon=epsilon([rho], delta=training.delta))

    def _budget(self, name: str, of_client: Spent | None) -> Spent | None:
        counts = (self.audit.spending.of_budgets.get(name), of_client)
        found = [spent for spent in counts if spent is not None and spent.rho]
        return max(found, key=lambda spent: spent.rho, default=None)

    @property
    def private_tail(self) -> list[float] | None:
        """The heights of the last histogram of errors that the server has seen, noise included."""
        heights = self.audit.tail.get("heights")
        return None if not heights else [float(height) for height in heights]

    def line(self, key: str) -> dict[float, Any]:
        """One value of every round's line."""
        return {float(line["round"]): line.get(key) for line in self.metrics}


def judged(chapters: Sequence[Chapter]) -> list[str]:
    """Measures that runs are compared by: of benign clients if any client attacks, otherwise of all."""
    found = dict.fromkeys(name for each in chapters for name in each.measures)
    attacked = any(each.attacked for each in chapters)
    shown = [name for name in found if f"{name}_benign" not in found or not attacked]
    return [name for name in shown if not all(each.is_copy(name) for each in chapters)] or ["common"]


def read_chapters(path: Path) -> tuple[Chapter, ...]:
    """One for every run in the directory. Raises `ConfigError` if there is none, or one is not understood."""
    found = [(run, run.facts()) for run in find_runs(path)]
    found.sort(key=lambda pair: (str(pair[1].get("started")), str(pair[0])))  # as they were run
    runs, facts = [run for run, _ in found], [own for _, own in found]
    return tuple(
        _chapter(run, own, title) for run, own, title in zip(runs, facts, _titles(facts), strict=True)
    )


def _chapter(run: RunDirectory, facts: Mapping[str, Any], title: str) -> Chapter:
    result = _optional(run, RESULT)
    return Chapter(
        title=title,
        audit=audit_run(run),
        cell=facts.get("cell") or {},
        metrics=run.read_lines(METRICS),
        sums=SumHistory.of(run.read_lines(SUMS), str(run / SUMS)).sums,
        clients=_optional(run, CLIENTS),
        corrupt=frozenset(result.get("corrupt") or ()),
        scenario=_text(run / SCENARIO),
        versions={
            name: str(facts[key])
            for name, key in {"secagg": "secagg", "Python": "python"}.items()
            if facts.get(key)
        },
    )


def _titles(facts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What tells the runs apart: the values that were swept, or the algorithm of a single one."""
    names = [
        " · ".join(values_of(own.get("cell") or {})) or algorithm_label(str(own.get("algorithm")))
        for own in facts
    ]
    often = Counter(names)
    for name, own in zip(names, facts, strict=True):
        yield name if often[name] == 1 else f"{name} ({str(own.get('digest'))[:6]})"


def _optional(run: RunDirectory, name: str) -> dict[str, Any]:
    return run.read_json(name) if (run / name).exists() else {}


def _text(path: Path) -> str:
    return read_file(path, "").decode(errors="replace") if path.exists() else ""
