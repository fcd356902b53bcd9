"""Cohorts and thresholds that the tolerated colluders are enough for."""

from __future__ import annotations

import pytest

from secagg import client_checks
from secagg.errors import FewContributors, SmallCohort, SmallThreshold
from secagg.trust_levels import Trust
from tests.attacks.attackers.colluder import Colluder
from tests.attacks.attackers.small_sets import lower_threshold, shrink_cohort
from tests.attacks.guards import BOTH, allow, assert_refused, forget_sets
from tests.attacks.rig import Rig

VICTIM = 1
COUNTS = ("check_cohort_size", "check_sharers", "check_roster", "check_contributors")


def pair(trust: Trust) -> tuple[Rig, Colluder]:
    """A client that tolerates one colluder, hence insists on two others in every sum."""
    rig = Rig(3, trust, corrupt=1, registered=1)
    return rig, Colluder(rig, 3)


@pytest.mark.parametrize("trust", BOTH)
def test_a_cohort_of_two_gives_the_other_one_away(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards overlap: a cohort this small also has too few clients at every later step."""
    for name in COUNTS:
        monkeypatch.setattr(client_checks, name, allow)
    rig, colluder = pair(trust)
    assert (shrink_cohort(rig, VICTIM, colluder) == rig.vectors[VICTIM]).all()


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize("removed", range(4))
def test_a_small_cohort_is_refused_at_the_first_step_that_counts(
    trust: Trust, removed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any one of the guards is enough: with those before it removed, the next one refuses."""
    for name in COUNTS[:removed]:
        monkeypatch.setattr(client_checks, name, allow)
    rig, colluder = pair(trust)
    with pytest.raises(FewContributors if removed else SmallCohort):
        shrink_cohort(rig, VICTIM, colluder)
    assert_refused(rig.machines[VICTIM])


def conspiracy(trust: Trust) -> tuple[Rig, list[Colluder]]:
    rig = Rig(3, trust, corrupt=2, registered=2)
    return rig, [Colluder(rig, 3), Colluder(rig, 4)]


@pytest.mark.parametrize("trust", BOTH)
def test_a_threshold_that_colluders_reach_gives_everybody_away(
    trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_sets(monkeypatch)
    monkeypatch.setattr(client_checks, "check_threshold", allow)
    rig, colluders = conspiracy(trust)
    assert (lower_threshold(rig, VICTIM, colluders) == rig.vectors[VICTIM]).all()


@pytest.mark.parametrize("trust", BOTH)
def test_a_client_refuses_a_threshold_that_colluders_reach(trust: Trust) -> None:
    rig, colluders = conspiracy(trust)
    with pytest.raises(SmallThreshold):
        lower_threshold(rig, VICTIM, colluders)
    assert_refused(rig.machines[0])


def test_a_client_refuses_a_threshold_above_the_cohort() -> None:
    """It protects, but no sum could ever be unmasked; without the rule, dealing would fail untyped."""
    rig = Rig(3, Trust.CURIOUS)
    with pytest.raises(SmallCohort):
        rig.set_up(threshold=4)
    assert_refused(rig.machines[0])
