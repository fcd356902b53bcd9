"""Deposits: the server opens those of a drop-out, and sees who contradicts whom, but no other secret."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.cohort_members import Cohort
from secagg.deposits import Deposits
from secagg.errors import FalseDeposit
from secagg.evidence import Signed, Statement
from secagg.hybrid_keys import DEPOSIT_BYTES, PAIR_SECRET_BYTES, padded, secret_tag
from secagg.insecure_seeds import SeededRandom
from secagg.message_records import Advert

IDS = (2, 3, 7, 11)
SESSION = b"s" * 32
SUMS = 3
COHORT = Cohort(SESSION, 3, tuple(Advert(member, bytes(32), b"", (), ()) for member in IDS))


def dealt_secret(position: int, sum_index: int) -> bytes:
    return SeededRandom(b"dealt", bytes([position, sum_index]))(32)


def pair_secret(one: int, other: int, sum_index: int) -> bytes:
    return SeededRandom(b"pair", bytes([*sorted((one, other)), sum_index]))(PAIR_SECRET_BYTES)


def deposit(owner: int, peer: int, *, other: bool = False) -> bytes:
    """What the member at `owner` deposits for the one at `peer`, of the right secrets or of others."""
    rows = []
    for k in range(SUMS):
        secret = bytes(PAIR_SECRET_BYTES) if other and k == 1 else pair_secret(owner, peer, k)
        names = {"owner": IDS[owner], "peer": IDS[peer], "sum_index": k}
        hidden = padded(secret, secret=dealt_secret(owner, k), session=SESSION, **names)
        rows.append(hidden + secret_tag(secret, session=SESSION, pair=(IDS[owner], IDS[peer]), sum_index=k))
    return b"".join(rows)


def deposited(
    owners: Collection[int] = range(len(IDS)),
    *,
    false: Collection[tuple[int, int]] = (),
    missing: Collection[tuple[int, int]] = (),
) -> Deposits:
    """The deposits of all `owners` for all others, but for (owner, peer) pairs in `false` and `missing`."""
    found = Deposits(COHORT, sums=SUMS)
    for owner in owners:
        rows = {
            peer: deposit(owner, peer, other=(owner, peer) in false)
            for peer in range(len(IDS))
            if peer != owner and (owner, peer) not in missing
        }
        found.add(owner, rows, Signed((b"fields", bytes([owner])), b"signature"))
    return found


def test_owners_are_those_who_made_deposits() -> None:
    assert Deposits(COHORT, sums=SUMS).owners == set()
    assert deposited([0, 3]).owners == {0, 3}


def test_what_was_signed_becomes_a_statement() -> None:
    found = deposited([0, 3]).statement(3)
    assert found == Statement(IDS[3], "deposit", (b"fields", b"\3"), b"signature")


# --- disputes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("owners", [(), (1,), (0, 1), (0, 2, 3), range(4)])
def test_honest_clients_have_no_disputes(owners: Collection[int]) -> None:
    """Also where some made no deposits at all: they have dropped out of the session."""
    assert deposited(owners).disputes() == []


ORDERED = [(one, other) for one in range(4) for other in range(4) if one != other]
WRONG = st.sets(st.sampled_from(ORDERED))


@given(WRONG, WRONG)
@settings(deadline=None, max_examples=60)
def test_every_contradiction_is_one_dispute(
    false: set[tuple[int, int]], missing: set[tuple[int, int]]
) -> None:
    """Of one false and one right tag, or of a deposit that the second of the two did not make. (One that the
    first did not make is no news: it has reported the shares of the second, which is a dispute too.)"""
    expected = [
        (IDS[one], IDS[other])
        for one in range(4)
        for other in range(one + 1, 4)
        if (one, other) not in missing
        and ((other, one) in missing or ((one, other) in false) != ((other, one) in false))
    ]
    assert deposited(false=false, missing=missing).disputes() == expected


def test_a_tag_of_any_sum_counts() -> None:
    for k in range(SUMS):
        found = deposited()
        row = bytearray(found._deposits[2][1])
        row[k * DEPOSIT_BYTES + PAIR_SECRET_BYTES] ^= 1
        found._deposits[2][1] = bytes(row)
        assert found.disputes() == [(IDS[1], IDS[2])]


def test_what_is_hidden_is_not_compared() -> None:
    """It differs from one end to the other; that it opens shows only when it is needed."""
    found = deposited()
    row = found._deposits[2][1]
    found._deposits[2][1] = bytes([row[0] ^ 1]) + row[1:]
    assert found.disputes() == []


# --- opening -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sum_index", range(SUMS))
@pytest.mark.parametrize("owner", range(len(IDS)))
def test_the_dealt_secret_of_a_sum_opens_its_deposits(owner: int, sum_index: int) -> None:
    peers = [peer for peer in range(len(IDS)) if peer != owner]
    opened = deposited().opened(owner, peers, sum_index, dealt_secret(owner, sum_index))
    assert opened == {peer: pair_secret(owner, peer, sum_index) for peer in peers}


def test_only_what_is_asked_for_is_opened() -> None:
    found = deposited(missing=[(1, 3)])
    assert list(found.opened(1, [2], 0, dealt_secret(1, 0))) == [2]
    assert found.opened(1, [], 0, dealt_secret(1, 0)) == {}


@pytest.mark.parametrize(("owner", "sum_index"), [(1, 1), (2, 0)])
def test_another_secret_opens_nothing(owner: int, sum_index: int) -> None:
    with pytest.raises(FalseDeposit) as caught:
        deposited().opened(1, [3], 0, dealt_secret(owner, sum_index))
    assert (caught.value.peer, caught.value.other) == (IDS[1], IDS[3])


@pytest.mark.parametrize("at", [0, PAIR_SECRET_BYTES - 1, PAIR_SECRET_BYTES, DEPOSIT_BYTES - 1])
def test_a_deposit_that_does_not_fit_its_tag_convicts_its_owner(at: int) -> None:
    found = deposited()
    row = bytearray(found._deposits[1][2])
    row[DEPOSIT_BYTES + at] ^= 1  # of sum 1
    found._deposits[1][2] = bytes(row)
    for k in (0, 2):
        assert found.opened(1, [2], k, dealt_secret(1, k)) == {2: pair_secret(1, 2, k)}
    with pytest.raises(FalseDeposit) as caught:
        found.opened(1, [0, 2, 3], 1, dealt_secret(1, 1))
    assert (caught.value.peer, caught.value.other) == (IDS[1], IDS[2])
