"""Repeated session: clients whose randomness repeats (a restored snapshot) are taken through set-up again.

All keys, shares and the session id come out the same. In the second run the victim is dead: its set-up is
replayed from the first, its mask key revealed, and its input to the first run read.
"""

from __future__ import annotations

from secagg.cohort_members import Cohort
from secagg.message_records import Advert
from tests.attacks.attackers.cheated_sum import CheatedSum, Vector
from tests.attacks.rig import Dealt, Rig


class SetUp:
    """A set-up whose frames can be replayed for clients that are not there the next time."""

    def __init__(self, rig: Rig, threshold: int) -> None:
        self._rig = rig
        self._threshold = threshold
        self._adverts: dict[int, Advert] = {}
        self._shares: dict[int, Dealt] = {}

    def run(self, members: list[int]) -> Cohort:
        rig, invitation = self._rig, self._rig.invitation()
        self._adverts |= rig.advertise(invitation, members)
        key_list = rig.key_list(invitation, self._adverts, self._threshold)
        cohort = rig.cohort(invitation, key_list, self._adverts, self._threshold)
        self._shares |= {k: rig.share(k, key_list, cohort.size) for k in members}
        for member in members:
            rig.send(member, rig.delivery(cohort, rig.parcels(cohort, self._shares, member)))
        return cohort


def repeated_session(rig: Rig, victim: int, *, threshold: int) -> Vector | None:
    """The victim's input to the first run, where the others run the same session again."""
    everyone = list(range(rig.clients))
    rest = [member for member in everyone if member != victim]
    set_up = SetUp(rig, threshold)
    cohort = set_up.run(everyone)
    first = CheatedSum(rig, cohort, rig.query(cohort, 0, everyone, payload=b"first"))
    first.ask(everyone)
    first.reveal(everyone, everyone)
    rig.restart(members=rest)  # with the seed they had
    assert set_up.run(rest) == cohort
    query = rig.query(cohort, 0, everyone, payload=b"second", round_number=1)
    second = CheatedSum(rig, cohort, query)
    second.ask(rest)
    second.reveal(rest, rest)
    return first.vector(victim, mask_key=second.mask_key(victim))
