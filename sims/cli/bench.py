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
from sims.cli.options import Whole
from sims.cli.registry import Subparsers

_JSON_HELP = "print JSON instead of tables (default tables)"


class Report(Protocol):
    """What a benchmark found."""

    def as_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Benchmark:
    """A name with options, something that measures, and something that draws the result."""

    name: str
    summary: str
    options: tuple[Whole, ...]
    measure: Callable[[argparse.Namespace], Report]
    show: Callable[[Report], None]


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("bench", help="measure what secure sums cost on this machine")
    parser.add_argument("--json", action="store_true", help=_JSON_HELP)
    for name in {option.name for benchmark in BENCHMARKS for option in benchmark.options}:
        parser.add_argument(name, action=_Misplaced, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    chosen = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK")
    defaults = {}
    for benchmark in BENCHMARKS:
        child = chosen.add_parser(benchmark.name, help=benchmark.summary)
        for option in benchmark.options:
            option.add(child)
        defaults[benchmark.name] = child.parse_args([])
        # Suppressed unless given, or it would overwrite the same option before the benchmark's name.
        child.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=_JSON_HELP)
        child.set_defaults(run=partial(_run_one, benchmark))
    parser.set_defaults(run=partial(_run_all, defaults), extra="sims")


class _Misplaced(argparse.Action):
    """A benchmark's option before its name. Without this, its value would be taken for the name."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        _namespace: argparse.Namespace,
        value: object,
        name: str | None = None,
    ) -> None:
        takers = [each.name for each in BENCHMARKS if name in {option.name for option in each.options}]
        hints = " or ".join(f"{parser.prog} {taker} {name} {value}" for taker in takers)
        raise UserError(f"{parser.prog}: {name} belongs behind the name of a benchmark (try {hints})")


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


PRIMITIVES_OPTIONS = (
    Whole("--clients", 3, 1024, 100, "size of the cohort"),
    Whole("--dim", 1, 1 << 24, 1000, "elements of the vector"),
    Whole("--sums", 1, 64, 3, "sums in the session"),
    Whole("--bits", 1, 64, 32, "bits sent for each element"),
)


def _measure_primitives(args: argparse.Namespace) -> Report:
    from sims.bench.primitives import Setting, measure

    return measure(Setting(args.clients, args.dim, args.sums, args.bits), progress)


def _show_primitives(report: Report) -> None:
    from sims.bench.primitives import PrimitivesReport
    from sims.bench.view import show_primitives
    from sims.console import Console

    assert isinstance(report, PrimitivesReport)
    show_primitives(report, Console())


BENCHMARKS = (
    Benchmark(
        "primitives",
        "CPU time per client and sum, split by primitive",
        PRIMITIVES_OPTIONS,
        _measure_primitives,
        _show_primitives,
    ),
)
