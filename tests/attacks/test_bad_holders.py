"""Clients that lie about shares they hold, or deal shares that cannot be read."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pytest

from secagg.bitmap import unpack_positions
from secagg.convictions import Convictions
from secagg.dealt_shares import DealtShares
from secagg.errors import (
    Dispute,
    Disputed,
    FalseDealing,
    MalformedMessage,
    ManyDisputes,
    TooFewClients,
    UnreadableShares,
    Unrecoverable,
    WrongShare,
)
from secagg.events import Convicted
from secagg.messages import Reveal
from secagg.sum_unmasking import CheckedRow, Tally
from secagg.trust_levels import Trust
from tests.attacks.arena import BAD, CLIENTS, Arena, convicted, excluded
from tests.attacks.attackers.bad_clients import (
    LyingHolder,
    UnreadableDealer,
    WithholdingHolder,
)
from tests.attacks.guards import BOTH, believe_count, believe_shares, believe_tags
from tests.attacks.rig import KIND, PART

# --- holders ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("trust", BOTH)
def test_believed_wrong_shares_forge_the_total(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three guards overlap: the tags, the commitments, and the hidden count."""
    believe_tags(monkeypatch)
    believe_shares(monkeypatch)
    believe_count(monkeypatch)
    arena = Arena(trust, LyingHolder)
    assert (arena.session().ask(KIND)[PART] != arena.everyone).any()


@pytest.mark.parametrize("trust", BOTH)
def test_without_tags_wrong_shares_convict_all_honest_dealers(
    trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commitments save the total, but they cannot tell who lied."""
    believe_tags(monkeypatch)
    arena = Arena(trust, LyingHolder)
    session = arena.session()
    with pytest.raises(Unrecoverable):
        session.ask(KIND)
    assert {k: type(why) for k, why in convicted(session).items()} == dict.fromkeys(
        range(CLIENTS), FalseDealing
    )


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize("absent", [False, True])
def test_wrong_shares_are_left_out_and_convict_their_holder(trust: Trust, absent: bool) -> None:
    """Also when the holder's own mask key must be had from others."""
    arena = Arena(trust, LyingHolder)
    session = arena.session(absent=absent)
    assert (session.ask(KIND)[PART] == (arena.others if absent else arena.everyone)).all()
    # It is caught at the first dealer; one that is absent reveals nothing.
    found = convicted(session)
    assert {k: type(why) for k, why in found.items()} == ({} if absent else {BAD: WrongShare})
    assert excluded(session) == found


# With a threshold of five, the two that are silent leave no share to spare.
SILENT = (5, 6)


def believe_bitmaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes a holder's word for which shares it has to reveal."""
    original = Tally._rows

    def believing(self: Tally, position: int, reveal: Reveal) -> list[CheckedRow]:
        marked = unpack_positions(reveal.dealers, CLIENTS, sender=position)
        held = [each for each in self._dealt.held_by(position) if each[0] in marked]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DealtShares, "held_by", lambda *_: held)
            return original(self, position, reveal)

    monkeypatch.setattr(Tally, "_rows", believing)


def test_taking_the_holders_word_convicts_all_honest_dealers(monkeypatch: pytest.MonkeyPatch) -> None:
    believe_bitmaps(monkeypatch)
    arena = Arena(Trust.MALICIOUS, WithholdingHolder)
    session = arena.session(silent=SILENT)
    with pytest.raises(Unrecoverable):
        session.ask(KIND)
    assert arena.server.members == (BAD,)


def test_a_holder_that_withholds_shares_is_excluded_alone() -> None:
    """The sum is lost, as if one more client had been silent; the next one is not."""
    arena = Arena(Trust.MALICIOUS, WithholdingHolder)
    session = arena.session(silent=SILENT)
    with pytest.raises(TooFewClients):
        session.ask(KIND)
    assert {k: type(why) for k, why in excluded(session).items()} == {BAD: MalformedMessage}
    assert convicted(session) == {}
    assert (session.ask(KIND, b"next", round_number=1)[PART] == arena.others).all()


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
    assert {k: type(why) for k, why in excluded(session).items()} == {BAD: UnreadableShares}
    assert convicted(session) == excluded(session)
    assert (session.ask(KIND)[PART] == arena.others).all()


@pytest.mark.parametrize(("trust", "silent"), [(Trust.CURIOUS, (4, 5, 6)), (Trust.MALICIOUS, SILENT)])
def test_a_missing_share_that_is_needed_costs_dealer_and_reporter_their_places(
    trust: Trust, silent: Collection[int]
) -> None:
    """Nobody can tell which of the two lied, so neither is convicted."""
    arena = unreadable(trust, 1)
    session = arena.session(silent=silent)
    with pytest.raises(Disputed):
        session.ask(KIND)
    assert {k: type(why) for k, why in excluded(session).items()} == {BAD: Dispute, 1: Dispute}
    assert convicted(session) == {}
    rest = arena.sum_of([k for k in range(CLIENTS) if k not in (BAD, 1)])
    assert (session.ask(KIND, b"next", round_number=1)[PART] == rest).all()


@pytest.mark.parametrize(("trust", "silent"), [(Trust.CURIOUS, (4, 5, 6)), (Trust.MALICIOUS, SILENT)])
def test_without_a_dispute_the_missing_share_convicts_the_dealer(
    trust: Trust, silent: Collection[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be honest, and the reporter the liar."""
    monkeypatch.setattr(Tally, "_check_shares", lambda _: None)
    session = unreadable(trust, 1).session(silent=silent)
    with pytest.raises(Unrecoverable):
        session.ask(KIND)
    assert {k: type(why) for k, why in convicted(session).items()} == {BAD: FalseDealing}


@pytest.mark.parametrize(
    ("trust", "absent"), [(Trust.CURIOUS, False), (Trust.CURIOUS, True), (Trust.MALICIOUS, False)]
)
def test_where_the_reports_convict_nobody_it_costs_one_sum(
    trust: Trust, absent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a dealer stops the first sum, and is convicted by what is not revealed."""

    def report(self: Convictions, holder: int, dealers: Collection[int]) -> Iterator[Convicted]:
        self.dealt.report(holder, dealers)
        return iter(())

    monkeypatch.setattr(Convictions, "report", report)
    arena = unreadable(trust, CLIENTS - 1)
    session = arena.session(absent=absent)
    with pytest.raises(Disputed):
        session.ask(KIND)
    assert {k: type(why) for k, why in excluded(session).items()} == {BAD: ManyDisputes}
    assert (session.ask(KIND, b"next", round_number=1)[PART] == arena.others).all()
