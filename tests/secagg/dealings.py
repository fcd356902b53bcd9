"""The set-up of a session by hand: honest clients, dealers that forge shares, and shares that get lost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from secagg import messages as m
from secagg.cohort_members import Cohort
from secagg.dealt_shares import DealtShares
from secagg.evidence import Signed
from secagg.session_secrets import Vault
from secagg.topology import CompleteGraph
from tests.attacks.rig import Rig

Forgery: TypeAlias = Callable[[list[bytes]], list[bytes]]  # from the honest plaintexts for all holders


@dataclass(frozen=True)
class Dealing:
    """A cohort of honest clients, and what its server knows of the shares that they dealt."""

    cohort: Cohort
    dealt: DealtShares
    replies: Mapping[int, list[m.Message]]  # to the delivery of shares


def dealing(
    rig: Rig,
    *,
    threshold: int,
    forgeries: Mapping[int, Forgery] | None = None,
    lost: Collection[tuple[int, int]] = (),
) -> Dealing:
    """Run the set-up of all clients of `rig`. Clients in `forgeries` deal other shares, which fit their tags.
    The envelopes of each (dealer, holder) in `lost` do not open."""
    invitation = rig.invitation()
    adverts = rig.advertise(invitation)
    for member, forgery in (forgeries or {}).items():
        _forge(rig.machines[member]._vault, forgery)
    key_list = rig.key_list(invitation, adverts, threshold)
    cohort = rig.cohort(invitation, key_list, adverts, threshold)
    dealt = DealtShares(cohort, CompleteGraph(cohort.size), rig.form)
    shares = {member: rig.share(member, key_list, cohort.size) for member in adverts}
    for member, rows in shares.items():
        dealt.add(cohort.position[member], b"".join(rows.tags), _signed_tags(rig, member, cohort, rows.tags))
    replies = {}
    for member in adverts:
        parcels = [
            replace(parcel, envelope=bytes(rig.form.envelope_bytes))
            if (parcel.sender, member) in lost
            else parcel
            for parcel in rig.parcels(cohort, shares, member)
        ]
        replies[member] = rig.send(member, rig.delivery(cohort, parcels))
        _record(dealt, cohort, member, replies[member], rig)
    return Dealing(cohort, dealt, replies)


def _forge(vault: Vault, forgery: Forgery) -> None:
    honest = vault.deal

    def deal(*, threshold: int, holders: int) -> list[bytes]:
        return forgery(honest(threshold=threshold, holders=holders))

    vault.deal = deal  # type: ignore[method-assign]


def _signed_tags(rig: Rig, member: int, cohort: Cohort, tags: Iterable[bytes]) -> bytes:
    return rig.machines[member]._sign("share tags", cohort.session, b"".join(tags))


def _record(dealt: DealtShares, cohort: Cohort, member: int, replies: Iterable[m.Message], rig: Rig) -> None:
    """Do what a server does with the replies to a delivery."""
    position, size = cohort.position[member], rig.form.deposit_bytes
    for reply in replies:
        if isinstance(reply, m.Lost):
            lost = [k for k in range(cohort.size) if reply.dealers[k // 8] >> k % 8 & 1]
            dealt.report(position, lost)
        elif isinstance(reply, m.Deposit):
            peers = [dealer for dealer, _ in dealt.held_by(position) if dealer != position]
            rows = {peer: reply.deposits[k * size : (k + 1) * size] for k, peer in enumerate(peers)}
            fields = (cohort.session, dealt.receipt(position), reply.deposits)
            dealt.deposits.add(position, rows, Signed(fields, reply.signature))
