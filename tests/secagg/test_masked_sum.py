"""One sum on the server: masked inputs in, shares in, a total out, or nothing at all."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np
import pytest

from secagg import messages as m
from secagg import shamir
from secagg.bitmap import pack_positions, unpack_positions
from secagg.distributed_noise import NoiseAssumptions
from secagg.errors import BadShare, BadVector, CorruptTotal, MalformedMessage, TooFewClients, Unrecoverable
from secagg.events import WrongShares
from secagg.input_encoding import Encoding
from secagg.noise.gaussian import Layers
from secagg.self_and_pair_masks import OneProcess
from secagg.sum_spec import Total
from secagg.sum_unmasking import Tally
from secagg.topology import CompleteGraph
from secagg.trust_levels import Trust
from tests.attacks.attackers.noise_attacks import LIMIT, noise_table
from tests.attacks.rig import PART, Rig, residue_table
from tests.secagg.noisy import Witness, same

CLIENTS, THRESHOLD = 6, 3
ROSTER = (0, 1, 2, 4, 5)  # client 3 was not asked


class Table:
    """Honest clients who have answered one query, and the tally that counts them."""

    def __init__(
        self, *survivors: int, corrupt: int = 1, bits: int = 32, promise: NoiseAssumptions | None = None
    ) -> None:
        table = residue_table(bits=bits) if promise is None else noise_table(promise)
        self.rig = Rig(CLIENTS, Trust.CURIOUS, table=table)
        self.rig.vectors = {k: v if promise is None else v % LIMIT for k, v in self.rig.vectors.items()}
        self.cohort = self.rig.set_up(threshold=THRESHOLD)
        frame = self.rig.query(self.cohort, 0, ROSTER)
        self.question = self.rig.question(self.cohort, frame)
        self.tally = Tally(self.question, CompleteGraph(CLIENTS), corrupt=corrupt, expander=OneProcess())
        self.inputs = self.rig.masked(frame, survivors)
        for member, message in self.inputs.items():
            self.tally.add_input(member, message.data)
        self.survivors = self.tally.fix_survivors()
        request = self.rig.survivors(self.cohort, 0, survivors)
        self.reveals = dict(self.rig.reveals(request, survivors))

    def reveal(self, *members: int) -> None:
        for member in members:
            self.tally.add_reveal(member, self.reveals[member])

    def expected(self, *members: int) -> list[int]:
        rows = np.stack([self.rig.vectors[member] for member in members])
        return [int(total) for total in rows.astype(np.uint64).sum(axis=0) % 2**32]


def lie(reveal: m.Reveal, dealer_at: int, *, by: int) -> m.Reveal:
    """The reveal with one of its shares shifted."""
    start = dealer_at * shamir.SHARE_BYTES
    share = int.from_bytes(reveal.shares[start : start + shamir.SHARE_BYTES], "big")
    wrong = shamir.shares_to_bytes([(share + by) % shamir.PRIME])
    return replace(reveal, shares=reveal.shares[:start] + wrong + reveal.shares[start + shamir.SHARE_BYTES :])


def without_dealer(reveal: m.Reveal, dealer_at: int) -> m.Reveal:
    """The reveal without one of its shares, over the positions of the whole cohort."""
    dealers = unpack_positions(reveal.dealers, CLIENTS, sender=0)
    start = dealer_at * shamir.SHARE_BYTES
    return replace(
        reveal,
        dealers=pack_positions((k for at, k in enumerate(dealers) if at != dealer_at), CLIENTS),
        shares=reveal.shares[:start] + reveal.shares[start + shamir.SHARE_BYTES :],
    )


@pytest.mark.parametrize("survivors", [ROSTER, (0, 2, 4, 5), (1, 4, 5), (0, 1, 2)])
def test_masks_come_off_for_any_survivors(survivors: tuple[int, ...]) -> None:
    table = Table(*survivors)
    assert table.survivors == set(survivors)
    table.reveal(*survivors)
    total, wrong = table.tally.unmask()
    assert total[PART].tolist() == table.expected(*survivors)
    assert (total.count, total.invited) == (len(survivors), len(ROSTER))
    assert wrong == ()


def test_any_threshold_of_reveals_is_enough() -> None:
    for holders in combinations((0, 2, 4, 5), THRESHOLD):
        table = Table(0, 2, 4, 5)
        table.reveal(*holders)
        assert table.tally.revealed == set(holders)
        total, _ = table.tally.unmask()
        assert total[PART].tolist() == table.expected(0, 2, 4, 5)


def test_too_few_reveals_release_nothing() -> None:
    table = Table(0, 2, 4, 5)
    table.reveal(0, 2)
    before = [part.copy() for part in table.tally._accumulator]
    with pytest.raises(TooFewClients, match="only 2 of client 0's neighbours are left; 3 are needed"):
        table.tally.unmask()
    assert all((a == b).all() for a, b in zip(before, table.tally._accumulator, strict=True))


def test_a_dealer_of_whom_too_few_hold_shares_is_to_blame() -> None:
    """Three holders have answered, and one may lie; that two lack their share is the dealer's doing."""
    table = Table(0, 2, 4, 5)
    for member in (0, 2):
        table.tally.add_reveal(member, without_dealer(table.reveals[member], 1))
    table.reveal(4)
    with pytest.raises(Unrecoverable, match="client 1: 1 of 3 shares are there") as caught:
        table.tally.unmask()
    assert [(dealer.peer, dealer.proven) for dealer in caught.value.dealers] == [(1, True)]


