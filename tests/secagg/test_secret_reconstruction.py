"""Secrets from strangers' shares: checked against a commitment, wrong holders named, dealers blamed last."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import shamir
from secagg.errors import CorruptDealer
from secagg.insecure_seeds import SeededRandom
from secagg.secret_reconstruction import Reconstruction

SECRET = b"\x2a" * 32
DEALER = 9


def shares_of(threshold: int, holders: int, secret: bytes = SECRET) -> dict[int, int]:
    values = shamir.deal(secret, threshold=threshold, holders=holders, random=SeededRandom(b"deal"))
    return dict(enumerate(values, start=1))


def spoil(shares: dict[int, int], *points: int) -> None:
    """Errors without a pattern: those of liars in league, or in small ratios, might cancel in the secret."""
    for x in points:
        error = int.from_bytes(hashlib.sha256(bytes([x])).digest(), "big")
        shares[x] = (shares[x] + error) % shamir.PRIME


class Task(Reconstruction):
    """A reconstruction in which the holder at each point is called by the point's number."""

    def __init__(self, threshold: int, corrupt: int, revealed: int) -> None:
        super().__init__(threshold, corrupt=corrupt)
        self._revealed = revealed

    def open(self, dealer: int, shares: Mapping[int, int], matches: Callable[[bytes], bool]) -> bytes:
        return self.secret(dealer, shares, matches, holders=range(1, 100), answered=self._revealed)


def reconstruction(threshold: int, *, corrupt: int = 1, revealed: int = 99) -> Task:
    return Task(threshold, corrupt, revealed)


def opens(secret: bytes) -> Callable[[bytes], bool]:
    return lambda found: found == secret


def test_good_shares_give_the_secret_and_blame_nobody() -> None:
    task = reconstruction(3)
    assert task.open(DEALER, shares_of(3, 5), opens(SECRET)) == SECRET
    assert task.wrong == {}


@pytest.mark.parametrize(("revealed", "proven"), [(2, False), (3, False), (4, True), (5, True)])
def test_too_few_shares_are_the_dealers_fault(revealed: int, proven: bool) -> None:
    """For sure only if more holders lack their share than the one who may be lying about it."""
    few = {x: share for x, share in shares_of(3, 5).items() if x > 3}
    with pytest.raises(CorruptDealer, match="client 9: 2 of 3 shares are there") as caught:
        reconstruction(3, revealed=revealed).open(DEALER, few, opens(SECRET))
    assert caught.value.peer == DEALER
    assert caught.value.proven == proven


