"""Disputes: pairs of clients of which one must lie, and how the server settles them.

An honest client has disputes only with liars. So a client with more disputes than there can be liars is a
liar. Of the other disputes, a maximal matching is excluded: both clients of each of its pairs. At least one
of them lies, so every liar takes at most one honest client along, and no dispute is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

Pair: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class Settlement:
    """The outcome of disputes: `liars` are convicted; of each pair in `excluded`, at least one lies."""

    liars: tuple[int, ...]
    excluded: tuple[Pair, ...]


def settle(disputes: Iterable[Pair], *, corrupt: int) -> Settlement:
    """Settle `disputes` among clients of which at most `corrupt` lie."""
    pairs = sorted({(min(pair), max(pair)) for pair in disputes})
    count = Counter(member for pair in pairs for member in pair)
    liars = {member for member, disputed in count.items() if disputed > corrupt}
    gone, excluded = set(liars), []
    for pair in pairs:
        if gone.isdisjoint(pair):
            excluded.append(pair)
            gone.update(pair)
    return Settlement(tuple(sorted(liars)), tuple(excluded))
