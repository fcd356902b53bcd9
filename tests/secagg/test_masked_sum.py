"""One sum on the server: masked inputs in, shares in, a total out, or nothing at all."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from secagg import messages as m
from secagg import shamir
from secagg.bitmap import pack_positions, unpack_positions
from secagg.distributed_noise import NoiseAssumptions
from secagg.errors import (
    BadVector,
    CorruptTotal,
    Disputed,
    FalseCount,
    FalseDealing,
    FalseDeposit,
    FalseWord,
    MalformedMessage,
    TooFewClients,
    Unrecoverable,
    WrongShare,
)
from secagg.evidence import Signed
from secagg.hybrid_keys import KeyAgreement
from secagg.input_encoding import Encoding
from secagg.noise.gaussian import Layers
from secagg.self_and_pair_masks import OneProcess
from secagg.share_tags import TAG_BYTES, RevealedRow
from secagg.sum_spec import Total
from secagg.sum_unmasking import Tally
from secagg.topology import CompleteGraph
from secagg.trust_levels import Trust
from tests.attacks.attackers.noise_attacks import LIMIT, noise_table
from tests.attacks.rig import PART, Rig, residue_table
from tests.secagg.dealings import Forgery, dealing
from tests.secagg.noisy import Witness, same

CLIENTS, THRESHOLD = 6, 3
ROSTER = (0, 1, 2, 4, 5)  # client 3 was not asked


class Table:
    """Honest clients who have answered one query, and the tally that counts them."""

    def __init__(
        self,
        *survivors: int,
        bits: int = 32,
        promise: NoiseAssumptions | None = None,
        hybrid: bool = False,
        forgeries: Mapping[int, Forgery] | None = None,
        lost: Collection[tuple[int, int]] = (),
    ) -> None:
        table = residue_table(bits=bits) if promise is None else noise_table(promise)
        agreement = KeyAgreement.HYBRID if hybrid else KeyAgreement.X25519
        self.rig = Rig(CLIENTS, Trust.CURIOUS, table=table, policy_changes={"key_agreement": agreement})
        self.rig.vectors = {k: v if promise is None else v % LIMIT for k, v in self.rig.vectors.items()}
        setup = dealing(self.rig, threshold=THRESHOLD, forgeries=forgeries, lost=lost)
        self.cohort, self.dealt = setup.cohort, setup.dealt
        frame = self.rig.query(self.cohort, 0, ROSTER)
        self.question = self.rig.question(self.cohort, frame)
        self.tally = Tally(self.question, CompleteGraph(CLIENTS), self.dealt, expander=OneProcess())
        self.inputs = self.rig.masked(frame, survivors)
        self.members = survivors

    def add(self, member: int, message: m.MaskedInput) -> None:
        fields = self.question.input_fields(self.dealt.receipt(member), message.data, message.words)
        self.tally.add_input(member, message, Signed(fields, b""))

    def fix(self) -> Table:
        """Fix the survivors, and let them reveal their shares."""
        self.survivors = self.tally.fix_survivors()
        request = self.rig.survivors(self.cohort, 0, self.members)
        self.reveals = dict(self.rig.reveals(request, self.members))
        return self

    def add_all(self) -> Table:
        for member, message in self.inputs.items():
            self.add(member, message)
        return self

    def reveal(self, *members: int) -> None:
        for member in members:
            self.add_reveal(member, self.reveals[member])

    def add_reveal(self, member: int, reveal: m.Reveal) -> None:
        revealed = (reveal.dealers, reveal.shares, reveal.hidden)
        fields = self.question.reveal_fields(self.survivors, self.dealt.receipt(member), *revealed)
        self.tally.add_reveal(member, reveal, Signed(fields, b""))

    def expected(self, *members: int) -> list[int]:
        rows = np.stack([self.rig.vectors[member] for member in members])
        return [int(total) for total in rows.astype(np.uint64).sum(axis=0) % 2**32]


def summed(*survivors: int, **settings: Any) -> Table:
    """A table whose survivors have all sent their inputs."""
    return Table(*survivors, **settings).add_all().fix()


def lie(reveal: m.Reveal, place: int, *, by: int) -> m.Reveal:
    """The reveal with one of its shares shifted."""
    return replace(reveal, shares=shifted(reveal.shares, place, by=by))


def shifted(shares: bytes, place: int, *, by: int) -> bytes:
    start, stop = place * shamir.SHARE_BYTES, (place + 1) * shamir.SHARE_BYTES
    share = int.from_bytes(shares[start:stop], "big")
    return shares[:start] + shamir.shares_to_bytes([(share + by) % shamir.PRIME]) + shares[stop:]


def forged(*columns: int) -> Forgery:
    """Deals shares of other secrets in some columns of the first row, or of none at all."""

    def forge(texts: list[bytes]) -> list[bytes]:
        for holder, _ in enumerate(texts):
            for column in columns:
                texts[holder] = shifted(texts[holder], column, by=7 ** (holder + column + 1))
        return texts

    return forge


def beyond(texts: list[bytes]) -> list[bytes]:
    """Deals shares of a number that is no string of 32 bytes, as the first secret."""
    first = shamir.shares_to_bytes([1 << 256])
    return [first + text[len(first) :] for text in texts]


def with_words(message: m.MaskedInput, *, peer_at: int, by: int, on_count: int = 0) -> m.MaskedInput:
    """A masked input with another word for one of the peers, and `on_count` added to its count."""
    words = np.frombuffer(message.words, "<u8").copy()
    words[peer_at : peer_at + 1] += np.uint64(by % 2**64)
    count = (int.from_bytes(message.data[-8:], "little") + on_count) % 2**64
    return replace(message, words=words.tobytes(), data=message.data[:-8] + count.to_bytes(8, "little"))


def without_last_dealer(reveal: m.Reveal, size: int) -> m.Reveal:
    """A well-formed reveal that withholds the share of one dealer."""
    *dealers, _ = unpack_positions(reveal.dealers, size, sender=0)
    return replace(
        reveal,
        dealers=pack_positions(dealers, size),
        shares=reveal.shares[: -shamir.SHARE_BYTES],
        hidden=reveal.hidden[:-TAG_BYTES],
    )


@pytest.mark.parametrize("survivors", [ROSTER, (0, 2, 4, 5), (1, 4, 5), (0, 1, 2)])
def test_masks_come_off_for_any_survivors(survivors: tuple[int, ...]) -> None:
    table = summed(*survivors)
    assert table.survivors == set(survivors)
    table.reveal(*survivors)
    total = table.tally.unmask()
    assert total[PART].tolist() == table.expected(*survivors)
    assert (total.count, total.invited) == (len(survivors), len(ROSTER))


def test_any_threshold_of_reveals_is_enough() -> None:
    for holders in combinations((0, 2, 4, 5), THRESHOLD):
        table = summed(0, 2, 4, 5)
        table.reveal(*holders)
        assert table.tally.revealed == set(holders)
        total = table.tally.unmask()
        assert total[PART].tolist() == table.expected(0, 2, 4, 5)


def test_too_few_reveals_release_nothing() -> None:
    table = summed(0, 2, 4, 5)
    table.reveal(0, 2)
    before = [part.copy() for part in table.tally._accumulator]
    with pytest.raises(TooFewClients, match="only 2 of client 0's neighbours are left; 3 are needed"):
        table.tally.unmask()
    assert all((a == b).all() for a, b in zip(before, table.tally._accumulator, strict=True))


def test_a_dealer_of_whom_too_few_hold_shares_is_in_dispute_with_those_who_said_so() -> None:
    """Three holders have answered; two of them lack their share, and so does one that has not answered."""
    table = summed(0, 2, 4, 5, lost={(1, 0), (1, 2), (1, 5)})
    table.reveal(0, 2, 4)
    with pytest.raises(Disputed) as caught:
        table.tally.unmask()
    assert caught.value.pairs == ((1, 0), (1, 2))


def test_shares_that_were_lost_do_not_matter_while_enough_are_left() -> None:
    table = summed(0, 2, 4, 5, lost={(1, 0), (4, 0), (0, 5)})
    table.reveal(0, 2, 4, 5)
    assert table.tally.unmask()[PART].tolist() == table.expected(0, 2, 4, 5)


@pytest.mark.parametrize("change", ["short", "long", "padding", "few words", "many words", "broken words"])
def test_a_masked_input_that_does_not_fit_is_refused(change: str) -> None:
    table = summed(0, 1, 2, bits=33)  # four elements, 132 bits, hence four of padding
    good = table.inputs[0]
    data, words = good.data, good.words
    bad = {
        "short": replace(good, data=data[:-1]),
        "long": replace(good, data=data + b"\0"),
        "padding": replace(good, data=data[:16] + bytes([data[16] | 0x10]) + data[17:]),
        "few words": replace(good, words=words[:-8]),
        "many words": replace(good, words=words + bytes(8)),
        "broken words": replace(good, words=words[:-1]),
    }
    before = [part.copy() for part in table.tally._accumulator]
    with pytest.raises(BadVector, match="client 4: a masked input that does not fit the spec"):
        table.add(4, bad[change])
    assert table.tally.contributors == {0, 1, 2}
    assert all((a == b).all() for a, b in zip(before, table.tally._accumulator, strict=True))


def test_a_changed_masked_input_is_noticed_where_it_hits_the_count() -> None:
    table = summed(0, 1, 2)
    table.tally._accumulator[-1][0] += 1
    table.reveal(0, 1, 2)
    with pytest.raises(CorruptTotal) as caught:
        table.tally.unmask()
    assert caught.value.liars == ()  # every client's own count is right


# --- words -----------------------------------------------------------------------------------------


def test_honest_clients_have_no_disputes() -> None:
    assert Table(*ROSTER).tally.disputes() == []
    for survivors in (ROSTER, (0, 2, 5)):
        assert Table(*survivors).add_all().tally.disputes() == []


def test_two_contributors_with_different_words_are_in_dispute() -> None:
    table = Table(*ROSTER)
    table.inputs[2] = with_words(table.inputs[2], peer_at=0, by=1)  # client 0
    table.inputs[4] = with_words(table.inputs[4], peer_at=3, by=-1)  # client 5
    table.add_all()
    assert table.tally.disputes() == [(0, 2), (4, 5)]


def test_a_word_for_a_client_that_sent_nothing_is_no_dispute() -> None:
    table = Table(0, 1, 2, 4)
    table.inputs[2] = with_words(table.inputs[2], peer_at=3, by=1)  # client 5
    assert table.add_all().tally.disputes() == []


def test_a_false_count_convicts_its_client() -> None:
    table = Table(*ROSTER)
    table.inputs[2] = with_words(table.inputs[2], peer_at=0, by=0, on_count=5)
    table.add_all().fix().reveal(*ROSTER)
    with pytest.raises(CorruptTotal) as caught:
        table.tally.unmask()
    assert [(type(lie), lie.peer) for lie in caught.value.liars] == [(FalseCount, 2)]


@pytest.mark.parametrize("hybrid", [False, True], ids=["x25519", "hybrid"])
@pytest.mark.parametrize(("dropped", "peer_at", "sign"), [(0, 0, 1), (5, 3, -1)])
def test_a_false_mask_for_a_drop_out_convicts_its_client(
    dropped: int, peer_at: int, sign: int, hybrid: bool
) -> None:
    """Its own count is right for the masks that it claims, but one of them is not the pair's."""
    survivors = tuple(k for k in ROSTER if k != dropped)
    table = Table(*survivors, hybrid=hybrid)
    table.inputs[2] = with_words(table.inputs[2], peer_at=peer_at, by=3, on_count=3 * sign)
    table.add_all().fix().reveal(*survivors)
    with pytest.raises(CorruptTotal) as caught:
        table.tally.unmask()
    (lie,) = caught.value.liars
    assert isinstance(lie, FalseWord)
    assert (lie.peer, lie.other) == (2, dropped)


