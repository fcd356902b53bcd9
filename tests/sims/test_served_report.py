"""The report and the audit of a run with real clients: what its server knows, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sims.audit.audit_run import audit_run
from sims.records import RunDirectory
from sims.records.run_file_names import REPORT, RESULT
from sims.report import ReportedRun, read_runs
from sims.report.headline import figures, sentence
from sims.report.training_plots import training_plots
from tests.sims.test_training_hosts import ALGORITHMS, PRIVATE
from tests.sims.training_site import TrainingSite


def served(tmp_path: Path, **settings: Any) -> ReportedRun:
    site = TrainingSite(tmp_path, rounds=2, **settings)
    site.train()
    (run,) = read_runs(site / "run")
    return run


def test_the_curve_is_the_accuracy_over_all_samples(tmp_path: Path) -> None:
    run = served(tmp_path)
    facts = {float(line["round"]): line["facts"]["accuracy"] for line in run.metrics if line["facts"]}
    accuracy, *others = training_plots([run])
    (series,) = accuracy.series
    assert list(series.values) == pytest.approx([100 * value for value in facts.values()])
    assert accuracy.places == tuple(facts)
    assert {plot.key for plot in others} == {"errors"}  # the tail of clients' errors is not known
    assert [figure.name for figure in figures([run])][:2] == ["Accuracy", "Sums released"]
    assert run.accuracy == pytest.approx(list(facts.values())[-1])
    assert (tmp_path / "run" / REPORT).exists()
    _beside_a_simulation(run)
    _audited(tmp_path / "run", run)


def _beside_a_simulation(run: ReportedRun) -> None:
    """Both have the accuracy over all samples, and are compared by it."""
    seen = {"mean_accuracy": 0.25, "pooled_accuracy": 0.5}
    lines = [{**line, "measured": {"common": seen}} for line in run.metrics]
    simulated = ReportedRun(**{**vars(run), "title": "simulated", "metrics": lines})
    accuracy = training_plots([run, simulated])[0]
    assert accuracy.series[1].values[-1] == pytest.approx(50.0)
    alone = training_plots([simulated])[0]
    assert alone.series[0].values[-1] == pytest.approx(25.0)


def _audited(path: Path, run: ReportedRun) -> None:
    """No observer saw single clients, and nobody can repeat the run alone."""
    found = audit_run(path)
    assert found.intact
    assert found.achieved.accuracy == run.accuracy
    assert not [each for each in found.exposures if "clients.json" in each.why]
    assert found.subject.command.split()[:2] == ["secagg", "simulate"]
    result, sent = RunDirectory(path).read_json(RESULT), run.metrics[-1]
    for way in ("bytes_up", "bytes_down"):
        assert sum(result[way].values()) >= sent[way] > 0  # and the farewell


@pytest.mark.slow
def test_personal_models_are_shown_as_such(tmp_path: Path) -> None:
    more = '[evaluation]\nwhat = "personal"'
    run = served(tmp_path, algorithm=ALGORITHMS["fedbc"], more=more)
    assert run.headline == "personal"
    assert run.accuracy is not None


@pytest.mark.slow
def test_where_nothing_is_measured_the_report_does_not_say_that_it_diverged(tmp_path: Path) -> None:
    run = served(tmp_path, algorithm=PRIVATE)
    assert run.headline is None
    assert "diverged" not in sentence([run])
    assert [figure.name for figure in figures([run])][:2] == ["Sums released", "Epsilon"]
