"""The mutation test's own parts: which statements it takes for guards, and how it removes them."""

from pathlib import Path

import pytest

from scripts import mutant_guards, mutants
from scripts.mutant_conditions import CHANGES, Change
from scripts.mutant_guards import Guard
from scripts.mutants import Baseline, Copy, Outcome, Run

CLASSES = frozenset({"PeerError", "BadVector", "SumFailed"})


def guards_in(source: str, *changes: Change) -> list[Guard]:
    return mutant_guards.find_guards({"secagg/x.py": source}, CLASSES, changes)


@pytest.mark.parametrize(
    "statement",
    [
        "raise PeerError",
        "raise PeerError('why')",
        "raise BadVector('why') from None",
        "raise errors.BadVector('why')",
        "raise secagg.errors.SumFailed",
        "if x: raise PeerError",
        "from secagg.errors import PeerError as Bad\nraise Bad(1)",
        "class Worse(PeerError): pass\nclass Worst(Worse): pass\nraise Worst",
        "def blame() -> PeerError: ...\nraise blame()",
        "def blame() -> 'BadVector | SumFailed': ...\nraise blame()",
        "class A:\n    def _no(self) -> errors.BadVector: ...\n    def f(self): raise self._no(1)",
        "raise SumFailed.only(3)",
        "raise errors.SumFailed.only(3)",
    ],
)
def test_guard_is_found(statement: str) -> None:
    assert len(guards_in(statement)) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "raise",
        "raise ValueError",
        "raise errors.LocalError('why')",
        "raise error",
        "raise errors[0]('PeerError')",
        "from secagg.errors import LocalError as Bad\nraise Bad(1)",
        "class Other(ValueError): pass\nraise Other",
        "def blame() -> ValueError: ...\nraise blame()",
        "def blame(): ...\nraise blame()",
        "PeerError('made but not raised')",
    ],
)
def test_other_statement_is_no_guard(statement: str) -> None:
    assert guards_in(statement) == []


def test_helper_of_another_module_is_known() -> None:
    sources = {
        "secagg/a.py": "def blame() -> PeerError: ...",
        "secagg/b.py": "from secagg.a import blame\nraise blame()",
    }

    assert [guard.path for guard in mutant_guards.find_guards(sources, CLASSES)] == ["secagg/b.py"]


def test_guard_is_shown_with_its_place_and_first_line() -> None:
    (guard,) = guards_in("if x:\n    raise PeerError(\n        'why'\n    )\n")

    assert str(guard) == "secagg/x.py:2: raise PeerError("
    assert (guard.line, guard.end_line) == (2, 4)


def test_classes_are_those_of_peers_policies_and_failed_sums() -> None:
    classes = mutant_guards.guard_classes()

    assert {"PeerError", "PolicyError", "SumFailed", "TooFewClients", "CorruptTotal", "Unproven"} <= classes
    assert classes.isdisjoint({"SecaggError", "LocalError", "InputError", "StateError"})


def test_sources_leave_out_testing(tmp_path: Path) -> None:
    for name in ("secagg/a.py", "secagg/deep/b.py", "secagg/testing/c.py", "sims/d.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    assert list(mutant_guards.guarded_sources(tmp_path)) == ["secagg/a.py", "secagg/deep/b.py"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("if x:\n    raise PeerError(1)\n", "if x:\n    pass\n"),
        (
            "if x:\n    y()\nelse:\n    raise PeerError\nz()\n",
            "if x:\n    y()\nelse:\n    pass\nz()\n",
        ),
        (
            "try:\n    y()\nexcept KeyError as e:\n    raise PeerError(1) from e\n",
            "try:\n    y()\nexcept KeyError as e:\n    pass\n",
        ),
        (
            "if x:\n    raise PeerError(\n        1,\n        2,\n    ) from None  # why\nz()\n",
            "if x:\n    pass  # why\nz()\n",
        ),
        ("if x: raise PeerError; y()\n", "if x: pass; y()\n"),
        ("def f(): raise PeerError", "def f(): pass"),
        ("s = 'é'; raise PeerError('é', 'ü'); t = 'ß'\n", "s = 'é'; pass; t = 'ß'\n"),
        ("s = '\\x0c\u2028'\nif s:\n    raise PeerError\n", "s = '\\x0c\u2028'\nif s:\n    pass\n"),
        ("if x:\n    raise PeerError(\n        'ü') ; y()\n", "if x:\n    pass ; y()\n"),
    ],
)
def test_guard_is_replaced_by_pass(source: str, expected: str) -> None:
    (guard,) = guards_in(source)

    changed = mutant_guards.without(source, guard)

    assert changed == expected
    compile(changed, "x.py", "exec")


