"""Revoked identities: a client is given a registry that is genuine, but older than the one it knows.

Identities whose keys leaked are gone from the new registry; in the old one they are as good as any. A
cohort of them and one honest client gives that client's vector.
"""

from __future__ import annotations

from tests.attacks.attackers.cheated_sum import CheatedSum, Vector
from tests.attacks.attackers.colluder import Colluder, set_up_with
from tests.attacks.rig import Rig


def revoked_identities(rig: Rig, *, threshold: int) -> Vector | None:
    """The vector of client 0, the only honest one, who starts again with the rig's old registry."""
    rig.restart(seed=b"old registry")
    revoked = [Colluder(rig, rig.clients + k) for k in range(rig.registered)]
    cohort = set_up_with(rig, revoked, threshold=threshold)
    cheated = CheatedSum(rig, cohort, rig.query(cohort, 0, cohort.ids), revoked)
    cheated.ask([0])
    cheated.reveal([0], cohort.ids)
    return cheated.total([0])