@pytest.mark.parametrize("survivors", [ROSTER, (0, 2, 4, 5), (0, 1, 2)])
def test_hybrid_masks_come_off_for_any_survivors(survivors: tuple[int, ...]) -> None:
    table = summed(*survivors, hybrid=True)
    table.reveal(*survivors)
    assert table.tally.unmask()[PART].tolist() == table.expected(*survivors)


def test_a_false_deposit_of_a_drop_out_stops_the_sum_and_convicts_it() -> None:
    table = summed(0, 2, 4, 5, hybrid=True)
    deposits = table.dealt.deposits._deposits[1]
    deposits[4] = bytes([deposits[4][0] ^ 1]) + deposits[4][1:]
    table.reveal(0, 2, 4, 5)
    before = [part.copy() for part in table.tally._accumulator]
    with pytest.raises(Unrecoverable) as caught:
        table.tally.unmask()
    (lie,) = caught.value.liars
    assert isinstance(lie, FalseDeposit)
    assert (lie.peer, lie.other) == (1, 4)
    assert all((a == b).all() for a, b in zip(before, table.tally._accumulator, strict=True))


# --- reveals ---------------------------------------------------------------------------------------


def test_a_reveal_holds_one_share_per_dealer_it_names() -> None:
    table = summed(0, 1, 2)
    good = table.reveals[0]
    cohort = table.cohort
    wrong = [
        replace(good, shares=good.shares[:-1]),
        replace(good, shares=good.shares + bytes(shamir.SHARE_BYTES)),
        replace(good, shares=good.shares[shamir.SHARE_BYTES :]),
        replace(good, hidden=good.hidden[:-1]),
        replace(good, hidden=good.hidden + bytes(TAG_BYTES)),
        replace(good, dealers=table.rig.bitmap(cohort, (0, 1, 2, 3, 4))),  # client 3 is not in the roster
        replace(good, dealers=table.rig.bitmap(cohort, (0, 1, 2, 3, 4, 5))),
        without_last_dealer(good, cohort.size),
    ]
    for reveal in wrong:
        with pytest.raises(
            MalformedMessage, match="client 0: not just the shares that it holds of the roster"
        ):
            table.add_reveal(0, reveal)
    with pytest.raises(MalformedMessage, match="a bitmap that is not over 6 members"):
        table.add_reveal(0, replace(good, dealers=b"\xff"))
    assert table.tally.revealed == set()


