"""Few contributors: a total over so few clients that it says what one of them sent.

Under `curious_server` a threshold of t = c + 1 is safe for the shares, but a total over the c colluders and
one honest client is that client's vector. What stops it is the number of contributors a client insists on.
"""

from __future__ import annotations

from collections.abc import Collection

from secagg.cohort_members import Cohort
from tests.attacks.attackers.cheated_sum import CheatedSum, Vector
from tests.attacks.attackers.colluder import Colluder
from tests.attacks.rig import Rig


def few_contributors(
    rig: Rig,
    cohort: Cohort,
    colluders: list[Colluder],
    *,
    roster: Collection[int],
    survivors: Collection[int],
) -> Vector | None:
    """The total of the honest clients who are both in the roster and told that they survived."""
    honest = [member for member in roster if member < rig.clients]
    alive = [member for member in honest if member in survivors]
    cheated = CheatedSum(rig, cohort, rig.query(cohort, 0, roster), colluders)
    cheated.ask(honest)
    cheated.reveal(alive, survivors)
    return cheated.total(alive)


def called_dead(rig: Rig, cohort: Cohort, victim: int, *, told_alive: Collection[int]) -> Vector | None:
    """The vector of a client whose input is there, while it and others are told that it is dead."""
    told_dead = [member for member in cohort.ids if member not in told_alive]
    rest = [member for member in cohort.ids if member != victim]
    cheated = CheatedSum(rig, cohort, rig.query(cohort, 0, cohort.ids))
    cheated.ask(cohort.ids)
    cheated.reveal(told_alive, cohort.ids)
    cheated.reveal(told_dead, rest)
    return cheated.vector(victim)
