"""Clients that lie to stop sums: each is convicted or excluded, takes at most one honest client along, and
the next sum is exact. Under `malicious_server`, every conviction has evidence that an examiner accepts, if it
is about what clients signed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

import pytest

from secagg import errors, server
from secagg.client import ClientMachine
from secagg.convictions import Convictions
from secagg.deposits import Deposits
from secagg.hybrid_keys import PAIR_SECRET_BYTES, padded
from secagg.sum_unmasking import Tally
from secagg.trust_levels import Trust
from tests.attacks.attackers.bad_clients import (
    ForgingDealer,
    LyingHolder,
    OutsideDealer,
    OutsideHolder,
    ScatteringDealer,
    UnreadableDealer,
)
from tests.attacks.attackers.liars import (
    CountLiar,
    DepositLiar,
    FalseReporter,
    MisfitDealer,
    ShareLiar,
    WordLiar,
)
from tests.attacks.court import HYBRID, Court, one
from tests.attacks.guards import BOTH, believe_tags

# --- false counts ----------------------------------------------------------------------------------

GRAPHS: Final = [
    (Trust.CURIOUS, "complete"),
    (Trust.MALICIOUS, "complete"),
    (Trust.CURIOUS, "ring"),
]
SIZES: Final = {"complete": 20, "ring": 50}  # a ring of fewer has nearly all edges


@pytest.mark.parametrize(("trust", "graph"), GRAPHS)
@pytest.mark.parametrize(("size", "corrupt"), [(10, 1), pytest.param(50, 5, marks=pytest.mark.slow)])
def test_a_false_count_costs_one_sum_and_its_place(trust: Trust, graph: str, size: int, corrupt: int) -> None:
    court = Court(trust, size, corrupt, one(CountLiar), graph=graph)
    court.check_costs_one_sum(errors.CorruptTotal)
    assert court.convicted == court.excluded == {3: errors.FalseCount}


def test_as_many_false_counts_as_may_be_cost_one_sum() -> None:
    liars = {k: (CountLiar, dict[str, Any]()) for k in (2, 3, 9)}
    court = Court(Trust.MALICIOUS, 20, 3, liars)
    court.check_costs_one_sum(errors.CorruptTotal)
    assert court.convicted == court.excluded == dict.fromkeys((2, 3, 9), errors.FalseCount)


def test_without_a_conviction_a_false_count_stops_every_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tally, "_count_liars", lambda _: ())
    court = Court(Trust.CURIOUS, 10, 1, one(CountLiar))
    for _ in range(3):
        with pytest.raises(errors.CorruptTotal):
            court.ask()
    assert court.excluded == {}


# --- wrong shares ----------------------------------------------------------------------------------


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize(
    ("size", "corrupt"),
    [(20, 5), *(pytest.param(*each, marks=pytest.mark.slow) for each in [(30, 8), (100, 20)])],
)
def test_wrong_shares_cost_no_sum(trust: Trust, size: int, corrupt: int) -> None:
    """As many liars as may be, half of whom lie about everybody and half about one honest client."""
    liars: dict[int, tuple[type[ClientMachine], dict[str, Any]]] = {
        k: (LyingHolder, {}) if k % 2 else (ShareLiar, {"dealers": [size]}) for k in range(1, corrupt + 1)
    }
    court = Court(trust, size, corrupt, liars)
    court.ask()
    assert set(court.session.contributors) == set(court.members)
    court.check_verdicts()
    assert court.convicted == court.excluded == dict.fromkeys(liars, errors.WrongShare)
    court.ask_all()


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize("liar", [OutsideHolder, OutsideDealer])
def test_shares_outside_the_field_cost_no_sum(trust: Trust, liar: type[ClientMachine]) -> None:
    """Even if they fit their tags: a holder accepts no such share of another, and deals itself none."""
    court = Court(trust, 10, 2, one(liar))
    court.check_costs_nothing()
    assert court.convicted == court.excluded == {3: errors.WrongShare}


def test_wrong_shares_on_a_ring_cost_no_sum() -> None:
    court = Court(Trust.CURIOUS, 50, 5, one(LyingHolder), graph="ring")
    court.check_costs_nothing()
    assert court.convicted == court.excluded == {3: errors.WrongShare}


@pytest.mark.parametrize("trust", BOTH)
def test_without_tags_a_wrong_share_convicts_an_honest_dealer(
    trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    believe_tags(monkeypatch)
    court = Court(trust, 20, 5, one(ShareLiar, dealers=[7]))
    with pytest.raises(errors.Unrecoverable):
        court.ask()
    assert court.convicted == court.excluded == {7: errors.FalseDealing}


# --- false words -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("trust", "graph"), GRAPHS)
@pytest.mark.parametrize("lies", [1, 5])
def test_no_more_false_words_than_liars_cost_the_liar_and_one_honest_client(
    trust: Trust, graph: str, lies: int
) -> None:
    court = Court(trust, SIZES[graph], 5, one(WordLiar, 7, first=lies), graph=graph)
    court.check_costs_one_sum(errors.Disputed)
    assert court.convicted == {}
    assert 7 in court.excluded
    assert list(court.excluded.values()) == [errors.Dispute] * 2


@pytest.mark.parametrize(("trust", "graph"), GRAPHS)
@pytest.mark.parametrize("lies", [6, 19])
def test_more_false_words_than_liars_convict(trust: Trust, graph: str, lies: int) -> None:
    court = Court(trust, SIZES[graph], 5, one(WordLiar, 7, first=lies), graph=graph)
    court.check_costs_one_sum(errors.Disputed)
    assert court.convicted == court.excluded == {7: errors.ManyDisputes}


@pytest.mark.parametrize("trust", BOTH)
def test_every_liar_takes_at_most_one_honest_client_along(trust: Trust) -> None:
    """Three liars about one honest client each, and all about the same one."""
    apart = {k: (WordLiar, {"targets": [k + 10]}) for k in (1, 2, 3)}
    court = Court(trust, 30, 3, apart)
    court.check_costs_one_sum(errors.Disputed)
    assert court.excluded.keys() == {1, 2, 3, 11, 12, 13}
    together = {k: (WordLiar, {"targets": [11]}) for k in (1, 2, 3)}
    court = Court(trust, 30, 3, together)
    with pytest.raises(errors.Disputed):
        court.ask()
    assert court.excluded.keys() == {1, 11}
    court.check_verdicts()


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize("agreement", ["x25519", HYBRID])
def test_a_false_word_about_a_drop_out_convicts(trust: Trust, agreement: str) -> None:
    """Its mask key, which was reconstructed, says what the word should be."""
    liars = one(WordLiar, targets=[5])
    court = Court(trust, 10, 2, liars, away=[(5, "mask")], key_agreement=agreement)
    court.check_costs_one_sum(errors.CorruptTotal)
    assert court.convicted == court.excluded == {3: errors.FalseWord}


def test_without_disputes_false_words_stop_every_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what each client says, its count is 1: only that two say different things gives the liar away."""
    monkeypatch.setattr(Tally, "disputes", lambda _: [])
    court = Court(Trust.CURIOUS, 10, 2, one(WordLiar, first=9))
    for _ in range(3):
        with pytest.raises(errors.CorruptTotal):
            court.ask()
    assert court.excluded == {}


