"""Agreement, derivation and signatures, against published vectors and against keys nobody honest sends."""

from __future__ import annotations

from typing import cast

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from secagg.errors import BadKey, BadSignature
from secagg.hashing import digest
from secagg.keys import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    Agreement,
    Identity,
    check_public_key,
    hkdf,
    noise_commitment,
    noise_info,
    public_key,
    seed_commitment,
    verify,
)

FIELD = (1 << 255) - 19
BOB = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
BOB_PUBLIC = bytes.fromhex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
ALICE_PUBLIC = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
SHARED = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")


def test_agreement_is_that_of_rfc_7748() -> None:
    assert public_key(BOB) == BOB_PUBLIC
    derived = Agreement(BOB).derive(ALICE_PUBLIC, salt=b"salt", info=b"info")
    assert derived == hkdf(SHARED, salt=b"salt", info=b"info")


class CountedKey:
    """A private key that counts the agreements it is asked for."""

    def __init__(self, secret: bytes) -> None:
        self._key = X25519PrivateKey.from_private_bytes(secret)
        self.exchanges = 0

    def exchange(self, peer: X25519PublicKey) -> bytes:
        self.exchanges += 1
        return self._key.exchange(peer)


def test_a_point_is_computed_once_and_serves_any_derivation() -> None:
    agreement, key = Agreement(BOB), CountedKey(BOB)
    agreement._private = cast(X25519PrivateKey, key)
    peers = [ALICE_PUBLIC, public_key(b"\1" * 32)]
    for info in (b"one way", b"the other", b"one way"):
        for peer in peers:
            fresh = Agreement(BOB).derive(peer, salt=b"salt", info=info)
            assert agreement.derive(peer, salt=b"salt", info=info) == fresh
    assert key.exchanges == len(peers)


def test_derivation_is_that_of_rfc_5869() -> None:
    """Test case 1; our 32 bytes are the beginning of its 42."""
    output = hkdf(b"\x0b" * 22, salt=bytes(range(13)), info=bytes(range(0xF0, 0xFA)))
    assert output.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"


def test_an_honest_key_is_accepted() -> None:
    for key in (BOB_PUBLIC, ALICE_PUBLIC, *(public_key(bytes([k] * 32)) for k in range(20))):
        check_public_key(key, peer=3)


@pytest.mark.parametrize("value", [2, 9, FIELD - 2])
def test_keys_next_to_those_of_small_order_are_accepted(value: int) -> None:
    check_public_key(value.to_bytes(32, "little"), peer=3)


def small_order_points() -> list[int]:
    """u-coordinates whose multiples by 4 and 8 vanish, found by doubling on the curve itself.

    A point doubles to infinity where u (u^2 + A u + 1) = 0, and to order two or four before that.
    """
    a = 486662

    def double(u: int) -> int | None:
        bottom = 4 * u * (u * u + a * u + 1) % FIELD
        return None if bottom == 0 else (u * u - 1) ** 2 * pow(bottom, -1, FIELD) % FIELD

    listed = [
        0,
        1,
        FIELD - 1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
    ]
    for u in listed:
        order, point = 1, u
        while (doubled := double(point)) is not None:
            order, point = 2 * order, doubled
            assert order <= 4
    return listed


@pytest.mark.parametrize("value", small_order_points())
def test_points_of_small_order_are_refused(value: int) -> None:
    with pytest.raises(BadKey, match="client 7: not the canonical encoding of a public key of full order"):
        check_public_key(value.to_bytes(32, "little"), peer=7)


@pytest.mark.parametrize("value", [FIELD, FIELD + 1, FIELD + 9, (1 << 255) - 1, 1 << 255, (1 << 256) - 1])
def test_encodings_that_are_not_reduced_are_refused(value: int) -> None:
    """Two encodings of one key would pass for two keys. The curve ignores the top bit; we do not."""
    with pytest.raises(BadKey):
        check_public_key(value.to_bytes(32, "little"), peer=7)
    high = bytearray(BOB_PUBLIC)
    high[31] |= 0x80
    with pytest.raises(BadKey):
        check_public_key(bytes(high), peer=7)


@pytest.mark.parametrize("key", [b"", BOB_PUBLIC[:-1], BOB_PUBLIC + b"\0"])
def test_keys_of_another_length_are_refused(key: bytes) -> None:
    with pytest.raises(BadKey) as caught:
        check_public_key(key, peer="server")
    assert caught.value.peer == "server"


def test_a_commitment_binds_owner_sum_and_secret() -> None:
    base = seed_commitment(bytes(32), owner=1, sum_index=2)
    others = [
        seed_commitment(bytes(31) + b"\1", owner=1, sum_index=2),
        seed_commitment(bytes(32), owner=2, sum_index=2),
        seed_commitment(bytes(32), owner=1, sum_index=1),
        seed_commitment(bytes(32), owner=2, sum_index=1),
    ]
    assert len({base, *others}) == 5
    assert base == digest("self mask commitment", b"\0\0\0\1", b"\0\0\0\2", bytes(32))


def test_a_commitment_to_noise_binds_its_layer_too() -> None:
    fields = [(1, 2, 3), (2, 2, 3), (1, 1, 3), (1, 2, 1), (2, 1, 3), (1, 3, 2)]
    found = [
        noise_commitment(bytes(32), owner=owner, sum_index=index, layer=layer)
        for owner, index, layer in fields
    ]
    assert len({*found, noise_commitment(b"\1" * 32, owner=1, sum_index=2, layer=3)}) == 1 + len(fields)
    assert found[0] == digest("noise commitment", b"\0\0\0\1", b"\0\0\0\2", b"\0\0\0\3", bytes(32))


def test_noise_is_bound_to_context_owner_and_layer() -> None:
    found = {
        noise_info(context, owner, layer)
        for context in (b"c" * 32, b"d" * 32)
        for owner in (1, 2)
        for layer in (1, 2)
    }
    assert len(found) == 8


# --- identities ------------------------------------------------------------------------------------


def test_a_signature_verifies_for_its_purpose_and_fields_only() -> None:
    identity, stranger = Identity.generate(), Identity.generate()
    signature = identity.sign("advert", b"ab", b"c")
    assert len(signature) == SIGNATURE_BYTES
    assert len(identity.public) == KEY_BYTES
    verify(identity.public, signature, "advert", b"ab", b"c", peer=5)
    changed = bytes([signature[0] ^ 1]) + signature[1:]
    attempts: list[tuple[bytes, bytes, str, tuple[bytes, ...]]] = [
        (identity.public, signature, "survivors", (b"ab", b"c")),
        (identity.public, signature, "advert", (b"a", b"bc")),
        (identity.public, signature, "advert", (b"abc",)),
        (identity.public, signature, "advert", ()),
        (stranger.public, signature, "advert", (b"ab", b"c")),
        (identity.public, changed, "advert", (b"ab", b"c")),
        (identity.public, signature[:-1], "advert", (b"ab", b"c")),
        (identity.public, b"", "advert", (b"ab", b"c")),
    ]
    for public, sig, purpose, fields in attempts:
        with pytest.raises(BadSignature, match=f"client 5: signature for '{purpose}' does not verify"):
            verify(public, sig, purpose, *fields, peer=5)


def test_an_identity_survives_its_key_file() -> None:
    identity = Identity.generate()
    again = Identity.from_secret(identity.secret())
    assert again.public == identity.public
    verify(identity.public, again.sign("registry", b"x"), "registry", b"x", peer="server")


def test_identities_are_fresh() -> None:
    assert len({Identity.generate().public for _ in range(8)}) == 8
