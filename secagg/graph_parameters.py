"""Computes the number of neighbours k and the threshold t for a ring or a complete graph of clients.

On a ring of n clients in random order, every client shares its secrets with the k nearest, and t shares
reconstruct a secret (Bell et al., Secure Single-Server Aggregation with (Poly)Logarithmic Overhead, 2020). Of
the n clients, A are corrupt and D drop out. A random order can fail in three ways. The union bound on
each probability must be as small as the caller demands with sigma and eta:

* corrupt: some client has t corrupt neighbours. If X of its k neighbours are corrupt,
      n P[X >= t] <= 2^-(sigma + 1).
* disconnected: without the B = A + D corrupt and dropped clients, the ring is no longer connected.
  This needs k/2 missing clients in a row at two places, and there are n(n - k - 1)/2 pairs of places:
      n(n - k - 1)/2 * B!/(B - k)! / (n!/(n - k)!) < 2^-(sigma + 1).
* unrecoverable: some client keeps fewer than t neighbours. If Y of its k neighbours drop out,
      n P[Y >= k - t + 1] <= 2^-eta.

The first two failures break privacy; the third only prevents the sum. A semi-malicious server draws the
order honestly, but may tell some neighbours of a client that the client dropped out, and tell others that it
did not. Corrupt neighbours answer both requests, so the first bound has 2t - k in place of t.

X and Y are hypergeometric. In the exact form, a client's k neighbours are drawn from the n - 1 others; A of
these are corrupt, and D drop out if the client itself does not. In the form of Google's parameter search
(federated-compute, fcp/secagg), the neighbours are drawn from all n clients.

Search for the least k: let t1(k) and d1(k) be the least counts for which the bounds on X and Y hold. A
threshold must satisfy t1 <= t <= k + 1 - d1. With one neighbour more, a client has at least as many corrupt
neighbours, so t1 and d1 do not fall as k grows. Hence if m = t1(k) + d1(k) - 1 is above k, no number of
neighbours from k to m - 1 works, and the search continues at m. The first k with m <= k is the least that
works (a larger k may fail again). The search starts at the least k that satisfies the bound on disconnection,
which falls as k grows.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import floor, fsum, log2, perm
from typing import Final

from secagg.argument_checks import one_of
from secagg.errors import ParameterError
from secagg.hypergeometric import ROUNDING, Hypergeometric
from secagg.trust_levels import MAX_COMPLETE, Trust

MAX_CLIENTS: Final = 10**9
MAX_BITS: Final = 1024
# With a threshold of 1, each share would be the secret itself.
LEAST_THRESHOLD: Final = 2
# No client could serve more neighbours, and a search that finds nothing should end soon.
MAX_NEIGHBOURS: Final = 1 << 17
# On the complete graph, the server does not draw anything. Up to this many clients it also costs each client
# less than a ring of 10,000, which has 136 neighbours if a fifth is corrupt and a fifth drops out.
CHEAP_COMPLETE: Final = 128


class ServerClass(StrEnum):
    """How the server may cheat: not at all, only after it has drawn the ring honestly, or in any way."""

    CURIOUS = "curious_server"
    SEMI_MALICIOUS = "semi_malicious_server"
    MALICIOUS = "malicious_server"


class Form(StrEnum):
    """A model of a client's random neighbours: drawn from the other clients or, as Google does, from all."""

    EXACT = "exact"
    GOOGLE = "google"


class GraphChoice(StrEnum):
    """Which clients share secrets: all pairs, neighbours on a ring, or what `graph_parameters` chooses."""

    AUTO = "auto"
    COMPLETE = "complete"
    RING = "ring"

    @classmethod
    def parse(cls, name: str) -> GraphChoice:
        """Return the graph called `name`. Raise `ParameterError`, which lists all names, if there is none."""
        return one_of(cls, name, "graph")


@dataclass(frozen=True)
class RingParameters:
    """The neighbours per client and the threshold of shares of a ring, and log2 of upper bounds on the
    probabilities of three failures (None: it cannot happen): corrupt neighbours learn some client's secrets,
    the ring is disconnected without its corrupt and dropped clients, or drop-outs prevent a sum."""

    neighbours: int
    threshold: int
    log2_corrupt: float | None  # None: the probability is 0
    log2_disconnected: float | None
    log2_unrecoverable: float | None


