"""Share tags: a revealed share fits what its dealer published, or its holder is caught."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.hashing import digest, framed
from secagg.shamir import PRIME, SHARE_BYTES, shares_to_bytes
from secagg.share_tags import (
    TAG_BYTES,
    DealtRow,
    RevealedRow,
    cut_rows,
    receipt,
    revealed_columns,
    tags_digest,
    tags_of,
)

SESSION = b"s" * 32
ROW = DealtRow(SESSION, 5, 7, 2)


def u32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def cut(blob: bytes, size: int) -> list[bytes]:
    return [blob[at : at + size] for at in range(0, len(blob), size)]


SHARES = st.lists(st.integers(0, PRIME - 1), min_size=1, max_size=6).map(shares_to_bytes)


@dataclass
class Partly:
    """A row of shares, and what is revealed of it."""

    shares: bytes
    columns: tuple[int, ...]

    @property
    def revealed(self) -> RevealedRow:
        shares, hashes = cut(self.shares, SHARE_BYTES), ROW.hashes(self.shares)
        hidden = [each for k, each in enumerate(hashes) if k not in self.columns]
        return RevealedRow(b"".join(shares[k] for k in self.columns), b"".join(hidden))


@st.composite
def partly(draw: st.DrawFn) -> Partly:
    shares = draw(SHARES)
    width = len(shares) // SHARE_BYTES
    columns = draw(st.sets(st.integers(0, width - 1), min_size=1))
    return Partly(shares, tuple(sorted(columns)))


# --- one row -----------------------------------------------------------------------------------------


def test_a_hash_is_of_the_share_and_of_its_place() -> None:
    shares = shares_to_bytes([1, 2, 3])
    prefix = framed("share", SESSION, u32(5), u32(7), u32(2))
    expected = [
        sha256(prefix + u32(column) + share).digest()[:16]
        for column, share in enumerate(cut(shares, SHARE_BYTES))
    ]
    assert ROW.hashes(shares) == expected
    assert ROW.tag(shares) == digest("share row", *expected)[:16]
    assert TAG_BYTES == 16


@given(SHARES)
@settings(deadline=None, max_examples=30)
def test_one_share_never_has_the_same_hash_in_two_places(shares: bytes) -> None:
    rows = [
        ROW,
        ROW._replace(session=b"t" * 32),
        ROW._replace(dealer=7, holder=5),
        ROW._replace(holder=8),
        ROW._replace(sum_index=3),
    ]
    first = shares[:SHARE_BYTES]
    hashes = [each for row in rows for each in row.hashes(4 * first)]
    assert len(set(hashes)) == len(hashes)
    assert len({row.tag(shares) for row in rows}) == len(rows)


def test_no_shares_have_no_hashes() -> None:
    assert ROW.hashes(b"") == []


@given(partly())
@settings(deadline=None)
def test_what_is_revealed_gives_the_tag_of_the_whole_row(row: Partly) -> None:
    assert ROW.all_hashes(row.revealed, row.columns) == ROW.hashes(row.shares)
    assert ROW.tag_of(row.revealed, row.columns) == ROW.tag(row.shares)


@given(partly(), st.data())
@settings(deadline=None)
def test_any_change_of_what_is_revealed_gives_another_tag(row: Partly, data: st.DataObject) -> None:
    shares, hidden = (bytearray(blob) for blob in row.revealed)
    blob = shares if not hidden or data.draw(st.booleans()) else hidden
    bit = data.draw(st.integers(0, 8 * len(blob) - 1))
    blob[bit // 8] ^= 1 << bit % 8
    changed = RevealedRow(bytes(shares), bytes(hidden))
    assert ROW.tag_of(changed, row.columns) != ROW.tag(row.shares)


@given(partly(), st.data())
@settings(deadline=None)
def test_a_single_share_of_what_is_revealed_gives_the_same_tag(row: Partly, data: st.DataObject) -> None:
    column = data.draw(st.sampled_from(row.columns))
    single = ROW.single(row.revealed, row.columns, column)
    assert single.shares == cut(row.shares, SHARE_BYTES)[column]
    assert len(single.hidden) == TAG_BYTES * (len(row.shares) // SHARE_BYTES - 1)
    assert ROW.tag_of(single, (column,)) == ROW.tag(row.shares)


def test_a_share_that_was_not_revealed_is_not_to_be_had() -> None:
    row = Partly(shares_to_bytes([1, 2, 3]), (0, 2))
    with pytest.raises(ValueError, match="not in tuple"):
        ROW.single(row.revealed, row.columns, 1)


# --- which shares are revealed -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("surplus", "survivors"), [((), (0,)), ((1,), (0, 2)), ((2, 3), (0, 3, 4)), (b"\x01\x02", (0, 2, 3))]
)
def test_of_a_drop_out_the_mask_key_and_of_a_survivor_the_rest(
    surplus: tuple[int, ...] | bytes, survivors: tuple[int, ...]
) -> None:
    assert revealed_columns(surplus) == ((1,), survivors)


COLUMNS = st.lists(st.sets(st.integers(0, 4), min_size=1).map(sorted), max_size=5)


@given(COLUMNS, st.data())
@settings(deadline=None)
def test_joined_rows_are_cut_as_they_were_joined(columns: list[list[int]], data: st.DataObject) -> None:
    rows = [
        RevealedRow(
            data.draw(st.binary(min_size=SHARE_BYTES * len(each), max_size=SHARE_BYTES * len(each))),
            data.draw(st.binary(min_size=TAG_BYTES * (5 - len(each)), max_size=TAG_BYTES * (5 - len(each)))),
        )
        for each in columns
    ]
    shares, hidden = b"".join(row.shares for row in rows), b"".join(row.hidden for row in rows)
    assert cut_rows(shares, hidden, columns, width=5) == rows


@pytest.mark.parametrize("shares", [-SHARE_BYTES, -1, 0, 1, SHARE_BYTES])
@pytest.mark.parametrize("hidden", [-TAG_BYTES, -1, 0, 1, TAG_BYTES])
def test_rows_of_other_lengths_are_not_cut(shares: int, hidden: int) -> None:
    """Three shares are revealed of two rows of four columns, and five are not."""
    rows = cut_rows(bytes(3 * SHARE_BYTES + shares), bytes(5 * TAG_BYTES + hidden), [(0,), (0, 2)], width=4)
    assert (rows is not None) == (shares == hidden == 0)


# --- all rows of a dealer, and of a holder -----------------------------------------------------------


@given(st.integers(1, 4), st.integers(1, 3), st.data())
@settings(deadline=None, max_examples=30)
def test_tags_are_of_the_rows_of_all_sums(sums: int, width: int, data: st.DataObject) -> None:
    size = SHARE_BYTES * width
    text = data.draw(st.binary(min_size=size * sums, max_size=size * sums))
    tags = tags_of(text, session=SESSION, dealer=5, holder=7, sums=sums)
    expected = [ROW._replace(sum_index=k).tag(row) for k, row in enumerate(cut(text, size))]
    assert cut(tags, TAG_BYTES) == expected


def test_a_digest_of_tags_is_no_tag() -> None:
    assert tags_digest(b"tags") == digest("share tags", b"tags")
    assert tags_digest(b"tags") != tags_digest(b"tag")


def test_a_receipt_is_of_all_dealers_and_their_tags_in_order() -> None:
    accepted = [(5, b"a" * 32), (7, b"b" * 32)]
    assert receipt(accepted) == digest("receipt", u32(5) + b"a" * 32, u32(7) + b"b" * 32)
    others = [
        [],
        accepted[:1],
        accepted[::-1],
        [(5, b"a" * 32), (8, b"b" * 32)],
        [(5, b"b" * 32), (7, b"a" * 32)],
    ]
    assert len({receipt(each) for each in (accepted, *others)}) == 1 + len(others)
