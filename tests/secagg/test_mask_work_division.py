"""How the masks of a total are shared out."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from secagg.mask_keystream import apply_masks
from secagg.mask_work_division import MOST_PORTIONS, divided, mask_count, portions, slices
from secagg.self_and_pair_masks import Pair, PairMasks, Removal, SelfMask

SEED = bytes(range(32))


@given(st.lists(st.integers(0, 9), max_size=12), st.lists(st.integers(1, 20), max_size=9))
def test_every_range_gets_its_masks_and_together_they_are_all(counts: list[int], sizes: list[int]) -> None:
    """A count of 0 stands for a self mask, any other for that many pairs."""
    pairs = tuple((bytes(32), b"%d" % k, False, b"%d" % k) for k in range(9))
    removals: list[Removal] = [
        PairMasks(b"%d" % at, pairs[:count]) if count else SelfMask(b"%d" % at, b"")
        for at, count in enumerate(counts)
    ]
    ends = [0, *accumulate(sizes), max(sum(sizes), mask_count(removals))]
    ranges = list(pairwise(ends))
    lists = divided(removals, ranges)
    numbered = [(secret(each), pair) for each in removals for pair in pairs_of(each)]
    assert mask_count(removals) == len(numbered)
    assert len(lists) == len(ranges)
    for found, (start, stop) in zip(lists, ranges, strict=True):
        assert [(secret(each), pair) for each in found for pair in pairs_of(each)] == numbered[start:stop]
        assert len(found) == len({secret(each) for each in found}), "none is cut within a range"


def test_a_removal_without_masks_is_in_no_list() -> None:
    removals: list[Removal] = [SelfMask(b"1", b""), PairMasks(b"2", ()), SelfMask(b"3", b"")]
    assert divided(removals, [(0, 2)]) == [[removals[0], removals[2]]]


@given(st.integers(0, 10**6), st.integers(1, 64), st.integers(1, 10**4))
def test_portions_shrink_and_follow_each_other(total: int, sharers: int, least: int) -> None:
    found = portions(total, sharers=sharers, least=least)
    sizes = [stop - start for start, stop in found]
    assert [0, *(stop for _, stop in found)] == [*(start for start, _ in found), total]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) <= MOST_PORTIONS
    assert all(size >= least for size in sizes[:-1])
    if sizes:
        assert sizes[0] <= max(least, -(-total // MOST_PORTIONS), total // (2 * sharers))


def test_portions_for_two() -> None:
    ranges = [(0, 25), (25, 43), (43, 57), (57, 67), (67, 77), (77, 87), (87, 97), (97, 100)]
    assert portions(100, sharers=2, least=10) == ranges


def pairs_of(removal: Removal) -> tuple[Pair | None, ...]:
    return removal.pairs if isinstance(removal, PairMasks) else (None,)


def secret(removal: Removal) -> bytes:
    return removal.mask_key if isinstance(removal, PairMasks) else removal.secret


LAYOUTS = st.lists(st.tuples(st.integers(0, 40), st.sampled_from(("u1", "<u2", "<u4", "<u8"))), max_size=5)


@given(LAYOUTS, st.integers(1, 6))
def test_stretches_are_the_vector_and_skip_what_comes_before_them(
    layout: list[tuple[int, str]], shares: int
) -> None:
    residues = [np.zeros(size, dtype) for size, dtype in layout]
    whole = [np.zeros(size, dtype) for size, dtype in layout]
    apply_masks(whole, plus=[SEED])
    for stretch in slices(residues, shares):
        apply_masks(stretch.of(residues), plus=[SEED], skip=stretch.skip)
    assert all((a == b).all() for a, b in zip(residues, whole, strict=True))


@given(LAYOUTS, st.integers(1, 6))
def test_stretches_are_of_equal_size_but_for_an_element(layout: list[tuple[int, str]], shares: int) -> None:
    residues = [np.zeros(size, dtype) for size, dtype in layout]
    sizes = [sum(part.nbytes for part in stretch.of(residues)) for stretch in slices(residues, shares)]
    assert max(sizes) - min(sizes) <= 2 * 8
