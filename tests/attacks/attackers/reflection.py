"""Reflected envelopes: a client is handed back what it sealed for others, as if they had sealed it.

If it were to open them, it would hold its own shares under its peers' names. It then reveals, for every peer
it is told is alive, a share of its own self mask, and for every one it is told is dead, a share of its own
mask key: with two thresholds of peers, one client reveals both of its secrets alone. The tags that go with
the envelopes are those it published itself.
"""

from __future__ import annotations

from dataclasses import replace

from secagg import messages as m
from secagg.cohort_members import Cohort
from secagg.message_records import Advert, Parcel
from secagg.share_tags import tags_digest
from tests.attacks.attackers.cheated_sum import Vector
from tests.attacks.rig import Rig


def reflect_envelopes(rig: Rig, victim: int, *, threshold: int) -> Vector | None:
    """The vector of `victim`, in a set-up that is honest but for the envelopes it is delivered."""
    invitation = rig.invitation()
    return _reflect(rig, victim, invitation, rig.advertise(invitation), threshold)


def echo_own_keys(rig: Rig, victim: int, *, threshold: int) -> Vector | None:
    """The same with peers that do not exist: their keys are the victim's own."""
    invitation = rig.invitation()
    own = rig.advertise(invitation, [victim])[victim]
    echoes = {member: replace(own, member=member) for member in range(rig.clients)}
    return _reflect(rig, victim, invitation, echoes, threshold)


def _reflect(
    rig: Rig, victim: int, invitation: bytes, adverts: dict[int, Advert], threshold: int
) -> Vector | None:
    key_list = rig.key_list(invitation, adverts, threshold)
    cohort = rig.cohort(invitation, key_list, adverts, threshold)
    dealt = rig.share(victim, key_list, cohort.size)
    peers = [member for member in cohort.ids if member != victim]
    tags = {peer: tags_digest(dealt.tags[cohort.position[peer]]) for peer in peers}
    parcels = [
        Parcel(peer, tags[peer], envelope, b"") for peer, envelope in zip(peers, dealt.envelopes, strict=True)
    ]
    rig.send(victim, rig.delivery(cohort, parcels))
    return _read(rig, cohort, victim, alive={victim, *peers[: threshold - 1]})


def _read(rig: Rig, cohort: Cohort, victim: int, *, alive: set[int]) -> Vector | None:
    """Ask the victim alone, and tell it that its peers are partly alive and partly dead."""
    query = rig.query(cohort, 0, cohort.ids)
    question = rig.question(cohort, query)
    masked = rig.masked(query, [victim])[victim]
    ((_, reveal),) = rig.reveals(rig.survivors(cohort, 0, alive), [victim])
    self_mask = rig.secret_of(cohort, _own_shares(rig, cohort, victim, reveal, alive))
    mask_key = rig.secret_of(cohort, _own_shares(rig, cohort, victim, reveal, set(cohort.ids) - alive))
    if self_mask is None or mask_key is None:
        return None
    residues = rig.residues(question, masked.data)
    rig.remove_self_mask(residues, question, victim, self_mask)
    rig.remove_pair_masks(residues, question, victim, mask_key, cohort.ids)
    return rig.vector(question, residues)


def _own_shares(rig: Rig, cohort: Cohort, victim: int, reveal: m.Reveal, dealers: set[int]) -> dict[int, int]:
    """Point -> share of the victim: what it reveals for a dealer is its own share at that dealer's point."""
    return {
        cohort.position[dealer] + 1: share
        for dealer in dealers
        for share in rig.shares_of(cohort, dealer, [(victim, reveal)]).values()
    }
