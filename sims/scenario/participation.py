"""Draws the clients of each round so that none takes part in more rounds than its privacy budget allows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

_NEVER: Final = -1


@dataclass(frozen=True)
class ParticipationLimit:
    """How often a client takes part: in `most` rounds of a run. At least `separation` rounds lie between two
    of them."""

    most: int
    separation: int = 0


class Participations:
    """Counts in which of the `rounds` of a run each client of `clients` has taken part, and draws clients for
    the next round. A client that was asked for a sum has taken part, even if it dropped out: it has paid
    before it answered. Rounds are counted from 0."""

    def __init__(self, limit: ParticipationLimit, clients: Iterable[int], rounds: int) -> None:
        self._limit = limit
        self._rounds = rounds
        self._clients = np.array(sorted(clients), np.int64)
        self._taken = np.zeros(len(self._clients), np.int64)
        self._last = np.full(len(self._clients), _NEVER, np.int64)  # the last round of each

    def note(self, number: int, members: Iterable[int]) -> None:
        """Record that these clients took part in round `number`."""
        places = self._places(members)
        self._taken[places] += 1
        self._last[places] = number

    def exhausted(self) -> frozenset[int]:
        """Return the ids of the clients that have taken part as often as they may."""
        return frozenset(map(int, self._clients[self._taken >= self._limit.most]))

    @property
    def most(self) -> int:
        """The largest number of rounds in which a client has taken part."""
        return int(self._taken.max(initial=0))

    def draw(
        self, rng: np.random.Generator, here: Sequence[int], number: int, per_round: int
    ) -> tuple[int, ...]:
        """Return at most `per_round` of the clients `here` for round `number`: a random choice among those
        that may take part. If participations would otherwise be lost that later rounds need, clients with
        many of them are preferred. With a separation, those that took part least are always preferred. If
        there are enough clients, all later rounds can then be drawn."""
        places = self._places(here)
        free = places[self._are_free(number)[places]]
        if len(free) <= per_round:
            return tuple(map(int, self._clients[free]))
        if self._limit.separation:
            shuffled = rng.permutation(free)
            first = np.argsort(self._taken[shuffled], kind="stable")[:per_round]
            return tuple(map(int, self._clients[shuffled[first]]))
        now, later = self._possible(number), self._possible(number + 1)
        urgent = free[now[free] > later[free]]  # they lose a participation unless they are drawn now
        slack = max(int(now.sum()) - (self._rounds - number) * per_round, 0)
        needed = min(len(urgent) - slack, per_round)
        chosen = rng.choice(free, per_round, replace=False)
        missing = needed - int(np.isin(chosen, urgent).sum())
        if missing > 0:
            added = rng.choice(np.setdiff1d(urgent, chosen), missing, replace=False)
            others = np.setdiff1d(chosen, urgent)
            removed = rng.choice(others, missing, replace=False)
            chosen = np.concatenate([np.setdiff1d(chosen, removed), added])
        return tuple(map(int, self._clients[chosen]))

    def _are_free(self, number: int) -> NDArray[np.bool_]:
        rested = (self._last == _NEVER) | (number - self._last > self._limit.separation)
        free: NDArray[np.bool_] = rested & (self._taken < self._limit.most)
        return free

    def _possible(self, number: int) -> NDArray[np.int64]:
        """Return in how many rounds from `number` on each client can still take part, without separation."""
        found: NDArray[np.int64] = np.minimum(self._limit.most - self._taken, self._rounds - number)
        return found

    def _places(self, members: Iterable[int]) -> NDArray[np.int64]:
        """Return where clients are in the arrays. Those that have come to the run later are added first."""
        wanted = np.array(sorted(members), np.int64)
        new = np.setdiff1d(wanted, self._clients)
        self._clients = np.concatenate([self._clients, new])
        self._taken = np.concatenate([self._taken, np.zeros(len(new), np.int64)])
        self._last = np.concatenate([self._last, np.full(len(new), _NEVER, np.int64)])
        return np.flatnonzero(np.isin(self._clients, wanted))

    # --- saving ---

    def save(self) -> dict[int, bytes]:
        """Return, by client id, how often and when each client took part last, as text."""
        rows = zip(self._clients, self._taken, self._last, strict=True)
        return {int(client): f"{taken} {last}".encode() for client, taken, last in rows}

    def restore(self, saved: Mapping[int, bytes]) -> None:
        """Take over a result of `save`."""
        for client, row in saved.items():
            (place,) = self._places([client])
            self._taken[place], self._last[place] = map(int, row.split())
