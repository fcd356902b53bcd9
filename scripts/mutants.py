"""Remove each guard of ``secagg`` in turn, and check that a test notices.

    python -m scripts.mutants

`mutant_guards` says what a guard is: for example a ``raise`` of an error that says a peer misbehaved, a
policy was broken or a sum failed. Privacy rests on the guards, and line coverage shows only that a test
reached one, not that the test would fail without it. So each guard is replaced, for example by ``pass``, in a
scratch copy of the repository, and the tests that executed it are run there: if they all pass, the guard has
survived being removed, and a test is missing.

Exit status: 0 if no guard survived, 1 if one did, 2 if the tests fail even with every guard there.
"""

import argparse
import contextlib
import os
import queue
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from coverage import CoverageData

from scripts.mutant_guards import Guard, find_guards, guard_classes, guarded_sources, without

ROOT = Path(__file__).resolve().parent.parent
WORKERS = 2
# The tests of the package whose guards are removed. Only these have to pass before the first mutant.
TESTS = ("tests/secagg", "tests/attacks")

# Without a guard on sizes, a test may ask for any amount of memory. It should get an error for
# that, rather than take down the machine.
MEMORY_LIMIT = 8 * 2**30

# Bytecode must not be in a copy: Python takes it for current if the source's size and time in
# whole seconds are the same, which they can be for two mutants of one file.
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", ".coverage*", "*.egg-info"
)

# Hypothesis' own profile "ci" draws the same examples in every run.
PYTEST = (
    *(sys.executable, "-m", "pytest", "-x", "-q"),
    *("-p", "no:cacheprovider", "--hypothesis-profile=ci"),
)

# "0.02s call     tests/secagg/test_a.py::test_b[some case]"
DURATION = re.compile(r"^(\d+\.\d+)s (?:setup|call|teardown) +(.+?) *$", re.MULTILINE)


class Outcome(Enum):
    """What became of a mutant."""

    KILLED = "killed"
    TIMED_OUT = "killed by running out of time"
    SURVIVED = "its tests pass without it"
    NEVER_EXECUTED = "no test executes it"
    NOT_RUN = "its tests could not be run"

    @property
    def killed(self) -> bool:
        return self in (Outcome.KILLED, Outcome.TIMED_OUT)


@dataclass(frozen=True)
class Run:
    """The tests that judge guards, as pytest takes them, and how many processes run them."""

    tests: tuple[str, ...]
    workers: int


class BrokenBaseline(Exception):
    """The unchanged copy does not pass its tests, so no mutant can be judged."""


# Running tests in a copy