@pytest.mark.parametrize("change", ["short", "long", "padding"])
def test_a_masked_input_that_does_not_fit_is_refused(change: str) -> None:
    table = Table(0, 1, 2, bits=33)  # four elements, 132 bits, hence four of padding
    data = table.inputs[0].data
    bad = {
        "short": data[:-1],
        "long": data + b"\0",
        "padding": data[:16] + bytes([data[16] | 0x10]) + data[17:],
    }
    before = [part.copy() for part in table.tally._accumulator]
    with pytest.raises(BadVector, match="client 4: a masked input that does not fit the spec"):
        table.tally.add_input(4, bad[change])
    assert table.tally.contributors == {0, 1, 2}
    assert all((a == b).all() for a, b in zip(before, table.tally._accumulator, strict=True))


def test_a_changed_masked_input_is_noticed_where_it_hits_the_count() -> None:
    table = Table(0, 1, 2)
    table.tally._accumulator[-1][0] += 1
    table.reveal(0, 1, 2)
    with pytest.raises(CorruptTotal):
        table.tally.unmask()


# --- reveals ---------------------------------------------------------------------------------------


def test_a_reveal_holds_one_share_per_dealer_it_names() -> None:
    table = Table(0, 1, 2)
    good = table.reveals[0]
    cohort = table.cohort
    wrong = [
        replace(good, shares=good.shares[:-1]),
        replace(good, shares=good.shares + bytes(shamir.SHARE_BYTES)),
        replace(good, shares=good.shares[shamir.SHARE_BYTES :]),
        replace(good, dealers=table.rig.bitmap(cohort, (0, 1, 2, 3, 4))),  # client 3 is not in the roster
    ]
    for reveal in wrong:
        with pytest.raises(MalformedMessage, match="client 0: shares that do not match the roster"):
            table.tally.add_reveal(0, reveal)
    with pytest.raises(MalformedMessage, match="a bitmap that is not over 6 members"):
        table.tally.add_reveal(0, replace(good, dealers=b"\xff"))
    assert table.tally.revealed == set()


def test_a_share_outside_the_field_is_refused() -> None:
    table = Table(0, 1, 2)
    good = table.reveals[0]
    beyond = shamir.PRIME.to_bytes(shamir.SHARE_BYTES, "big")
    with pytest.raises(BadShare, match="client 0: a share outside the field"):
        table.tally.add_reveal(0, replace(good, shares=good.shares[: -len(beyond)] + beyond))
    assert table.tally.revealed == set()
    assert all(0 + 1 not in held for rows in table.tally._shares.values() for held in rows)


def test_a_wrong_share_is_corrected_and_named() -> None:
    table = Table(*ROSTER)
    table.reveal(1, 2, 4, 5)
    table.tally.add_reveal(0, lie(table.reveals[0], 2, by=9))  # its share of client 2's secret
    total, wrong = table.tally.unmask()
    assert total[PART].tolist() == table.expected(*ROSTER)
    assert wrong == (WrongShares(dealer=2, holders=(0,)),)


def test_a_wrong_share_of_a_mask_key_is_corrected_too() -> None:
    table = Table(0, 1, 2, 4)  # client 5 sent nothing
    table.reveal(1, 2, 4)
    table.tally.add_reveal(0, lie(table.reveals[0], 4, by=9))
    total, wrong = table.tally.unmask()
    assert total[PART].tolist() == table.expected(0, 1, 2, 4)
    assert wrong == (WrongShares(dealer=5, holders=(0,)),)


