"""Clients that try to forge a total, to crash the server, or to stop everybody's sum."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from secagg import residue_packing
from secagg.client import ClientMachine
from secagg.errors import (
    BadVector,
    CorruptDealer,
    CorruptTotal,
    OversizeMessage,
    Peer,
    PeerError,
    Unrecoverable,
)
from secagg.events import Excluded, SumReleased, WrongShares
from secagg.input_encoding import Encoding
from secagg.local_session import LocalSession, Stage
from secagg.residue_packing import Residues
from secagg.server import ServerMachine
from secagg.session_params import SessionParams
from secagg.sum_spec import Total
from secagg.sum_unmasking import Tally
from secagg.trust_levels import Trust
from tests.attacks.attackers.bad_clients import (
    ForgingDealer,
    LyingHolder,
    MisfitClient,
    ScatteringDealer,
    UnreadableDealer,
    WithholdingHolder,
)
from tests.attacks.guards import BOTH
from tests.attacks.rig import KIND, PART, Rig, residue_table

BAD = 0  # first in every order: its shares are the first ones tried
CLIENTS = 7
BITS = 32


class Arena:
    """A real server and seven clients, one of them bad, of whom two may be corrupt or missing."""

    def __init__(self, trust: Trust, bad: type[ClientMachine], *, bits: int = BITS) -> None:
        self.rig = rig = Rig(CLIENTS, trust, corrupt=1, table=residue_table(3, bits=bits))
        self.modulus = 1 << bits
        self.client = rig.machines[BAD] = bad(
            member=BAD,
            table=rig.table,
            policy=rig.policy,
            memory=rig.memories[BAD],
            identity=rig.identity(BAD) if rig.registry else None,
            registry=rig.registry,
        )
        self.server = ServerMachine(
            table=rig.table,
            params=SessionParams(
                trust=trust,
                sums=rig.sums,
                corrupt=1,
                dropout=0,
                min_cohort=3,
                max_cohort=CLIENTS,
                min_contributors=3,
            ),
            registry=rig.registry,
        )

    def session(self, *, absent: bool = False, silent: Collection[int] = ()) -> LocalSession:
        """Set-up is done; in the first sum the bad client is `absent`, and `silent` ones do not reveal."""

        def away(member: int, stage: Stage, index: int) -> bool:
            left = absent and member == BAD and stage is Stage.MASK
            return index == 0 and (left or (member in silent and stage is Stage.REVEAL))

        session = LocalSession(
            self.server, self.rig.machines, lambda member, _: {PART: self.vector(member)}, absent=away
        )
        session.open()
        return session

    def vector(self, member: int) -> NDArray[np.uint64]:
        return self.rig.vectors[member].astype(np.uint64) % np.uint64(self.modulus)

    def sum_of(self, members: Sequence[int]) -> NDArray[np.uint64]:
        total = sum((self.vector(member) for member in members), np.zeros(3, np.uint64))
        return np.asarray(total % np.uint64(self.modulus))

    @property
    def everyone(self) -> NDArray[np.uint64]:
        return self.sum_of(range(CLIENTS))

    @property
    def others(self) -> NDArray[np.uint64]:
        return self.sum_of([k for k in range(CLIENTS) if k != BAD])


def excluded(session: LocalSession) -> dict[int, PeerError]:
    return {event.peer: event.error for event in session.events if isinstance(event, Excluded)}


def contributors(session: LocalSession) -> tuple[int, ...]:
    return next(event.contributors for event in reversed(session.events) if isinstance(event, SumReleased))


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


def believe_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tally, "_matches", lambda *_: True)


def believe_count(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Encoding.decode

    def uncounted(self: Encoding, residues: Sequence[Residues], *, contributors: int, **rest: Any) -> Total:
        residues[-1][0] = contributors
        return original(self, residues, contributors=contributors, **rest)

    monkeypatch.setattr(Encoding, "decode", uncounted)


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
    assert [error.peer for error in caught.value.dealers] == [BAD]
    assert not any(isinstance(event, SumReleased) for event in session.events)
    assert {k: type(why) for k, why in excluded(session).items()} == {BAD: CorruptDealer}
    assert (session.ask(KIND, b"next", round_number=1)[PART] == arena.others).all()
    assert BAD not in contributors(session)


# --- holders ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("trust", BOTH)
def test_believed_wrong_shares_forge_the_total(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two guards overlap: the commitments, and the hidden count."""
    believe_shares(monkeypatch)
    believe_count(monkeypatch)
    arena = Arena(trust, LyingHolder)
    assert (arena.session().ask(KIND)[PART] != arena.everyone).any()


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize("absent", [False, True])
def test_wrong_shares_are_corrected_and_named(trust: Trust, absent: bool) -> None:
    """Also when the holder's own mask key must be had from others."""
    arena = Arena(trust, LyingHolder)
    session = arena.session(absent=absent)
    assert (session.ask(KIND)[PART] == (arena.others if absent else arena.everyone)).all()
    wrong = [event for event in session.events if isinstance(event, WrongShares)]
    # It is caught at the first dealer and not asked about the others; one that is absent reveals nothing.
    assert wrong == ([] if absent else [WrongShares(0, (BAD,))])
    assert excluded(session) == {}


