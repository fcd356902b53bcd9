"""A siege: one honest client in a cohort whose other members are all the attacker's.

Every peer of the victim opens its shares and agrees on its masks, so its masked input is readable as soon
as it arrives, before anybody unmasks. How the attacker comes by such a cohort is the attack.
"""

from __future__ import annotations

from collections.abc import Collection

from secagg.insecure_seeds import seeded_identity
from tests.attacks.attackers.cheated_sum import CheatedSum, Vector
from tests.attacks.attackers.colluder import Colluder, set_up_with
from tests.attacks.rig import Rig


class Impostor(Colluder):
    """Speaks under somebody else's id in a signed session, and signs with a key of its own."""

    def __init__(self, rig: Rig, member: int) -> None:
        super().__init__(rig, member)
        self._identity = seeded_identity(b"impostor", member)


def besiege(rig: Rig, victim: int, companions: Collection[Colluder], *, threshold: int) -> Vector:
    """The vector of `victim`, who alone is honest among `companions`."""
    cohort = set_up_with(rig, companions, threshold=threshold, members=[victim])
    cheat = CheatedSum(rig, cohort, rig.query(cohort, 0, cohort.ids), companions)
    cheat.ask([victim])
    vector = cheat.vector(victim)
    assert vector is not None  # the companions hold a threshold of the victim's shares
    return vector