# Calls and conditions

CHECK = "def check(x):\n    if x: raise PeerError\n"


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        (f"{CHECK}check(1)\n", [2]),  # without its raise, the one call does nothing
        (f"{CHECK}check(1)\ncheck(2)\n", [2, 3, 4]),
        (f"{CHECK}a.check(1)\nself.b.check(2)\n", [2, 3, 4]),
        (f"{CHECK}y = check(1)\ncheck(2)\n", [2]),  # only a statement can be left out
        (f"{CHECK}def check_all():\n    check(1)\ncheck_all()\ncheck_all()\n", [2, 5, 6]),
        ("def load(x):\n    raise PeerError\nload(1)\nload(2)\n", [2]),  # it does more than to check
        ("def check(x):\n    raise ValueError\ncheck(1)\ncheck(2)\n", []),
        ("def _need(x):\n    raise PeerError\n_need(1)\n_need(2)\n", [2, 3, 4]),
    ],
)
def test_each_of_several_calls_of_a_check_is_a_guard(source: str, lines: list[int]) -> None:
    assert [guard.line for guard in guards_in(source)] == lines


@pytest.mark.parametrize(
    ("condition", "mutants"),
    [
        ("a", []),
        ("a and b", []),
        ("a or b", ["False or b", "a or False"]),
        ("a and (b or not c)", ["a and (False or not c)", "a and (b or False)"]),
        ("a > 1 or\\\n  b", ["False or\\\n  b", "a > 1 or\\\n  False"]),
    ],
)
def test_each_alternative_of_a_condition_is_a_guard(condition: str, mutants: list[str]) -> None:
    source = f"if {condition}:\n    raise PeerError\n"

    *parts, whole = guards_in(source)

    assert whole.text == "raise PeerError"
    expected = [f"if {each}:\n    raise PeerError\n" for each in mutants]
    assert [mutant_guards.without(source, part) for part in parts] == expected


def test_a_condition_of_something_else_is_no_guard() -> None:
    source = "if a or b:\n    c()\n    raise PeerError\nif a or b:\n    raise ValueError\n"

    assert [guard.text for guard in guards_in(source)] == ["raise PeerError"]


def test_a_listed_change_is_a_guard() -> None:
    source = "s = 'é'; x = a > b\n"
    (guard,) = guards_in(source, Change("secagg/x.py", "a > b", "a >= b"))

    assert str(guard) == "secagg/x.py:1: a > b  ->  a >= b"
    assert mutant_guards.without(source, guard) == "s = 'é'; x = a >= b\n"
    assert guards_in(source, Change("secagg/y.py", "no such text", "")) == []


@pytest.mark.parametrize("source", ["a > c\n", "a > b\na > b\n", "a > b; a > b\n"])
def test_a_listed_change_applies_once_or_is_an_error(source: str) -> None:
    with pytest.raises(ValueError, match="not once"):
        guards_in(source, Change("secagg/x.py", "a > b", "a >= b"))


def test_each_guard_of_the_package_can_be_removed() -> None:
    sources = mutant_guards.guarded_sources(mutants.ROOT)
    guards = mutant_guards.find_guards(sources, mutant_guards.guard_classes())
    assert sum(guard.instead == "pass" for guard in guards) > len(CHANGES)
    assert {guard.path for guard in guards} >= {change.path for change in CHANGES}

    for guard in guards:
        source = sources[guard.path]
        changed = mutant_guards.without(source, guard)
        assert changed != source, guard
        compile(changed, guard.path, "exec")


def test_copy_is_restored_after_a_mutant(tmp_path: Path) -> None:
    path = tmp_path / "secagg" / "x.py"
    path.parent.mkdir()
    path.write_text("raise PeerError\n")
    (guard,) = guards_in(path.read_text())

    with Copy(tmp_path).mutated(guard):
        assert path.read_text() == "pass\n"

    assert path.read_text() == "raise PeerError\n"


def test_tests_of_a_guard_are_those_of_all_its_lines() -> None:
    (guard,) = guards_in("if x:\n    raise PeerError(\n        'why'\n    )\n")
    lines = {("secagg/x.py", line): frozenset({f"t{line}"}) for line in range(1, 6)}

    baseline = Baseline(lines, seconds={"t2": 3.0, "t3": 0.5, "t4": 1.0, "t5": 7.0})

    assert baseline.tests_of(guard) == ["t3", "t4", "t2"]  # the quickest first
    assert baseline.timeout(["t2", "t4"]) == 60 + 10 * 4