@dataclass(frozen=True)
class GraphParameters(RingParameters):
    """Parameters of a ring or complete graph. A complete graph cannot fail by chance: `log2_*` are None."""

    graph: GraphChoice


# --- what clients check ---------------------------------------------------------------------------


def few_corrupt_neighbours(
    clients: int, neighbours: int, threshold: int, *, corrupt: int, sigma: int
) -> bool:
    """Return whether P[some client has >= `threshold` corrupt neighbours] is at most 2^-(sigma + 1)."""
    around = Hypergeometric(clients - 1, corrupt, neighbours)
    return around.rare_from(times=clients, bits=sigma + 1) <= threshold


def stays_connected(clients: int, neighbours: int, *, corrupt: int, dropped: int, sigma: int) -> bool:
    """Return whether an upper bound of P[a ring without corrupt and dropped clients falls apart] is below
    2^-(sigma + 1)."""
    missing = corrupt + dropped
    if missing < neighbours:
        return True
    pairs = clients * (clients - neighbours - 1)  # twice the pairs of places; 0 on the complete graph
    bound = float(pairs)
    limit = 2.0**-sigma
    for gone in range(neighbours):
        bound *= (missing - gone) / (clients - gone)
        if bound < limit / 2:
            return True  # each further factor is below one, like the first
    slack = (neighbours + 16) * ROUNDING
    if bound > limit * (1 + slack) or bound < limit * (1 - slack):
        return bound < limit
    return pairs * perm(missing, neighbours) << sigma < perm(clients, neighbours)


def least_connected(clients: int, neighbours: int, *, corrupt: int, sigma: int) -> int:
    """Return the fewest survivors, honest or corrupt, with which a ring is connected in the sense of
    `stays_connected`. Return `clients` + 1 if the corrupt clients alone can disconnect the ring."""

    def falls_apart(dropped: int) -> bool:
        return not stays_connected(clients, neighbours, corrupt=corrupt, dropped=dropped, sigma=sigma)

    return clients + 1 - bisect_left(range(clients - corrupt), True, key=falls_apart)


def most_dropped(clients: int, neighbours: int, threshold: int, *, eta: int) -> int:
    """Return the most drop-outs with P[some client keeps < `threshold` neighbours] <= 2^-eta; -1 if none."""

    def too_many(dropped: int) -> bool:
        around = Hypergeometric(clients - 1, dropped, neighbours)
        return around.rare_from(times=clients, bits=eta) > neighbours - threshold + 1

    return bisect_left(range(clients), True, key=too_many) - 1


# --- counts -----------------------------------------------------------------------------------------


def dropout_over(sums: int, dropout: Fraction) -> Fraction:
    """Return the fraction of a cohort lost after `sums` sums, if each sum loses `dropout` of those left."""
    return 1 - (1 - dropout) ** sums


def part_of(clients: int, part: Fraction) -> int:
    """Return the fraction `part` of `clients` as a number of clients, rounded down."""
    return floor(part * clients)


# --- the ring ---------------------------------------------------------------------------------------


def ring_parameters(
    clients: int,
    *,
    corrupt: int,
    dropped: int,
    server: ServerClass = ServerClass.CURIOUS,
    form: Form = Form.EXACT,
    sigma: int = 40,
    eta: int = 30,
    min_neighbours: int = 2,
) -> RingParameters:
    """Return the fewest neighbours per client (at least `min_neighbours`), and then the smallest threshold,
    that make a ring safe: with `corrupt` corrupt clients and `dropped` drop-outs, privacy fails with
    probability at most 2^-sigma, and a sum with at most 2^-eta. Raises `ParameterError` if there is none."""
    if server is ServerClass.MALICIOUS:
        raise ParameterError(
            f"a {server} that draws a ring can surround a client: take the complete graph, or trust it more"
        )
    ring = _Ring(clients, corrupt, dropped, server, form, sigma, eta)
    most = min(clients - 1, MAX_NEIGHBOURS)
    if not 2 <= min_neighbours <= most:
        raise ParameterError(
            f"on a ring of {clients} clients, each has from 2 to {most} neighbours, not {min_neighbours}"
        )
    neighbours = _even(max(min_neighbours, ring.connected_from(most)))
    while neighbours <= most:
        needed = ring.needed(neighbours)
        if needed <= neighbours:
            return ring.parameters(neighbours)
        neighbours = _even(needed)
    raise ParameterError(
        f"no ring of {clients} clients with up to {most} neighbours withstands {corrupt} corrupt and "
        f"{dropped} dropped under {server} (sigma {sigma}, eta {eta}): tolerate fewer of either, or take "
        f"the complete graph of up to {MAX_COMPLETE} clients"
    )


