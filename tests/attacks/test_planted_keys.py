"""Keys that the server, or a colluder, puts where an honest client's belong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from secagg import client_checks, keys, self_and_pair_masks
from secagg.admission_and_attendance import Admission
from secagg.errors import BadKey, BadSignature, TooFewClients, UnknownPeer
from secagg.events import Excluded
from secagg.hashing import framed
from secagg.identity_registry import Registry
from secagg.keys import Agreement, hkdf
from secagg.local_session import LocalSession
from secagg.message_records import Advert, Parcel
from secagg.server import ServerMachine
from secagg.session_params import SessionParams
from secagg.trust_levels import Trust
from tests.attacks.attackers.copied_keys import Copycat, copy_mask_keys
from tests.attacks.attackers.low_order import LOW_ORDER_KEYS, LowOrderClient, plant_low_order_keys
from tests.attacks.attackers.reflection import echo_own_keys
from tests.attacks.attackers.replayed_keys import replay_key_list
from tests.attacks.attackers.substitution import substitute_everyone, substitute_peers
from tests.attacks.attackers.sybils import FIRST_SYBIL, surround_with_sybils
from tests.attacks.guards import BOTH, allow, assert_refused, unbind_tags
from tests.attacks.rig import KIND, PART, Rig

VICTIM = 2


# --- a man in the middle ---------------------------------------------------------------------------


def test_unsigned_keys_let_the_server_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two guards overlap: peers sign their keys, and they sign the key list that the victim saw."""
    monkeypatch.setattr(client_checks, "check_advert_signature", allow)
    monkeypatch.setattr(client_checks, "check_parcel_signature", allow)
    rig = Rig(4, Trust.MALICIOUS)
    assert (substitute_peers(rig, VICTIM, threshold=3) == rig.vectors[VICTIM]).all()


