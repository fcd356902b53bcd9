"""Second request: the same clients are asked to unmask one sum twice, with the victim alive, then dead.

Each answer is harmless; both together are both kinds of share of the victim, and open its input.
"""

from __future__ import annotations

from collections.abc import Collection

from secagg.cohort_members import Cohort
from tests.attacks.attackers.cheated_sum import CheatedSum, Vector
from tests.attacks.rig import Rig


def second_request(rig: Rig, cohort: Cohort, victim: int, second: Collection[int]) -> Vector | None:
    """The victim's vector, where clients answer again for the survivors `second`."""
    cheated = CheatedSum(rig, cohort, rig.query(cohort, 0, cohort.ids))
    cheated.ask(cohort.ids)
    cheated.reveal(cohort.ids, cohort.ids)
    cheated.reveal(second, second)
    return cheated.vector(victim)