def test_without_excluding_pairs_one_false_word_stops_every_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Convictions, "settle", lambda *_: iter(()))
    court = Court(Trust.CURIOUS, 10, 2, one(WordLiar, first=1))
    for _ in range(3):
        with pytest.raises(errors.Disputed):
            court.ask()
    assert court.excluded == {}


# --- nobody is supposed to lie -----------------------------------------------------------------------

ALONE: Final[dict[str, tuple[Any, dict[str, Any]]]] = {
    "word": (one(WordLiar, targets=[5]), {}),
    "tag of a deposit": (one(DepositLiar, targets=[5], in_tag=True), {"key_agreement": HYBRID}),
    "report": (one(FalseReporter, accused=[5]), {"key_agreement": HYBRID}),
    "envelope": (one(UnreadableDealer, spoiled=1), {"key_agreement": HYBRID}),
}


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize("lie", ALONE)
def test_where_nobody_may_collude_one_of_two_lies_and_none_is_convicted(trust: Trust, lie: str) -> None:
    """With `corrupt` of 0, one contradiction says that somebody lies after all, but not who."""
    liars, settings = ALONE[lie]
    court = Court(trust, 8, 0, liars, **settings)
    if lie == "word":
        with pytest.raises(errors.Disputed):
            court.ask()
    other = 1 if lie == "envelope" else 5
    assert court.excluded == dict.fromkeys((3, other), errors.Dispute)
    assert court.convicted == {}
    court.ask_all()


