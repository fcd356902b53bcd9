"""``secagg simulate``: runs a scenario, or every cell (combination of settings) of its sweep."""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sims.cli import INTERRUPTED
from sims.cli.commands import Subparsers, UserError, require, user_errors
from sims.cli.options import add_value, whole
from sims.records.run_file_names import REPORT

if TYPE_CHECKING:
    from sims.scenario import Scenario
    from sims.scenario.settings import Settings
    from sims.sweep import Results, SweepSummary
    from sims.sweep.cell_tasks import CellTask
    from sims.sweep.run import RayJobs

CELLS_FAILED = 1
DATA_VARIABLE = "SECAGG_DATA"
MOST_PREDICTED = 8  # cells with noise for which a trial round tells whether they learn


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "simulate",
        help="run federated training as a scenario describes it",
        description="Run the simulation that SCENARIO describes, or one for every cell of its [sweep]. A "
        "finished cell is a line in a file of results and is not run again. Unless the scenario says "
        "otherwise, every cell has a directory with its ledger, its metrics and a checkpoint. Ctrl-C stops "
        "after the round, or at once if pressed again. --resume continues, also after a crash.",
        epilog="The exit status is 1 if a cell failed, or all rounds of one, and 2 if something is wrong "
        "with the scenario.",
    )
    text = "a file, such as mine.toml, or one that secagg scenarios lists, such as quickstart"
    parser.add_argument("scenario", type=Path, metavar="SCENARIO", help=text)
    parser.add_argument(
        "--set",
        action="append",
        metavar="KEY=VALUE",
        help="a key of the scenario, such as training.rate=0.1 or sweep.seed=[1,2], or the label of a case "
        "of its sweep, such as sweep.method=FedAvg; may be given several times (default None)",
    )
    text = (
        "cells that run at the same time, each in a process of its own, 1 to 256; or ray: as many as this "
        "machine has CPUs, on Ray; or ray=ADDRESS: on that Ray cluster, whose nodes share these directories"
    )
    parser.add_argument("--jobs", type=_jobs, default=1, metavar="N", help=f"{text} (default 1)")
    add_value(parser, "--out", Path, Path("results"), "DIR", "the directory of results")
    text = (
        "where the directories of data are that the scenario names; if not given, the variable "
        f"{DATA_VARIABLE}, and otherwise the current directory. Known results are kept if the data changes: "
        "use another --out then"
    )
    add_value(parser, "--data", Path, None, "DIR", text)
    again = parser.add_mutually_exclusive_group()
    again.add_argument(
        "--resume", action="store_true", help="continue unfinished runs from their checkpoints (default no)"
    )
    text = "begin unfinished runs, and runs with other settings, again (default no)"
    again.add_argument("--restart", action="store_true", help=text)
    text = "run two rounds with the first value of every axis, as a test (default no)"
    parser.add_argument("--quick", action="store_true", help=text)
    text = "remove results of cells that the scenario no longer has; not with --set (default no)"
    parser.add_argument("--prune", action="store_true", help=text)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table (default a table)")
    parser.set_defaults(run=run, extra="sims")


def run(args: argparse.Namespace) -> int:
    require("fl")
    from secagg.errors import LocalError
    from sims.sweep.summary_view import in_vain

    if args.prune and args.set:
        raise UserError("secagg simulate: --prune needs the scenario as it is in its file: remove --set")
    with user_errors("simulate", LocalError):
        scenario, results = _prepared(args)
        tasks = _planned(args, scenario, results)
        _say_expected(args, scenario)
        summary = _swept(args, scenario, results, tasks)
    if summary.stopped:
        return _say_stopped(args, summary, tasks)
    _show(args, scenario, results, summary)
    return CELLS_FAILED if not summary.complete or in_vain(summary) else 0


def _jobs(text: str) -> "int | RayJobs":
    """Parse the number of processes for the cells of a sweep, or where Ray runs them."""
    word, _, address = text.partition("=")
    if word != "ray":
        return whole(1, 256)(text)
    from sims.sweep.run import RayJobs

    return RayJobs(address) if address else RayJobs()


