"""Computes the probability that sums are released if clients drop out independently of each other.

Each of n clients drops out of the training with probability p, before it sends anything. In each sum, it
drops out with probability q. It is then absent for the rest of the round. The sums of a round form groups,
and all sums of a group must be over the same clients. So no client may drop out in a sum of a group except in
the last one, and at least m clients must stay to the end of the group.

If a client drops out of a sum before its input arrives, it is not in the total. If it drops out later, the
other clients must remove its mask. The model does not distinguish the two cases: it demands that m clients
stay until the end of the sum, although fewer could unmask the total in the second case. So the result is a
lower bound of the probability. A client is present at the end of all groups with probability

    A = (1 - p) * product over groups of (1 - q)^(number of sums in the group).

B is the probability that a client drops out without harm: in training, or in the last sum of a group. Sums
are released if at least m of n clients are present at the end and all others dropped out without harm. The
probability of this is the sum over a >= m of C(n, a) A^a B^(n - a).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import exp, lgamma, log

import numpy as np

from protocols.serialisation import Vector


class CompletionProbability:
    """Computes the probability that sums are released, if each of `clients` clients drops out of the training
    with probability `training` and of a sum with probability `in_sum`."""

    def __init__(self, clients: int, *, training: Fraction, in_sum: Fraction) -> None:
        self._clients = clients
        self._arrives, self._lost = float(1 - training), float(training)
        self._stays, self._leaves = float(1 - in_sum), float(in_sum)
        self._log_ways = _log_ways(clients)

    def released(self, groups: Sequence[int], least: int) -> float:
        """Return the probability that all sums of a round are released, if at least `least` clients must stay
        to the end. `groups` has the number of sums in each group (sums over the same clients)."""
        stays, lost = self._arrives, self._lost
        for sums in groups:
            before = stays * self._stays ** (sums - 1)
            stays, lost = before * self._stays, lost + before * self._leaves
        return self._at_least(least, stays, lost)

    def _at_least(self, least: int, stays: float, lost: float) -> float:
        """Return the probability that at least `least` clients stay, each with probability `stays`, and that
        all others drop out where no sum fails because of it, each with probability `lost`."""
        if stays <= 0:
            return 0.0
        if lost <= 0:
            return exp(self._clients * log(stays)) if least <= self._clients else 0.0
        left = np.arange(least, self._clients + 1)
        logs = self._log_ways[least:] + left * log(stays) + (self._clients - left) * log(lost)
        return min(float(np.exp(logs).sum()), 1.0)


def dropouts_to_plan_for(clients: int, lost: Fraction, *, exceeded: float = 0.01) -> int:
    """Return the smallest number of drop-outs that a round exceeds with probability at most `exceeded`, if
    each of `clients` clients drops out independently with probability `lost`."""
    stays = float(1 - lost)
    if not lost or not stays:
        return clients if lost else 0
    away = np.arange(clients + 1)
    logs = _log_ways(clients) + away * log(lost) + (clients - away) * log(stays)
    more = np.cumsum(np.exp(logs)[::-1])[::-1]  # more[k] is the probability of at least k drop-outs
    return int(np.argmax(more <= exceeded)) - 1 if more[-1] <= exceeded else clients


def _log_ways(clients: int) -> Vector:
    """Return the logarithms of the binomial coefficients C(clients, k) for k from 0 to `clients`."""
    factorials = np.fromiter(map(lgamma, range(1, clients + 2)), np.float64, clients + 1)
    return np.asarray(factorials[-1] - factorials - factorials[::-1])