@pytest.mark.parametrize(
    ("survivors", "corrupt", "proven"),
    [(ROSTER, 0, True), (ROSTER, 2, True), ((0, 1, 2, 4), 1, True), ((0, 1, 2, 4), 2, False)],
)
def test_a_dealer_whose_secret_cannot_be_had_stops_the_sum(
    survivors: tuple[int, ...], corrupt: int, proven: bool
) -> None:
    """Of five shares and a threshold of three, the lies of two holders would have been corrected."""
    table = Table(*survivors, corrupt=corrupt)
    for member in survivors:
        table.tally.add_reveal(member, lie(table.reveals[member], 1, by=7**member))
    with pytest.raises(Unrecoverable, match="client 1: its shares do not open its commitment") as caught:
        table.tally.unmask()
    assert [(dealer.peer, dealer.proven) for dealer in caught.value.dealers] == [(1, proven)]


def test_all_dealers_to_blame_are_named_at_once() -> None:
    table = Table(*ROSTER)
    for member in ROSTER:
        reveal = lie(table.reveals[member], 0, by=7**member)
        table.tally.add_reveal(member, lie(reveal, 3, by=5**member))
    with pytest.raises(Unrecoverable) as caught:
        table.tally.unmask()
    assert [dealer.peer for dealer in caught.value.dealers] == [0, 4]


def test_when_holders_lie_about_everybody_the_search_for_dealers_stops() -> None:
    """More dealers fail than may be corrupt, none is proven to be: it is the holders, and the sum is lost."""
    survivors = (0, 1, 2, 4)
    table = Table(*survivors, corrupt=2)
    for member in survivors:
        reveal = table.reveals[member]
        for at in range(len(ROSTER)):
            reveal = lie(reveal, at, by=(at + 2) ** (member + 3))
        table.tally.add_reveal(member, reveal)
    with pytest.raises(Unrecoverable) as caught:
        table.tally.unmask()
    assert [(dealer.peer, dealer.proven) for dealer in caught.value.dealers] == [
        (k, False) for k in ROSTER[:3]
    ]


class Interrupted(BaseException):
    """As by a key or a signal, at any moment."""


def interrupted(*_: object, **__: object) -> None:
    raise Interrupted


@pytest.mark.parametrize("adding", [True, False], ids=["adding", "unmasking"])
def test_what_was_interrupted_half_way_is_never_released(
    adding: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hidden count is the last element, and may be right where the others are not."""
    table = Table(*ROSTER)
    table.reveal(*ROSTER)
    add_again = partial(table.tally.add_input, 0, table.inputs[0].data)
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
    table = Table(*ROSTER)
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
    table = Table(*survivors, promise=PROMISE)
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
    total, wrong = table.tally.unmask()
    assert same(total.parts, expected.parts)
    assert wrong == ()


def test_a_reveal_holds_a_share_of_every_surplus_layer() -> None:
    table = Table(*FOUR, promise=PROMISE)
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
        with pytest.raises(MalformedMessage, match="client 0: shares that do not match the roster"):
            table.tally.add_reveal(0, reveal)
    assert table.tally.revealed == set()
    assert not any(kept for rows in table.tally._shares.values() for kept in rows)


@pytest.mark.parametrize("layer_at", [0, len(SURPLUS) - 1])
def test_a_wrong_share_of_noise_is_corrected_and_named(
    layer_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, expected = witnessed(monkeypatch, *FOUR)
    table.reveal(1, 2, 4)
    second_dealer = 1 + len(SURPLUS)
    table.tally.add_reveal(0, lie(table.reveals[0], second_dealer + 1 + layer_at, by=9))
    total, wrong = table.tally.unmask()
    assert same(total.parts, expected.parts)
    assert wrong == (WrongShares(dealer=1, holders=(0,)),)


@pytest.mark.parametrize("secrets", [[1], [0, 1, 2]], ids=["noise", "all"])
def test_a_dealer_whose_noise_cannot_be_had_stops_the_sum_and_is_named_once(secrets: list[int]) -> None:
    table = Table(*FOUR, promise=PROMISE)
    for member in FOUR:
        reveal = table.reveals[member]
        for secret in secrets:
            reveal = lie(reveal, 1 + len(SURPLUS) + secret, by=7 ** (member + secret))
        table.tally.add_reveal(member, reveal)
    before = [part.copy() for part in table.tally._accumulator]
    with pytest.raises(Unrecoverable, match="client 1: its shares do not open its commitment") as caught:
        table.tally.unmask()
    assert [(dealer.peer, dealer.proven) for dealer in caught.value.dealers] == [(1, True)]
    assert all((a == b).all() for a, b in zip(before, table.tally._accumulator, strict=True))


def test_noise_that_was_half_removed_is_never_released(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(*FOUR, promise=PROMISE)
    table.reveal(*FOUR)
    with monkeypatch.context() as patch:
        patch.setattr(Layers, "remove", interrupted)
        with pytest.raises(Interrupted):
            table.tally.unmask()
    with pytest.raises(CorruptTotal, match="interrupted before"):
        table.tally.unmask()
