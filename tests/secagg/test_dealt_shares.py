"""The server's record of dealt shares: whose shares each holder accepted, and which of them were reported."""

from __future__ import annotations

import pytest

from secagg.cohort_members import Cohort
from secagg.dealt_shares import DealtShares
from secagg.errors import FalseDeposit
from secagg.hybrid_keys import KeyAgreement, mask_key_of
from secagg.insecure_seeds import SeededRandom
from secagg.keys import public_key
from secagg.message_records import Advert, Format
from secagg.share_tags import receipt, tags_digest
from secagg.topology import CompleteGraph, Graph, RingGraph
from secagg.trust_levels import Trust
from tests.attacks.rig import Rig
from tests.secagg.dealings import Dealing, dealing

IDS = (2, 3, 7, 11, 13)
SUMS = 2
ORDER = (0, 2, 4, 1, 3)  # of the positions on the ring
RING = RingGraph(ORDER, neighbours=2)
COMPLETE = CompleteGraph(len(IDS))
GRAPHS = pytest.mark.parametrize("graph", [COMPLETE, RING], ids=["complete", "ring"])


def record(graph: Graph, *dealers: int, seeds: int = 0) -> DealtShares:
    """A record of shares that the members at `dealers` have dealt."""
    adverts = tuple(Advert(member, bytes(32), b"", (), ()) for member in IDS)
    found = DealtShares(Cohort(b"s" * 32, 2, adverts), graph, Format(SUMS, signed=True, seeds=seeds))
    for dealer in dealers:
        found.add(dealer, tags(graph, dealer), b"signed by %d" % dealer)
    return found


def tags(graph: Graph, dealer: int) -> bytes:
    holders = graph.neighbourhood(dealer)
    return b"".join(tag(dealer, holder, k) for holder in holders for k in range(SUMS))


def tag(dealer: int, holder: int, sum_index: int) -> bytes:
    """Recognisable tags."""
    return bytes([dealer, holder, sum_index, 9]) * 4


def test_a_row_has_a_share_of_each_secret() -> None:
    assert record(COMPLETE).columns == 2
    assert record(COMPLETE, seeds=3).columns == 5


@GRAPHS
def test_tags_are_kept_by_dealer_and_place(graph: Graph) -> None:
    found = record(graph, *range(5))
    for dealer in range(5):
        around = list(found.around(dealer))
        assert around == list(graph.neighbourhood(dealer))
        assert dealer in around
        for place, holder in enumerate(around):
            rows = [tag(dealer, holder, k) for k in range(SUMS)]
            assert found.tags_for(dealer, place) == b"".join(rows)
            assert [found.tag(dealer, place, k) for k in range(SUMS)] == rows
        assert found.published(dealer) == (tags(graph, dealer), b"signed by %d" % dealer)


@GRAPHS
def test_a_holder_has_shares_of_all_around_it_who_dealt(graph: Graph) -> None:
    found = record(graph, 0, 1, 3, 4)
    for holder in range(5):
        dealers = [each for each in graph.neighbourhood(holder) if each != 2]
        held = found.held_by(holder)
        assert [dealer for dealer, _ in held] == dealers
        for dealer, place in held:
            assert graph.neighbourhood(dealer)[place] == holder
            assert found.tag(dealer, place, 1) == tag(dealer, holder, 1)


@GRAPHS
def test_a_receipt_is_of_all_that_a_holder_accepted(graph: Graph) -> None:
    found = record(graph, *range(5))
    for holder in range(5):
        accepted = [
            (IDS[dealer], tags_digest(tag(dealer, holder, 0) + tag(dealer, holder, 1)))
            for dealer in graph.neighbourhood(holder)
        ]
        assert found.accepted_by(holder) == accepted
        assert found.receipt(holder) == receipt(accepted)


# --- reports -----------------------------------------------------------------------------------------


@GRAPHS
def test_what_was_reported_is_not_held(graph: Graph) -> None:
    found = record(graph, *range(5))
    lost = [each for each in graph.neighbourhood(4) if each != 4][:1]
    before = found.held_by(0)
    assert not found.has_reported(4)
    found.report(4, iter(lost))
    assert found.has_reported(4)
    assert [dealer for dealer, _ in found.held_by(4)] == [
        each for each in graph.neighbourhood(4) if each not in lost
    ]
    assert found.held_by(0) == before
    assert IDS[lost[0]] not in dict(found.accepted_by(4))


