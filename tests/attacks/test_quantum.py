"""Hybrid keys against a server that computes discrete logarithms: masks, envelopes, and a downgrade."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from secagg import client_checks, self_and_pair_masks
from secagg.client import ClientMachine
from secagg.errors import BadKey, FewContributors, PeerError, UnknownPeer
from secagg.events import ClientStep
from secagg.hybrid_keys import KEM_KEY_BYTES, KeyAgreement
from secagg.keys import Agreement
from secagg.messages import Delivery
from secagg.share_envelopes import EnvelopeCipher
from secagg.trust_levels import Trust
from tests.attacks.attackers.quantum import Recording
from tests.attacks.guards import allow, assert_refused
from tests.attacks.rig import Rig

VICTIM = 2
SIZE, THRESHOLD = 5, 3


def hybrid_rig(corrupt: int = 0) -> Rig:
    changes = {"key_agreement": KeyAgreement.HYBRID}
    return Rig(SIZE, Trust.CURIOUS, corrupt=corrupt, sums=2, policy_changes=changes)


# --- masks -------------------------------------------------------------------------------------------


def without_pair_secrets(patch: pytest.MonkeyPatch) -> None:
    """Masks from X25519 alone."""
    original = self_and_pair_masks._pair

    def pair(*about: Any, **rest: Any) -> Any:
        return original(*about, **{**rest, "secrets": {}})

    patch.setattr(self_and_pair_masks, "_pair", pair)


def test_masks_of_x25519_alone_come_off(monkeypatch: pytest.MonkeyPatch) -> None:
    without_pair_secrets(monkeypatch)
    recording = Recording.of(rig := hybrid_rig(), threshold=THRESHOLD)
    found = recording.without_masks(recording.masked_sum(), VICTIM, {})
    assert (found == rig.vectors[VICTIM]).all()


def test_hybrid_masks_stay_on() -> None:
    recording = Recording.of(rig := hybrid_rig(), threshold=THRESHOLD)
    done = recording.masked_sum()
    assert (recording.without_masks(done, VICTIM, {}) != rig.vectors[VICTIM]).all()
    total = done.total(recording.cohort.ids)
    assert total is not None
    assert (total == sum(rig.vectors.values())).all()


# --- envelopes ---------------------------------------------------------------------------------------


def without_kem(patch: pytest.MonkeyPatch) -> None:
    """Envelopes under X25519 alone, though a ciphertext is sent."""
    original = Agreement.derive

    def derive(self: Agreement, peer_key: bytes, *, more: bytes = b"", **rest: bytes) -> bytes:
        return original(self, peer_key, **rest)

    patch.setattr(EnvelopeCipher, "_cipher", _with(EnvelopeCipher._cipher, derive))


def _with(function: Any, derive: Any) -> Any:
    def patched(*given: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Agreement, "derive", derive)
            return function(*given)

    return patched


def test_envelopes_of_x25519_alone_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their shares give the victim's dealt secret, that opens its deposits, and these give its masks."""
    without_kem(monkeypatch)
    recording = Recording.of(rig := hybrid_rig(), threshold=THRESHOLD)
    secret = recording.dealt_secret(VICTIM)
    assert secret is not None
    secrets = recording.pair_secrets(VICTIM, secret)
    found = recording.without_masks(recording.masked_sum(), VICTIM, secrets)
    assert (found == rig.vectors[VICTIM]).all()


def test_hybrid_envelopes_are_not_read() -> None:
    recording = Recording.of(hybrid_rig(), threshold=THRESHOLD)
    pairs = [(one, other) for one in range(SIZE) for other in range(SIZE) if one != other]
    assert {recording.opened(*pair) for pair in pairs} == {None}
    assert recording.dealt_secret(VICTIM) is None


# --- keys that are none ------------------------------------------------------------------------------


def plant_kem_key(rig: Rig, key: bytes) -> None:
    """Show the victim a key list in which client 0 has this KEM key."""
    invitation = rig.invitation()
    adverts = rig.advertise(invitation)
    adverts[0] = replace(adverts[0], kem_key=key)
    rig.send(VICTIM, rig.key_list(invitation, adverts, THRESHOLD))


NO_KEY = b"\xff" * KEM_KEY_BYTES  # its coefficients are not below the modulus


def test_a_kem_key_that_is_none_would_crash_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_checks, "check_kem_key", allow)
    with pytest.raises(ValueError, match="public key"):
        plant_kem_key(hybrid_rig(), NO_KEY)


def test_a_kem_key_that_is_none_is_refused() -> None:
    with pytest.raises(BadKey) as caught:
        plant_kem_key(rig := hybrid_rig(), NO_KEY)
    assert caught.value.peer == 0
    assert_refused(rig.machines[VICTIM])


# --- a downgrade -------------------------------------------------------------------------------------


def believe_senders(patch: pytest.MonkeyPatch) -> None:
    """A client that shares masks with all who sent it an envelope, whether or not it could open it."""
    original = ClientMachine._on_delivery

    def on_delivery(self: ClientMachine, message: Delivery, frame: bytes) -> ClientStep:
        step = original(self, message, frame)
        self._sharers = set(range(SIZE))
        return step

    patch.setattr(client_checks, "enough_sharers", lambda *_: True)
    patch.setattr(ClientMachine, "_on_delivery", on_delivery)


COLLUDER = 4
HONEST = [k for k in range(SIZE) if k not in (VICTIM, COLLUDER)]


def spoiled(rig: Rig, senders: Collection[int]) -> Recording:
    """A session in which the victim cannot open what `senders` sealed."""
    return Recording.of(rig, threshold=THRESHOLD, spoiled=[(sender, VICTIM) for sender in senders])


def test_a_client_that_takes_part_without_pair_secrets_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its masks with all honest clients are of X25519 alone, and the colluder knows the one with it."""
    believe_senders(monkeypatch)
    recording = spoiled(rig := hybrid_rig(corrupt=1), HONEST)
    secrets = {COLLUDER: rig.machines[COLLUDER]._vault._pair_secrets[0][VICTIM]}
    found = recording.without_masks(recording.masked_sum(), VICTIM, secrets)
    assert (found == rig.vectors[VICTIM]).all()


@pytest.mark.parametrize(
    ("roster", "error"), [(range(SIZE), UnknownPeer), ((VICTIM, COLLUDER), FewContributors)]
)
def test_a_client_with_too_few_pair_secrets_deposits_nothing_and_refuses_every_roster(
    roster: Collection[int], error: type[PeerError]
) -> None:
    recording = spoiled(rig := hybrid_rig(corrupt=1), HONEST)
    assert recording.deposits.keys() == {*HONEST, COLLUDER}
    with pytest.raises(error):
        rig.send(VICTIM, rig.query(recording.cohort, 0, roster))
    assert_refused(rig.machines[VICTIM])


def test_a_client_is_not_asked_with_peers_without_a_pair_secret() -> None:
    recording = spoiled(rig := hybrid_rig(corrupt=1), HONEST[:1])
    with pytest.raises(UnknownPeer, match="the roster names a client whose shares were not delivered"):
        recording.masked_sum()
    assert_refused(rig.machines[VICTIM])
