"""Disputes: every liar takes at most one honest client along, and no dispute is left."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.disputes import Pair, Settlement, settle

MEMBERS = range(12)
PAIRS = st.lists(st.tuples(st.sampled_from(MEMBERS), st.sampled_from(MEMBERS)), max_size=30).map(
    lambda pairs: [(one, other) for one, other in pairs if one != other]
)


@st.composite
def true_disputes(draw: st.DrawFn) -> tuple[frozenset[int], list[Pair]]:
    """Liars, and disputes of which each has one of them."""
    liars = draw(st.frozensets(st.sampled_from(MEMBERS), min_size=1, max_size=4))
    possible = [pair for pair in combinations(MEMBERS, 2) if liars.intersection(pair)]
    return liars, draw(st.lists(st.sampled_from(possible), max_size=25))


def members_of(pairs: tuple[Pair, ...]) -> list[int]:
    return [member for pair in pairs for member in pair]


@given(true_disputes())
@settings(deadline=None, max_examples=300)
def test_no_honest_client_is_convicted(case: tuple[frozenset[int], list[Pair]]) -> None:
    liars, disputes = case
    settled = settle(disputes, corrupt=len(liars))
    assert set(settled.liars) <= liars


@given(true_disputes())
@settings(deadline=None, max_examples=300)
def test_every_liar_takes_at_most_one_honest_client_along(case: tuple[frozenset[int], list[Pair]]) -> None:
    liars, disputes = case
    settled = settle(disputes, corrupt=len(liars))
    assert all(liars.intersection(pair) for pair in settled.excluded)
    lost = set(members_of(settled.excluded)) - liars
    assert len(lost) <= len(liars) - len(settled.liars)


@given(PAIRS, st.integers(0, 4))
@settings(deadline=None, max_examples=300)
def test_no_dispute_is_left_and_nobody_is_excluded_twice(disputes: list[Pair], corrupt: int) -> None:
    settled = settle(disputes, corrupt=corrupt)
    gone = [*settled.liars, *members_of(settled.excluded)]
    assert len(set(gone)) == len(gone)
    assert all(not set(gone).isdisjoint(pair) for pair in disputes)
    known = {(min(pair), max(pair)) for pair in disputes}
    assert set(settled.excluded) <= known


@given(PAIRS, st.integers(0, 4), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_neither_order_nor_repetition_matters(
    disputes: list[Pair], corrupt: int, order: random.Random
) -> None:
    mixed = [pair[::-1] for pair in disputes] + disputes
    order.shuffle(mixed)
    assert settle(mixed, corrupt=corrupt) == settle(disputes, corrupt=corrupt)


@pytest.mark.parametrize(
    ("disputes", "corrupt", "liars", "excluded"),
    [
        ([], 0, (), ()),
        ([(1, 2)], 0, (1, 2), ()),  # nobody may lie, so that each of them has one dispute too many
        ([(2, 1)], 1, (), ((1, 2),)),
        ([(1, 2), (1, 3)], 1, (1,), ()),
        ([(1, 2), (1, 3)], 2, (), ((1, 2),)),  # whoever lies, client 3 has no dispute left
        ([(1, 2), (2, 1), (1, 2)], 1, (), ((1, 2),)),  # one dispute, said three times
        ([(1, 2), (3, 4)], 2, (), ((1, 2), (3, 4))),
        ([(1, 2), (1, 3), (1, 4), (5, 6)], 2, (1,), ((5, 6),)),
        ([(9, 1), (9, 2), (9, 3), (9, 3), (4, 9)], 3, (9,), ()),
    ],
)
def test_settlements(
    disputes: list[Pair], corrupt: int, liars: tuple[int, ...], excluded: tuple[Pair, ...]
) -> None:
    assert settle(disputes, corrupt=corrupt) == Settlement(liars, excluded)
