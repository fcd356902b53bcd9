"""Copied keys: colluders advertise the mask keys of honest clients as their own.

A client masks with each peer once, adding for those below it and subtracting for those above. If the mask
followed from the two keys alone, an honest client below and its copy above would cancel inside the victim's
own input. Nobody needs to know a single mask key.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from secagg.cohort_members import invitation_digest
from secagg.message_records import Advert
from tests.attacks.attackers.cheated_sum import CheatedSum, Vector
from tests.attacks.attackers.colluder import Colluder, set_up_over
from tests.attacks.rig import Rig


class Copycat(Colluder):
    """A registered colluder whose advert carries another member's mask keys, properly signed."""

    def copy(self, invitation: bytes, original: Advert) -> Advert:
        advert = replace(self.advert(invitation), mask_keys=original.mask_keys)
        return replace(advert, signature=self._sign("advert", invitation_digest(invitation), advert.body))


def copy_mask_keys(rig: Rig, victim: int, copycats: Collection[Copycat], *, threshold: int) -> Vector:
    """The vector of `victim`, who stands between as many honest clients (below) and copycats (above)."""
    invitation = rig.invitation()
    honest = rig.advertise(invitation)
    originals = [advert for member, advert in honest.items() if member != victim]
    copies = {
        copycat.member: copycat.copy(invitation, original)
        for copycat, original in zip(copycats, originals, strict=True)
    }
    cohort = set_up_over(rig, invitation, {**honest, **copies}, copycats, threshold=threshold)
    cheat = CheatedSum(rig, cohort, rig.query(cohort, 0, cohort.ids), copycats)
    cheat.ask(honest)
    cheat.reveal(list(honest), cohort.ids)
    residues = rig.residues(cheat.question, cheat.inputs[victim].data)
    secret = cheat.self_mask(victim)
    assert secret is not None  # everybody revealed
    rig.remove_self_mask(residues, cheat.question, victim, secret)
    return rig.vector(cheat.question, residues)