def test_a_share_outside_the_field_convicts_its_holder() -> None:
    table = summed(0, 1, 2)
    good = table.reveals[0]
    beyond = shamir.PRIME.to_bytes(shamir.SHARE_BYTES, "big")
    with pytest.raises(WrongShare) as caught:
        table.add_reveal(0, replace(good, shares=good.shares[: -len(beyond)] + beyond))
    assert (caught.value.peer, caught.value.dealer) == (0, ROSTER[-1])
    assert table.tally.revealed == set()
    assert all(0 + 1 not in held for rows in table.tally._shares.values() for held in rows)


@pytest.mark.parametrize("survivors", [ROSTER, (0, 1, 2, 4)])
@pytest.mark.parametrize("place", range(len(ROSTER)))
def test_a_wrong_share_convicts_its_holder_and_is_not_kept(survivors: tuple[int, ...], place: int) -> None:
    """Of a self-mask secret or, of client 5 where it sent nothing, of a mask key."""
    table = summed(*survivors)
    with pytest.raises(WrongShare) as caught:
        table.add_reveal(0, lie(table.reveals[0], place, by=9))
    assert (caught.value.peer, caught.value.dealer) == (0, ROSTER[place])
    assert table.tally.revealed == set()
    assert not any(kept for rows in table.tally._shares.values() for kept in rows)
    table.reveal(*survivors[1:])
    assert table.tally.unmask()[PART].tolist() == table.expected(*survivors)


