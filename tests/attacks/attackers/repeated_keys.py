"""Repeated key list: a client deals the shares of the same secrets twice, in two sessions.

Both sessions are safe by themselves. In the first the victim is dead, and its mask key is revealed; in the
second it masks its input with that very key, and its self mask is revealed.
"""

from __future__ import annotations

from secagg import messages as m
from secagg.cohort_members import Cohort
from tests.attacks.attackers.cheated_sum import CheatedSum, Vector
from tests.attacks.rig import Rig


def repeated_key_list(rig: Rig, *, stay: int, threshold: int, second_threshold: int) -> Vector | None:
    """The vector of client 0. The last `stay` clients stay in the first session, the others move on."""
    invitation = rig.invitation()
    adverts = rig.advertise(invitation)
    first_list = rig.key_list(invitation, adverts, threshold)
    first = rig.cohort(invitation, first_list, adverts, threshold)
    shares = {k: rig.share(k, first_list, first.size) for k in adverts}
    stayers = first.ids[-stay:]
    movers = {k: adverts[k] for k in first.ids[:-stay]}
    # By now these clients expect messages of the first session.
    blob = b"".join(advert.encode() for advert in movers.values())
    second_list = m.KeyList(first.session, second_threshold, blob).encode()
    second = rig.cohort(invitation, second_list, movers, second_threshold)
    second_shares = {k: rig.share(k, second_list, second.size) for k in movers}
    for member in stayers:
        rig.send(member, rig.delivery(first, rig.parcels(first, shares, member)))
    for member in movers:
        rig.send(member, rig.delivery(second, rig.parcels(second, second_shares, member)))
    key = _sum(rig, first, stayers, (0, *stayers)).mask_key(0)
    return _sum(rig, second, second.ids, second.ids).vector(0, mask_key=key)


def _sum(rig: Rig, cohort: Cohort, members: tuple[int, ...], roster: tuple[int, ...]) -> CheatedSum:
    cheated = CheatedSum(rig, cohort, rig.query(cohort, 0, roster))
    cheated.ask(members)
    cheated.reveal(members, members)
    return cheated