@dataclass(frozen=True)
class _Ring:
    """Bounds how likely a ring of `clients` in random order fails. Raises `ParameterError` if impossible."""

    clients: int
    corrupt: int
    dropped: int
    server: ServerClass
    form: Form
    sigma: int
    eta: int

    def __post_init__(self) -> None:
        if not 3 <= self.clients <= MAX_CLIENTS:
            raise ParameterError(f"a ring takes from 3 to {MAX_CLIENTS} clients, not {self.clients}")
        if min(self.corrupt, self.dropped) < 0:
            raise ParameterError("the numbers of corrupt and of dropped clients must not be negative")
        # If A + D > n - 2, no threshold works: t1 and d1 are above the modes of X and Y, and so
        # t1 + d1 > (k + 1)(A + D + 2) / (n + 1) >= k + 1.
        if self.corrupt + self.dropped > self.clients - 2:
            raise ParameterError(
                f"{self.corrupt} corrupt and {self.dropped} dropped of {self.clients} clients leave no two "
                "honest ones: tolerate fewer of either"
            )
        if not (1 <= self.sigma <= MAX_BITS and 1 <= self.eta <= MAX_BITS):
            raise ParameterError(f"sigma and eta must be from 1 to {MAX_BITS}")

    def connected_from(self, most: int) -> int:
        """Return the least even number of neighbours that connects the ring; above `most` if none does."""
        choices = range(2, most + 1, 2)
        return 2 + 2 * bisect_left(choices, True, key=self._is_connected)

    def needed(self, neighbours: int) -> int:
        """Return m. If m <= `neighbours`, this number is safe; else none from `neighbours` to m - 1 is."""
        corrupt_from, dropped_from = self._corrupt_from(neighbours), self._dropped_from(neighbours)
        if self.server is ServerClass.SEMI_MALICIOUS:
            # The least t with 2t - k >= t1 is at most k + 1 - d1 if t1 + k <= 2(k + 1 - d1).
            return corrupt_from + 2 * dropped_from - 2
        return max(corrupt_from, LEAST_THRESHOLD) + dropped_from - 1

    def parameters(self, neighbours: int) -> RingParameters:
        """Return `neighbours`, which must be a safe number, the smallest safe threshold, and the bounds."""
        corrupt_from = self._corrupt_from(neighbours)
        if self.server is ServerClass.SEMI_MALICIOUS:
            threshold = (corrupt_from + neighbours + 1) // 2
            corrupt_from = 2 * threshold - neighbours
        else:
            threshold = corrupt_from = max(corrupt_from, LEAST_THRESHOLD)
        missing = neighbours - threshold + 1
        return RingParameters(
            neighbours,
            threshold,
            log2_corrupt=self._for_any(self._around(self.corrupt, neighbours).log2_at_least(corrupt_from)),
            log2_disconnected=self._log2_disconnected(neighbours),
            log2_unrecoverable=self._for_any(self._around(self.dropped, neighbours).log2_at_least(missing)),
        )

    def _corrupt_from(self, neighbours: int) -> int:
        """Return the least c for which P[some client has >= c corrupt neighbours] is <= 2^-(sigma + 1)."""
        return self._around(self.corrupt, neighbours).rare_from(times=self.clients, bits=self.sigma + 1)

    def _dropped_from(self, neighbours: int) -> int:
        """Return the least c for which P[some client has >= c dropped neighbours] is <= 2^-eta."""
        return self._around(self.dropped, neighbours).rare_from(times=self.clients, bits=self.eta)

    def _around(self, marked: int, neighbours: int) -> Hypergeometric:
        population = self.clients - 1 if self.form is Form.EXACT else self.clients
        return Hypergeometric(population, marked, neighbours)

    def _for_any(self, log2_one: float | None) -> float | None:
        """Return `log2_one` (for one client) plus log2(clients): a union bound. None means log2 of 0."""
        return None if log2_one is None else log2_one + log2(self.clients)

    def _is_connected(self, neighbours: int) -> bool:
        return stays_connected(
            self.clients, neighbours, corrupt=self.corrupt, dropped=self.dropped, sigma=self.sigma
        )

    def _log2_disconnected(self, neighbours: int) -> float | None:
        missing = self.corrupt + self.dropped
        if missing < neighbours:
            return None
        pairs = self.clients * (self.clients - neighbours - 1)
        factors = ((missing - gone) / (self.clients - gone) for gone in range(neighbours))
        return log2(pairs) - 1 + fsum(map(log2, factors))


