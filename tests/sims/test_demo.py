"""``secagg demo``: what it shows is what happened."""

import dataclasses
import sys

import numpy as np
import pytest

from secagg import Stage, Trust
from secagg.errors import GroupChanged, SpecError, TooFewClients
from sims.cli import main
from sims.demo.demo_session import SimulatedClients, run_session
from sims.demo.session_result_and_text import DemoResult, DemoSetting

SMALL = ("--only", "sums", "--clients", "10", "--dim", "40")


def small_result(*, sums: int = 3, seed: int = 0, trust: Trust = Trust.MALICIOUS) -> DemoResult:
    return run_session(DemoSetting(clients=10, dim=40, sums=sums, trust=trust, seed=seed), lambda: None)


@pytest.fixture(scope="module")
def result() -> DemoResult:
    return small_result()


@pytest.mark.parametrize("trust", list(Trust))
def test_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], trust: Trust) -> None:
    for variable in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(variable, raising=False)

    assert main(["demo", *SMALL, "--trust", str(trust)]) == 0

    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out, "colours and progress bars are for terminals"
    text = " ".join(out.split())
    assert f"collude with a {trust}" in text
    assert "what the server saw" in text
    assert "chi-square" in text
    assert "less than a step for each contributor" in text
    assert "nothing was released, TooFewClients" in text
    assert "refused before masking, GroupChanged" in text


def test_broken_promise_is_told_and_exit_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], result: DemoResult
) -> None:
    wrong = dataclasses.replace(result.sums[0], error=1.0)
    broken = dataclasses.replace(result, sums=(wrong, *result.sums[1:]), failure=None, refusal=None)
    monkeypatch.setattr("sims.demo.demo_session.watch", lambda setting, console: broken)

    assert main(["demo"]) == 1

    text = " ".join(capsys.readouterr().out.split())
    assert "more than rounding explains" in text
    assert "a total was released" in text
    assert "went along" in text


def test_each_promise_counts(result: DemoResult) -> None:
    wrong = dataclasses.replace(result.sums[0], error=1.0)

    assert result.as_promised
    assert not dataclasses.replace(result, failure=None).as_promised
    assert not dataclasses.replace(result, refusal=None).as_promised
    assert not dataclasses.replace(result, sums=(wrong, *result.sums[1:])).as_promised


def test_session_ends_with_a_clean_abort_and_a_refusal(result: DemoResult) -> None:
    assert isinstance(result.failure, TooFewClients)
    assert isinstance(result.refusal, GroupChanged)
    assert result.left_out != result.refuser


def test_some_leave_before_masking_and_some_before_revealing(result: DemoResult) -> None:
    mean, first, last = result.sums

    for each in result.sums:
        assert not each.before_masking & set(each.contributors)
        assert each.before_revealing <= set(each.contributors)
        assert each.exact
    assert mean.before_masking
    assert mean.before_revealing
    assert first.before_masking
    assert last.before_revealing
    assert last.contributors == first.contributors, "one group, one company"


def test_server_saw_other_numbers_than_the_clients_have(result: DemoResult) -> None:
    # Equal by chance with probability 2^-32 per element.
    assert not np.any(result.masked_example.seen == result.masked_example.residues)
    assert result.masked.total == result.true.total == 40 * len(result.sums[0].contributors)
    assert result.true.p_value < 1e-12


def test_seed_fixes_data_and_absences_but_no_keys(result: DemoResult) -> None:
    again, other = small_result(), small_result(seed=1)

    assert [each.contributors for each in again.sums] == [each.contributors for each in result.sums]
    assert np.array_equal(again.masked_example.values, result.masked_example.values)
    assert not np.array_equal(again.masked_example.seen, result.masked_example.seen)
    assert not np.array_equal(other.masked_example.values, result.masked_example.values)


@pytest.mark.parametrize("sums", [2, 5])
def test_any_number_of_sums(sums: int) -> None:
    result = small_result(sums=sums, trust=Trust.CURIOUS)

    assert len(result.sums) == sums
    assert result.as_promised


def test_nobody_leaves_in_the_midst_of_the_median() -> None:
    absences = SimulatedClients(clients=50, dim=4, seed=3).absences(5, 23)

    assert all(not absences.get((number, stage)) for number in (2, 3) for stage in Stage)
    assert not absences[4, Stage.REVEAL] & absences[1, Stage.MASK]
    assert len(absences[5, Stage.MASK]) == 23


def test_bytes_are_those_that_preflight_promised(result: DemoResult) -> None:
    assert result.setup.up.total() == result.session_plan.setup_bytes_up


def test_setting_that_cannot_work_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_setting: DemoSetting, _console: object) -> DemoResult:
        raise SpecError("it does not fit")

    monkeypatch.setattr("sims.demo.demo_session.watch", refuse)

    assert main(["demo"]) == 2

    assert capsys.readouterr() == ("", "secagg demo: it does not fit\n")


def test_missing_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)

    assert main(["demo"]) == 2

    assert "pip install 'secagg[sims]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--clients", "9"), "'9' is not a whole number from 10 to 1024"),
        (("--sums", "1"), "'1' is not a whole number from 2 to 62"),
        (("--dim", "x"), "'x' is not a whole number"),
        (("--trust", "blind"), "invalid choice: 'blind'"),
    ],
)
def test_bad_argument_is_one_sentence(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], sentence: str
) -> None:
    assert main(["demo", "--only", "sums", *options]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1


def test_a_large_cohort_meets_on_a_ring(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["demo", "--only", "sums", "--clients", "130", "--trust", "curious_server", "--dim", "4"]) == 0
    )
    out = capsys.readouterr().out
    assert "nothing was released" in out
