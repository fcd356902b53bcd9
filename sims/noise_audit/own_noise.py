"""Tests the noise of one kind of sum as a run uses it: with its own spec, in real size, and its rosters.

The number of sums is bounded, never the size of a vector. If even few sums of all clients are too much, only
some of the clients' inputs are computed.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from secagg.mask_keystream import SEED_BYTES
from secagg.noise.zcdp_cost import sum_rho
from secagg.sum_spec import Count, LInf, Part, SumSpec, Total
from sims.noise_audit.alarm_budget import NoiseTest, alarms, confidence
from sims.noise_audit.conformance import Conformance, Effort, conformance, with_room
from sims.noise_audit.law_and_epsilon_bounds import LowerBound, gaussian_epsilon, lower_bound
from sims.noise_audit.unmasked_sums import UnmaskedSums

_MOST_DRAWS: Final = 20_000_000  # samples of noise for the tests of one kind of sum, and for its canaries
_ENOUGH: Final = 2_000_000  # samples over zeros with which a few percent of variance are noticed
_MOST_SUMS: Final = 64
_LEAST_SUMS: Final = 2
_LEAST_CLIENTS: Final = 2
_INPUT_SUMS: Final = 6


@dataclass(frozen=True)
class OwnNoise:
    """The tests of one kind of sum. `holds` is False with a probability of at most `ALARM` / `kinds` if the
    noise is correct."""

    rho: float  # the cost of one sum, for zero-out adjacency
    epsilon: float  # that of Gaussian noise with this cost, which no lower bound should exceed
    conformances: tuple[Conformance, ...]  # one for each roster and number of drop-outs
    alarms: tuple[NoiseTest, ...]
    bound: LowerBound
    runs: int  # sums with a canary, and as many without
    confidence: float

    @property
    def tests(self) -> int:
        return sum(len(each.tests) for each in self.conformances)

    @property
    def bounded(self) -> bool:
        return self.bound.epsilon_gaussian <= self.epsilon

    @property
    def variance_ratio(self) -> float:
        return self.conformances[0].noise[0].ratio


def own_noise(
    kind: str,
    spec: SumSpec,
    *,
    rosters: Collection[int],
    canaries: int,
    delta: float,
    kinds: int,
    seed: int,
) -> OwnNoise:
    """Test the noise of one of `kinds` kinds of sums. `rosters` are the numbers of clients that rounds of the
    run ask. Those that the spec does not allow are left out."""
    promise = spec.promise
    assert promise is not None  # only sums with noise are tested
    rho = sum_rho(spec, roster=promise.clients)
    assert rho is not None  # all parts have noise
    usual = [each for each in sorted(rosters) if spec.least_roster <= each < promise.clients]
    cases = [(promise.clients, 0), *((each, 0) for each in usual)]
    if promise.dropouts:
        cases.append((promise.clients, promise.dropouts))
    own_seed = [seed.to_bytes(SEED_BYTES - 2, "big") + bytes([number, 0]) for number in range(len(cases) + 1)]
    found = tuple(
        conformance(
            kind, spec, clients=clients, dropped=dropped, effort=_effort(spec, clients, len(cases)), seed=key
        )
        for (clients, dropped), key in zip(cases, own_seed[1:], strict=True)
    )
    sure = confidence(1, kinds=kinds)
    present, absent = _scores(with_room(spec, promise.clients), canaries, own_seed[0])
    return OwnNoise(
        rho=rho,
        epsilon=gaussian_epsilon(math.sqrt(2 * rho), delta),
        conformances=found,
        alarms=alarms([test for each in found for test in each.tests], kinds=kinds),
        bound=lower_bound(present, absent, threshold=0.5, delta=delta, confidence=sure),
        runs=len(present),
        confidence=sure,
    )


def _effort(spec: SumSpec, clients: int, cases: int) -> Effort:
    """Return how many sums of all or of some clients are computed, so that the cost is bounded."""
    elements = sum(part.width for part in spec.parts)
    most, one = _MOST_DRAWS // (2 * cases), elements * (1 + spec.seeds)  # half of it for inputs
    sums = max(_LEAST_SUMS, min(_MOST_SUMS, most // (one * clients), -(-_ENOUGH // (elements * clients))))
    present = max(_LEAST_CLIENTS, min(clients, most // (one * sums)))
    return Effort(sums=sums, input_sums=min(sums, _INPUT_SUMS), present=present)


def _scores(spec: SumSpec, canaries: int, seed: bytes) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the scores of totals with and without the canary, which client 0 sends: the largest vector of
    each part. A score is the logarithm of the likelihood ratio, scaled to a mean of 1 with the canary and 0
    without. As many clients drop out as may. There are no scores if a sum takes too long."""
    assert spec.promise is not None
    unmasked = UnmaskedSums(spec, clients=spec.promise.clients, dropped=spec.promise.dropouts, seed=seed)
    draws = 2 * unmasked.present * (1 + spec.seeds) * sum(part.width for part in spec.parts)
    runs = min(canaries, _MOST_DRAWS // draws)
    zeros = {part.name: np.zeros(part.size, np.uint64 if part.counts else float) for part in spec.parts}
    canary = {part.name: _largest(part) for part in spec.parts}
    weights = {part.name: _weight(part, unmasked) for part in spec.parts}
    whole = sum(weights[name] * float(np.square(each.astype(float)).sum()) for name, each in canary.items())

    def score(total: Total) -> float:
        along = (weights[name] * float((total[name] * each).sum()) for name, each in canary.items())
        return sum(along) / whole

    present, absent = np.empty(runs), np.empty(runs)
    for run in range(runs):
        present[run] = score(unmasked.run(lambda member: zeros if member else canary)[0])
        absent[run] = score(unmasked.run(lambda _: zeros)[0])
    return present, absent


def _weight(part: Part, unmasked: UnmaskedSums) -> float:
    assert part.noise is not None
    return part.noise.scale**2 / unmasked.variance(part)


def _largest(part: Part) -> NDArray[Any]:
    """Return a vector of the largest norm that the bound of the part allows."""
    if isinstance(part.bound, Count):
        most = part.size * part.bound.limit
        left = most if part.bound.total is None else min(most, part.bound.total)
        places = np.arange(part.size) * part.bound.limit
        return np.clip(left - places, 0, part.bound.limit).astype(np.uint64)
    if isinstance(part.bound, LInf):
        return np.full(part.size, part.bound.limit)
    vector = np.zeros(part.size)
    vector[0] = part.bound.limit  # type: ignore[union-attr]  # an L2 bound: residues have no noise
    return vector