def _even(number: int) -> int:
    return number + number % 2


# --- either graph -----------------------------------------------------------------------------------


def graph_parameters(
    clients: int,
    *,
    corrupt: int,
    dropped: int,
    server: ServerClass,
    graph: GraphChoice = GraphChoice.AUTO,
    form: Form = Form.EXACT,
    sigma: int = 40,
    eta: int = 30,
    min_neighbours: int = 2,
) -> GraphParameters:
    """Return safe parameters of `graph`, or of the cheaper graph if it is `AUTO`. With `corrupt` corrupt
    clients and `dropped` drop-outs, privacy then fails with probability at most 2^-sigma, and drop-outs
    prevent a sum with probability at most 2^-eta. Raises `ParameterError` if no parameters are safe."""

    def complete() -> GraphParameters:
        threshold = _complete_threshold(clients, corrupt, dropped, server)
        return GraphParameters(clients - 1, threshold, None, None, None, graph=GraphChoice.COMPLETE)

    def ring() -> GraphParameters:
        found = ring_parameters(
            clients,
            corrupt=corrupt,
            dropped=dropped,
            server=server,
            form=form,
            sigma=sigma,
            eta=eta,
            min_neighbours=min_neighbours,
        )
        return GraphParameters(**vars(found), graph=GraphChoice.RING)

    if graph is GraphChoice.RING:
        return ring()
    if graph is GraphChoice.COMPLETE or server is ServerClass.MALICIOUS or clients <= CHEAP_COMPLETE:
        return complete()
    if clients > MAX_COMPLETE:
        return ring()
    try:
        found = ring()
    except ParameterError:
        return complete()
    # If each client is joined to all others, or to all but one, a ring saves nothing.
    return found if found.neighbours < clients - 2 else complete()


def _complete_threshold(clients: int, corrupt: int, dropped: int, server: ServerClass) -> int:
    """Return a safe threshold of shares on the complete graph. Raise `ParameterError` if there is none."""
    if not 2 <= clients <= MAX_COMPLETE:
        raise ParameterError(
            f"the complete graph takes from 2 to {MAX_COMPLETE} clients, not {clients}: "
            "invite fewer, or choose a ring, which a malicious_server must not draw"
        )
    # A semi-malicious server can send clients different messages: the complete graph treats it as malicious.
    trust = Trust.CURIOUS if server is ServerClass.CURIOUS else Trust.MALICIOUS
    least = trust.least_threshold(clients, corrupt=corrupt)
    survivors = clients - dropped
    if min(corrupt, dropped) < 0:
        raise ParameterError("the numbers of corrupt and of dropped clients must not be negative")
    if least > survivors:
        raise ParameterError(
            f"{clients} clients of whom {corrupt} are corrupt need {least} survivors under {server}, but "
            f"{dropped} dropped leave {survivors}: tolerate fewer of either"
        )
    return trust.choose_threshold(clients, corrupt=corrupt, dropout=Fraction(dropped, clients))
