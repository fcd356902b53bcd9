"""The probability that sums are released, if clients are lost independently of each other.

Each client is lost while it trains, before it sends anything, with probability p, and within each sum with
probability q. A lost client stays away for the rest of the round. Sums of one group are over the same clients
every time, so no client may be lost between its first sum and its last. At the end of a group some may be, as
long as `least` stay.

A client that is lost within a sum may leave before its input has arrived, and is then not in the sum; or
after, and then others have to make up for it. This model assumes the second, but with the requirement of the
first: as many clients as a total needs inputs must stay until the end, even if fewer could unmask it. That is
never more likely than the true outcome with either kind of loss.

So each client is either there at the end of all groups, with the weight

    A = (1 - p) * product over groups of (1 - q)^sums

or was lost where that does no harm: in training, or in the last sum of some group. The total weight of these
cases is B. Of n clients at least m must be left at the end; then there were enough before, too. This happens
with the probability of the sum over a >= m of C(n, a) A^a B^(n - a).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import exp, lgamma, log

import numpy as np

from protocols.serialisation import Vector


class CompletionProbability:
    """For `clients` clients, each lost with the probabilities `training` and `in_sum`."""

    def __init__(self, clients: int, *, training: Fraction, in_sum: Fraction) -> None:
        self._clients = clients
        self._arrives, self._lost = float(1 - training), float(training)
        self._stays, self._leaves = float(1 - in_sum), float(in_sum)
        self._log_ways = _log_ways(clients)

    def released(self, groups: Sequence[int], least: int) -> float:
        """Return the probability that all groups are released, each over at least `least` clients."""
        stays, lost = self._arrives, self._lost
        for sums in groups:
            before = stays * self._stays ** (sums - 1)
            stays, lost = before * self._stays, lost + before * self._leaves
        return self._at_least(least, stays, lost)

    def _at_least(self, least: int, stays: float, lost: float) -> float:
        """Return the sum over a >= least of C(n, a) stays^a lost^(n - a)."""
        if stays <= 0:
            return 0.0
        if lost <= 0:
            return exp(self._clients * log(stays)) if least <= self._clients else 0.0
        left = np.arange(least, self._clients + 1)
        logs = self._log_ways[least:] + left * log(stays) + (self._clients - left) * log(lost)
        return min(float(np.exp(logs).sum()), 1.0)


def dropouts_to_plan_for(clients: int, lost: Fraction, *, exceeded: float = 0.01) -> int:
    """Return the fewest drop-outs which are exceeded with at most that probability."""
    stays = float(1 - lost)
    if not lost or not stays:
        return clients if lost else 0
    away = np.arange(clients + 1)
    logs = _log_ways(clients) + away * log(lost) + (clients - away) * log(stays)
    more = np.cumsum(np.exp(logs)[::-1])[::-1]  # the probability of at least that many
    return int(np.argmax(more <= exceeded)) - 1 if more[-1] <= exceeded else clients


def _log_ways(clients: int) -> Vector:
    """Return the logarithms of the binomial coefficients, from none of all to all."""
    factorials = np.fromiter(map(lgamma, range(1, clients + 2)), np.float64, clients + 1)
    return np.asarray(factorials[-1] - factorials - factorials[::-1])
