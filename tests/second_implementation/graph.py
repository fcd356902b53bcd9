"""Trust levels, thresholds, neighbours, and who may be missing (sections 6, 8 and 13.3)."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction

E3_BITS = 30


@dataclass(frozen=True)
class Policy:
    """What both sides of a transcript agreed on beforehand (6.4), as far as it decides about frames."""

    signed: bool
    corrupt: int
    min_cohort: int
    min_contributors: int
    security_bits: int
    dropout: float


# --- The complete graph (6.1)


def complete_threshold(policy: Policy, n: int) -> int:
    """The threshold that the server proposes."""
    present = n - math.floor(Fraction(str(policy.dropout)) * n)
    c = policy.corrupt
    if policy.signed:
        t = max(2, (n + c) // 2 + 1)
        assert t <= present, "no safe threshold"
        return t
    least = max(2, c + 1)
    assert least <= present, "no safe threshold"
    return min(max(c + 1, n // 2 + 1), present)


# --- Rings (6.3)


def _tail(total: int, marked: int, drawn: int, least: int) -> Fraction:
    """P[X >= least] for a hypergeometric X."""
    ways = sum(
        math.comb(marked, x) * math.comb(total - marked, drawn - x)
        for x in range(max(least, 0), min(marked, drawn) + 1)
    )
    return Fraction(ways, math.comb(total, drawn))


def _corrupt_bound(n: int, d: int, t: int, c: int, bits: int) -> bool:
    """E1: hardly ever has a client t corrupt neighbours."""
    return n * _tail(n - 1, c, d, t) <= Fraction(1, 1 << (bits + 1))


def connected_bound(n: int, d: int, missing: int, bits: int) -> bool:
    """E2: the ring hardly ever falls apart without `missing` clients."""
    ratio = Fraction(math.perm(missing, d), math.perm(n, d))
    return Fraction(n * (n - d - 1), 2) * ratio < Fraction(1, 1 << (bits + 1))


def _lost_bound(n: int, d: int, t: int, lost: int) -> bool:
    """E3: hardly ever does a client keep fewer than t neighbours."""
    return n * _tail(n - 1, lost, d, d - t + 1) <= Fraction(1, 1 << E3_BITS)


def ring_parameters(policy: Policy, n: int) -> tuple[int, int]:
    """The least number of neighbours, and the least threshold for it."""
    lost = math.floor(Fraction(str(policy.dropout)) * n)
    c, bits = policy.corrupt, policy.security_bits
    for d in range(2, n, 2):
        if not connected_bound(n, d, c + lost, bits):
            continue
        for t in range(2, d + 2):
            if _corrupt_bound(n, d, t, c, bits) and _lost_bound(n, d, t, lost):
                return d, t
    raise AssertionError("no ring for this cohort")


def needed(policy: Policy, n: int, d: int, t: int, ring: bool) -> int:
    """`need` of 6.4: the least number of survivors."""
    need = max(t, policy.min_contributors)
    if ring:
        connected = [
            m for m in range(n + 1) if connected_bound(n, d, policy.corrupt + n - m, policy.security_bits)
        ]
        need = max(need, min(connected))
    return need


# --- A cohort and its neighbourhoods (6.2)


@dataclass(frozen=True)
class Cohort:
    """All clients in order of id, and on a ring their order around the circle."""

    ids: tuple[int, ...]
    order: tuple[int, ...] | None
    d: int
    t: int

    @property
    def n(self) -> int:
        """The size of the cohort."""
        return len(self.ids)

    def neighbourhood(self, client: int) -> list[int]:
        """A client and its neighbours, in order of position."""
        if self.order is None:
            return list(self.ids)
        place = self.order.index(client)
        around = range(place - self.d // 2, place + self.d // 2 + 1)
        return sorted(self.order[index % self.n] for index in around)

    def neighbours(self, client: int) -> list[int]:
        """The neighbours of a client, in order of position."""
        return [member for member in self.neighbourhood(client) if member != client]

    def stranded(self, present: Collection[int]) -> set[int]:
        """The clients to remove so that each of the others has t left of its neighbourhood (8)."""
        left = set(present)
        while self.order is not None:
            lonely = {client for client in left if len(left & set(self.neighbourhood(client))) < self.t}
            if not lonely:
                break
            left -= lonely
        return set(present) - left

    def serves(self, clients: Collection[int], roster: Collection[int]) -> bool:
        """Whether each of the roster has t of the clients in its neighbourhood (13.3)."""
        chosen = set(clients)
        return all(len(chosen & set(self.neighbourhood(client))) >= self.t for client in roster)

    def connected(self, survivors: Collection[int]) -> bool:
        """Whether d / 2 or more in a row are missing at fewer than two places of the ring (13.3)."""
        if self.order is None:
            return True
        return _gaps([client in survivors for client in self.order], self.d // 2) < 2


def _gaps(present: Sequence[bool], length: int) -> int:
    """Runs of at least `length` missing around a circle."""
    if not any(present):
        return 1
    start = list(present).index(True)
    runs = "".join("+" if here else "-" for here in [*present[start:], *present[:start]])
    return sum(len(run) >= length for run in runs.split("+"))
