"""The one guarantee that an audit states: over all sums, whatever they are for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.rfa import RFA
from secagg.noise.rho_and_epsilon import epsilon
from secagg.noise.zcdp_cost import Adjacency
from sims.audit.audit_result import Guarantee, PrivacySpending, Release, Spent
from sims.audit.audit_run import _unplanned, as_json, audit_run
from sims.audit.guarantee import EVALUATION, TAIL, TRAINING, guarantee, without_noise_of
from sims.audit.privacy_cost import PrivacyAccount
from sims.audit.table_of_runs import compared
from tests.sims.audit_run import DELTA, DIM, make_run, noisy

ACCOUNT = PrivacyAccount(Adjacency.ZERO_OUT, DELTA)
TAIL_KIND = "histogram of the tail"
MESSAGES = {"attack": {"level": "message"}}


def released(kind: str, rho: float | None) -> Release:
    return Release(
        number=1,
        session=0,
        sum=0,
        round=1,
        kind=kind,
        invited=5,
        contributors=5,
        sigmas=(),
        rho=rho,
        epsilon=None,
        rho_so_far=0.0,
        epsilon_so_far=None,
    )


def spent(rho: float, unnoised: int = 0) -> Spent:
    return Spent(rho=rho, epsilon=None, unnoised=unnoised, delta=DELTA)


def spending(rho: float, most: Spent | None = None) -> PrivacySpending:
    return PrivacySpending(
        adjacency="zero-out",
        delta=DELTA,
        server=spent(rho),
        most=most,
        least=None,
        larger="equal",
        why="",
        max_rho=None,
        of_budgets={},
    )


def of(*found: Release, most: Spent | None = None) -> Guarantee:
    rho = sum(each.rho or 0.0 for each in found)
    return guarantee(found, {TAIL_KIND}, spending(rho, most), ACCOUNT)


def test_attackers_without_noise_leave_no_epsilon_unless_they_were_planned_for(tmp_path: Path) -> None:
    """Under attacks on messages, the noise of attackers is missing."""
    path = make_run(tmp_path / "run", noisy(5))
    facts = json.loads((path / "run.json").read_text())
    assert audit_run(path).guarantee.epsilon is not None
    for attackers, colluders in ((1, 0), (2, 1)):
        assert without_noise_of(audit_run(path).guarantee, attackers - colluders).epsilon is None
    assert _unplanned({**facts, "corrupt": 2}, [{"promise": {"colluders": 1}}], MESSAGES) == 1
    assert _unplanned({**facts, "corrupt": 1}, [{"promise": {"colluders": 1}}], MESSAGES) == 0
    assert _unplanned({**facts, "corrupt": 2}, [], {"attack": {"level": "update"}}) == 0


def test_the_costs_of_all_purposes_are_added() -> None:
    found = of(released("update", 0.25), released("scores", 0.125), released(TAIL_KIND, 0.5))
    assert found.rho == 0.875
    assert found.epsilon == epsilon([0.875], delta=DELTA)
    assert found.covers == (TRAINING, EVALUATION, TAIL)
    assert found.unnoised == ()
    assert found.delta == DELTA


@pytest.mark.parametrize(
    ("kind", "purpose"), [("update", TRAINING), ("errors", EVALUATION), (TAIL_KIND, TAIL)]
)
def test_a_single_sum_without_noise_leaves_no_epsilon(kind: str, purpose: str) -> None:
    noise = [released(each, 0.1) for each in ("update", "scores", TAIL_KIND)]
    found = of(*noise, released(kind, None), most=spent(0.3))
    assert (found.epsilon, found.rho) == (None, None)
    assert found.unnoised == (purpose,)
    assert found.most_spent is not None


def test_without_noise_there_is_no_epsilon() -> None:
    found = of(released("update", None), most=spent(0.0, 1))
    assert (found.epsilon, found.covers, found.unnoised) == (None, (), (TRAINING,))
    assert found.most_spent == spent(0.0, 1)
    assert of().epsilon is None


def test_a_client_that_paid_for_failed_sums_counts() -> None:
    """Its record is larger than the sum of what was released."""
    found = of(released("update", 0.25), released(TAIL_KIND, 0.5), most=spent(1.25))
    assert (found.rho, found.most_spent) == (1.25, spent(1.25))
    assert found.epsilon == epsilon([1.25], delta=DELTA)


@given(
    st.lists(
        st.tuples(st.sampled_from(["update", "scores", TAIL_KIND]), st.none() | st.floats(1e-3, 1.0)),
        min_size=1,
        max_size=6,
    )
)
def test_an_epsilon_is_never_less_than_that_of_a_part(rows: list[tuple[str, float | None]]) -> None:
    found = of(*(released(kind, rho) for kind, rho in rows))
    assert (found.epsilon is None) is any(rho is None for _, rho in rows)
    if found.epsilon is not None:
        assert all(found.epsilon >= ACCOUNT.epsilon(rho or 0.0) for _, rho in rows)


def test_a_run_has_one(tmp_path: Path) -> None:
    audit = audit_run(make_run(tmp_path / "private", noisy(5)))
    found = audit.guarantee
    assert found.covers == (TRAINING,)
    assert found.epsilon == pytest.approx(2.0, rel=1e-3)
    assert found.most_spent is not None
    assert found.rho == pytest.approx(found.most_spent.rho)
    assert as_json(audit)["guarantee"]["epsilon"] == found.epsilon
    bare = audit_run(make_run(tmp_path / "bare", RFA(dim=DIM, clients=5, weighted=False)))
    assert (bare.guarantee.epsilon, bare.guarantee.unnoised) == (None, (TRAINING,))


def test_no_epsilon_holds_where_the_samplers_are_not_exact_enough(tmp_path: Path) -> None:
    """Beside a delta of 1e-30, their errors count; beside that of the run, they do not."""
    for plain in (False, True):
        run = make_run(tmp_path / f"plain {plain}", noisy(5), plain=plain)
        assert audit_run(run).guarantee.epsilon is not None
        strict = audit_run(run, delta=1e-34).guarantee
        assert (strict.epsilon, strict.rho, strict.covers) == (None, None, (TRAINING,))


def test_a_choice_among_runs_costs_what_all_of_them_cost(tmp_path: Path) -> None:
    runs = [audit_run(make_run(tmp_path / name, noisy(5, epsilon=2.0))) for name in ("one", "two")]
    found = compared(runs).together
    rhos = [each.guarantee.rho or 0.0 for each in runs]
    assert found.rho == pytest.approx(sum(rhos))
    assert found.epsilon == pytest.approx(epsilon([sum(rhos)], delta=DELTA))
    assert found.epsilon is not None
    assert found.epsilon > 1.3 * (runs[0].guarantee.epsilon or 0.0)
    bare = audit_run(make_run(tmp_path / "bare", RFA(dim=DIM, clients=5, weighted=False)))
    assert compared([*runs, bare]).together.epsilon is None
    other = replace(runs[1], guarantee=replace(runs[1].guarantee, adjacency="replace"))
    assert compared([runs[0], other]).together.rho is None
    strict = replace(runs[1], guarantee=replace(runs[1].guarantee, delta=1e-7))
    assert compared([runs[0], strict]).together.delta == 1e-7