@dataclass(frozen=True)
class Copy:
    """A scratch copy of the repository, in which one test run at a time takes place."""

    root: Path

    def check_shadows_installed(self) -> None:
        """Make sure that tests here import this copy's ``secagg``, not the installed one."""
        # -P keeps the working directory out of the search: PYTHONPATH alone has to do it.
        command = [sys.executable, "-P", "-c", "import secagg.errors as e; print(e.__file__)"]
        shown = subprocess.run(
            command, cwd=self.root, env=self.environment(), capture_output=True, check=True
        )
        imported = Path(os.fsdecode(shown.stdout).strip())
        if not imported.is_relative_to(self.root):
            raise BrokenBaseline(f"the tests would import {imported}, outside {self.root}")

    def environment(self) -> dict[str, str]:
        return os.environ | {
            "PYTHONPATH": str(self.root),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
            # The other ways in which coverage can measure do not record which test ran a line.
            "COVERAGE_CORE": "ctrace",
        }

    @contextlib.contextmanager
    def mutated(self, guard: Guard) -> Iterator[None]:
        path = self.root / guard.path
        original = path.read_text(encoding="utf-8")
        path.write_text(without(original, guard), encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(original, encoding="utf-8")

    def pytest(self, *options: str, timeout: float | None = None) -> tuple[int, str]:
        """Run pytest, and return its exit status and output, or raise ``TimeoutExpired``."""
        # A session of its own, so that what a test has started ends with it.
        with subprocess.Popen(
            [*PYTEST, *options],
            cwd=self.root,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=timeout)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        return process.returncode, output.decode(errors="replace")


@contextlib.contextmanager
def copies(count: int) -> Iterator[list[Copy]]:
    """Yield ``count`` copies of the repository that last as long as the context."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        # Coverage records resolved paths.
        roots = [Path(folder).resolve() / str(number) for number in range(count)]
        for root in roots:
            shutil.copytree(ROOT, root, ignore=NOT_COPIED)
        yield [Copy(root) for root in roots]


# Judging mutants


@dataclass(frozen=True)
class Baseline:
    """What a run of the tests on the unchanged sources showed."""

    tests: Mapping[tuple[str, int], frozenset[str]]  # by path and line
    seconds: Mapping[str, float]  # by test

    def tests_of(self, guard: Guard) -> list[str]:
        """Return the tests that execute ``guard``, the quickest first: most guards need only one of them."""
        # Which line of a statement counts as executed differs between versions of Python.
        lines = range(guard.line, guard.end_line + 1)
        found = {test for line in lines for test in self.tests.get((guard.path, line), ())}
        return sorted(found, key=lambda test: (self.seconds.get(test, 0), test))

    def timeout(self, tests: Iterable[str]) -> float:
        """Return far more seconds than ``tests`` take together, even on a busy machine."""
        return 60 + 10 * sum(self.seconds.get(test, 0) for test in tests)


def measure(copy: Copy, paths: Iterable[str], run: Run) -> Baseline:
    """Run all tests that are not slow, and record which of them execute which lines."""
    status, output = copy.pytest(
        f"--numprocesses={run.workers}",
        *run.tests,
        *("--cov", "--cov-context=test", "--cov-report=", "--cov-fail-under=0", "--durations=0"),
    )
    if status != 0:
        raise BrokenBaseline(f"the tests fail with every guard there:\n{output}")
    return Baseline(_tests_by_line(copy, paths), seconds_by_test(output))


def seconds_by_test(output: str) -> dict[str, float]:
    """Return how long each test took, with what it set up, from what pytest printed of durations."""
    seconds: dict[str, float] = {}
    for taken, test in DURATION.findall(output):
        seconds[test] = seconds.get(test, 0) + float(taken)
    return seconds


def _tests_by_line(copy: Copy, paths: Iterable[str]) -> dict[tuple[str, int], frozenset[str]]:
    data = CoverageData(str(copy.root / ".coverage"))
    data.read()
    return {
        (path, line): frozenset(_test(context) for context in contexts if context)
        for path in paths
        for line, contexts in data.contexts_by_lineno(str(copy.root / path)).items()
    }


def _test(context: str) -> str:
    # A context is the test's name and its phase, such as "tests/test_a.py::test_b|run".
    return context.rpartition("|")[0]


def judge(copy: Copy, guard: Guard, baseline: Baseline) -> Outcome:
    """Run the tests of ``guard`` without it."""
    tests = baseline.tests_of(guard)
    if not tests:
        return Outcome.NEVER_EXECUTED
    # In a file, because there can be more tests than fit on a command line.
    listing = copy.root / "mutant-tests.txt"
    listing.write_text("\n".join(tests), encoding="utf-8")
    with copy.mutated(guard):
        try:
            status, _ = copy.pytest(f"@{listing}", timeout=baseline.timeout(tests))
        except subprocess.TimeoutExpired:
            return Outcome.TIMED_OUT
    return _outcome(status)


def _outcome(status: int) -> Outcome:
    if status == 0:
        return Outcome.SURVIVED
    # 1 is a failed test and 2 one that could not be imported; below 0 is a crash. The others, such
    # as "no tests found", say nothing about the guard, so they must not pass for a kill.
    return Outcome.KILLED if status in (1, 2) or status < 0 else Outcome.NOT_RUN


Report = Callable[[Mapping[Guard, Outcome]], None]


def judge_all(guards: Sequence[Guard], run: Run, report: Report) -> dict[Guard, Outcome]:
    """Judge every guard, several at a time, calling ``report`` after each one."""
    outcomes: dict[Guard, Outcome] = {}
    with copies(run.workers) as made:
        for copy in made:
            copy.check_shadows_installed()
        baseline = measure(made[0], {guard.path for guard in guards}, run)
        for guard, outcome in _judged(guards, baseline, made):
            outcomes[guard] = outcome
            report(outcomes)
    return {guard: outcomes[guard] for guard in guards}


def _judged(
    guards: Sequence[Guard], baseline: Baseline, made: Sequence[Copy]
) -> Iterator[tuple[Guard, Outcome]]:
    free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    for copy in made:
        free.put(copy)

    def work(guard: Guard) -> Outcome:
        copy = free.get()
        try:
            return judge(copy, guard, baseline)
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(made)) as pool:
        futures = {pool.submit(work, guard): guard for guard in guards}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            # After an interrupt, the mutants not yet begun are not waited for.
            pool.shutdown(cancel_futures=True)


# The command


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    found = find_guards(guarded_sources(ROOT), guard_classes())
    guards = [guard for guard in found if any(text in str(guard) for text in args.only or [""])]
    if args.list:
        print(*guards, sep="\n")
        return 0
    _limit_memory()
    try:
        outcomes = judge_all(guards, Run(tuple(args.tests), args.workers), _progress(len(guards)))
    except BrokenBaseline as error:
        print(error, file=sys.stderr)
        return 2
    return _summarize(outcomes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Check that a test notices each guard's removal.")
    parser.add_argument("--list", action="store_true", help="only list the guards")
    parser.add_argument(
        "--only",
        action="append",
        metavar="SUBSTRING",
        help="only the guards whose path, line or text contains this (may be repeated)",
    )
    parser.add_argument("--workers", type=int, default=WORKERS, help=f"processes (default {WORKERS})")
    parser.add_argument(
        "tests",
        nargs="*",
        default=TESTS,
        help="only these tests, as pytest takes them: a guard that they kill is killed, another may not be "
        f"(default {' '.join(TESTS)})",
    )
    return parser


def _limit_memory() -> None:
    # Every test run inherits the limit. Some systems refuse it, and there it is done without.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))


def _progress(total: int) -> Report:
    """Return what shows progress: one line on a terminal, a line for every tenth guard elsewhere."""
    terminal = sys.stderr.isatty()

    def show(outcomes: Mapping[Guard, Outcome]) -> None:
        done = len(outcomes)
        if not (terminal or done == total or done % 10 == 0):
            return
        survived = sum(not outcome.killed for outcome in outcomes.values())
        start, end = ("\r", "\n" if done == total else "") if terminal else ("", "\n")
        print(f"{start}{done} of {total} guards, {survived} survived", end=end, file=sys.stderr, flush=True)

    print("first, the tests with every guard there ...", file=sys.stderr, flush=True)
    return show


def _summarize(outcomes: Mapping[Guard, Outcome]) -> int:
    survivors = {guard: outcome for guard, outcome in outcomes.items() if not outcome.killed}
    timed_out = [guard for guard, outcome in outcomes.items() if outcome is Outcome.TIMED_OUT]
    for guard, outcome in survivors.items():
        print(f"survived: {guard}\n    {outcome.value}")
    for guard in timed_out:
        print(f"killed by running out of time: {guard}")
    killed = len(outcomes) - len(survivors)
    print(f"{len(outcomes)} guards, {killed} killed, {len(survivors)} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
