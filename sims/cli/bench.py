"""``secagg bench``: what secure sums cost on this machine.

``secagg bench primitives`` runs one benchmark with its options, ``secagg bench`` all of them as they are.
A benchmark is an entry of `BENCHMARKS`.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from sims.cli.errors import UserError
from sims.cli.numbers import whole
from sims.cli.registry import Subparsers


class Report(Protocol):
    """What a benchmark found."""

    def as_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Benchmark:
    """A name with options, something that measures, and something that draws the result."""

    name: str
    summary: str
    add_options: Callable[[argparse.ArgumentParser], None]
    measure: Callable[[argparse.Namespace], Report]
    show: Callable[[Report], None]


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("bench", help="measure what secure sums cost on this machine")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK")
    defaults = {}
    for benchmark in BENCHMARKS:
        child = chosen.add_parser(benchmark.name, help=benchmark.summary)
        benchmark.add_options(child)
        defaults[benchmark.name] = child.parse_args([])
        # Suppressed unless given, or it would overwrite the same option before the benchmark's name.
        child.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
        child.set_defaults(run=partial(_run_one, benchmark))
    parser.set_defaults(run=partial(_run_all, defaults), extra="sims")


def _run_one(benchmark: Benchmark, args: argparse.Namespace) -> int:
    return _run({benchmark: args}, as_json=args.json)


def _run_all(defaults: dict[str, argparse.Namespace], args: argparse.Namespace) -> int:
    return _run({each: defaults[each.name] for each in BENCHMARKS}, as_json=args.json)


def _run(chosen: dict[Benchmark, argparse.Namespace], *, as_json: bool) -> int:
    reports = {benchmark: _measured(benchmark, args) for benchmark, args in chosen.items()}
    if as_json:
        print(json.dumps({each.name: report.as_json() for each, report in reports.items()}, indent=2))
        return 0
    for benchmark, report in reports.items():
        benchmark.show(report)
    return 0


def _measured(benchmark: Benchmark, args: argparse.Namespace) -> Report:
    from secagg.errors import LocalError

    try:
        return benchmark.measure(args)
    except LocalError as error:
        raise UserError(f"secagg bench {benchmark.name}: {error}") from None


def progress(text: str) -> None:
    """Say what is being done, where somebody is watching and the output is not being kept."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


# --- primitives ---


def _primitives_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clients", type=whole(3, 1024), default=100, help="size of the cohort")
    parser.add_argument("--dim", type=whole(1, 1 << 24), default=1000, help="elements of the vector")
    parser.add_argument("--sums", type=whole(1, 64), default=3, help="sums in the session")
    parser.add_argument("--bits", type=whole(1, 64), default=24, help="bits sent for each element")


def _measure_primitives(args: argparse.Namespace) -> Report:
    from sims.bench.primitives import Setting, measure

    return measure(Setting(args.clients, args.dim, args.sums, args.bits), progress)


def _show_primitives(report: Report) -> None:
    from rich.console import Console

    from sims.bench.primitives import PrimitivesReport
    from sims.bench.view import show_primitives

    assert isinstance(report, PrimitivesReport)
    show_primitives(report, Console())


BENCHMARKS = (
    Benchmark(
        "primitives",
        "CPU time per client and sum, split by primitive",
        _primitives_options,
        _measure_primitives,
        _show_primitives,
    ),
)