def test_time_of_a_test_counts_what_it_sets_up() -> None:
    output = """
=== slowest durations ===
1.50s call     tests/test_a.py::test_b[x y]
0.25s setup    tests/test_a.py::test_b[x y]
0.00s teardown tests/test_a.py::test_c
=== 2 passed in 3.00s ===
"""

    assert mutants.seconds_by_test(output) == {
        "tests/test_a.py::test_b[x y]": 1.75,
        "tests/test_a.py::test_c": 0.0,
    }


def test_guard_that_no_test_executes_survives(tmp_path: Path) -> None:
    (guard,) = guards_in("raise PeerError")

    outcome = mutants.judge(Copy(tmp_path), guard, Baseline({}, seconds={}))

    assert outcome is Outcome.NEVER_EXECUTED
    assert not outcome.killed


@pytest.mark.slow  # each of them starts another pytest
@pytest.mark.parametrize(
    ("test", "outcome", "timeout"),
    [
        ("def test_x():\n    import guarded\n", Outcome.SURVIVED, 60),
        ("def test_x():\n    raise AssertionError\n", Outcome.KILLED, 60),
        ("def test_x():\n    import os; os.abort()\n", Outcome.KILLED, 60),
        ("def test_x():\n    import time; time.sleep(60)\n", Outcome.TIMED_OUT, 2),
        ("def test_renamed():\n    pass\n", Outcome.NOT_RUN, 60),
    ],
)
def test_outcome_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, test: str, outcome: Outcome, timeout: float
) -> None:
    (tmp_path / "guarded.py").write_text("raise PeerError\n")
    (tmp_path / "test_x.py").write_text(test)
    (guard,) = mutant_guards.find_guards({"guarded.py": "raise PeerError\n"}, CLASSES)
    monkeypatch.setattr(Baseline, "timeout", lambda *_: timeout)
    baseline = Baseline({("guarded.py", 1): frozenset({"test_x.py::test_x"})}, seconds={})

    assert mutants.judge(Copy(tmp_path), guard, baseline) is outcome


def test_summary_counts_and_lists_survivors(capsys: pytest.CaptureFixture[str]) -> None:
    guards = guards_in("raise PeerError(1)\nraise PeerError(2)\nraise PeerError(3)\n")
    outcomes = [Outcome.KILLED, Outcome.TIMED_OUT, Outcome.SURVIVED]

    assert mutants._summarize(dict(zip(guards, outcomes, strict=True))) == 1

    out = capsys.readouterr().out
    assert "survived: secagg/x.py:3: raise PeerError(3)" in out
    assert "running out of time: secagg/x.py:2: raise PeerError(2)" in out
    assert out.endswith("3 guards, 2 killed, 1 survived\n")


def test_summary_without_survivors_is_a_success(capsys: pytest.CaptureFixture[str]) -> None:
    (guard,) = guards_in("raise PeerError")

    assert mutants._summarize({guard: Outcome.KILLED}) == 0

    assert capsys.readouterr().out == "1 guards, 1 killed, 0 survived\n"


def test_guards_and_tests_can_be_selected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = {
        "secagg/a.py": "raise PeerError(1)\nraise PeerError(2)\n",
        "secagg/b.py": "raise PeerError(3)\n",
    }
    monkeypatch.setattr(mutants, "guarded_sources", lambda _: sources)
    judged: list[tuple[list[str], Run]] = []

    def judge_all(guards: list[Guard], run: Run, _: object) -> dict[Guard, Outcome]:
        judged.append(([str(guard) for guard in guards], run))
        return dict.fromkeys(guards, Outcome.KILLED)

    monkeypatch.setattr(mutants, "judge_all", judge_all)
    monkeypatch.setattr(mutants, "_limit_memory", lambda: None)

    assert mutants.main([]) == 0
    assert mutants.main(["tests/x.py", "--only", "a.py:2", "--only", "Error(3)", "--workers", "1"]) == 0

    both = ["secagg/a.py:2: raise PeerError(2)", "secagg/b.py:1: raise PeerError(3)"]
    first = ["secagg/a.py:1: raise PeerError(1)", *both]
    assert judged == [(first, Run(mutants.TESTS, mutants.WORKERS)), (both, Run(("tests/x.py",), 1))]
    assert capsys.readouterr().out == "3 guards, 3 killed, 0 survived\n2 guards, 2 killed, 0 survived\n"
