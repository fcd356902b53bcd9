"""The registry: what the authority signed, in one order, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from secagg.canonical_msgpack import encode_fields
from secagg.errors import ExpiredRegistry, ParameterError, WrongRegistry
from secagg.hashing import digest
from secagg.identity_registry import (
    MAX_EXPIRES,
    MAX_ID,
    Registry,
    SignedRegistry,
    check_identity,
    verify_registry,
)
from secagg.insecure_seeds import seeded_identity
from secagg.keys import Identity
from secagg.trust_levels import Trust

AUTHORITY = seeded_identity(b"authority", 0)
KEYS = {k: seeded_identity(b"registry", k).public for k in range(4)}
EXPIRES = 1_800_000_000
ROWS = [k.to_bytes(4, "big") + KEYS[k] for k in range(4)]


def registry(**changes: Any) -> Registry:
    return Registry(**{"version": 5, "members": KEYS, "expires": EXPIRES, **changes})


def signed_file(records: bytes, *, version: int = 5, expires: int = EXPIRES) -> bytes:
    """A file whose signature is good for exactly these records, in this order."""
    stamps = [number.to_bytes(8, "big") for number in (version, expires)]
    signature = AUTHORITY.sign("registry", digest("registry", *stamps, records))
    return encode_fields(version, expires, records, signature)


def assert_refused(data: bytes, why: str) -> None:
    with pytest.raises(WrongRegistry, match=why) as caught:
        verify_registry(data, authority=AUTHORITY.public)
    assert caught.value.peer == "server"


def test_a_signed_registry_is_read_as_it_was_written() -> None:
    data = registry().sign(AUTHORITY)
    read = verify_registry(data, authority=AUTHORITY.public)
    assert read == registry()
    assert read.digest == registry().digest
    assert data == signed_file(b"".join(ROWS))


def test_members_are_listed_in_order_of_their_ids() -> None:
    backwards = {k: KEYS[k] for k in reversed(range(4))}
    assert registry(members=backwards).records == b"".join(ROWS)
    assert registry(members=backwards).digest == registry().digest


def test_every_changed_byte_of_the_file_is_refused() -> None:
    data = registry().sign(AUTHORITY)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1 << position % 8
        assert_refused(bytes(changed), "not a registry signed by the authority")


@pytest.mark.parametrize("length", [0, 1, 10, -1])
def test_a_file_that_is_cut_short_is_refused(length: int) -> None:
    assert_refused(registry().sign(AUTHORITY)[:length], "ends too early")
    assert_refused(registry().sign(AUTHORITY) + b"\0", "bytes after the end")


def test_another_signer_is_refused() -> None:
    assert_refused(registry().sign(Identity.generate()), "signature for 'registry' does not verify")


def test_a_signature_for_another_purpose_is_refused() -> None:
    signature = AUTHORITY.sign("advert", registry().digest)
    assert_refused(encode_fields(5, EXPIRES, registry().records, signature), "does not verify")


def test_a_signature_on_another_version_is_refused() -> None:
    signature = AUTHORITY.sign("registry", registry().digest)
    assert_refused(encode_fields(6, EXPIRES, registry().records, signature), "does not verify")


@pytest.mark.parametrize("expires", [0, EXPIRES - 1, EXPIRES + 1])
def test_a_signature_on_another_expiry_is_refused(expires: int) -> None:
    signature = AUTHORITY.sign("registry", registry().digest)
    assert_refused(encode_fields(5, expires, registry().records, signature), "does not verify")


def test_a_file_without_an_expiry_is_refused() -> None:
    signature = AUTHORITY.sign("registry", registry().digest)
    assert_refused(encode_fields(5, registry().records, signature), "not an array of 4 fields")


def test_members_out_of_order_are_refused_even_if_signed() -> None:
    """The digest is over the sorted members, so the signature on it would be good for any order."""
    swapped = b"".join([ROWS[1], ROWS[0], *ROWS[2:]])
    signature = AUTHORITY.sign("registry", registry().digest)
    assert_refused(encode_fields(5, EXPIRES, swapped, signature), "not in order")
    assert_refused(signed_file(swapped), "not in order")


def test_a_member_listed_twice_is_refused_even_if_signed() -> None:
    twice = b"".join([ROWS[0], *ROWS])
    assert_refused(
        encode_fields(5, EXPIRES, twice, AUTHORITY.sign("registry", registry().digest)), "not in order"
    )
    other_key = ROWS[0][:4] + bytes(range(32))
    assert_refused(signed_file(b"".join([other_key, *ROWS])), "not in order")


def test_one_key_for_two_members_is_refused_even_if_signed() -> None:
    assert_refused(signed_file(ROWS[0] + (9).to_bytes(4, "big") + KEYS[0]), "the same key")


@pytest.mark.parametrize("records", [ROWS[0][:-1], ROWS[0] + b"\0", b"\0" * 35])
def test_records_of_another_length_are_refused(records: bytes) -> None:
    assert_refused(signed_file(records), "a registry of the wrong length")


@pytest.mark.parametrize("signature", [b"", bytes(63), bytes(65)])
def test_a_signature_of_another_length_is_refused(signature: bytes) -> None:
    assert_refused(encode_fields(5, EXPIRES, registry().records, signature), "a registry of the wrong length")


def test_a_version_beyond_its_range_is_refused() -> None:
    assert_refused(signed_file(b"".join(ROWS), version=1 << 63), "version of a registry")


def test_an_expiry_beyond_its_range_is_refused() -> None:
    assert_refused(signed_file(b"".join(ROWS), expires=MAX_EXPIRES + 1), "by the year 9999, or never")


@pytest.mark.parametrize("version", [-1, 1 << 63])
def test_versions_are_from_0_to_63_bits(version: int) -> None:
    assert registry(version=(1 << 63) - 1).version == (1 << 63) - 1
    with pytest.raises(ParameterError, match="version of a registry must be from 0 to"):
        registry(version=version)


@pytest.mark.parametrize(
    "members", [{-1: KEYS[0]}, {MAX_ID + 1: KEYS[0]}, {0: KEYS[0][:-1]}, {0: KEYS[0] + b"\0"}]
)
def test_members_have_32_bit_ids_and_32_byte_keys(members: dict[int, bytes]) -> None:
    assert registry(members={MAX_ID: KEYS[0]}).records == b"\xff" * 4 + KEYS[0]
    with pytest.raises(ParameterError, match="32-bit id and a 32-byte key"):
        registry(members=members)


def test_two_members_have_two_keys() -> None:
    with pytest.raises(ParameterError, match="the same key"):
        registry(members={0: KEYS[0], 1: KEYS[0]})


def test_version_expiry_members_and_keys_are_in_the_digest() -> None:
    registries = [
        registry(),
        registry(version=6),
        registry(expires=0),
        registry(expires=EXPIRES + 1),
        registry(version=EXPIRES, expires=5),
        registry(members={k: KEYS[k] for k in range(3)}),
        registry(members={**KEYS, 3: bytes(32)}),
        registry(members={0: KEYS[1], 1: KEYS[0], 2: KEYS[2], 3: KEYS[3]}),
        registry(members={}),
    ]
    assert len({r.digest for r in registries}) == len(registries)


def test_a_registry_cannot_be_changed() -> None:
    members = dict(KEYS)
    one = registry(members=members)
    members[9] = bytes(32)
    assert 9 not in one.members
    with pytest.raises(TypeError):
        one.members[9] = bytes(32)  # type: ignore[index]


# --- when it expires --------------------------------------------------------------------------------


@pytest.mark.parametrize("expires", [-1, MAX_EXPIRES + 1])
def test_a_registry_expires_by_the_year_9999(expires: int) -> None:
    registry(expires=MAX_EXPIRES).check_current(MAX_EXPIRES - 1)
    with pytest.raises(ParameterError, match="by the year 9999, or never"):
        registry(expires=expires)


@pytest.mark.parametrize("now", [EXPIRES, EXPIRES + 1, 1 << 62])
def test_an_expired_registry_is_not_current(now: int) -> None:
    with pytest.raises(ExpiredRegistry, match="registry 5 expired at 2027-01-15 08:00 UTC; get a newer one"):
        registry().check_current(now)


def test_the_last_expiry_there_is_can_be_printed() -> None:
    with pytest.raises(ExpiredRegistry, match="expired at 9999-12-31 23:59 UTC"):
        registry(expires=MAX_EXPIRES).check_current(MAX_EXPIRES)


def test_a_registry_is_current_until_it_expires() -> None:
    registry().check_current(0)
    registry().check_current(EXPIRES - 1)


def test_a_registry_without_an_expiry_is_always_current() -> None:
    assert Registry(5, KEYS).expires == 0
    Registry(5, KEYS).check_current(1 << 62)


# --- a file that nobody has verified yet --------------------------------------------------------------


def test_a_registry_of_another_authority_parses_but_does_not_verify() -> None:
    signed = SignedRegistry.parse(registry().sign(Identity.generate()))
    assert signed.claimed == registry()
    with pytest.raises(WrongRegistry, match="signature for 'registry' does not verify"):
        signed.verified(authority=AUTHORITY.public)


def test_something_else_does_not_parse() -> None:
    with pytest.raises(WrongRegistry, match="not a registry"):
        SignedRegistry.parse(b"-----BEGIN CERTIFICATE-----")


# --- whose identity a client has -------------------------------------------------------------------


def test_an_identity_belongs_to_a_signed_session_and_to_its_member() -> None:
    identity = seeded_identity(b"registry", 2)
    check_identity(2, Trust.MALICIOUS, identity, registry())
    check_identity(2, Trust.CURIOUS, None, None)


@pytest.mark.parametrize("member", [-1, MAX_ID + 1])
@pytest.mark.parametrize("trust", list(Trust))
def test_the_id_of_a_client_has_32_bits(member: int, trust: Trust) -> None:
    check_identity(MAX_ID, Trust.CURIOUS, None, None)
    with pytest.raises(ParameterError, match=f"the id of a client must be from 0 to {MAX_ID}"):
        check_identity(member, trust, None, None)


@pytest.mark.parametrize(("with_identity", "with_registry"), [(True, False), (False, True), (True, True)])
def test_an_unsigned_session_does_not_pretend_to_be_signed(with_identity: bool, with_registry: bool) -> None:
    identity = seeded_identity(b"registry", 2) if with_identity else None
    with pytest.raises(ParameterError, match="for malicious_server only"):
        check_identity(2, Trust.CURIOUS, identity, registry() if with_registry else None)


@pytest.mark.parametrize(("with_identity", "with_registry"), [(True, False), (False, True), (False, False)])
def test_a_signed_session_needs_both(with_identity: bool, with_registry: bool) -> None:
    identity = seeded_identity(b"registry", 2) if with_identity else None
    with pytest.raises(ParameterError, match="needs an identity and a registry"):
        check_identity(2, Trust.MALICIOUS, identity, registry() if with_registry else None)


@pytest.mark.parametrize("member", [1, 9])
def test_the_registry_must_list_this_identity_under_this_id(member: int) -> None:
    with pytest.raises(ParameterError, match=f"does not list this identity as client {member}"):
        check_identity(member, Trust.MALICIOUS, seeded_identity(b"registry", 2), registry())
