"""Runs that are cut off more than once, without a seed: nothing is asked twice, and all is paid for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from secagg.client_memory import AnswerEntry
from secagg.errors import GroupReopened
from secagg.ledger import read_ledger
from secagg.sum_group_rules import GroupBook
from sims.audit.audit_run import audit_run
from sims.coordination.run_writer import RunWriter
from sims.records import RunDirectory
from sims.runtime.client_state import SimulatedMemory
from sims.scenario.settings import Settings
from sims.simulation import simulate
from tests.sims.audit_run import noisy
from tests.sims.small_runs import PRIVATE, Gone, crash, settings

UNSEEDED = {**PRIVATE, "insecure_seed": False, "dropout": {}, "rounds": 3}
TAIL = {"epsilon": 5.0, "delta": 1e-4, "every": 1}


@pytest.fixture(scope="module")
def torn(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Cut off twice in the histogram after the second round, while clients reveal."""
    run = RunDirectory(tmp_path_factory.mktemp("runs") / "torn")
    given = settings(**UNSEEDED, tail=TAIL)

    def in_the_histogram(moment: Any) -> None:
        if (moment.done, moment.kind, moment.stage) == (1, "tail", "reveal"):
            crash()

    for _ in range(2):
        with pytest.raises(Gone):
            simulate(given, directory=run, resume=run.exists, watch=in_the_histogram)
    simulate(given, directory=run, resume=True)
    return run


def test_no_question_is_asked_twice(torn: RunDirectory) -> None:
    rows = [row.body for row in read_ledger(torn / "ledger").rows if row.body["entry"] == "asked"]
    asked = [(body["kind"], body["round"]) for body in rows]
    assert len(set(asked)) == len(asked)
    assert asked.count(("errors", 2)) == 1


def test_clients_pay_for_what_they_may_have_answered_and_for_nothing_else(torn: RunDirectory) -> None:
    """Three histograms are planned for: one, and two that were cut off. No other is asked."""
    spend = torn.read_json("spend.json")
    assert spend["clients"]["least"]["noised"] == 3 + 3
    assert spend["clients"]["most"]["rho"] == spend["server"]["rho"] <= spend["max_rho"]
    lines = torn.read_lines("metrics.jsonl")
    assert [line["tail"]["completed"] for line in lines[1:]] == [True, False, False]
    assert lines[-1]["tail"]["epsilon"] == pytest.approx(5, rel=1e-3)


def test_an_audit_knows_which_budget_a_sum_was_of_that_was_cut_off(torn: RunDirectory) -> None:
    audit = audit_run(torn)
    assert audit.intact, audit.integrity.problems
    histograms = [each for each in audit.releases if each.kind == "errors"]
    assert [each.round for each in histograms] == [1]
    most, training = audit.spending.most, audit.spending.of_budgets["algorithm"]
    assert most is not None
    assert most.rho - training.rho == pytest.approx(3 * histograms[0].rho_so_far, rel=1e-6)


def cut_before_the_second_checkpoint(given: Settings, run: RunDirectory) -> None:
    """All sums of the second round are released by then, those beside the training too."""
    keep = RunWriter.keep

    def crash_instead(keeper: RunWriter, line: dict[str, Any], done: int, *more: Any) -> None:
        if done == 2:
            crash()
        keep(keeper, line, done, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunWriter, "keep", crash_instead)
        with pytest.raises(Gone):
            simulate(given, directory=run)
    simulate(given, directory=run, resume=True)


def test_what_was_released_beside_the_training_before_a_cut_costs_no_training(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    cut_before_the_second_checkpoint(settings(**UNSEEDED, tail=TAIL), run)
    audit = audit_run(run)
    assert audit.intact, audit.integrity.problems
    assert [(each.kind, each.round) for each in audit.releases][:4] == [
        ("update", 1), ("errors", 1), ("update", 2), ("errors", 2)
    ]  # fmt: skip
    training = [each for each in audit.releases if each.kind == "update"]
    assert training[-1].rho_so_far == pytest.approx(audit.spending.of_budgets["algorithm"].rho)


def test_a_plain_channel_without_a_seed_pays_as_well(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    cut_before_the_second_checkpoint(
        settings(**{**UNSEEDED, "channel": {"kind": "plain", "dropout": 0.4}}), run
    )
    lines = run.read_lines("metrics.jsonl")
    assert [line["completed"] for line in lines] == [True, True, False, True]
    assert run.read_json("spend.json")["clients"]["least"]["noised"] == 3
    assert lines[-1]["epsilon"] == pytest.approx(50, rel=1e-3)


def test_a_client_does_not_answer_in_a_round_that_it_has_lost() -> None:
    algorithm, memory = noisy(3), SimulatedMemory()
    memory.take_lost(AnswerEntry(group="update", round_number=4, content=b"", charge=7))
    assert algorithm.table is not None
    book = GroupBook(algorithm.table, memory)
    with pytest.raises(GroupReopened):
        book.check_new("update", 4)
    book.check_new("update", 5)
    assert memory.spend.charge == 7