@pytest.mark.parametrize("removed", [None, "check_advert_signature", "check_parcel_signature"])
def test_keys_that_no_peer_signed_are_refused(removed: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either of the two guards is enough."""
    if removed is not None:
        monkeypatch.setattr(client_checks, removed, allow)
    rig = Rig(4, Trust.MALICIOUS)
    with pytest.raises(BadSignature) as caught:
        substitute_peers(rig, VICTIM, threshold=3)
    assert caught.value.peer == 0
    assert_refused(rig.machines[VICTIM])


def test_clients_that_do_not_look_for_their_own_keys_are_all_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_checks, "check_own_advert", allow)
    rig = Rig(4, Trust.CURIOUS)
    found = substitute_everyone(rig, threshold=3)
    assert all((found[member] == rig.vectors[member]).all() for member in range(4))


@pytest.mark.parametrize("trust", BOTH)
def test_a_client_refuses_a_key_list_that_changed_its_own_keys(trust: Trust) -> None:
    rig = Rig(4, trust)
    with pytest.raises(BadKey) as caught:
        substitute_everyone(rig, threshold=3)
    assert caught.value.peer == "server"
    assert_refused(rig.machines[0])


# --- keys that repeat ------------------------------------------------------------------------------


def undirected(sender: int, receiver: int) -> bytes:
    return framed("envelope", *(member.to_bytes(4, "big") for member in sorted((sender, receiver))))


def undirect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "envelope_info", undirected)


def test_echoed_keys_make_a_client_reveal_both_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three guards overlap: no key may occur twice, an envelope has a direction, and tags name the dealer."""
    monkeypatch.setattr(client_checks, "check_keys", allow)
    undirect(monkeypatch)
    unbind_tags(monkeypatch)
    rig = Rig(4, Trust.CURIOUS)
    found = echo_own_keys(rig, VICTIM, threshold=2)
    assert found is not None
    assert (found == rig.vectors[VICTIM]).all()


@pytest.mark.parametrize("removed", [undirect, unbind_tags])
def test_an_envelope_with_a_direction_or_tags_survives_echoed_keys(
    removed: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the other two guards is enough."""
    monkeypatch.setattr(client_checks, "check_keys", allow)
    removed(monkeypatch)
    assert echo_own_keys(Rig(4, Trust.CURIOUS), VICTIM, threshold=2) is None


def test_a_client_refuses_its_own_keys_as_a_peers() -> None:
    rig = Rig(4, Trust.CURIOUS)
    with pytest.raises(BadKey) as caught:
        echo_own_keys(rig, VICTIM, threshold=2)
    assert caught.value.peer == 1
    assert_refused(rig.machines[VICTIM])


def nameless(context: bytes, one: int, other: int) -> bytes:
    return framed("pair mask", context)


def copycats() -> tuple[Rig, list[Copycat]]:
    """Clients 0 and 1 below the victim, copied by two registered colluders above it."""
    rig = Rig(3, Trust.MALICIOUS, corrupt=2, registered=2)
    return rig, [Copycat(rig, 3), Copycat(rig, 4)]


def test_copied_keys_cancel_the_masks_of_the_client_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two guards overlap: no key may occur twice, and a mask is bound to the ids of its pair."""
    monkeypatch.setattr(client_checks, "check_keys", allow)
    monkeypatch.setattr(self_and_pair_masks, "pair_info", nameless)
    rig, colluders = copycats()
    assert (copy_mask_keys(rig, VICTIM, colluders, threshold=4) == rig.vectors[VICTIM]).all()


def test_masks_bound_to_ids_survive_copied_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_checks, "check_keys", allow)
    rig, colluders = copycats()
    assert (copy_mask_keys(rig, VICTIM, colluders, threshold=4) != rig.vectors[VICTIM]).any()


def test_a_client_refuses_a_key_that_occurs_twice() -> None:
    rig, colluders = copycats()
    with pytest.raises(BadKey) as caught:
        copy_mask_keys(rig, VICTIM, colluders, threshold=4)
    assert caught.value.peer == 3
    assert_refused(rig.machines[0])


# --- keys of low order -----------------------------------------------------------------------------


def unchecked_derive(
    self: Agreement, peer_key: bytes, *, salt: bytes, info: bytes, more: bytes = b""
) -> bytes:
    """X25519 of a library that does not look at its result."""
    try:
        shared = self._private.exchange(X25519PublicKey.from_public_bytes(peer_key))
    except ValueError:
        shared = bytes(32)
    return hkdf(shared + more, salt=salt, info=info)


def test_low_order_keys_open_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two guards overlap: ours on keys, and the library's on the shared secret."""
    monkeypatch.setattr(client_checks, "check_keys", allow)
    monkeypatch.setattr(Agreement, "derive", unchecked_derive)
    rig = Rig(4, Trust.CURIOUS, sums=2)
    assert (plant_low_order_keys(rig, VICTIM, threshold=3) == rig.vectors[VICTIM]).all()


def test_the_library_refuses_a_constant_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without our guard the machine still fails, but with an error that names nobody."""
    monkeypatch.setattr(client_checks, "check_keys", allow)
    rig = Rig(4, Trust.CURIOUS, sums=2)
    with pytest.raises(ValueError, match="shared key"):
        plant_low_order_keys(rig, VICTIM, threshold=3)
    assert_refused(rig.machines[VICTIM])


def test_a_client_refuses_keys_of_low_order() -> None:
    rig = Rig(4, Trust.CURIOUS, sums=2)
    with pytest.raises(BadKey) as caught:
        plant_low_order_keys(rig, VICTIM, threshold=3)
    assert caught.value.peer == 0
    assert_refused(rig.machines[VICTIM])


@pytest.mark.parametrize("key", LOW_ORDER_KEYS)
def test_agreement_on_a_low_order_key_is_constant(key: bytes) -> None:
    """The list is what it says: the library refuses the result of every one of them."""
    with pytest.raises(ValueError, match="shared key"):
        Agreement(b"\x42" * 32).derive(key, salt=b"", info=b"")


def session_with_low_order_client() -> tuple[ServerMachine, LocalSession, Rig]:
    rig = Rig(5, Trust.CURIOUS)
    rig.machines[1] = LowOrderClient(member=1, table=rig.table, policy=rig.policy, memory=rig.memories[1])
    server = ServerMachine(
        table=rig.table,
        params=SessionParams(
            trust=rig.trust,
            sums=rig.sums,
            corrupt=0,
            dropout=0,
            min_cohort=2,
            max_cohort=5,
            min_contributors=2,
        ),
    )
    return server, LocalSession(server, rig.machines, lambda k, _: {PART: rig.vectors[k]}), rig


def test_a_server_that_passes_bad_keys_on_loses_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Admission, "_check_keys", allow)
    _, session, rig = session_with_low_order_client()
    with pytest.raises(TooFewClients) as caught:
        session.open()
    assert isinstance(caught.value.__cause__, BadKey)
    assert session.refusals.keys() == {0, 1, 2, 3, 4}
    assert_refused(rig.machines[0])


def test_a_server_turns_away_a_client_with_a_bad_key_alone() -> None:
    server, session, rig = session_with_low_order_client()
    session.open()
    (excluded,) = (event for event in session.events if isinstance(event, Excluded))
    assert excluded.peer == 1
    assert isinstance(excluded.error, BadKey)
    assert server.members == (0, 2, 3, 4)
    expected = sum(rig.vectors[k] for k in (0, 2, 3, 4))
    assert (session.ask(KIND)[PART] == expected).all()


# --- Sybils ----------------------------------------------------------------------------------------


def only_registered(check: Callable[..., None]) -> Callable[..., None]:
    """A check of signatures that has nothing to say about strangers."""

    def checked(signed: Advert | Parcel, *rest: object) -> None:
        member = signed.member if isinstance(signed, Advert) else signed.sender
        (registry,) = (value for value in rest if isinstance(value, Registry))
        if member in registry.members:
            check(signed, *rest)

    return checked


def test_strangers_in_the_cohort_read_the_only_honest_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """One guard in three places: strangers are not in the registry, so there is no key to verify with."""
    monkeypatch.setattr(client_checks, "check_members", allow)
    for name in ("check_advert_signature", "check_parcel_signature"):
        monkeypatch.setattr(client_checks, name, only_registered(getattr(client_checks, name)))
    rig = Rig(4, Trust.MALICIOUS)
    found = surround_with_sybils(rig, VICTIM, count=4, threshold=3)
    assert (found == rig.vectors[VICTIM]).all()


def test_a_client_refuses_strangers() -> None:
    rig = Rig(4, Trust.MALICIOUS)
    with pytest.raises(UnknownPeer) as caught:
        surround_with_sybils(rig, VICTIM, count=4, threshold=3)
    assert caught.value.peer == FIRST_SYBIL
    assert_refused(rig.machines[VICTIM])


# --- key lists of an earlier session ---------------------------------------------------------------


def test_replayed_keys_whose_secrets_leaked_read_the_victim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_checks, "check_parcel_signature", allow)
    rig = Rig(4, Trust.MALICIOUS)
    assert (replay_key_list(rig, VICTIM, threshold=3) == rig.vectors[VICTIM]).all()


def test_a_client_masks_only_with_peers_who_signed_this_very_key_list() -> None:
    rig = Rig(4, Trust.MALICIOUS)
    with pytest.raises(BadSignature) as caught:
        replay_key_list(rig, VICTIM, threshold=3)
    assert caught.value.peer == 0
    assert_refused(rig.machines[VICTIM])


def test_a_signature_on_the_earlier_key_list_is_no_substitute() -> None:
    """What the server does have is the peers' signature on the first session; it is for that one only."""
    rig = Rig(3, Trust.MALICIOUS)
    invitation = rig.invitation()
    adverts = rig.advertise(invitation)
    first = rig.key_list(invitation, adverts, 2)
    old = {k: rig.share(k, first, 3) for k in adverts}
    rig.restart(seed=b"second session", members=[VICTIM])
    adverts.update(rig.advertise(invitation, [VICTIM]))
    second = rig.key_list(invitation, adverts, 2)
    cohort = rig.cohort(invitation, second, adverts, 2)
    rig.share(VICTIM, second, 3)
    with pytest.raises(BadSignature):
        rig.send(VICTIM, rig.delivery(cohort, rig.parcels(cohort, old, VICTIM)))
    assert_refused(rig.machines[VICTIM])