# With a threshold of five, the two that are silent leave no share to spare.
SILENT = (5, 6)


def test_taking_the_holders_word_throws_all_honest_dealers_out(monkeypatch: pytest.MonkeyPatch) -> None:
    original = CorruptDealer.__init__

    def always_proven(self: CorruptDealer, peer: Peer, why: str, *, proven: bool) -> None:
        original(self, peer, why, proven=True)

    monkeypatch.setattr(CorruptDealer, "__init__", always_proven)
    arena = Arena(Trust.MALICIOUS, WithholdingHolder)
    session = arena.session(silent=SILENT)
    with pytest.raises(Unrecoverable):
        session.ask(KIND)
    assert arena.server.members == (BAD,)


def test_a_holder_that_withholds_shares_has_nobody_thrown_out() -> None:
    """The sum is lost, as if one more client had been silent; the next one is not."""
    arena = Arena(Trust.MALICIOUS, WithholdingHolder)
    session = arena.session(silent=SILENT)
    with pytest.raises(Unrecoverable):
        session.ask(KIND)
    assert excluded(session) == {}
    assert (session.ask(KIND, b"next", round_number=1)[PART] == arena.everyone).all()


# --- envelopes that do not open --------------------------------------------------------------------


def unreadable(trust: Trust, spoiled: int) -> Arena:
    arena = Arena(trust, UnreadableDealer)
    assert isinstance(arena.client, UnreadableDealer)
    arena.client.spoiled = spoiled
    return arena


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize("absent", [False, True])
def test_envelopes_that_do_not_open_do_not_stop_the_sum(trust: Trust, absent: bool) -> None:
    """One report may be a lie, so the dealer stays; its share is merely missing."""
    arena = unreadable(trust, 1)
    session = arena.session(absent=absent)
    assert (session.ask(KIND)[PART] == (arena.others if absent else arena.everyone)).all()
    assert excluded(session) == {}


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize("spoiled", [2, CLIENTS - 1])
def test_a_dealer_whose_envelopes_do_not_open_is_left_out_in_time(trust: Trust, spoiled: int) -> None:
    """More reports than there may be liars: the first sum is asked, and exact, without the dealer."""
    arena = unreadable(trust, spoiled)
    session = arena.session()
    assert {k: type(why) for k, why in excluded(session).items()} == {BAD: CorruptDealer}
    assert (session.ask(KIND)[PART] == arena.others).all()


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize("absent", [False, True])
def test_where_the_reports_come_too_late_it_costs_one_sum(
    trust: Trust, absent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the reports such a dealer stops the first sum, and is convicted by what is not revealed."""
    monkeypatch.setattr(ServerMachine, "_take_report", lambda *_: ())
    arena = unreadable(trust, CLIENTS - 1)
    session = arena.session(absent=absent)
    with pytest.raises(Unrecoverable):
        session.ask(KIND)
    assert {k: type(why) for k, why in excluded(session).items()} == {BAD: CorruptDealer}
    assert (session.ask(KIND, b"next", round_number=1)[PART] == arena.others).all()
