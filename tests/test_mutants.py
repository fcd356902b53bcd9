"""The mutation test's own parts: which statements it takes for guards, and how it removes them."""

import ast
from collections.abc import Sequence
from pathlib import Path

import pytest

from scripts import mutants
from scripts.mutants import Baseline, Copy, Guard, Outcome

CLASSES = frozenset({"PeerError", "BadShare", "SumFailed"})


def guards_in(source: str) -> list[Guard]:
    return mutants.find_guards({"secagg/x.py": source}, CLASSES)


@pytest.mark.parametrize(
    "statement",
    [
        "raise PeerError",
        "raise PeerError('why')",
        "raise BadShare('why') from None",
        "raise errors.BadShare('why')",
        "raise secagg.errors.SumFailed",
        "if x: raise PeerError",
        "from secagg.errors import PeerError as Bad\nraise Bad(1)",
        "class Worse(PeerError): pass\nclass Worst(Worse): pass\nraise Worst",
        "def blame() -> PeerError: ...\nraise blame()",
        "def blame() -> 'BadShare | SumFailed': ...\nraise blame()",
        "class A:\n    def _no(self) -> errors.BadShare: ...\n    def f(self): raise self._no(1)",
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

    assert [guard.path for guard in mutants.find_guards(sources, CLASSES)] == ["secagg/b.py"]


def test_guard_is_shown_with_its_place_and_first_line() -> None:
    (guard,) = guards_in("if x:\n    raise PeerError(\n        'why'\n    )\n")

    assert str(guard) == "secagg/x.py:2: raise PeerError("
    assert (guard.line, guard.end_line) == (2, 4)


def test_classes_are_those_of_peers_policies_and_failed_sums() -> None:
    classes = mutants.guard_classes()

    assert {"PeerError", "PolicyError", "SumFailed", "TooFewClients", "CorruptTotal"} <= classes
    assert classes.isdisjoint({"SecaggError", "LocalError", "InputError", "StateError"})


def test_sources_leave_out_testing(tmp_path: Path) -> None:
    for name in ("secagg/a.py", "secagg/deep/b.py", "secagg/testing/c.py", "sims/d.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    assert list(mutants.guarded_sources(tmp_path)) == ["secagg/a.py", "secagg/deep/b.py"]


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

    changed = mutants.without(source, guard)

    assert changed == expected
    compile(changed, "x.py", "exec")


def test_each_guard_of_the_package_can_be_removed() -> None:
    sources = mutants.guarded_sources(mutants.ROOT)
    guards = mutants.find_guards(sources, mutants.guard_classes())
    assert guards

    for guard in guards:
        source = sources[guard.path]
        changed = mutants.without(source, guard)
        before, after = (
            sum(isinstance(node, ast.Raise) for node in ast.walk(ast.parse(text)))
            for text in (source, changed)
        )
        assert after == before - 1, guard


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

    assert Baseline(lines, seconds=1).tests_of(guard) == ["t2", "t3", "t4"]


def test_guard_that_no_test_executes_survives(tmp_path: Path) -> None:
    (guard,) = guards_in("raise PeerError")

    outcome = mutants.judge(Copy(tmp_path), guard, Baseline({}, seconds=1))

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
    (guard,) = mutants.find_guards({"guarded.py": "raise PeerError\n"}, CLASSES)
    monkeypatch.setattr(Baseline, "timeout", timeout)
    baseline = Baseline({("guarded.py", 1): frozenset({"test_x.py::test_x"})}, seconds=1)

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
    judged: list[tuple[list[str], Sequence[str]]] = []

    def judge_all(guards: list[Guard], tests: Sequence[str], _: object) -> dict[Guard, Outcome]:
        judged.append(([str(guard) for guard in guards], tests))
        return dict.fromkeys(guards, Outcome.KILLED)

    monkeypatch.setattr(mutants, "judge_all", judge_all)
    monkeypatch.setattr(mutants, "_limit_memory", lambda: None)

    assert mutants.main([]) == 0
    assert mutants.main(["tests/x.py", "--only", "a.py:2", "--only", "Error(3)"]) == 0

    both = ["secagg/a.py:2: raise PeerError(2)", "secagg/b.py:1: raise PeerError(3)"]
    first = ["secagg/a.py:1: raise PeerError(1)", *both]
    assert judged == [(first, mutants.TESTS), (both, ["tests/x.py"])]
    assert capsys.readouterr().out == "3 guards, 3 killed, 0 survived\n2 guards, 2 killed, 0 survived\n"
