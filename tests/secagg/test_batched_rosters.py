"""The choice of clients that differ enough from those of all earlier sums, or not at all."""

from __future__ import annotations

import random
from collections.abc import Collection
from itertools import combinations

import pytest

from secagg import batched_rosters
from secagg.batched_rosters import is_allowed, largest_roster
from secagg.differencing_rules import Rule, SetLog, SumSequence

Sets = dict[frozenset[int], int]


def history(draw: random.Random, clients: int, apart: int, tries: int) -> Sets:
    """Sets that a server could have confirmed one after the other."""
    found: Sets = {}
    for _ in range(tries):
        drawn = frozenset(draw.sample(range(clients), draw.randint(3, clients)))
        if is_allowed(drawn, found):
            found[drawn] = apart
    return found


def holds(members: Collection[int], earlier: Sets, spare: int) -> bool:
    """Whether the clients are allowed, whichever `spare` of them drop out."""
    return all(
        is_allowed(set(members) - set(gone), earlier)
        for number in range(spare + 1)
        for gone in combinations(members, number)
    )


def largest(present: list[int], earlier: Sets, least: int, most: int, spare: int) -> int | None:
    """The size of the largest choice, by trying all of them."""
    for size in range(min(most, len(present)), least + spare - 1, -1):
        if any(holds(each, earlier, spare) for each in combinations(present, size)):
            return size
    return None


@pytest.mark.parametrize("seed", range(12))
def test_the_choice_is_allowed_and_no_larger_one_is(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(25):
        clients, apart = draw.randint(4, 8), draw.randint(1, 5)
        earlier = history(draw, clients, apart, draw.choice([0, 2, 5, 40]))
        present = sorted(draw.sample(range(clients), draw.randint(2, clients)))
        least = draw.randint(2, 4)
        most, spare = draw.randint(least, clients), draw.choice([0, 0, 1, 2])
        found = largest_roster(present, earlier, least=least, most=most, spare=spare)
        best = largest(present, earlier, least, most, spare)
        assert (None if found is None else len(found)) == best
        if found is not None:
            assert set(found) <= set(present)
            assert list(found) == sorted(set(found))
            assert holds(found, earlier, spare)


def test_clients_accept_the_choice() -> None:
    """The rule of a client, which compares a set with those that it has confirmed, refuses no choice."""
    draw, sequence, log, earlier = random.Random(7), SumSequence(Rule.KIND, b"mean"), SetLog(), Sets()
    for _ in range(200):
        present = [client for client in range(30) if draw.random() < 0.9]
        found = largest_roster(present, earlier, least=5, most=30)
        assert found is not None
        assert not log.is_close(sequence, found, least=4)
        log.add(sequence, found)
        earlier[frozenset(found)] = 4


def test_clients_come_and_go_by_batches() -> None:
    everybody = frozenset(range(10))
    earlier = {everybody: 3}
    assert largest_roster(everybody, earlier, least=3, most=10) == tuple(range(10))
    fewer = largest_roster(everybody - {4}, earlier, least=3, most=10)
    assert fewer is not None
    assert len(fewer) == 7
    earlier[frozenset(fewer)] = 3
    assert largest_roster(everybody - {4}, earlier, least=3, most=10) == fewer  # the same again
    assert largest_roster(everybody, earlier, least=3, most=10) == tuple(range(10))  # all are back
    assert largest_roster(everybody - {4}, {everybody: 3}, least=8, most=10) is None  # wait for client 4


def test_the_same_client_is_not_left_out_each_time() -> None:
    earlier: Sets = {frozenset(range(12)): 3}
    missing = set()
    for _ in range(6):
        found = largest_roster(range(1, 12), earlier, least=3, most=12, spare=1)
        assert found is not None
        missing.add(frozenset(range(1, 12)) - set(found))
        earlier[frozenset(found)] = 3
    assert len(missing) == 6


def test_a_search_that_takes_too_long_ends_with_an_earlier_set(monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = {frozenset(range(8)): 3, frozenset(range(4)): 3}
    present = [*range(7), 20, 21]
    best = largest_roster(present, earlier, least=3, most=6)
    assert best is not None
    assert len(best) == 6
    for name, value in (("_MOST_STEPS", 0), ("_DEEPEST", 1), ("_ENTRIES_PER_STEP", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(batched_rosters, name, value)
            if name == "_ENTRIES_PER_STEP":
                patch.setattr(batched_rosters, "_MOST_STEPS", 1)
            found = largest_roster(present, earlier, least=3, most=6)
        assert found is not None
        assert is_allowed(found, earlier)


def test_large_cohorts_are_quick() -> None:
    draw = random.Random(1)
    everybody = list(range(2000))
    earlier = {frozenset(draw.sample(everybody, 1000)): 10 for _ in range(50)}
    found = largest_roster(everybody, earlier, least=500, most=1000)
    assert found is not None
    assert len(found) == 1000
    assert is_allowed(found, earlier)
