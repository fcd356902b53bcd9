"""How often clients of a served run take part: the server draws, and clients refuse more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from secagg.client_budget import Budget
from secagg.client_memory import AnswerEntry
from secagg.errors import BudgetExceeded
from secagg.ledger import ClientLedger, read_ledger
from secagg.noise.zcdp_cost import Adjacency, charge, rho_of
from secagg.policy import Policy
from secagg.trust_levels import Trust
from sims.config_problems import ConfigError
from sims.deploy.run_terms import RunTerms
from sims.deploy.training_checks import check_clients_left, run_policy
from sims.scenario.participation import ParticipationLimit, Participations
from tests.sims.test_training_library import Programs, terms

ROUNDS, OFTEN = 3, 2


def private_terms(often: int = OFTEN) -> RunTerms:
    return terms(
        rounds=ROUNDS,
        algorithm={"name": "fedavg", "clip": 1.0, "weighted": False},
        privacy={"epsilon": 20.0, "delta": 1e-5, "participations": often},
        cohort={"per_round": 2},
        channel={"trust": "curious_server", "corrupt": 0, "dropout": 0},
    )


@pytest.mark.slow
def test_a_server_draws_no_client_more_often_than_agreed(tmp_path: Path) -> None:
    agreed, programs = private_terms(), Programs(tmp_path)
    with programs.serve(agreed, min_cohort=2) as run, programs.joined(agreed, 1, 2, 3) as clients:
        reports = list(run)
        for each in clients:
            each.result()
    assert [each.completed for each in reports] == [True] * ROUNDS
    answered = [
        sum(row.body["entry"] == "answer" for row in read_ledger(programs.site / f"client-{k}.ledger").rows)
        for k in (1, 2, 3)
    ]
    assert answered == [OFTEN] * 3


def test_a_run_without_enough_clients_that_may_take_part_ends_in_words() -> None:
    """The third client never comes, and the others have taken part as often as they may."""
    made = Participations(ParticipationLimit(OFTEN), (1, 2, 3), ROUNDS)
    for number in range(OFTEN):
        check_clients_left(made, {1, 2, 3}, 2, number, ROUNDS)
        made.note(number, (1, 2))
    with pytest.raises(ConfigError, match=f"ends after {OFTEN} of {ROUNDS} rounds: 2 of 3 clients"):
        check_clients_left(made, {1, 2, 3}, 2, OFTEN, ROUNDS)
    check_clients_left(made, {1, 2, 3, 4}, 2, OFTEN, ROUNDS)  # one more was enrolled


def test_a_server_refuses_a_scenario_that_its_clients_cannot_fill(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"privacy\.participations"):
        Programs(tmp_path).serve(private_terms(1), min_cohort=2)


def test_a_client_allows_a_run_what_the_run_costs_and_no_more(tmp_path: Path) -> None:
    """Its life's budget is for several runs, and a server must not use it up in one."""
    agreed = private_terms()
    cost, group = agreed.algorithm.max_rho, agreed.table.remembered_group("update")
    assert cost is not None
    each = charge(cost) // OFTEN
    policy = Policy(
        trust=Trust.CURIOUS, corrupt=0, min_cohort=2, max_cohort=2, min_contributors=2, max_sums=64,
        unnoised_sums=0, max_rho=100 * cost,
    )  # fmt: skip
    with ClientLedger.create(tmp_path / "ledger", member=1) as ledger:

        def answer(number: int, of: str, budget: Budget) -> None:
            content = f"{of} {number}".encode()
            ledger.remember_answer(
                AnswerEntry(group=of, round_number=number, content=content, charge=each), budget
            )

        answer(0, "another run", policy.budget)
        found = run_policy(policy, agreed, ledger)
        assert found.max_rho == pytest.approx(rho_of(each) + cost)
        for number in range(OFTEN):
            answer(number, group, found.budget)
            assert run_policy(policy, agreed, ledger) == found  # also after a restart
        with pytest.raises(BudgetExceeded):
            answer(OFTEN, group, found.budget)
        answer(OFTEN, group, policy.budget)  # which the policy alone would not have noticed
        strict = replace(policy, max_rho=cost / 2)
        assert run_policy(strict, agreed, ledger) is strict
        replaced = replace(policy, adjacency=Adjacency.REPLACE)
        assert run_policy(replaced, agreed, ledger) is replaced
        assert run_policy(policy, terms(), ledger) is policy
