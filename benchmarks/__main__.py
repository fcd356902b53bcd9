"""Measure what secure sums cost on this machine.

python -m benchmarks sum --clients 50               # one benchmark, with its options
python -m benchmarks                                # all of them, with their defaults
python -m benchmarks --write docs/benchmarks.md     # those of the page, at many sizes
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.options import Benchmark, Flag, Report
from benchmarks.registry import BENCHMARKS
from sims.cli import CommandParser, run_command
from sims.cli.commands import UserError

_PROGRAM = "python -m benchmarks"
_JSON_HELP = "print JSON instead of tables (default tables)"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark that ``argv`` (by default the process's arguments) asks for."""
    return run_command(_parser(), argv)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog=_PROGRAM, description="Measure what secure sums cost on this machine.")
    parser.add_argument("--json", action="store_true", help=_JSON_HELP)
    _add_page_options(parser)
    for option in {option.name: option for benchmark in BENCHMARKS for option in benchmark.options}.values():
        parser.add_argument(
            option.name,
            action=_Misplaced,
            nargs=0 if isinstance(option, Flag) else None,
            default=argparse.SUPPRESS,
            help=argparse.SUPPRESS,
        )
    chosen = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", prog=parser.prog)
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
    return parser


def _add_page_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--write",
        type=Path,
        metavar="PAGE",
        help="measure at many sizes, which takes a quarter of an hour, and write a page of Markdown with its "
        "plots beside it (default None)",
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--long",
        action="store_true",
        help="with --write: ten million elements too, for which Flower takes 8 minutes and 5 GB",
    )
    size.add_argument(
        "--quick",
        action="store_true",
        help="with --write: sizes so small that the page is there in seconds and says nothing",
    )


class _Misplaced(argparse.Action):
    """A benchmark's option before its name. Without this class, its value would be parsed as the name."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        _namespace: argparse.Namespace,
        value: object,
        name: str | None = None,
    ) -> None:
        takers = [each.name for each in BENCHMARKS if name in {option.name for option in each.options}]
        words = f"{name} {value}" if value else name
        hints = " or ".join(f"{parser.prog} {taker} {words}" for taker in takers)
        raise UserError(f"{parser.prog}: {name} belongs behind the name of a benchmark (try {hints})")


def _run_one(benchmark: Benchmark, args: argparse.Namespace) -> int:
    if args.write is not None:
        raise UserError(f"{_PROGRAM}: --write has its own sizes: leave out --write or {benchmark.name}")
    _refuse_page_options(args)
    report = _measured(benchmark, args)
    if args.json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        benchmark.show(report)
    return 0


def _refuse_page_options(args: argparse.Namespace) -> None:
    for name in ("long", "quick"):
        if getattr(args, name):
            raise UserError(f"{_PROGRAM}: --{name} goes with --write")


def _run_all(defaults: dict[str, argparse.Namespace], args: argparse.Namespace) -> int:
    """Run every benchmark with its defaults; in JSON, each is under its name."""
    if args.write is not None:
        return _write(args)
    _refuse_page_options(args)
    reports = {each: _measured(each, defaults[each.name]) for each in BENCHMARKS if _possible(each)}
    if args.json:
        print(json.dumps({each.name: report.as_json() for each, report in reports.items()}, indent=2))
        return 0
    for benchmark, report in reports.items():
        benchmark.show(report)
    return 0


def _possible(benchmark: Benchmark) -> bool:
    from secagg.errors import LocalError

    try:
        benchmark.check()
    except LocalError as error:
        print(f"{_PROGRAM}: {benchmark.name} is left out: {error}", file=sys.stderr)
        return False
    return True


def _measured(benchmark: Benchmark, args: argparse.Namespace) -> Report:
    with _told(f"{_PROGRAM} {benchmark.name}"):
        return benchmark.measure(args)


@contextmanager
def _told(who: str) -> Iterator[None]:
    """Report the error of a benchmark that cannot run."""
    from benchmarks.remote_server import BenchmarkFailed
    from secagg.errors import LocalError

    try:
        yield
    except (LocalError, BenchmarkFailed) as error:
        raise UserError(f"{who}: {error}") from None


def _write(args: argparse.Namespace) -> int:
    """Measure what the page shows, and write it."""
    from benchmarks.page import check_writable, write_page
    from benchmarks.page_measurements import survey
    from benchmarks.page_plan import FULL, LONG, QUICK
    from benchmarks.promised_limits import verdict
    from sims.console_progress import bar

    with _told(_PROGRAM):
        check_writable(args.write)  # before the measurement, which takes long
        with bar() as progress:
            found = survey(QUICK if args.quick else LONG if args.long else FULL, progress)
    write_page(found, args.write)
    if found.absent:
        print(f"{_PROGRAM}: {found.absent}", file=sys.stderr)
    print(json.dumps(found.as_json(), indent=2) if args.json else verdict(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
