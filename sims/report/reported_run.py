"""Reads the files of a run for a report: the audit, and the numbers for plots and tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from protocols.catalogue import CATALOGUE
from sims.audit.audit_result import Audit, Spent
from sims.audit.audit_run import audit_run
from sims.records import RunDirectory, find_runs
from sims.records.run_directory import read_file
from sims.records.run_file_names import CLIENTS, METRICS, RESULT, RUN, SCENARIO, SUMS
from sims.records.sum_records import SumHistory, SumRecord
from sims.text_format import values_of

_BENIGN: Final = "_benign"
_MEAN: Final = "mean_accuracy"  # over clients, as an observer of a simulation computes it
POOLED: Final = "pooled_accuracy"  # over all samples, which a sum can tell a server
# The labels of measures, the most important first. A measure is the score of a model on some of the clients.
MEASURES: Final = {
    "common": "Common model, all clients",
    "common_benign": "Common model, benign clients",
    "personal": "Personal models, all clients",
    "personal_benign": "Personal models, benign clients",
    "held_out_common": "Common model, clients that never train",
    "held_out_personal": "Personal models, clients that never train",
}


def algorithm_label(name: str) -> str:
    """Return the label of an algorithm in the catalogue, or `name` itself if it is not there."""
    return CATALOGUE[name].label if name in CATALOGUE else name


@dataclass(frozen=True)
class ReportedRun:
    """One run of a report, read from its files. A measure is the score of some models on some clients."""

    title: str  # unique among the runs of the page
    audit: Audit
    cell: Mapping[str, Any]  # the swept settings, with their values in this run
    metrics: Sequence[Mapping[str, Any]]  # one for each round, as in `metrics.jsonl`
    sums: Sequence[SumRecord]
    clients: Mapping[str, Mapping[str, Sequence[Any]]]  # final scores of each client, by measure
    corrupt: frozenset[int]  # the clients that attacked
    scenario: str  # the settings as TOML
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def algorithm(self) -> str:
        return algorithm_label(self.audit.subject.algorithm)

    @property
    def attacked(self) -> bool:
        return self.audit.subject.attackers > 0

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of the run's measures, such as "common" (common model, all clients), main ones first."""
        found = {name for line in self.metrics for name in (line.get("measured") or {})}
        return (*(name for name in MEASURES if name in found), *sorted(found - MEASURES.keys()))

    @property
    def headline(self) -> str | None:
        """The name of the main measure: of personal models if they differ from the common one, and of benign
        clients if others attack. None if nothing was measured."""
        found = [name for name in self.measures if not self.is_copy(name)]
        order = ("personal", "common") if not self.attacked else ("personal_benign", "common_benign")
        return next((name for name in (*order, "personal", "common") if name in found), None)

    def is_copy(self, measure: str) -> bool:
        """Return whether `measure` is of personal models, but equals the common model's in every round."""
        common = measure.replace("personal", "common")
        lines = [line.get("measured") or {} for line in self.metrics]
        return common != measure and all(each.get(measure) == each.get(common) for each in lines)

    @property
    def classifies(self) -> bool:
        """Whether the run trains a classifier, so that its metrics have an accuracy."""
        return self._has(_MEAN) or self._has(POOLED)

    @property
    def observes_clients(self) -> bool:
        """Whether the run is a simulated one of a classifier, whose metrics say how single clients do."""
        return self._has(_MEAN)

    @property
    def accuracy(self) -> float | None:
        """The last accuracy of the main measure: the mean over clients or, of a served run, that over all
        samples; None if there is none."""
        return self.final(accuracy_key([self]))

    def _has(self, key: str) -> bool:
        return any(key in scores for line in self.metrics for scores in (line.get("measured") or {}).values())

    def curve(self, measure: str, key: str) -> dict[float, float]:
        """Return score `key`, such as "mean_accuracy", of a measure by round; NaN once training diverged."""
        lines = ((line["round"], (line.get("measured") or {}).get(measure)) for line in self.metrics)
        found = {float(number): scores.get(key) for number, scores in lines if scores and key in scores}
        return {number: math.nan if value is None else float(value) for number, value in found.items()}

    def final(self, key: str, measure: str | None = None) -> float | None:
        """Return the last recorded value of score `key` in `measure`, by default the main one (`headline`).
        Return None if there is no such value, or if it is not finite."""
        measure = measure or self.headline
        curve = self.curve(measure, key) if measure else {}
        value = list(curve.values())[-1] if curve else math.nan
        return value if math.isfinite(value) else None

    def errors(self, measure: str, *, include_corrupt: bool = False) -> list[float]:
        """Return clients' final error rates in a measure; those of attackers only if `include_corrupt`."""
        table = self.clients.get(measure.removesuffix(_BENIGN), {})
        rows = zip(table.get("client", ()), table.get("total", ()), table.get("correct", ()), strict=False)
        left_out = frozenset() if include_corrupt else self.corrupt
        return [1 - right / total for client, total, right in rows if total and client not in left_out]

    @property
    def training_spent(self) -> Spent | None:
        """The privacy cost of the training alone, by the server's count; None if it has no noise."""
        return self._part("algorithm")

    @property
    def tail_spent(self) -> Spent | None:
        """The privacy cost of the error histogram alone, by the server's count; None if it has no noise."""
        return self._part("tail")

    def _part(self, name: str) -> Spent | None:
        spent = self.audit.spending.of_budgets.get(name)
        return spent if spent is not None and spent.rho else None

    @property
    def private_tail(self) -> list[float] | None:
        """The noisy height of each bin in the last released histogram of errors; None if there is none."""
        heights = self.audit.tail.get("heights")
        return None if not heights else [float(height) for height in heights]

    def line(self, key: str) -> dict[float, Any]:
        """Return round -> the value of `key` in the metrics of that round, or None if they lack the key."""
        return {float(line["round"]): line.get(key) for line in self.metrics}