@pytest.mark.parametrize("place", range(len(ROSTER)))
def test_a_wrong_hash_of_a_hidden_share_convicts_like_a_wrong_share(place: int) -> None:
    table = summed(*ROSTER)
    good, at = table.reveals[0], place * TAG_BYTES
    hidden = good.hidden[:at] + bytes([good.hidden[at] ^ 1]) + good.hidden[at + 1 :]
    with pytest.raises(WrongShare) as caught:
        table.add_reveal(0, replace(good, hidden=hidden))
    assert (caught.value.peer, caught.value.dealer) == (0, ROSTER[place])


def test_a_share_that_the_holder_has_reported_is_not_revealed() -> None:
    """The others reveal theirs; a holder that reveals what it said it lost breaks the protocol."""
    table = summed(*ROSTER, lost={(1, 0)})
    assert unpack_positions(table.reveals[0].dealers, CLIENTS, sender=0) == (0, 2, 4, 5)
    with pytest.raises(MalformedMessage, match="not just the shares that it holds of the roster"):
        table.add_reveal(0, replace(table.reveals[0], dealers=table.reveals[2].dealers))
    table.reveal(*ROSTER)
    assert table.tally.unmask()[PART].tolist() == table.expected(*ROSTER)


@pytest.mark.parametrize(
    ("survivors", "forgery", "column"),
    [(ROSTER, forged(0), 0), ((0, 2, 4, 5), forged(1), 1), (ROSTER, beyond, 0)],
)
def test_a_dealer_whose_shares_open_no_secret_stops_the_sum_and_is_convicted(
    survivors: tuple[int, ...], forgery: Forgery, column: int
) -> None:
    """The shares fit their tags, so no holder is to blame."""
    table = summed(*survivors, forgeries={1: forgery})
    table.reveal(*survivors)
    with pytest.raises(Unrecoverable, match="client 1: its shares do not open what it published") as caught:
        table.tally.unmask()
    (lie,) = caught.value.liars
    assert isinstance(lie, FalseDealing)
    assert (lie.peer, lie.column) == (1, column)


