"""The share log sees what it is there to see: were it blind, all tests that rely on it would still pass."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from secagg import messages as m
from secagg.bitmap import PositionSet
from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.errors import SERVER
from secagg.local_session import Stage
from secagg.shamir import SHARE_BYTES
from secagg.sum_spec import Count, Part, SumSpec, Table
from secagg.testing.faulty_wire import Packet
from secagg.trust_levels import Trust
from tests.secagg.noisy import Witness
from tests.secagg.rings import RingSession, neighbourhoods
from tests.secagg.share_log import Kind, LoggedWire, Released
from tests.secagg.truth import MEMBERS, Session, decoded, seeded_machines, session_of


def masked(ring: bool) -> tuple[LoggedWire, dict[int, frozenset[int]]]:
    """Everybody's masked input is in; and whose shares each client holds."""
    wire = RingSession().opened() if ring else Session(Trust.CURIOUS).opened()
    wire.begin("sum", b"0", round_number=0)
    wire.run()
    everybody = frozenset(wire.clients)
    return wire, neighbourhoods(wire.sent, 4) if ring else dict.fromkeys(everybody, everybody)


def show(wire: LoggedWire, member: int, *, dead: int | None) -> None:
    """Tell one client that everybody survived but one."""
    ids = sorted(wire.clients)
    survivors = PositionSet(k for k, survivor in enumerate(ids) if survivor != dead)
    frame = m.Survivors(session_of(wire), 0, survivors.pack(len(ids))).encode()
    wire.deliver(Packet(0, SERVER, member, frame, Stage.REVEAL, 0))


RINGS = pytest.mark.parametrize("ring", [False, True], ids=["complete", "ring"])


@RINGS
def test_every_share_is_logged_with_its_holder_dealer_and_kind(ring: bool) -> None:
    wire, hoods = masked(ring)
    session = session_of(wire)
    holder = sorted(wire.clients)[1]
    dead = max(hoods[holder])
    show(wire, holder, dead=dead)
    assert wire.shares.entries == [
        Released(session, 0, holder, dealer, Kind.MASK_KEY if dealer == dead else Kind.SELF_MASK)
        for dealer in sorted(hoods[holder])
    ]
    counts = wire.shares.counts(session, 0)
    assert counts == {
        (dealer, Kind.MASK_KEY if dealer == dead else Kind.SELF_MASK): 1 for dealer in hoods[holder]
    }
    assert wire.shares.most_shares(session, 0) == 1
    assert wire.shares.most_shares(session, 1) == 0
    assert not wire.shares.both_kinds()
    assert not wire.shares.repeated()


@RINGS
def test_two_kinds_for_one_dealer_are_noticed(ring: bool) -> None:
    """Two neighbours of the dealer are shown different survivors."""
    wire, hoods = masked(ring)
    dealer = sorted(wire.clients)[2]
    one, other = sorted(hoods[dealer] - {dealer})[:2]
    show(wire, one, dead=None)
    assert wire.shares.both_kinds() == set()
    show(wire, other, dead=dealer)
    assert wire.shares.both_kinds() == {(session_of(wire), 0, dealer)}
    assert wire.shares.repeated() == set()


@RINGS
def test_a_share_that_leaves_twice_is_noticed(ring: bool) -> None:
    wire, hoods = masked(ring)
    holder = sorted(wire.clients)[0]
    show(wire, holder, dead=None)
    (reveal,) = (packet.frame for packet in wire.waiting if isinstance(decoded(packet.frame), m.Reveal))
    wire.shares.sent(holder, reveal)
    assert wire.shares.repeated() == {(session_of(wire), 0, holder, dealer) for dealer in hoods[holder]}
    assert wire.shares.most_shares(session_of(wire), 0) == 2


@RINGS
def test_frames_of_other_kinds_are_no_shares(ring: bool) -> None:
    wire, _ = masked(ring)
    assert wire.shares.entries == []


# --- noise -------------------------------------------------------------------------------------------

PROMISE = NoiseAssumptions(clients=5, dropouts=2, colluders=0, removable=True)


def noisy() -> tuple[LoggedWire, Witness]:
    """Everybody's masked input is in, with noise on it."""
    part = Part(name="x", size=1, bits=24, bound=Count(1), noise=Noise(scale=64, variance=Fraction(10**5)))
    table = Table({"sum": SumSpec(parts=(part,), promise=PROMISE)})
    server, clients = seeded_machines(members=MEMBERS, table=table, trust=Trust.CURIOUS, dropout=0.4)
    wire = LoggedWire(server, clients, lambda _, __: {"x": [1]})
    with pytest.MonkeyPatch.context() as patch:
        witness = Witness(patch)
        wire.open()
        witness.look(clients)
        wire.begin("sum", b"0", round_number=0)
        wire.run()
    return wire, witness


@pytest.mark.parametrize("dead", [None, 11])
def test_shares_of_noise_are_logged_behind_those_of_a_survivors_mask(dead: int | None) -> None:
    wire, witness = noisy()
    show(wire, 3, dead=dead)
    surplus = PROMISE.surplus(5, 5 if dead is None else 4)
    columns: dict[int, list[int]] = {}
    for entry in wire.shares.entries:
        position = MEMBERS.index(entry.dealer)
        columns.setdefault(entry.dealer, []).append(witness.column(3, 0, position, entry.share))
        assert (entry.kind is Kind.NOISE) == (columns[entry.dealer][-1] > 1)
    assert columns == {
        dealer: [1] if dealer == dead else [0, *(1 + layer for layer in surplus)] for dealer in MEMBERS
    }
    # What is said about masks does not count them.
    assert wire.shares.most_shares(session_of(wire), 0) == 1
    assert not wire.shares.both_kinds()
    assert not wire.shares.repeated()


def test_shares_beyond_those_of_survivors_are_noticed() -> None:
    wire, _ = noisy()
    show(wire, 3, dead=11)
    (frame,) = (packet.frame for packet in wire.waiting if isinstance(decoded(packet.frame), m.Reveal))
    reveal = decoded(frame)
    assert isinstance(reveal, m.Reveal)
    longer = replace(reveal, shares=reveal.shares + bytes(SHARE_BYTES))
    with pytest.raises(AssertionError):
        wire.shares.sent(3, longer.encode())
