"""Replayed envelopes: what a client sealed in an earlier session, delivered in a later one.

In the earlier session the client was alive, and its self mask was revealed. In the later one it drops, and
its peers reveal the shares of a mask key. If the shares they hold are those of the earlier session, the
server has both kinds for the earlier sum, under any threshold. It replays the tags of the shares as well.
"""

from __future__ import annotations

from collections.abc import Mapping

from secagg.cohort_members import Cohort
from tests.attacks.attackers.cheated_sum import CheatedSum, Vector
from tests.attacks.rig import Dealt, Rig


def replay_envelopes(rig: Rig, victim: int, *, threshold: int) -> Vector | None:
    """The vector that `victim` sent in the first of two sessions, or None if no share was replayed."""
    first, dealt = _set_up(rig, b"1", threshold, {})
    earlier = CheatedSum(rig, first, rig.query(first, 0, first.ids))
    earlier.ask(first.ids)
    earlier.reveal(first.ids, first.ids)

    rig.restart(seed=b"second session")
    second, _ = _set_up(rig, b"2", threshold, {victim: dealt[victim]})
    others = [member for member in second.ids if member != victim]
    later = CheatedSum(rig, second, rig.query(second, 0, second.ids, payload=b"later", round_number=1))
    later.ask(others)
    later.reveal(others, others)
    mask_key = rig.secret_of(second, later.shares(victim, alive=False))
    return None if mask_key is None else earlier.vector(victim, mask_key=mask_key)


def _set_up(
    rig: Rig, nonce: bytes, threshold: int, replayed: Mapping[int, Dealt]
) -> tuple[Cohort, dict[int, Dealt]]:
    """An honest set-up, but for `replayed` envelopes and tags in place of their sender's own."""
    invitation = rig.invitation(nonce=nonce * 32)
    adverts = rig.advertise(invitation)
    key_list = rig.key_list(invitation, adverts, threshold)
    cohort = rig.cohort(invitation, key_list, adverts, threshold)
    shares = {member: rig.share(member, key_list, cohort.size) for member in adverts}
    carried = {k: replayed.get(k, dealt)._replace(signature=dealt.signature) for k, dealt in shares.items()}
    for member in adverts:
        rig.send(member, rig.delivery(cohort, rig.parcels(cohort, carried, member)))
    return cohort, shares
