"""Envelopes of another direction, sender, receiver or session: none opens, and none stops the session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from secagg import keys
from secagg import messages as m
from secagg.bitmap import unpack_positions
from secagg.cohort_members import Cohort
from secagg.events import EnvelopeLost
from secagg.hashing import digest, framed
from secagg.keys import public_key
from secagg.session_secrets import Vault
from secagg.share_envelopes import EnvelopeCipher
from secagg.transitions import ClientState
from secagg.trust_levels import Trust
from tests.attacks.attackers.reflection import reflect_envelopes
from tests.attacks.attackers.replayed_envelopes import replay_envelopes
from tests.attacks.guards import BOTH, unbind_tags
from tests.attacks.rig import Dealt, Rig

VICTIM = 1


def undirected(sender: int, receiver: int) -> bytes:
    return framed("envelope", *(member.to_bytes(4, "big") for member in sorted((sender, receiver))))


def undirect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "envelope_info", undirected)


def test_reflected_envelopes_make_a_client_reveal_both_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Possible where n >= 2t: under `malicious_server` the threshold alone is in the way.

    Two guards overlap: envelopes have a direction, and tags name the dealer.
    """
    undirect(monkeypatch)
    unbind_tags(monkeypatch)
    rig = Rig(4, Trust.CURIOUS)
    found = reflect_envelopes(rig, VICTIM, threshold=2)
    assert found is not None
    assert (found == rig.vectors[VICTIM]).all()


@pytest.mark.parametrize("removed", [None, undirect, unbind_tags])
def test_reflected_envelopes_are_lost(
    removed: Callable[[pytest.MonkeyPatch], None] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either of the two guards is enough."""
    if removed is not None:
        removed(monkeypatch)
    rig = Rig(4, Trust.CURIOUS)
    assert reflect_envelopes(rig, VICTIM, threshold=2) is None
    assert [event for event in rig.events[VICTIM] if isinstance(event, EnvelopeLost)] == [
        EnvelopeLost(0), EnvelopeLost(2), EnvelopeLost(3),
    ]  # fmt: skip
    assert rig.machines[VICTIM].state is ClientState.READY


# --- an earlier session's --------------------------------------------------------------------------


def use_static_channel_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Channel keys that last for ever, as they would be in a design with one long-term key per client."""

    def secret(self: Vault) -> bytes:
        return digest("static channel key", self._owner.to_bytes(4, "big"))

    def channel(self: Vault, session: bytes) -> EnvelopeCipher:
        encapsulate = self._encapsulate
        return EnvelopeCipher(
            secret(self), session=session, owner=self._owner, kem=None, encapsulate=encapsulate
        )

    monkeypatch.setattr(Vault, "channel", channel)
    monkeypatch.setattr(Vault, "channel_key", lambda self: public_key(secret(self)))


def ignore_session(monkeypatch: pytest.MonkeyPatch) -> None:
    original = EnvelopeCipher.__init__

    def unbound(self: EnvelopeCipher, secret: bytes, *, session: bytes, **settings: Any) -> None:
        original(self, secret, session=b"", **settings)

    monkeypatch.setattr(EnvelopeCipher, "__init__", unbound)


@pytest.mark.parametrize("trust", BOTH)
def test_replayed_envelopes_open_an_earlier_sum(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three guards overlap: channel keys live for one session, and envelopes and tags name the session."""
    for remove in (use_static_channel_keys, ignore_session, unbind_tags):
        remove(monkeypatch)
    rig = Rig(4, trust)
    found = replay_envelopes(rig, VICTIM, threshold=3)
    assert found is not None
    assert (found == rig.vectors[VICTIM]).all()


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize(
    "removed",
    [
        (),
        (use_static_channel_keys, unbind_tags),
        (ignore_session, unbind_tags),
        (use_static_channel_keys, ignore_session),
    ],
)
def test_replayed_envelopes_are_lost(
    trust: Trust,
    removed: tuple[Callable[[pytest.MonkeyPatch], None], ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any of the three guards is enough."""
    for remove in removed:
        remove(monkeypatch)
    rig = Rig(4, trust)
    assert replay_envelopes(rig, VICTIM, threshold=3) is None
    for member in (0, 2, 3):
        lost = [event for event in rig.events[member] if isinstance(event, EnvelopeLost)]
        assert lost == [EnvelopeLost(VICTIM)]


# --- and every other misdirection ------------------------------------------------------------------

Shares = dict[int, Dealt]


def of_another_sender(shares: Shares) -> bytes:
    return shares[2].envelopes[0]  # what client 2 sealed for client 0


def of_another_receiver(shares: Shares) -> bytes:
    return shares[1].envelopes[1]  # what client 1 sealed for client 2


def reflected(shares: Shares) -> bytes:
    return shares[0].envelopes[0]  # what client 0 sealed for client 1


def with_one_bit_changed(shares: Shares) -> bytes:
    sealed = shares[1].envelopes[0]
    return bytes([sealed[0] ^ 1]) + sealed[1:]


def with_a_changed_tag(shares: Shares) -> bytes:
    sealed = shares[1].envelopes[0]
    return sealed[:-1] + bytes([sealed[-1] ^ 0x80])


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize(
    "choose", [of_another_sender, of_another_receiver, reflected, with_one_bit_changed, with_a_changed_tag]
)
def test_a_misdirected_envelope_is_a_lost_share(trust: Trust, choose: Callable[[Shares], bytes]) -> None:
    """Client 0 holds no share of client 1, says so to its owner, and reveals none; the rest goes on.

    Another sender's or receiver's envelope is under another X25519 secret: that no binding of ids, only the
    agreement itself, keeps it shut, is why there is no attack to show with a guard removed.
    """
    rig = Rig(4, trust)
    cohort, shares = deal(rig)
    parcels = rig.parcels(cohort, shares, 0)
    swapped = [
        replace(parcel, envelope=choose(shares)) if parcel.sender == 1 else parcel for parcel in parcels
    ]
    rig.send(0, rig.delivery(cohort, swapped))
    assert EnvelopeLost(1) in rig.events[0]
    for member in (1, 2, 3):
        rig.send(member, rig.delivery(cohort, rig.parcels(cohort, shares, member)))
    assert revealed_by(rig, cohort, 0) == (0, 2, 3)


def deal(rig: Rig) -> tuple[Cohort, Shares]:
    invitation = rig.invitation()
    adverts = rig.advertise(invitation)
    key_list = rig.key_list(invitation, adverts, 3)
    cohort = rig.cohort(invitation, key_list, adverts, 3)
    return cohort, {k: rig.share(k, key_list, cohort.size) for k in adverts}


def revealed_by(rig: Rig, cohort: Cohort, member: int) -> tuple[int, ...]:
    """Whose shares `member` reveals after an honest sum over everybody."""
    rig.masked(rig.query(cohort, 0, cohort.ids), cohort.ids)
    survivors = rig.survivors(cohort, 0, cohort.ids)
    replies = {k: rig.send(k, survivors)[0] for k in cohort.ids}
    reveal = replies[member]
    if isinstance(reveal, m.Confirmation):
        signed = [(k, reply.signature) for k, reply in replies.items() if isinstance(reply, m.Confirmation)]
        blob = b"".join(k.to_bytes(4, "big") + signature for k, signature in signed)
        (reveal,) = rig.send(member, m.Confirmations(cohort.session, 0, blob).encode())
    assert isinstance(reveal, m.Reveal)
    return unpack_positions(reveal.dealers, cohort.size, sender=member)