def _prepared(args: argparse.Namespace) -> "tuple[Scenario, Results]":
    from secagg.errors import LocalError
    from sims.runtime.ray.cluster import require_ray
    from sims.scenario import check_files, load
    from sims.scenario.federated_data import check_own_data
    from sims.scenario.overrides_and_axes import parsed
    from sims.scenario.shipped import find
    from sims.sweep import Results

    path, changes, data = find(args.scenario), parsed(args.set or ()), _data(args)
    try:
        scenario = load(path, changes, quick=args.quick)
    except LocalError:
        load(path, changes, quick=args.quick, data=data)  # also reports missing files
        raise
    known = _known(args.out / f"{scenario.name}.jsonl")
    left = [each.settings for each in scenario.variants if each.digest not in known]
    if not isinstance(args.jobs, int) or any(each.channel.kind == "ray" for each in left):
        require_ray()
    check_files(scenario, left, data)
    check_own_data(scenario.path, left, data)
    return scenario, Results(args.out, scenario.name, needed=("series", "completed"))


def _known(kept: Path) -> set[str]:
    """Return the digests of all cells (sets of settings) in the results file `kept`; empty if unreadable."""
    from sims.sweep import read_records

    return {each.digest for each in read_records(kept)} if os.access(kept, os.R_OK) else set()


def _data(args: argparse.Namespace) -> Path:
    """Return the directory with the scenario's data: --data, else $SECAGG_DATA, else the current one."""
    return args.data if args.data is not None else Path(os.environ.get(DATA_VARIABLE, ""))


def _planned(args: argparse.Namespace, scenario: "Scenario", results: "Results") -> "dict[str, CellTask]":
    from sims.sweep.cell_tasks import plan_tasks

    return plan_tasks(
        scenario.variants, results, out=args.out, name=scenario.name, resume=args.resume, restart=args.restart
    )


def _say_expected(args: argparse.Namespace, scenario: "Scenario") -> None:
    """Print, for cells with noise that are to be run, whether they can learn."""
    known = _known(args.out / f"{scenario.name}.jsonl")
    left = [
        each for each in scenario.variants if each.settings.privacy is not None and each.digest not in known
    ]
    for cell in left[:MOST_PREDICTED]:
        _say_learning(f"{cell}: " if cell.key else "", cell.settings, _data(args))
    if len(left) > MOST_PREDICTED:
        _say(f"whether the other {len(left) - MOST_PREDICTED} cells with noise learn was not predicted")


def _say_learning(name: str, settings: "Settings", root: Path) -> None:
    """Print whether a simulation with noise can learn. A mistake in its settings is left to the run itself,
    which reports it with the cell that it belongs to."""
    from fl.errors import FLError
    from secagg.errors import SecaggError
    from sims.config_problems import ConfigError
    from sims.plan.signal_and_noise import verdict
    from sims.simulation.expected_signal import expected_signal

    try:
        found = expected_signal(settings, root)
    except (FLError, SecaggError, ConfigError):
        return
    if found is not None:
        _say(f"{'WARNING: ' if found.effect.warns else ''}{name}will it learn? {verdict(found)}")


def _swept(
    args: argparse.Namespace, scenario: "Scenario", results: "Results", tasks: "Mapping[str, CellTask]"
) -> "SweepSummary":
    from sims.console_progress import shown_progress
    from sims.sweep import run_sweep
    from sims.sweep.cell_tasks import run_task
    from sims.sweep.parallel_tasks import StopRequest
    from sims.sweep.run import stopped_by_signals
    from sims.text_format import counted

    own, stopping = scenario.variants, StopRequest()
    kept = any(task.directory is not None for task in tasks.values())
    try:
        with (
            stopped_by_signals(stopping, _say_stopping) if kept else nullcontext(),
            shown_progress(_say) as progress,
        ):
            return run_sweep(
                own,
                results,
                function=partial(run_task, root=_data(args)),
                jobs=args.jobs,
                progress=progress,
                on_failure=lambda cell, failure: _say(f"{cell}: {failure}"),
                prune=args.prune,
                task=lambda cell: tasks[cell.digest],
                stopping=stopping,
            )
    except KeyboardInterrupt:
        done = results.read()
        finished = sum(cell.digest in done for cell in own)
        how = "the same command with --resume" if kept else "the same command"
        _say(
            f"interrupted; {finished} of {counted(len(own), 'cell')} are in {results.path}, and {how} "
            "runs the rest"
        )
        raise


