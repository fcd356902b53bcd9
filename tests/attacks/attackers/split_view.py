"""Split view: one audience is told that the victim survived, the other that it did not.

The first reveals shares of the victim's self mask, the second shares of its mask key; colluders add theirs to
both and sign both views. Each audience needs a threshold t of members, so that n + c >= 2t: at 2t = n + c the
victim's vector is read, at 2t = n + c + 1 one audience is always a member short.
"""

from __future__ import annotations

from secagg.cohort_members import Cohort
from tests.attacks.attackers.cheated_sum import CheatedSum, Vector
from tests.attacks.attackers.colluder import Colluder
from tests.attacks.rig import Rig


def split_view(rig: Rig, cohort: Cohort, colluders: list[Colluder], *, told_alive: int) -> Vector | None:
    """The vector of client 0, if the views can be had; `told_alive` honest clients see it survive."""
    victim = 0
    everyone, rest = cohort.ids, [member for member in cohort.ids if member != victim]
    query = rig.query(cohort, 0, everyone)
    cheated = CheatedSum(rig, cohort, query, colluders)
    honest = range(rig.clients)
    cheated.ask(honest)
    cheated.tell(honest[:told_alive], everyone)
    cheated.tell(honest[told_alive:], rest)
    cheated.confirm(honest[:told_alive], everyone)
    cheated.confirm(honest[told_alive:], rest)
    return cheated.vector(victim)