def accuracy_key(runs: Sequence[ReportedRun]) -> str:
    """Return the score by which to compare runs: the mean accuracy over clients, or, if a server measured one
    of them, the accuracy over all samples."""
    measured = [each for each in runs if each.classifies]
    return _MEAN if all(each.observes_clients for each in measured) else POOLED


def judged(runs: Sequence[ReportedRun]) -> list[str]:
    """Return the measures by which to compare runs; under attack, those of benign clients instead of all."""
    found = dict.fromkeys(name for each in runs for name in each.measures)
    attacked = any(each.attacked for each in runs)
    shown = [name for name in found if f"{name}_benign" not in found or not attacked]
    return [name for name in shown if not all(each.is_copy(name) for each in runs)] or ["common"]


def read_runs(path: Path, *, server_key: bytes | None = None) -> tuple[ReportedRun, ...]:
    """Read the run in `path`, or all runs in its subdirectories, sorted by the time of their start.
    `server_key` is the key that must have signed them. Raise `ConfigError` if there is no run, or if a file
    of a run cannot be parsed."""
    audits = [(run, audit_run(run, server_key=server_key)) for run in find_runs(path)]
    found = [(run, audit, _facts(run, audit)) for run, audit in audits]
    found.sort(key=lambda each: (str(each[2].get("started")), str(each[0])))
    titles = _titles([facts for _, _, facts in found])
    return tuple(
        _read_run(run, audit, facts, title) for (run, audit, facts), title in zip(found, titles, strict=True)
    )


def _facts(run: RunDirectory, audit: Audit) -> Mapping[str, Any]:
    if RUN in audit.integrity.withheld:
        return {"algorithm": audit.subject.algorithm or run.path.name}
    return run.facts()


def _read_run(run: RunDirectory, audit: Audit, facts: Mapping[str, Any], title: str) -> ReportedRun:
    """Return what a page shows of a run: nothing that is in a file which was altered."""
    withheld = audit.integrity.withheld
    result, scenario = _optional(run, RESULT, withheld), run / SCENARIO
    lines = () if SUMS in withheld else run.read_lines(SUMS)
    is_shown = scenario.exists() and SCENARIO not in withheld
    return ReportedRun(
        title=title,
        audit=audit,
        cell=facts.get("cell") or {},
        metrics=() if METRICS in withheld else run.read_lines(METRICS),
        sums=SumHistory.of(lines, str(run / SUMS)).sums,
        clients=_optional(run, CLIENTS, withheld),
        corrupt=frozenset(result.get("corrupt") or ()),
        scenario=read_file(scenario, "").decode(errors="replace") if is_shown else "",
        versions={
            name: str(facts[key])
            for name, key in {"secagg": "secagg", "Python": "python"}.items()
            if facts.get(key)
        },
    )


def _titles(facts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a unique title for each run's `run.json`: its values of settings that vary, or its algorithm."""
    names = [
        " · ".join(values_of(own.get("cell") or {})) or algorithm_label(str(own.get("algorithm")))
        for own in facts
    ]
    often = Counter(names)
    for name, own in zip(names, facts, strict=True):
        yield name if often[name] == 1 else f"{name} ({str(own.get('digest'))[:6]})"


def _optional(run: RunDirectory, name: str, withheld: Container[str]) -> dict[str, Any]:
    return run.read_json(name) if (run / name).exists() and name not in withheld else {}
