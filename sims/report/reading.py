"""Chapters from run directories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sims.audit.audited import audited
from sims.deploy.problems import ConfigError
from sims.records import RunDirectory, find_runs
from sims.records.files import read_file, replace_file
from sims.records.sums import SumHistory
from sims.report.chapter import ALGORITHMS, Chapter
from sims.report.page import page
from sims.report.wording import values_of

REPORT: Final = "report.html"


def write_report(path: Path, output: Path | None = None) -> Path:
    """Write the page of the run, or of all runs, in a directory, and say where it is.

    Raises `ConfigError` if there is no run, if its files cannot be understood, or if nothing can be written.
    """
    where = path / REPORT if output is None else output
    if where.is_dir():
        raise ConfigError(f"{where} is a directory: give the name of a file, such as {where / REPORT}")
    replace_file(where, page(read_chapters(path)).encode())
    return where


def read_chapters(path: Path) -> tuple[Chapter, ...]:
    """One for every run in the directory. Raises `ConfigError` if there is none, or one is not understood."""
    found = [(run, run.facts()) for run in find_runs(path)]
    found.sort(key=lambda pair: (str(pair[1].get("started")), str(pair[0])))  # as they were run
    runs, facts = [run for run, _ in found], [own for _, own in found]
    return tuple(
        _chapter(run, own, title) for run, own, title in zip(runs, facts, _titles(facts), strict=True)
    )


def _chapter(run: RunDirectory, facts: Mapping[str, Any], title: str) -> Chapter:
    result = _optional(run, "result.json")
    return Chapter(
        title=title,
        audit=audited(run),
        cell=facts.get("cell") or {},
        metrics=run.read_lines("metrics.jsonl"),
        sums=SumHistory.of(run.read_lines("sums.jsonl"), str(run / "sums.jsonl")).sums,
        clients=_optional(run, "clients.json"),
        corrupt=frozenset(result.get("corrupt") or ()),
        scenario=_text(run / "scenario.toml"),
        versions={
            name: str(facts[key])
            for name, key in {"secagg": "secagg", "Python": "python"}.items()
            if facts.get(key)
        },
    )


def _titles(facts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What tells the runs apart: the values that were swept, or the algorithm of a single one."""
    names = [" · ".join(values_of(own.get("cell") or {})) or _algorithm(own) for own in facts]
    often = Counter(names)
    for name, own in zip(names, facts, strict=True):
        yield name if often[name] == 1 else f"{name} ({str(own.get('digest'))[:6]})"


def _algorithm(facts: Mapping[str, Any]) -> str:
    name = str(facts.get("algorithm"))
    return ALGORITHMS.get(name, name)


def _optional(run: RunDirectory, name: str) -> dict[str, Any]:
    return run.read_json(name) if (run / name).exists() else {}


def _text(path: Path) -> str:
    return read_file(path, "").decode(errors="replace") if path.exists() else ""