def _say_stopping() -> None:
    _say("stopping after this round; press again to stop at once and lose the round")


def _say_stopped(args: argparse.Namespace, summary: "SweepSummary", tasks: "Mapping[str, CellTask]") -> int:
    """Print where runs that a signal stopped are saved, and how to resume them. Return exit status 130."""
    for cell in summary.stopped:
        directory = tasks[cell.digest].directory
        assert directory is not None  # only runs with a directory can be stopped
        facts = directory.facts()
        _say(f"{cell}: stopped after {facts['done']} of {facts['rounds']} rounds, and saved in {directory}")
    _say(f"to resume: {_again(args)}")
    return INTERRUPTED


def _again(args: argparse.Namespace) -> str:
    """Return the command line with which a user resumes this stopped `secagg simulate`."""
    words = ["secagg", "simulate", str(args.scenario), "--resume"]
    for change in args.set or ():
        words += ["--set", change]
    for name in ("out", "data", "jobs"):
        if getattr(args, name) not in (None, Path("results"), 1):
            words += [f"--{name}", str(getattr(args, name))]
    words += ["--quick"] if args.quick else []
    return shlex.join(words)


def _say(text: str) -> None:
    print(f"secagg simulate: {text}", file=sys.stderr)


def _say_kept(
    args: argparse.Namespace, scenario: "Scenario", results: "Results", summary: "SweepSummary"
) -> None:
    """Write missing reports. Print where the runs are, and how many results have lost their run directory."""
    from sims.sweep.cell_tasks import without_run
    from sims.text_format import counted

    kept = [cell for cell in summary.cells if cell.settings.output.keep == "run"]
    gone = without_run(args.out, scenario.name, kept)
    where = args.out / scenario.name
    if len(gone) < len(kept):
        _say(f"kept in {where}: see {_page(where)}, and check it with secagg audit {where}")
    if known := sum(cell.digest in summary.records for cell in gone):
        _say(
            f"the runs of {known} of {counted(len(kept), 'cell')} are no longer in {where}: "
            f"the numbers are those of {results.path}; use another --out to run them again"
        )


def _page(where: Path) -> str:
    """Write the reports of single runs in `where` that lack one, and the report of all runs. Return the path
    of the latter. If this fails, print why, and return words that say how to write the report."""
    from secagg.errors import LocalError
    from sims.records import find_runs
    from sims.report import write_report

    try:
        for run in find_runs(where):
            if run.path != where and not (run / REPORT).exists():
                write_report(run.path)
        return str(write_report(where))
    except LocalError as error:
        _say(f"no report was written: {error}")
        return f"it with secagg report {where}"


def _show(
    args: argparse.Namespace, scenario: "Scenario", results: "Results", summary: "SweepSummary"
) -> None:
    from sims.console_progress import Console
    from sims.sweep.summary_view import as_json, lines, remarks, table, troubles

    for remark in remarks(summary):
        _say(remark)
    _say_kept(args, scenario, results, summary)
    if args.json:
        print(json.dumps({"name": scenario.name, "results": str(results.path), **as_json(summary)}, indent=2))
    elif sys.stdout.isatty():
        Console().print(table(scenario.name, summary))
        for trouble in troubles(summary):
            print(trouble)
    else:
        print("\n".join(lines(summary)))