@pytest.mark.parametrize("trust", BOTH)
def test_where_nobody_may_collude_two_contradictions_convict(trust: Trust) -> None:
    court = Court(trust, 8, 0, one(WordLiar, targets=[5, 6]))
    court.check_costs_one_sum(errors.Disputed)
    assert court.convicted == court.excluded == {3: errors.ManyDisputes}


def test_a_server_that_expects_no_liar_convicts_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "liars_around", min)
    court = Court(Trust.CURIOUS, 8, 0, one(WordLiar, targets=[5]))
    with pytest.raises(errors.Disputed):
        court.ask()
    assert court.convicted == dict.fromkeys((3, 5), errors.ManyDisputes)


# --- lying dealers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("trust", "graph"), GRAPHS)
@pytest.mark.parametrize("dealer", [ForgingDealer, ScatteringDealer])
def test_a_false_dealing_costs_one_sum_and_its_place(
    trust: Trust, graph: str, dealer: type[ClientMachine]
) -> None:
    court = Court(trust, SIZES[graph], 5, one(dealer), graph=graph)
    court.check_costs_one_sum(errors.Unrecoverable)
    assert court.convicted == court.excluded == {3: errors.FalseDealing}


@pytest.mark.parametrize("trust", BOTH)
def test_a_false_dealing_of_a_drop_out_costs_one_sum_and_its_place(trust: Trust) -> None:
    court = Court(trust, 20, 3, one(ScatteringDealer), away=[(3, "mask")])
    court.check_costs_one_sum(errors.Unrecoverable)
    assert court.convicted == court.excluded == {3: errors.FalseDealing}


UNREADABLE: Final = [
    (UnreadableDealer, {"spoiled": 4}),
    (UnreadableDealer, {"spoiled": 19}),
    (MisfitDealer, {"targets": [5, 6, 8, 9]}),
]


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize(("dealer", "lie"), UNREADABLE)
@pytest.mark.parametrize("agreement", ["x25519", HYBRID])
def test_unreadable_shares_convict_in_set_up(
    trust: Trust, dealer: type[ClientMachine], lie: dict[str, Any], agreement: str
) -> None:
    court = Court(trust, 20, 3, one(dealer, **lie), key_agreement=agreement)
    assert court.convicted == court.excluded == {3: errors.UnreadableShares}
    court.check_verdicts()
    court.ask_all()


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize(
    ("dealer", "lie"), [(UnreadableDealer, {"spoiled": 3}), (MisfitDealer, {"targets": [5, 6, 8]})]
)
def test_shares_that_few_cannot_read_cost_nothing(
    trust: Trust, dealer: type[ClientMachine], lie: dict[str, Any]
) -> None:
    court = Court(trust, 20, 3, one(dealer, **lie))
    court.ask_all()
    assert court.excluded == {}


# --- false reports ---------------------------------------------------------------------------------


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize("agreement", ["x25519", HYBRID])
def test_reports_of_more_dealers_than_may_lie_convict_the_reporter(trust: Trust, agreement: str) -> None:
    court = Court(trust, 20, 3, one(FalseReporter, accused=[5, 6, 7, 8]), key_agreement=agreement)
    assert court.convicted == court.excluded == {3: errors.FalseReport}
    court.check_verdicts()
    court.ask_all()


def all_against(accused: int, reporters: Collection[int]) -> dict[int, tuple[Any, dict[str, Any]]]:
    return {k: (FalseReporter, {"accused": [accused]}) for k in reporters}


@pytest.mark.parametrize("trust", BOTH)
def test_a_false_report_in_a_hybrid_session_costs_the_reporter_and_one_honest_client(trust: Trust) -> None:
    """Without the deposit of the pair, they cannot both be asked; that shows before the first sum."""
    court = Court(trust, 20, 3, all_against(9, [3]), key_agreement=HYBRID)
    assert court.convicted == {}
    assert court.excluded == dict.fromkeys((3, 9), errors.Dispute)
    court.ask_all()


@pytest.mark.parametrize("trust", BOTH)
def test_as_many_false_reports_as_may_be_cost_nothing(trust: Trust) -> None:
    """A threshold of shares is left, so that nobody has to say who lied."""
    court = Court(trust, 20, 3, all_against(9, (3, 4, 5)))
    court.ask_all()
    assert court.excluded == {}


