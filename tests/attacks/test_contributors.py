"""Totals over too few clients, and survivors who are not what they are said to be."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from secagg import client_checks
from secagg.cohort_members import Cohort
from secagg.errors import BadSurvivors, FewContributors, PeerError
from secagg.trust_levels import Trust
from tests.attacks.attackers.cheated_sum import CheatedSum
from tests.attacks.attackers.colluder import Colluder, set_up_with
from tests.attacks.attackers.few_contributors import called_dead, few_contributors
from tests.attacks.guards import BOTH, allow, assert_refused
from tests.attacks.rig import Rig

VICTIM = 0
COLLUDER = 5
EVERYONE = range(6)


def small_threshold() -> tuple[Rig, Cohort, list[Colluder]]:
    """Five honest clients and a colluder; clients insist on c + 2 = 3 contributors, shares on t = c + 1."""
    rig = Rig(5, Trust.CURIOUS, corrupt=1)
    colluders = [Colluder(rig, COLLUDER)]
    return rig, set_up_with(rig, colluders, threshold=2), colluders


# (roster, survivors, the rules that must all be off, the error of the first)
CASES: list[tuple[Sequence[int], Sequence[int], list[str], type[PeerError]]] = [
    # The victim and the colluder are left of a full roster.
    (EVERYONE, [VICTIM, COLLUDER], ["check_contributors"], FewContributors),
    # They are the roster. Whoever is not in the roster cannot survive either, so two rules overlap.
    ([VICTIM, COLLUDER], [VICTIM, COLLUDER], ["check_roster", "check_contributors"], FewContributors),
    # A survivor who was never in the roster makes up the number.
    ([VICTIM, 1, COLLUDER], [VICTIM, 2, COLLUDER], ["check_survivors"], BadSurvivors),
]
IDS = ["few survivors", "small roster", "stranger among the survivors"]


@pytest.mark.parametrize(("roster", "survivors", "rules", "_error"), CASES, ids=IDS)
def test_a_total_over_one_honest_client_is_its_vector(
    roster: Sequence[int],
    survivors: Sequence[int],
    rules: list[str],
    _error: type[PeerError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for rule in rules:
        monkeypatch.setattr(client_checks, rule, allow)
    rig, cohort, colluders = small_threshold()
    found = few_contributors(rig, cohort, colluders, roster=roster, survivors=survivors)
    assert found is not None
    assert (found == rig.vectors[VICTIM]).all()


@pytest.mark.parametrize(("roster", "survivors", "_rules", "error"), CASES, ids=IDS)
def test_a_total_over_one_honest_client_is_refused(
    roster: Sequence[int], survivors: Sequence[int], _rules: list[str], error: type[PeerError]
) -> None:
    rig, cohort, colluders = small_threshold()
    with pytest.raises(error):
        few_contributors(rig, cohort, colluders, roster=roster, survivors=survivors)
    assert_refused(rig.machines[VICTIM])


def test_survivors_below_the_minimum_are_refused_even_if_the_roster_was_let_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_checks, "check_roster", allow)
    rig, cohort, colluders = small_threshold()
    pair = [VICTIM, COLLUDER]
    with pytest.raises(FewContributors):
        few_contributors(rig, cohort, colluders, roster=pair, survivors=pair)
    assert_refused(rig.machines[VICTIM])


@pytest.mark.parametrize("trust", BOTH)
def test_a_total_over_fewer_than_promised(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of five would do for the shares, but these clients insist on four contributors."""
    few = range(3)
    rig = Rig(5, trust, min_contributors=4)
    with pytest.raises(FewContributors):
        few_contributors(rig, rig.set_up(threshold=3), [], roster=range(5), survivors=few)
    assert_refused(rig.machines[0])
    monkeypatch.setattr(client_checks, "check_contributors", allow)
    rig = Rig(5, trust, min_contributors=4)
    found = few_contributors(rig, rig.set_up(threshold=3), [], roster=range(5), survivors=few)
    assert found is not None
    assert (found == rig.vectors[0] + rig.vectors[1] + rig.vectors[2]).all()


# --- a living client that is called dead -----------------------------------------------------------


def test_a_client_that_lets_itself_be_called_dead_gives_its_input_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It reveals a share of its own mask key, and the input that it has sent becomes readable.

    Defence in depth: its share counts like any other holder's, so 2t > n + c (`malicious_server`) keeps
    both kinds apart even without this rule, and below it the server could have asked somebody else.
    """
    monkeypatch.setattr(client_checks, "check_survivors", allow)
    rig = Rig(4, Trust.CURIOUS)
    found = called_dead(rig, rig.set_up(threshold=2), VICTIM, told_alive=[1, 2])
    assert found is not None
    assert (found == rig.vectors[VICTIM]).all()


def test_a_client_does_not_let_itself_be_called_dead() -> None:
    rig = Rig(4, Trust.CURIOUS)
    with pytest.raises(BadSurvivors):
        called_dead(rig, rig.set_up(threshold=2), VICTIM, told_alive=[1, 2])
    assert_refused(rig.machines[VICTIM])


@pytest.mark.parametrize("trust", BOTH)
def test_a_late_input_stays_under_its_self_mask(trust: Trust) -> None:
    """Slow, not dead: the server has its mask key, and the input that comes late is still not readable."""
    rig = Rig(5, trust)
    cohort = rig.set_up(threshold=3)
    cheated = CheatedSum(rig, cohort, rig.query(cohort, 0, cohort.ids))
    cheated.ask(range(4))
    cheated.reveal(range(4), range(4))
    cheated.ask([4])
    assert cheated.mask_key(4) is not None
    assert cheated.vector(4) is None
    with pytest.raises(BadSurvivors):
        cheated.tell([4], range(4))
    assert_refused(rig.machines[4])
    assert cheated.vector(4) is None