@given(st.integers(0, 1 << 30))
@settings(deadline=None, max_examples=60)
def test_wrong_shares_within_the_radius_are_named(seed: int) -> None:
    rng = random.Random(seed)
    threshold = rng.randint(1, 8)
    shares = shares_of(threshold, threshold + rng.randint(0, 8))
    wrong = set(rng.sample(sorted(shares), rng.randint(0, (len(shares) - threshold) // 2)))
    spoil(shares, *wrong)
    task = reconstruction(threshold)
    assert task.open(DEALER, shares, opens(SECRET)) == SECRET
    first = set(sorted(shares)[:threshold])
    assert task.wrong == ({DEALER: wrong} if wrong & first else {})


@pytest.mark.parametrize("liar", range(1, 6))
def test_one_share_to_spare_finds_one_liar_by_the_commitment(liar: int) -> None:
    """m = t + 1 is beyond the decoder, which can only detect: leaving out one share at a time corrects."""
    shares = shares_of(4, 5)
    spoil(shares, liar)
    assert shamir.correct_errors(shares, 4) is None
    task = reconstruction(4)
    assert task.open(DEALER, shares, opens(SECRET)) == SECRET
    assert task.wrong == ({} if liar == 5 else {DEALER: {liar}})


def test_many_liars_are_found_as_long_as_a_threshold_is_honest() -> None:
    shares = shares_of(3, 7)
    spoil(shares, 1, 2, 5, 7)
    task = reconstruction(3)
    assert task.open(DEALER, shares, opens(SECRET)) == SECRET
    assert task.wrong == {DEALER: {1, 2, 5, 7}}


def test_a_lie_the_decoder_believes_is_caught_by_the_commitment() -> None:
    """Four of six agree on another secret; two honest holders are enough to open the commitment."""
    shares, lies = shares_of(2, 6), shares_of(2, 6, b"\7" * 32)
    mixed = {x: shares[x] if x in (3, 6) else lies[x] for x in shares}
    task = reconstruction(2)
    assert task.open(DEALER, mixed, opens(SECRET)) == SECRET
    assert task.wrong == {DEALER: {1, 2, 4, 5}}


@pytest.mark.parametrize(
    ("threshold", "held", "corrupt", "proven"),
    [
        (3, 3, 0, True),
        (3, 3, 1, False),
        (3, 4, 1, True),  # every subset was searched
        (3, 6, 3, True),
        (3, 6, 4, False),
        (20, 20, 0, True),
        (20, 23, 3, False),  # 1771 subsets were not, and the decoder corrects one lie
        (20, 25, 3, False),
        (20, 26, 3, True),
    ],
)
def test_a_secret_that_opens_nothing_is_the_dealers_fault(
    threshold: int, held: int, corrupt: int, proven: bool
) -> None:
    """For sure only if the lies of as many holders as may be corrupt would have been corrected."""
    task = reconstruction(threshold, corrupt=corrupt)
    with pytest.raises(CorruptDealer, match="client 9: its shares do not open its commitment") as caught:
        task.open(DEALER, shares_of(threshold, held), opens(b"\7" * 32))
    assert caught.value.peer == DEALER
    assert caught.value.proven == proven
    assert task.wrong == {}


@given(st.integers(0, 1 << 30))
@settings(deadline=None, max_examples=60)
def test_an_honest_dealer_is_never_proven_corrupt(seed: int) -> None:
    """Whatever up to the tolerated number of holders reveal, agreed among them or not, or keep back."""
    rng = random.Random(seed)
    threshold, corrupt = rng.randint(1, 9), rng.randint(0, 4)
    shares = shares_of(threshold, threshold + rng.randint(0, 2 * corrupt + 2))
    revealed = len(shares)
    lies = shares_of(threshold, revealed, rng.randbytes(32)) if rng.random() < 0.5 else {}
    for x in rng.sample(sorted(shares), min(corrupt, revealed)):
        shares[x] = lies.get(x, rng.randrange(shamir.PRIME))
        if rng.random() < 0.3:
            del shares[x]
    try:
        found = reconstruction(threshold, corrupt=corrupt, revealed=revealed).open(
            DEALER, shares, opens(SECRET)
        )
    except CorruptDealer as error:
        found = b"" if error.proven else SECRET  # without proof, nobody is to blame
    assert found == SECRET


def test_a_secret_that_is_no_32_byte_string_is_the_dealers_fault() -> None:
    shares = dict.fromkeys(range(1, 5), (1 << 256) + 5)
    with pytest.raises(CorruptDealer, match="its shares do not open its commitment"):
        reconstruction(1).open(DEALER, shares, lambda _: True)


def test_whoever_was_wrong_once_is_asked_last() -> None:
    """Otherwise one liar among the first would cost every dealer a decoding."""
    task = reconstruction(3)
    first, second = shares_of(3, 6), shares_of(3, 6, b"\5" * 32)
    spoil(first, 1, 2)  # beyond the decoder's radius of one
    assert task.open(DEALER, first, opens(SECRET)) == SECRET
    spoil(second, 1, 2)
    tried: list[bytes] = []

    def watch(found: bytes) -> bool:
        tried.append(found)
        return found == b"\5" * 32

    assert task.open(4, second, watch) == b"\5" * 32
    assert tried == [b"\5" * 32]
    assert set(task.wrong) == {DEALER}


def test_the_search_for_honest_holders_is_bounded() -> None:
    """A corrupt dealer must not keep the server busy with all of C(30, 15) subsets."""
    tried: list[bytes] = []

    def never(found: bytes) -> bool:
        tried.append(found)
        return False

    shares = shares_of(15, 30)
    spoil(shares, *range(1, 16))
    with pytest.raises(CorruptDealer):
        reconstruction(15).open(DEALER, shares, never)
    assert 200 < len(tried) <= 258


def test_liars_cannot_buy_a_search_for_every_dealer() -> None:
    """The bound is on all dealers of a sum together, and a search cut short proves nothing."""
    tried: list[bytes] = []

    def never(found: bytes) -> bool:
        tried.append(found)
        return False

    task = reconstruction(15, corrupt=2)
    for dealer in range(8):
        with pytest.raises(CorruptDealer) as caught:
            task.open(dealer, shares_of(15, 17), never)
        assert caught.value.proven == (dealer == 0)  # 136 subsets, and a budget of 256
    assert len(tried) <= 256 + 2 * 8


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, bytes(31) + b"\1"])
def test_secrets_keep_their_leading_zeros(secret: bytes) -> None:
    shares = shares_of(3, 6, secret)
    spoil(shares, 2)
    assert reconstruction(3).open(DEALER, shares, opens(secret)) == secret
