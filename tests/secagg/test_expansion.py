"""How the masks of a total are shared out."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from secagg.expansion import slices, split
from secagg.masking import PairMasks, Removal, SelfMask
from secagg.masks import apply_masks

SEED = bytes(range(32))


def masks(removals: list[Removal]) -> int:
    return sum(len(removal.pairs) if isinstance(removal, PairMasks) else 1 for removal in removals)


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 6))
def test_every_share_has_the_same_number_of_masks_and_together_they_are_all(
    counts: list[int], shares: int
) -> None:
    """A count of 0 stands for a self mask, any other for that many pairs."""
    pairs = tuple((bytes(32), b"%d" % k, False) for k in range(9))
    removals: list[Removal] = [
        PairMasks(b"%d" % at, pairs[:count]) if count else SelfMask(b"%d" % at, b"")
        for at, count in enumerate(counts)
    ]
    lists = split(removals, shares)
    sizes = [masks(share) for share in lists]
    assert len(lists) == shares
    assert sum(sizes) == masks(removals)
    assert max(sizes) - min(sizes) <= 1
    pieces = [piece for share in lists for piece in share]
    joined = {removal: [p for p in pieces if secret(p) == secret(removal)] for removal in removals}
    for removal, found in joined.items():
        if isinstance(removal, PairMasks):
            assert [pair for piece in found if isinstance(piece, PairMasks) for pair in piece.pairs] == list(
                removal.pairs
            )
        else:
            assert found == [removal]


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
