"""Hybrid keys: two ends of a pair derive the same secrets, and each deposit opens with one secret only."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.errors import BadKey, ParameterError
from secagg.hashing import digest, framed
from secagg.hybrid_keys import (
    CIPHERTEXT_BYTES,
    DEPOSIT_BYTES,
    KEM_KEY_BYTES,
    KEM_SEED_BYTES,
    PAIR_SECRET_BYTES,
    SECRET_TAG_BYTES,
    Encapsulation,
    KemKey,
    KeyAgreement,
    check_kem_key,
    encapsulate,
    mask_key_of,
    padded,
    pair_secrets,
    secret_tag,
)
from secagg.insecure_seeds import SeededRandom
from secagg.keys import hkdf

SESSION = b"s" * 32
SECRETS = st.binary(min_size=32, max_size=32)


def key(number: int) -> KemKey:
    return KemKey(SeededRandom(b"kem", bytes([number]))(KEM_SEED_BYTES))


def u32(value: int) -> bytes:
    return value.to_bytes(4, "big")


# --- the KEM -----------------------------------------------------------------------------------------


def test_a_key_agreement_has_a_name() -> None:
    assert KeyAgreement.parse("x25519") is KeyAgreement.X25519
    assert KeyAgreement.parse("x25519+ml-kem-768") is KeyAgreement.HYBRID
    assert KeyAgreement.parse(KeyAgreement.HYBRID) is KeyAgreement.HYBRID
    with pytest.raises(ParameterError, match="key_agreement must be one of"):
        KeyAgreement.parse("ml-kem-768")


def test_only_the_owner_of_the_key_has_the_secret() -> None:
    one = encapsulate(key(1).public())
    assert (len(one.secret), len(one.ciphertext)) == (32, CIPHERTEXT_BYTES)
    assert key(1).open(one.ciphertext) == one
    assert key(2).open(one.ciphertext).secret != one.secret


def test_every_encapsulation_has_another_secret() -> None:
    found = [encapsulate(key(1).public()) for _ in range(4)]
    assert len({one.secret for one in found}) == len({one.ciphertext for one in found}) == 4


def test_a_key_is_made_from_its_seed() -> None:
    assert key(1).public() == key(1).public() != key(2).public()
    assert len(key(1).public()) == KEM_KEY_BYTES
    with pytest.raises(ValueError, match="seed"):
        KemKey(bytes(KEM_SEED_BYTES - 1))


def test_a_good_key_passes() -> None:
    check_kem_key(key(1).public(), peer=3)


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        key(1).public()[:-1],
        key(1).public() + b"\0",
        b"\xff" * KEM_KEY_BYTES,  # coefficients beyond the modulus
        b"\xff\xff" + key(1).public()[2:],
    ],
)
def test_a_bad_key_names_its_owner(bad: bytes) -> None:
    with pytest.raises(BadKey, match="client 3: not a public key of ML-KEM-768"):
        check_kem_key(bad, peer=3)


def test_a_changed_ciphertext_gives_another_secret_and_no_error() -> None:
    """ML-KEM rejects implicitly: what was sealed under the secret then does not open."""
    one = encapsulate(key(1).public())
    changed = bytes([one.ciphertext[0] ^ 1]) + one.ciphertext[1:]
    assert key(1).open(changed).secret != one.secret


# --- mask keys ---------------------------------------------------------------------------------------


@given(SECRETS)
@settings(deadline=None, max_examples=20)
def test_with_x25519_alone_the_dealt_secret_is_the_mask_key(secret: bytes) -> None:
    assert mask_key_of(secret, KeyAgreement.X25519) == secret
    derived = mask_key_of(secret, KeyAgreement.HYBRID)
    assert derived == hkdf(secret, salt=b"", info=framed("mask key")) != secret


# --- pair secrets ------------------------------------------------------------------------------------

LOWER, HIGHER = Encapsulation(b"l" * 32, b"first"), Encapsulation(b"h" * 32, b"second")


def secrets_of(lower: Encapsulation = LOWER, higher: Encapsulation = HIGHER, **changes: Any) -> list[bytes]:
    fields: dict[str, Any] = {"session": SESSION, "pair": (3, 8), "sums": 3}
    return pair_secrets(lower, higher, **{**fields, **changes})


def test_pair_secrets_are_derived_from_both_directions() -> None:
    info = framed("pair root", u32(3), u32(8), digest("ciphertexts", b"first", b"second"))
    root = hkdf(b"l" * 32 + b"h" * 32, salt=SESSION, info=info)
    expected = [hkdf(root, salt=SESSION, info=framed("pair secret", u32(k))) for k in range(3)]
    assert secrets_of() == expected
    assert len(set(expected)) == 3
    assert {len(secret) for secret in expected} == {PAIR_SECRET_BYTES}
    assert secrets_of(sums=1) == expected[:1]


def test_everything_about_a_pair_changes_its_secrets() -> None:
    others = [
        secrets_of(),
        secrets_of(HIGHER, LOWER),
        secrets_of(LOWER._replace(secret=b"x" * 32)),
        secrets_of(higher=HIGHER._replace(secret=b"x" * 32)),
        secrets_of(LOWER._replace(ciphertext=b"other")),
        secrets_of(higher=HIGHER._replace(ciphertext=b"other")),
        secrets_of(session=b"t" * 32),
        secrets_of(pair=(3, 9)),
        secrets_of(pair=(2, 8)),
    ]
    found = [secret for each in others for secret in each]
    assert len(set(found)) == len(found)


# --- tags and deposits -------------------------------------------------------------------------------


def test_a_tag_of_a_secret_does_not_depend_on_the_order_of_the_pair() -> None:
    tag = secret_tag(b"x" * 32, session=SESSION, pair=(8, 3), sum_index=2)
    assert tag == secret_tag(b"x" * 32, session=SESSION, pair=(3, 8), sum_index=2)
    assert tag == digest("pair secret tag", SESSION, u32(3), u32(8), u32(2), b"x" * 32)
    assert len(tag) == SECRET_TAG_BYTES


def test_a_tag_is_bound_to_session_pair_sum_and_secret() -> None:
    fields: dict[str, Any] = {"session": SESSION, "pair": (3, 8), "sum_index": 2}
    changes: list[dict[str, Any]] = [
        {},
        {"session": b"t" * 32},
        {"pair": (3, 9)},
        {"pair": (4, 8)},
        {"sum_index": 1},
    ]
    tags = {secret_tag(secret, **{**fields, **each}) for each in changes for secret in (b"x" * 32, b"y" * 32)}
    assert len(tags) == 2 * len(changes)


NAMES: dict[str, Any] = {"session": SESSION, "owner": 3, "peer": 8, "sum_index": 2}


@given(SECRETS, SECRETS)
@settings(deadline=None, max_examples=50)
def test_a_pad_comes_off_as_it_was_put_on(value: bytes, secret: bytes) -> None:
    hidden = padded(value, secret=secret, **NAMES)
    assert padded(hidden, secret=secret, **NAMES) == value
    info = framed("deposit", u32(3), u32(8), u32(2))
    assert padded(bytes(32), secret=secret, **NAMES) == hkdf(secret, salt=SESSION, info=info)


def test_no_two_deposits_have_the_same_pad() -> None:
    """The two directions of a pair included: their XOR would show whether both hide the same secret."""
    changes: list[dict[str, Any]] = [
        {},
        {"session": b"t" * 32},
        {"owner": 8, "peer": 3},
        {"peer": 9},
        {"owner": 4},
        {"sum_index": 1},
    ]
    pads = [
        padded(bytes(32), secret=secret, **{**NAMES, **each})
        for each in changes
        for secret in (b"x" * 32, b"y" * 32)
    ]
    assert all(one != other for one, other in combinations(pads, 2))


@pytest.mark.parametrize("size", [0, 31, 33])
def test_only_whole_secrets_are_padded(size: int) -> None:
    with pytest.raises(ValueError, match="zip"):
        padded(bytes(size), secret=bytes(32), **NAMES)


def test_a_deposit_is_a_padded_secret_and_a_tag() -> None:
    assert DEPOSIT_BYTES == 64