def test_all_dealers_to_blame_are_named_at_once() -> None:
    table = summed(*ROSTER, forgeries={0: forged(0), 4: forged(0)})
    table.reveal(*ROSTER)
    with pytest.raises(Unrecoverable) as caught:
        table.tally.unmask()
    assert [dealer.peer for dealer in caught.value.liars] == [0, 4]


def test_shares_of_a_secret_that_this_sum_does_not_need_are_not_looked_at() -> None:
    """Client 1 survived, so nobody misses its mask key."""
    table = summed(*ROSTER, forgeries={1: forged(1)})
    table.reveal(*ROSTER)
    assert table.tally.unmask()[PART].tolist() == table.expected(*ROSTER)


# --- what is kept as evidence ----------------------------------------------------------------------


def test_statements_are_what_clients_signed() -> None:
    table = summed(0, 2, 4, 5)
    table.reveal(0)
    with pytest.raises(WrongShare):
        table.add_reveal(2, lie(table.reveals[2], 0, by=1))
    asked = table.question.confirmed_fields(table.survivors)[:5]
    said = table.tally.input_statement(4)
    assert (said.signer, said.purpose, said.fields[:5]) == (4, "masked input", asked)
    assert said.fields[-2:] == (table.inputs[4].data[-8:], table.inputs[4].words)
    for member in (0, 2):  # also of a wrong share, which is what convicts
        revealed = table.tally.reveal_statement(member)
        assert (revealed.signer, revealed.purpose, revealed.fields[:5]) == (member, "reveal", asked)
        assert revealed.fields[-3] == table.reveals[member].dealers
    assert table.tally.reveal_statement(2).fields[-2] != table.reveals[2].shares


@pytest.mark.parametrize(("dealer", "column"), [(1, 1), (2, 0)])
def test_dealt_rows_fit_the_tags_and_open_the_secret(dealer: int, column: int) -> None:
    table = summed(0, 2, 4, 5)
    table.reveal(0, 2, 4, 5)
    table.tally.unmask()
    shares = {}
    for row in table.tally.dealt_rows(dealer, column):
        holder = int.from_bytes(row[:4], "big")
        single = RevealedRow(row[4 : 4 + shamir.SHARE_BYTES], row[4 + shamir.SHARE_BYTES :])
        tag = table.question.dealt_row(dealer, holder).tag_of(single, (column,))
        assert tag == table.dealt.tag(dealer, holder, 0)
        shares[holder + 1] = int.from_bytes(single.shares, "big")
    assert list(shares) == [1, 3, 5]  # the first three, of clients 0, 2 and 4
    secret = shamir.interpolate(shamir.lagrange_weights(tuple(shares)), list(shares.values()))
    assert secret == table.tally.secrets[dealer, 0]


class Interrupted(BaseException):
    """As by a key or a signal, at any moment."""


def interrupted(*_: object, **__: object) -> None:
    raise Interrupted


