"""How the masks of a total are shared out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from secagg.expansion import split
from secagg.masking import PairMasks, Removal, SelfMask


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
