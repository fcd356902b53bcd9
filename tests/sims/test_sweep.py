"""Sweeps: which cells there are, what a cell is known by, and that none is run twice or lost."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sims.scenario import loading_and_variants
from sims.scenario.loading_and_variants import Scenario, Variant
from sims.scenario.settings import Settings
from sims.sweep import Results, read_records, run_sweep
from sims.sweep.parallel_tasks import TaskOutcome, _TaskWorker, run_tasks
from sims.sweep.summary_view import as_json, in_vain, lines, remarks, rows, table, troubles
from tests.sims.sweep_targets import rate_of, work


def settings(seed: int = 1, rate: float = 0.1, **more: Any) -> Settings:
    document = {
        "seed": seed,
        "rounds": 5,
        "data": {"kind": "digits"},
        "model": {"kind": "softmax"},
        "training": {"rate": rate},
        "algorithm": {"name": "fedavg", "clip": 10.0},
    }
    return Settings.model_validate({**document, **more})


def cell(seed: int = 1, **more: Any) -> Variant:
    return Variant({"seed": seed}, settings(seed, **more))


# --- cells ---


def test_cells_are_the_variants_in_their_order() -> None:
    variants = tuple(Variant({"seed": seed}, settings(seed)) for seed in (3, 1, 2))
    found = Scenario("x", Path("x.toml"), variants).variants
    assert [each.settings.seed for each in found] == [3, 1, 2]
    assert [str(each) for each in found] == ["seed=3", "seed=1", "seed=2"]
    assert str(Variant({}, settings())) == "the only cell"


def test_a_digest_is_of_what_numbers_depend_on() -> None:
    digest = cell().digest
    assert Variant({"another": "name"}, settings()).digest == digest
    assert cell(channel={"kind": "plain"}).digest == digest  # the default, spelt out
    different = (cell(2), cell(rate=0.2), cell(channel={"kind": "secure"}), cell(rounds=6))
    assert len({digest, *(each.digest for each in different)}) == 5
    assert cell(data={"kind": "digits", "extra": 1}).digest != digest


def test_a_digest_stays_what_it_is() -> None:
    """If this fails, results that people have kept are lost: that may be right, with another FORMAT."""
    assert cell().digest == "e520455b40f1c2111757"


def test_another_format_is_another_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cell().digest
    monkeypatch.setattr(loading_and_variants, "FORMAT", loading_and_variants.FORMAT + 1)
    assert cell().digest != before


# --- results ---


def test_results_are_read_as_they_were_added(tmp_path: Path) -> None:
    results = Results(tmp_path / "deep" / "down", "x")
    results.add(cell(1), {"accuracy": 0.5})
    results.add(cell(2), {"accuracy": None})
    again = Results(tmp_path / "deep" / "down", "x").read()
    assert {digest: each.result for digest, each in again.items()} == {
        cell(1).digest: {"accuracy": 0.5},
        cell(2).digest: {"accuracy": None},
    }
    assert again[cell(2).digest].cell == {"seed": 2}
    assert again[cell(2).digest].settings["training"] == {"rate": 0.1}


def test_a_torn_last_line_is_as_if_it_had_never_been(tmp_path: Path) -> None:
    results = Results(tmp_path, "x")
    results.add(cell(1), {"accuracy": 0.5})
    results.add(cell(2), {"accuracy": 0.6})
    whole = results.path.read_bytes()
    for cut in range(whole.index(b"\n") + 1, len(whole), 9):
        results.path.write_bytes(whole[:cut])
        assert list(results.read()) == [cell(1).digest]
    results.add(cell(2), {"accuracy": 0.6})
    assert results.path.read_bytes() == whole


def test_a_damaged_line_in_between_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    results = Results(tmp_path, "x")
    results.add(cell(1), {})
    results.path.write_bytes(b"<<<<<<< HEAD\n" + results.path.read_bytes())
    with pytest.raises(Exception, match=r"x\.jsonl: line 1 is not a result: remove it"):
        results.read()


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b"3",
        b'{"digest": "a"}',
        b'{"digest": "a", "cell": {}, "settings": {}, "result": 3}',
        b'{"digest": "a", "cell": {}, "settings": {}, "result": {"completed": 3}}',
    ],
)
def test_a_line_that_lacks_something_is_no_result(tmp_path: Path, line: bytes) -> None:
    results = Results(tmp_path, "x", needed=("series", "completed"))
    results.path.write_bytes(line + b"\n")
    with pytest.raises(Exception, match=r"x\.jsonl: line 1 is not a result: remove it"):
        results.read()
    with pytest.raises(Exception, match=r"x\.jsonl: line 1 is not a result: remove it"):
        results.sort([])


def test_results_are_called_what_their_cells_are_called_now(tmp_path: Path) -> None:
    results = Results(tmp_path, "x")
    for seed in (1, 2):
        results.add(Variant({"method": "wrong"}, settings(seed)), {})
    results.sort([cell(1)])
    assert [each.cell for each in read_records(results.path)] == [{"seed": 1}, {"method": "wrong"}]


def test_lines_are_put_into_the_order_of_the_table_and_others_behind(tmp_path: Path) -> None:
    results = Results(tmp_path, "x")
    for seed in (4, 2, 9, 1):
        results.add(cell(seed), {"seed": seed})
    results.sort([cell(1), cell(2), cell(3), cell(4)])
    seeds = [json.loads(line)["result"]["seed"] for line in results.path.read_text().splitlines()]
    assert seeds == [1, 2, 4, 9]
    assert [each.name for each in tmp_path.iterdir()] == ["x.jsonl"]


def test_results_of_other_cells_go_if_that_is_asked_for(tmp_path: Path) -> None:
    results = Results(tmp_path, "x")
    run_sweep([cell(1), cell(2)], results, function=rate_of)
    run_sweep([cell(2), cell(3)], results, function=rate_of)
    assert [each.result["seed"] for each in read_records(results.path)] == [2, 3, 1]
    summary = run_sweep([cell(2), cell(3)], results, function=rate_of, prune=True)
    assert list(remarks(summary)) == [
        "already known, not run again: 2 of 2 cells",
        "removed: 1 result of other cells",
    ]
    assert [each.result["seed"] for each in read_records(results.path)] == [2, 3]


def test_the_later_of_two_runs_of_a_cell_is_kept(tmp_path: Path) -> None:
    first, second = Results(tmp_path, "x"), Results(tmp_path, "x")
    first.add(cell(1), {"run": 1})
    second.add(cell(1), {"run": 2})
    first.sort([cell(1)])
    assert [each.result for each in second.read().values()] == [{"run": 2}]
    assert len(first.path.read_text().splitlines()) == 1


def test_where_nothing_can_be_kept_nothing_is_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        Exception, match=r"results cannot be kept in .*x\.jsonl: (Not a directory|File exists)"
    ):
        Results(tmp_path / "file", "x")


# --- tasks ---


def done_by_index(tasks: list[Any], jobs: int) -> tuple[list[TaskOutcome], list[tuple[int, int]]]:
    steps: list[tuple[int, int]] = []
    done = run_tasks(work, tasks, jobs, lambda *each: steps.append(each))
    return sorted(done, key=lambda each: each.index), sorted(steps)


def test_one_failure_costs_nobody_else_anything() -> None:
    done, steps = done_by_index([2, "explained", 3, "broken", 4], 1)
    assert [each.result for each in done] == [4, None, 9, None, 16]
    assert done[1].failure == "this cannot be"
    assert done[3].failure is not None
    assert "ZeroDivisionError: a mistake of the program" in done[3].failure
    assert steps == [(0, 1), (2, 1), (4, 1)]


def test_workers_fail_alike_and_one_that_is_killed_is_replaced() -> None:
    done, steps = done_by_index([2, "explained", "killed", 3, 4], 2)
    assert [each.result for each in done] == [4, None, None, 9, 16]
    assert done[1].failure == "this cannot be"
    assert done[2].failure == "its process ended with status -9"
    assert steps == [(0, 1), (3, 1), (4, 1)]
    assert not multiprocessing.active_children()


def test_an_interruption_ends_what_is_running() -> None:
    def interrupt(_index: int, _steps: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(run_tasks(work, ["endless"], 2, interrupt))
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_everybody_leaves_a_worker_alone_that_has_hardly_begun(number: signal.Signals) -> None:
    before = set(multiprocessing.active_children())
    worker = _TaskWorker(work)
    (process,) = set(multiprocessing.active_children()) - before
    assert process.pid is not None
    os.kill(process.pid, number)
    worker.take(0, 3)
    worker.connection.recv()  # how far it is
    assert worker.connection.recv() == TaskOutcome(0, 9)
    worker.end()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


# --- sweeps ---


def test_a_sweep_runs_what_has_no_result_yet(tmp_path: Path) -> None:
    log, results = tmp_path / "log", Results(tmp_path, "x")
    function = partial(rate_of, log=log)
    first = run_sweep([cell(1), cell(2)], results, function=function)
    assert (first.known, first.complete) == (0, True)
    second = run_sweep([cell(3), cell(2), cell(1)], results, function=function)
    assert second.known == 2
    assert [second.records[each.digest].result["seed"] for each in second.cells] == [3, 2, 1]
    assert log.read_text().split() == ["1", "2", "3"]


def test_a_cell_that_fails_is_told_of_and_tried_again(tmp_path: Path) -> None:
    log, results = tmp_path / "log", Results(tmp_path, "x")
    swept = [cell(12), cell(13), cell(14)]
    for _ in range(2):
        summary = run_sweep(swept, results, function=partial(rate_of, log=log))
        assert not summary.complete
        assert summary.failures == {cell(13).digest: "13 brings bad luck"}
        assert {each.result["seed"] for each in summary.records.values()} == {12, 14}
    assert log.read_text().split() == ["12", "13", "14", "13"]


def test_a_failure_is_told_of_when_it_happens(tmp_path: Path) -> None:
    told: list[str] = []

    def interrupted(chosen: Settings, tell: Any) -> dict[str, Any]:
        if chosen.seed == 14:
            raise KeyboardInterrupt
        return rate_of(chosen, tell)

    with pytest.raises(KeyboardInterrupt):
        run_sweep(
            [cell(13), cell(14)],
            Results(tmp_path, "x"),
            function=interrupted,
            on_failure=lambda failed, why: told.append(f"{failed}: {why}"),
        )
    assert told == ["seed=13: 13 brings bad luck"]


def test_an_interrupted_sweep_keeps_what_is_finished(tmp_path: Path) -> None:
    results = Results(tmp_path, "x")

    def interrupted(chosen: Settings, tell: Any) -> dict[str, Any]:
        if chosen.seed == 2:
            raise KeyboardInterrupt
        return rate_of(chosen, tell)

    with pytest.raises(KeyboardInterrupt):
        run_sweep([cell(1), cell(2), cell(3)], results, function=interrupted)
    assert list(results.read()) == [cell(1).digest]
    assert run_sweep([cell(1), cell(2), cell(3)], results, function=rate_of).known == 1


def test_progress_counts_rounds_of_cells_that_are_left(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    run_sweep(
        [cell(1), cell(2)], Results(tmp_path, "x"), function=rate_of, progress=lambda *e: told.append(e)
    )
    assert told == [
        ("2 cells left", 5, 10),
        ("1 cell left", 5, 10),
        ("1 cell left", 10, 10),
        ("0 cells left", 10, 10),
    ]


# --- what people see ---


def shown(result: dict[str, Any], tmp_path: Path) -> Any:
    def function(chosen: Settings, tell: Any) -> dict[str, Any]:
        rate_of(chosen, tell)
        return result

    return run_sweep([cell(1), cell(13)], Results(tmp_path, "x"), function=function)


def test_a_table_has_a_row_for_every_model_and_failure(tmp_path: Path) -> None:
    series = {"mean_accuracy": [0.1, 0.9], "worst_tenth": [0, 0.5], "mean_loss": [2.0, 0.25]}
    result = {"series": {"common": series, "common_benign": {"mean_loss": [1.0, None]}}, "completed": 4}
    summary = shown(result, tmp_path)
    assert list(lines(summary)) == [
        "seed=1; common; accuracy 90.0 %; worst tenth 50.0 %; loss 0.25; rounds 4 of 5",
        "seed=1; common benign; loss diverged; rounds 4 of 5",
        "seed=13; rounds failed",
    ]
    drawn = table("title", summary)
    assert [column.header for column in drawn.columns] == [
        "seed",
        "model",
        "accuracy",
        "worst tenth",
        "loss",
        "rounds",
    ]
    assert drawn.row_count == len(list(rows(summary))) == 3
    found = as_json(summary)["cells"]
    assert found[0]["result"] == result
    assert found[1] == {"cell": {"seed": 13}, "digest": cell(13).digest, "failure": "13 brings bad luck"}


def test_rounds_that_were_not_completed_are_shown_with_the_first_reason(tmp_path: Path) -> None:
    series = {"common": {"mean_loss": [2.0]}, "personal": {"mean_loss": [1.0]}}
    failures = [[0, "nobody came"], [1, "nobody came back"]]
    summary = shown({"series": series, "completed": 3, "failures": failures}, tmp_path / "some")
    assert next(lines(summary)) == (
        "seed=1; common; loss 2; rounds 3 of 5; 3 of 5 rounds completed: nobody came"
    )
    assert list(troubles(summary)) == ["seed=1: 3 of 5 rounds completed: nobody came"]
    assert not in_vain(summary)
    assert in_vain(shown({"series": series, "completed": 0, "failures": failures}, tmp_path / "all"))


def test_observers_that_saw_nothing_anywhere_are_named(tmp_path: Path) -> None:
    observed: dict[str, Any] = {"multipliers": [], "movement": [[2, 0.1]]}
    summary = shown({"series": {}, "completed": 5, "observed": observed}, tmp_path)
    assert list(remarks(summary)) == ["evaluation.observe: multipliers had nothing to observe in any cell"]