@pytest.mark.parametrize("adding", [True, False], ids=["adding", "unmasking"])
def test_what_was_interrupted_half_way_is_never_released(
    adding: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hidden count is the last element, and may be right where the others are not."""
    table = summed(*ROSTER)
    table.reveal(*ROSTER)
    add_again = partial(table.add, 0, table.inputs[0])
    with monkeypatch.context() as patch:
        patch.setattr(Encoding, "add", interrupted)
        patch.setattr(OneProcess, "take_off", interrupted)
        with pytest.raises(Interrupted):
            (add_again if adding else table.tally.unmask)()
    with pytest.raises(CorruptTotal, match="interrupted before"):
        table.tally.unmask()


def test_the_expander_is_told_while_secrets_are_still_being_reconstructed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = summed(*ROSTER)
    table.reveal(*ROSTER)
    calls: list[str] = []
    for owner, name in ((OneProcess, "get_ready"), (Tally, "_reconstruct"), (OneProcess, "take_off")):
        noted(monkeypatch, owner, name, calls)
    table.tally.unmask()
    assert calls == ["get_ready", "_reconstruct", "take_off"]


def noted(patch: pytest.MonkeyPatch, owner: type, name: str, calls: list[str]) -> None:
    original = getattr(owner, name)

    def call(*args: object, **kwargs: object) -> object:
        calls.append(name)
        return original(*args, **kwargs)

    patch.setattr(owner, name, call)


# --- removable noise -------------------------------------------------------------------------------

PROMISE = NoiseAssumptions(clients=CLIENTS, dropouts=2, colluders=1, removable=True)
FOUR = (0, 1, 2, 4)
SURPLUS = PROMISE.surplus(len(ROSTER), len(FOUR))


def witnessed(patch: pytest.MonkeyPatch, *survivors: int) -> tuple[Table, Total]:
    """Clients with noise, and what their total must be without its surplus."""
    witness = Witness(patch)
    table = summed(*survivors, promise=PROMISE)
    rig = Rig(CLIENTS, Trust.CURIOUS, table=table.rig.table)
    rig.set_up(threshold=THRESHOLD)  # the same seeds once more, which nobody has taken yet
    witness.look(rig.machines)
    surplus = PROMISE.surplus(len(ROSTER), len(survivors))
    return table, witness.total(0, survivors, surplus)


@pytest.mark.parametrize("survivors", [ROSTER, FOUR, (0, 1, 2)])
def test_surplus_noise_comes_off_for_any_survivors(
    survivors: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, expected = witnessed(monkeypatch, *survivors)
    table.reveal(*survivors[:THRESHOLD])
    total = table.tally.unmask()
    assert same(total.parts, expected.parts)


def test_a_reveal_holds_a_share_of_every_surplus_layer() -> None:
    table = summed(*FOUR, promise=PROMISE)
    good, size = table.reveals[0], shamir.SHARE_BYTES
    assert len(good.shares) == (4 * (1 + len(SURPLUS)) + 1) * size
    wrong = [
        replace(good, shares=good.shares[:-size]),
        replace(good, shares=good.shares + bytes(size)),
        replace(good, shares=good.shares[: 5 * size]),  # as if there were no noise
        replace(good, shares=good.shares[: 5 * (1 + len(SURPLUS)) * size] + bytes(len(SURPLUS) * size)),
        replace(good, dealers=table.rig.bitmap(table.cohort, FOUR)),
        replace(good, dealers=table.rig.bitmap(table.cohort, (0, 1, 2, 3, 4))),  # 3 is not in the roster
    ]
    for reveal in wrong:
        with pytest.raises(
            MalformedMessage, match="client 0: not just the shares that it holds of the roster"
        ):
            table.add_reveal(0, reveal)
    assert table.tally.revealed == set()
    assert not any(kept for rows in table.tally._shares.values() for kept in rows)


@pytest.mark.parametrize("layer_at", [0, len(SURPLUS) - 1])
def test_a_wrong_share_of_noise_convicts_its_holder(layer_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    table, expected = witnessed(monkeypatch, *FOUR)
    second_dealer = 1 + len(SURPLUS)
    with pytest.raises(WrongShare) as caught:
        table.add_reveal(0, lie(table.reveals[0], second_dealer + 1 + layer_at, by=9))
    assert (caught.value.peer, caught.value.dealer) == (0, 1)
    table.reveal(1, 2, 4)
    assert same(table.tally.unmask().parts, expected.parts)


@pytest.mark.parametrize(
    ("columns", "first"), [([1 + SURPLUS[0]], 1 + SURPLUS[0]), ([0, 1 + SURPLUS[0]], 0)], ids=["noise", "all"]
)
def test_a_dealer_whose_noise_cannot_be_had_stops_the_sum_and_is_named_once(
    columns: list[int], first: int
) -> None:
    table = summed(*FOUR, promise=PROMISE, forgeries={1: forged(*columns)})
    table.reveal(*FOUR)
    before = [part.copy() for part in table.tally._accumulator]
    with pytest.raises(Unrecoverable, match="client 1: its shares do not open what it published") as caught:
        table.tally.unmask()
    (lie,) = caught.value.liars
    assert isinstance(lie, FalseDealing)
    assert (lie.peer, lie.column) == (1, first)
    assert all((a == b).all() for a, b in zip(before, table.tally._accumulator, strict=True))
    rows = table.tally.dealt_rows(1, first)
    assert {len(row) for row in rows} == {4 + shamir.SHARE_BYTES + TAG_BYTES * (1 + PROMISE.seeds)}


def test_noise_that_was_half_removed_is_never_released(monkeypatch: pytest.MonkeyPatch) -> None:
    table = summed(*FOUR, promise=PROMISE)
    table.reveal(*FOUR)
    with monkeypatch.context() as patch:
        patch.setattr(Layers, "remove", interrupted)
        with pytest.raises(Interrupted):
            table.tally.unmask()
    with pytest.raises(CorruptTotal, match="interrupted before"):
        table.tally.unmask()