# Thirteen of twenty shares open a secret: if seven others are silent, one false report is too much.
SILENT: Final = [(k, "reveal") for k in range(14, 21)]


def test_a_false_report_where_its_share_is_needed_costs_the_reporter_and_one_honest_client() -> None:
    court = Court(Trust.MALICIOUS, 20, 5, all_against(9, [3]), away=SILENT)
    court.check_costs_one_sum(errors.Disputed)
    assert court.convicted == {}
    assert court.excluded == dict.fromkeys((3, 9), errors.Dispute)


def test_without_a_dispute_a_false_report_convicts_the_honest_dealer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tally, "_check_shares", lambda _: None)
    court = Court(Trust.MALICIOUS, 20, 5, all_against(9, [3]), away=SILENT)
    with pytest.raises(errors.Unrecoverable):
        court.ask()
    assert court.convicted == {9: errors.FalseDealing}


@pytest.mark.parametrize("trust", BOTH)
def test_a_server_that_expects_one_liar_fewer_convicts_an_honest_dealer(
    trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of liars is what reports are compared with."""
    monkeypatch.setattr(server, "liars_around", lambda *_: 2)
    court = Court(trust, 20, 3, all_against(9, (3, 4, 5)))
    assert court.convicted == {9: errors.UnreadableShares}


# --- hybrid key agreement --------------------------------------------------------------------------


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize("stage", ["mask", "confirm", "reveal"])
def test_a_hybrid_sum_is_exact_with_drop_outs(trust: Trust, stage: str) -> None:
    court = Court(trust, 10, 2, {}, away=[(3, stage)], key_agreement=HYBRID)
    court.ask()
    assert (3 in court.session.contributors) is (stage != "mask")
    court.ask_all()
    assert court.excluded == {}


def test_a_hybrid_sum_on_a_ring_is_exact_with_a_drop_out() -> None:
    court = Court(Trust.CURIOUS, 40, 4, {}, graph="ring", away=[(3, "mask")], key_agreement=HYBRID)
    court.ask()
    assert 3 not in court.session.contributors
    court.ask_all()


@pytest.mark.parametrize("trust", BOTH)
def test_deposits_of_different_secrets_cost_no_sum(trust: Trust) -> None:
    """Set-up shows the contradiction: one pair is excluded, and whoever contradicts too many is convicted."""
    court = Court(trust, 20, 3, one(DepositLiar, targets=[9], in_tag=True), key_agreement=HYBRID)
    assert court.excluded == dict.fromkeys((3, 9), errors.Dispute)
    court.ask_all()
    lie: dict[str, Any] = {"targets": [5, 6, 8, 9], "in_tag": True}
    court = Court(trust, 20, 3, one(DepositLiar, **lie), key_agreement=HYBRID)
    assert court.convicted == court.excluded == {3: errors.ManyDisputes}
    court.check_verdicts(unproven=[errors.ManyDisputes])
    court.ask_all()


@pytest.mark.parametrize("trust", BOTH)
def test_a_false_deposit_of_a_drop_out_costs_one_sum_and_its_place(trust: Trust) -> None:
    lie: dict[str, Any] = {"targets": [9], "in_tag": False}
    court = Court(trust, 20, 3, one(DepositLiar, **lie), away=[(3, "mask")], key_agreement=HYBRID)
    court.check_costs_one_sum(errors.Unrecoverable)
    assert court.convicted == court.excluded == {3: errors.FalseDeposit}


def test_believed_deposits_convict_an_honest_survivor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The false deposit opens to another pair secret, so that the survivor's mask seems to be false."""

    def believe(
        self: Deposits, owner: int, peers: Iterable[int], sum_index: int, secret: bytes
    ) -> dict[int, bytes]:
        ids = self._cohort.ids
        names = {"secret": secret, "session": self._cohort.session}
        return {
            peer: padded(
                self._one(owner, peer, sum_index)[:PAIR_SECRET_BYTES],
                **names,
                owner=ids[owner],
                peer=ids[peer],
                sum_index=sum_index,
            )
            for peer in peers
        }

    monkeypatch.setattr(Deposits, "opened", believe)
    lie: dict[str, Any] = {"targets": [9], "in_tag": False}
    court = Court(Trust.CURIOUS, 20, 3, one(DepositLiar, **lie), away=[(3, "mask")], key_agreement=HYBRID)
    with pytest.raises(errors.CorruptTotal):
        court.ask()
    assert court.convicted == {9: errors.FalseWord}
