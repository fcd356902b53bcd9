"""Clients that try to forge a total, to crash the server, or to stop everybody's sum: inputs and dealers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from secagg import residue_packing
from secagg.client import ClientMachine
from secagg.errors import (
    BadVector,
    CorruptTotal,
    FalseDealing,
    OversizeMessage,
    PeerError,
    Unrecoverable,
)
from secagg.events import SumReleased
from secagg.input_encoding import Encoding
from secagg.trust_levels import Trust
from tests.attacks.arena import BAD, BITS, Arena, contributors, convicted, excluded
from tests.attacks.attackers.bad_clients import (
    ForgingDealer,
    MisfitClient,
    ScatteringDealer,
)
from tests.attacks.guards import BOTH, believe_count, believe_shares
from tests.attacks.rig import KIND, PART

# --- masked inputs that do not fit -----------------------------------------------------------------


def misfit(trust: Trust, reshape: Callable[[bytes], bytes], *, bits: int = BITS) -> Arena:
    arena = Arena(trust, MisfitClient, bits=bits)
    assert isinstance(arena.client, MisfitClient)
    arena.client.reshape = reshape
    return arena


def shorter(data: bytes) -> bytes:
    return data[:-1]


def without_the_count(data: bytes) -> bytes:
    return data[:-8]


def longer(data: bytes) -> bytes:
    return data + b"\0"


def doubled(data: bytes) -> bytes:
    return data * 2


def enormous(data: bytes) -> bytes:
    return data * 1000


def with_padding_bit(data: bytes) -> bytes:
    """Three elements of five bits leave one bit of their second byte unused."""
    return data[:1] + bytes([data[1] | 0x80]) + data[2:]


@pytest.mark.parametrize("reshape", [shorter, without_the_count])
def test_an_unchecked_short_input_crashes_the_server(
    reshape: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`receive` promises never to raise on what a client sends; the sum of all others is lost."""
    monkeypatch.setattr(Encoding, "accepts", lambda *_: True)
    session = misfit(Trust.CURIOUS, reshape).session()
    with pytest.raises(ValueError, match="buffer"):
        session.ask(KIND)


@pytest.mark.parametrize("reshape", [longer, doubled])
def test_an_unchecked_long_input_is_taken_for_a_shorter_one(
    reshape: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It forges nothing that a lie inside the sum could not, but the server swallows any number of bytes."""
    monkeypatch.setattr(Encoding, "accepts", lambda *_: True)
    arena = misfit(Trust.CURIOUS, reshape)
    session = arena.session()
    assert (session.ask(KIND)[PART] == arena.everyone).all()
    assert BAD in contributors(session)


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize(
    ("reshape", "error"),
    [
        (shorter, BadVector),
        (without_the_count, BadVector),
        (longer, BadVector),
        (doubled, BadVector),
        (enormous, OversizeMessage),
    ],
)
def test_an_input_of_the_wrong_size_excludes_its_sender_alone(
    trust: Trust, reshape: Callable[[bytes], bytes], error: type[PeerError]
) -> None:
    arena = misfit(trust, reshape)
    session = arena.session()
    total = session.ask(KIND)
    assert {k: type(why) for k, why in excluded(session).items()} == {BAD: error}
    assert (total[PART] == arena.others).all()
    assert BAD not in contributors(session)


def test_unchecked_padding_gives_one_input_two_encodings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defence in depth: the bits are outside the ring, so no total changes, but frames are malleable."""
    monkeypatch.setattr(residue_packing, "padding_is_zero", lambda *_: True)
    arena = misfit(Trust.CURIOUS, with_padding_bit, bits=5)
    session = arena.session()
    assert (session.ask(KIND)[PART] == arena.everyone).all()


@pytest.mark.parametrize("trust", BOTH)
def test_an_input_with_padding_bits_excludes_its_sender_alone(trust: Trust) -> None:
    arena = misfit(trust, with_padding_bit, bits=5)
    session = arena.session()
    total = session.ask(KIND)
    assert {k: type(why) for k, why in excluded(session).items()} == {BAD: BadVector}
    assert (total[PART] == arena.others).all()


# --- dealers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("trust", BOTH)
def test_believed_shares_of_another_secret_forge_the_total(
    trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two guards overlap: the commitment, and the hidden count. The dealer knows by how much it lied."""
    believe_shares(monkeypatch)
    believe_count(monkeypatch)
    arena = Arena(trust, ForgingDealer)
    forged = arena.session().ask(KIND)[PART]
    assert isinstance(arena.client, ForgingDealer)
    shift = arena.client.shift[0].astype(np.uint64)
    assert (forged == (arena.everyone + shift) % np.uint64(arena.modulus)).all()
    assert (forged != arena.everyone).any()


@pytest.mark.parametrize("dealer", [ForgingDealer, ScatteringDealer])
def test_the_hidden_count_alone_discards_a_forged_total(
    dealer: type[ClientMachine], monkeypatch: pytest.MonkeyPatch
) -> None:
    believe_shares(monkeypatch)
    session = Arena(Trust.CURIOUS, dealer).session()
    with pytest.raises(CorruptTotal):
        session.ask(KIND)


def test_believed_shares_of_no_secret_forge_the_total(monkeypatch: pytest.MonkeyPatch) -> None:
    believe_shares(monkeypatch)
    believe_count(monkeypatch)
    arena = Arena(Trust.CURIOUS, ScatteringDealer)
    assert (arena.session().ask(KIND)[PART] != arena.everyone).any()


@pytest.mark.parametrize(
    ("trust", "dealer", "absent"),
    [
        (Trust.CURIOUS, ForgingDealer, False),
        (Trust.CURIOUS, ScatteringDealer, False),
        (Trust.CURIOUS, ScatteringDealer, True),
        (Trust.MALICIOUS, ForgingDealer, False),
        (Trust.MALICIOUS, ScatteringDealer, False),
        (Trust.MALICIOUS, ScatteringDealer, True),
    ],
)
def test_a_corrupt_dealer_costs_one_sum_and_its_place(
    trust: Trust, dealer: type[ClientMachine], absent: bool
) -> None:
    """Nothing is released; the dealer, alive or dropped, is blamed; the next sum is exact without it."""
    arena = Arena(trust, dealer)
    session = arena.session(absent=absent)
    with pytest.raises(Unrecoverable) as caught:
        session.ask(KIND)
    assert [error.peer for error in caught.value.liars] == [BAD]
    assert not any(isinstance(event, SumReleased) for event in session.events)
    assert {k: type(why) for k, why in excluded(session).items()} == {BAD: FalseDealing}
    assert convicted(session) == excluded(session)
    assert (session.ask(KIND, b"next", round_number=1)[PART] == arena.others).all()
    assert BAD not in contributors(session)