def test_reports_name_their_dealers() -> None:
    found = record(COMPLETE, *range(5))
    assert found.disputes() == []
    found.report(3, [0, 1])
    found.report(2, [1])
    found.report(4, [])
    assert {dealer: found.reporters(dealer) for dealer in range(5)} == {
        0: [3],
        1: [2, 3],
        2: [],
        3: [],
        4: [],
    }
    assert sorted(found.disputes()) == [(7, 3), (11, 2), (11, 3)]
    assert found.has_reported(4)  # of nobody, but it has


def test_a_receipt_is_computed_once() -> None:
    found = record(COMPLETE, *range(5))
    first = found.receipt(3)
    found.report(3, [0])  # too late, which is for the caller to see
    assert found.receipt(3) == first != receipt(found.accepted_by(3))


# --- with clients ------------------------------------------------------------------------------------


def set_up(*, hybrid: bool, lost: tuple[tuple[int, int], ...] = (), size: int = 4) -> tuple[Rig, Dealing]:
    agreement = KeyAgreement.HYBRID if hybrid else KeyAgreement.X25519
    rig = Rig(size, Trust.CURIOUS, sums=SUMS, policy_changes={"key_agreement": agreement})
    return rig, dealing(rig, threshold=3, lost=lost)


@pytest.mark.parametrize("hybrid", [False, True], ids=["x25519", "hybrid"])
@pytest.mark.parametrize("lost", [(), ((1, 0), (2, 0), (1, 3))])
def test_server_and_holder_agree_on_what_was_accepted(
    lost: tuple[tuple[int, int], ...], hybrid: bool
) -> None:
    rig, setup = set_up(hybrid=hybrid, lost=lost, size=5)
    for member in range(5):
        assert setup.dealt.receipt(member) == rig.machines[member]._receipt
        held = [dealer for dealer, _ in setup.dealt.held_by(member)]
        assert held == sorted(rig.machines[member]._vault._held[0])
    assert sorted(setup.dealt.disputes()) == sorted((holder, dealer) for dealer, holder in lost)


def test_with_x25519_alone_there_are_no_pair_secrets() -> None:
    _, setup = set_up(hybrid=False)
    assert setup.dealt.agreement is KeyAgreement.X25519
    secret = SeededRandom(b"secret")(32)
    assert setup.dealt.pair_secrets(1, [0, 2], 0, secret) == (secret, {})
    assert setup.dealt.deposits.owners == set()


@pytest.mark.parametrize("sum_index", range(SUMS))
def test_the_dealt_secret_of_a_drop_out_gives_its_pair_secrets(sum_index: int) -> None:
    rig, setup = set_up(hybrid=True)
    secret = rig.machines[1]._vault._mask_keys[sum_index]
    key, secrets = setup.dealt.pair_secrets(1, [0, 3], sum_index, secret)
    assert setup.dealt.agreement is KeyAgreement.HYBRID
    assert key == mask_key_of(secret, KeyAgreement.HYBRID)
    assert public_key(key) == setup.cohort.adverts[1].mask_keys[sum_index]
    others = {peer: rig.machines[peer]._vault._pair_secrets[sum_index][1] for peer in (0, 3)}
    assert secrets == others
    assert secrets == {peer: rig.machines[1]._vault._pair_secrets[sum_index][peer] for peer in (0, 3)}


def test_the_dealt_secret_of_another_sum_gives_none() -> None:
    rig, setup = set_up(hybrid=True)
    with pytest.raises(FalseDeposit):
        setup.dealt.pair_secrets(1, [0, 3], 0, rig.machines[1]._vault._mask_keys[1])


def test_honest_deposits_have_no_disputes_and_a_lost_envelope_is_one() -> None:
    _, setup = set_up(hybrid=True)
    assert setup.dealt.deposits.owners == {0, 1, 2, 3}
    assert setup.dealt.deposits.disputes() == []
    _, setup = set_up(hybrid=True, lost=((1, 2),))
    assert setup.dealt.disputes() == [(2, 1)]
    assert setup.dealt.deposits.disputes() == [(1, 2)]
