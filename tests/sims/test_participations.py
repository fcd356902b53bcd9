"""How often clients take part: draws, the plan for so many rounds, and clients that refuse more."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from dp_accounting import ZCDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st

from secagg.errors import BudgetExceeded, ParameterError, SumFailed
from secagg.noise.rho_and_epsilon import rho_for
from sims.audit.audit_run import audit_run
from sims.config_problems import Problems
from sims.records import RunDirectory
from sims.scenario import cohort_checks
from sims.scenario.algorithm_builder import build
from sims.scenario.federated_data import all_draws, participation_limit
from sims.scenario.participation import ParticipationLimit, Participations
from sims.scenario.settings import Settings
from sims.simulation import simulate
from sims.simulation.setup import SimulationSetup
from tests.sims.small_runs import PRIVATE, settings

CLIENTS, PER_ROUND, ROUNDS, OFTEN = 12, 4, 6, 3
EPSILON, DELTA = 50.0, 1e-5


def given_settings(often: int | None = OFTEN, apart: int = 0, rounds: int = ROUNDS, **more: Any) -> Settings:
    privacy = {"epsilon": EPSILON, "delta": DELTA, "participations": often, "min_separation": apart}
    tables: dict[str, Any] = {
        **PRIVATE,
        "rounds": rounds,
        "privacy": privacy,
        "dropout": {},
        "partition": {"kind": "iid", "clients": CLIENTS},
        "cohort": {"per_round": PER_ROUND},
        "channel": {"kind": "secure"},
        **more,
    }
    return settings(**tables)


# --- draws ---


@given(
    clients=st.integers(2, 12),
    per_round=st.integers(1, 12),
    often=st.integers(1, 6),
    rounds=st.integers(1, 20),
    seed=st.integers(0, 2**32),
)
def test_all_rounds_are_filled_whenever_that_is_possible(
    clients: int, per_round: int, often: int, rounds: int, seed: int
) -> None:
    per_round, rng = min(per_round, clients), np.random.default_rng(seed)
    if rounds * per_round > clients * min(often, rounds):
        rounds = clients * min(often, rounds) // per_round
    if rounds * per_round > clients * min(often, rounds):
        return
    made, counts = Participations(ParticipationLimit(often), range(clients), rounds), Counter[int]()
    for number in range(rounds):
        drawn = made.draw(rng, range(clients), number, per_round)
        assert len(set(drawn)) == per_round
        made.note(number, drawn)
        counts.update(drawn)
    assert max(counts.values(), default=0) <= often
    assert made.most == max(counts.values(), default=0)


@given(seed=st.integers(0, 2**32), apart=st.integers(1, 2))
def test_rounds_lie_between_two_participations(seed: int, apart: int) -> None:
    rng, last = np.random.default_rng(seed), dict[int, int]()
    made = Participations(ParticipationLimit(7, apart), range(9), 21)  # just enough
    for number in range(21):
        drawn = made.draw(rng, range(9), number, 3)
        assert len(drawn) == 3
        assert all(number - last.get(client, -100) > apart for client in drawn)
        last |= dict.fromkeys(drawn, number)
        made.note(number, drawn)


def test_draws_are_uniform_while_nothing_is_short() -> None:
    """Counts of 4,000 draws of 2 of 8 are binomial. Any is off by 6 sigma with a chance below 2e-8."""
    made = Participations(ParticipationLimit(10**6), range(8), 10**6)
    rng, draws = np.random.default_rng(5), 4000
    counts = Counter(client for _ in range(draws) for client in made.draw(rng, range(8), 0, 2))
    sigma = (draws * 0.25 * 0.75) ** 0.5
    assert all(abs(counts[client] - draws / 4) < 6 * sigma for client in range(8))


def test_counts_survive_a_restart_and_clients_may_come_later() -> None:
    made = Participations(ParticipationLimit(1), range(4), 9)
    made.note(0, [1, 7])
    again = Participations(ParticipationLimit(1), range(4), 9)
    again.restore(made.save())
    assert again.exhausted() == {1, 7}
    rng = np.random.default_rng(0)
    assert set(again.draw(rng, [0, 1, 7, 8], 1, 4)) == {0, 8}


def test_a_run_that_cannot_be_filled_is_refused() -> None:
    for found, name in (
        (given_settings(often=1), "privacy.participations"),
        (given_settings(apart=3), "privacy.min_separation"),
        (given_settings(often=None, apart=1), "privacy.min_separation"),
    ):
        problems = Problems(Path("scenario.toml"))
        cohort_checks.check(found, problems)
        with pytest.raises(Exception, match=name):
            problems.check()
    limit = participation_limit(given_settings(often=1))
    assert limit is not None
    with pytest.raises(ParameterError, match="in round 4, only 0 clients"):
        all_draws(given_settings(often=1), limit, range(CLIENTS))


# --- the plan ---


def test_noise_is_planned_for_as_many_rounds_as_a_client_is_in() -> None:
    """By composition of k releases: the epsilon that was asked, of which the exact one is less."""
    algorithm = build(given_settings(), dim=650, clients=PER_ROUND, known={})
    every = build(given_settings(None), dim=650, clients=PER_ROUND, known={})
    assert algorithm.max_rho == pytest.approx(every.max_rho, rel=1e-4)
    assert algorithm.max_rho == pytest.approx(rho_for(EPSILON, delta=DELTA), rel=1e-4)
    few, many = (each.table["update"].parts[0].noise for each in (algorithm, every) if each.table is not None)
    assert few is not None
    assert many is not None
    sigma = [float(each.variance) ** 0.5 / each.scale for each in (few, many)]
    assert sigma[0] == pytest.approx(sigma[1] * (OFTEN / ROUNDS) ** 0.5, rel=0.05)
    assert algorithm.max_rho is not None
    accountant = RdpAccountant(np.linspace(1.02, 40, 4000))
    accountant.compose(ZCDpEvent(algorithm.max_rho / OFTEN), OFTEN)
    assert accountant.get_epsilon(DELTA) == pytest.approx(EPSILON, rel=1e-4)
    assert exact_epsilon(OFTEN, algorithm.max_rho / OFTEN) < EPSILON


def exact_epsilon(times: int, rho: float) -> float:
    """Of so many Gaussian mechanisms of this rho: the least for which the exact delta is small enough (the
    analytic Gaussian mechanism), with 50 digits."""
    with mpmath.workdps(50):
        mu = mpmath.sqrt(2 * mpmath.mpf(rho) * times)

        def delta(epsilon: Any) -> Any:
            first = mpmath.ncdf(mu / 2 - epsilon / mu)
            return first - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)

        low, high = mpmath.mpf(0), mpmath.mpf(1000)
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if delta(middle) > DELTA else (low, middle)
        return float(high)


# --- a run ---


def test_no_client_takes_part_or_spends_more_than_planned(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    simulate(given_settings(), directory=run)
    spend, lines = run.read_json("spend.json"), run.read_lines("metrics.jsonl")
    assert spend["clients"]["most"]["noised"] == OFTEN
    assert spend["clients"]["most"]["rho"] <= spend["max_rho"] * (1 + 2.0**-20)
    assert lines[-1]["epsilon"] == pytest.approx(EPSILON, rel=1e-3)
    audit = audit_run(run)
    assert audit.intact, audit.integrity.problems
    assert audit.spending.participations == OFTEN
    assert audit.guarantee.epsilon is not None
    assert EPSILON * (1 - 1e-3) < audit.guarantee.epsilon <= EPSILON * (1 + 1e-9)
    assert audit.guarantee.most_spent is not None
    assert audit.guarantee.most_spent.epsilon == pytest.approx(EPSILON, rel=1e-3)
    assert max(each.epsilon_so_far or 0.0 for each in audit.releases) <= EPSILON * (1 + 1e-9)


@pytest.mark.parametrize("kind", ["plain", "secure"])
def test_a_server_that_draws_the_same_clients_again_is_refused(kind: str) -> None:
    """It ignores the participations that are used up: the clients' own memory does not."""
    with pytest.MonkeyPatch.context() as patch:
        same = tuple(range(PER_ROUND))
        patch.setattr("sims.simulation.setup._drawn", lambda _draws, _number: same)
        setup = SimulationSetup.of(given_settings(channel={"kind": kind}), Path())
    try:
        reports = [setup.run.round() for _ in range(OFTEN + 2)]
    finally:
        setup.close()
    assert [each.completed for each in reports] == [True] * OFTEN + [False] * 2
    assert all(isinstance(each.failure, SumFailed) for each in reports[OFTEN:])
    refused = {each.error for record in setup.channel.asked[OFTEN:] for each in record.refusals}
    assert refused == {BudgetExceeded.__name__}
    limit = setup.budget.max_rho
    assert limit is not None
    assert max(each.rho for each in setup.channel.spends().values()) <= limit * (1 + 2.0**-20)


def test_dropping_out_uses_up_a_participation() -> None:
    """The draws do not depend on who answers: a client that was charged is not drawn in place of another."""
    calm, rough = given_settings(), given_settings(dropout={"training": 0.2})
    limit = participation_limit(calm)
    assert limit is not None
    draws = all_draws(calm, limit, range(CLIENTS))
    assert draws == all_draws(rough, limit, range(CLIENTS))
    assert max(Counter(client for each in draws for client in each).values()) <= OFTEN
    assert replace(limit, most=1).separation == 0
