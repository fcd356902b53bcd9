"""Small sets: a cohort, or a threshold, that the colluders a client tolerates are enough for."""

from __future__ import annotations

from collections.abc import Collection

from tests.attacks.attackers.cheated_sum import CheatedSum, Vector
from tests.attacks.attackers.colluder import Colluder, set_up_with
from tests.attacks.rig import Rig


def shrink_cohort(rig: Rig, victim: int, colluder: Colluder) -> Vector:
    """The vector of `victim` in a cohort of two: the total, less what the colluder put in."""
    cohort = set_up_with(rig, [colluder], threshold=2, members=[victim])
    cheat = CheatedSum(rig, cohort, rig.query(cohort, 0, cohort.ids), [colluder])
    cheat.ask([victim])
    cheat.reveal([victim], cohort.ids)
    vector = cheat.total([victim])
    assert vector is not None  # both members of the cohort revealed
    return vector


def lower_threshold(rig: Rig, victim: int, colluders: Collection[Colluder]) -> Vector:
    """The vector of `victim`, from as many shares as there are colluders, before anybody unmasks."""
    cohort = set_up_with(rig, colluders, threshold=len(colluders))
    cheat = CheatedSum(rig, cohort, rig.query(cohort, 0, cohort.ids), colluders)
    cheat.ask(range(rig.clients))
    vector = cheat.vector(victim)
    assert vector is not None  # the colluders hold a threshold of the victim's shares
    return vector
