"""Hand-overs: their encoding, who may sign them, and chains of them."""

from __future__ import annotations

import pytest

from secagg.canonical_msgpack import encode_fields
from secagg.errors import SERVER, MalformedMessage, ParameterError, Peer, WrongHandOver
from secagg.hand_over import HandOver, HandOverSigner, chain_of
from secagg.identity_registry import MAX_ID
from secagg.keys import Identity

A, B, C, D, AUTHORITY, THIEF = (Identity.from_secret(bytes([n]) * 32) for n in range(6))
STATEMENT = HandOver.sign(7, A, B.public)


@pytest.mark.parametrize("owner", [0, 7, MAX_ID, SERVER])
def test_it_is_the_same_after_encoding(owner: Peer) -> None:
    for statement in (
        HandOver.sign(owner, A, B.public),
        HandOver.sign_as_authority(owner, A.public, B.public, AUTHORITY),
    ):
        assert HandOver.parse(statement.encode(), sender=SERVER) == statement
        statement.verify(authority=AUTHORITY.public)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        STATEMENT.encode()[:-1],
        STATEMENT.encode() + b"\0",
        encode_fields(7, A.public, B.public, 1),
        encode_fields(7, A.public, A.public, 1, bytes(64)),
        encode_fields(7, A.public[:31], B.public, 1, bytes(64)),
        encode_fields(7, A.public, B.public + b"\0", 1, bytes(64)),
        encode_fields(7, A.public, B.public, 0, bytes(64)),
        encode_fields(7, A.public, B.public, 3, bytes(64)),
        encode_fields(7, A.public, B.public, 1, bytes(63)),
        encode_fields(MAX_ID + 2, A.public, B.public, 1, bytes(64)),
    ],
    ids=range(12),
)
def test_other_bytes_are_malformed(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        HandOver.parse(data, sender=SERVER)


@pytest.mark.parametrize("owner", [-1, MAX_ID + 1, "client", True])
def test_an_owner_is_a_client_or_the_server(owner: Peer) -> None:
    with pytest.raises(ParameterError):
        HandOver.sign(owner, A, B.public)


@pytest.mark.parametrize(
    "statement",
    [
        HandOver(7, A.public, B.public, HandOverSigner.OLD_KEY, bytes(64)),
        HandOver(8, A.public, B.public, HandOverSigner.OLD_KEY, STATEMENT.signature),
        HandOver(SERVER, A.public, B.public, HandOverSigner.OLD_KEY, STATEMENT.signature),
        HandOver(7, A.public, C.public, HandOverSigner.OLD_KEY, STATEMENT.signature),
        HandOver(7, C.public, B.public, HandOverSigner.OLD_KEY, STATEMENT.signature),
        HandOver(7, A.public, B.public, HandOverSigner.AUTHORITY, STATEMENT.signature),
        HandOver.sign_as_authority(7, A.public, B.public, THIEF),
        HandOver.sign_as_authority(7, A.public, B.public, B),
    ],
)
def test_a_signature_is_of_the_old_key_or_the_authority_and_for_these_fields(statement: HandOver) -> None:
    with pytest.raises(WrongHandOver):
        statement.verify(authority=AUTHORITY.public)


def test_an_authority_that_is_not_known_cannot_sign() -> None:
    with pytest.raises(WrongHandOver, match="not known"):
        HandOver.sign_as_authority(7, A.public, B.public, AUTHORITY).verify(authority=None)


def chain(*statements: HandOver, owner: Peer = 7) -> list[bytes]:
    found = chain_of(statements, owner, old=A.public, new=C.public, authority=AUTHORITY.public)
    assert all(each.owner == owner for each in found)
    return [each.new for each in found]


def test_a_chain_leads_from_the_old_key_to_the_new_one() -> None:
    second = HandOver.sign_as_authority(7, B.public, C.public, AUTHORITY)
    aside = HandOver.sign(7, A, D.public)
    wrong = HandOver(7, D.public, B.public, HandOverSigner.OLD_KEY, bytes(64))
    assert chain(second, aside, STATEMENT, wrong) == [B.public, C.public]
    assert chain(HandOver.sign(SERVER, A, C.public), owner=SERVER) == [C.public]
    assert chain_of([], 7, old=A.public, new=A.public, authority=None) == ()


@pytest.mark.parametrize(
    "statements",
    [
        [],
        [STATEMENT],
        [HandOver.sign(7, B, C.public)],
        [STATEMENT, HandOver.sign(8, B, C.public)],
        [STATEMENT, HandOver(7, B.public, C.public, HandOverSigner.OLD_KEY, bytes(64))],
        [HandOver.sign(7, B, C.public), HandOver.sign(7, C, B.public)],
    ],
    ids=["none", "no end", "no beginning", "another owner", "unsigned", "a circle"],
)
def test_what_does_not_lead_there_is_no_chain(statements: list[HandOver]) -> None:
    with pytest.raises(WrongHandOver):
        chain(*statements)
