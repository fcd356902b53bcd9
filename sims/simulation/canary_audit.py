"""Tests noise: estimates lower bounds on epsilon from sums with and without a client's input, the canary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from protocols.algorithm import AnyAlgorithm
from secagg.noise.zcdp_cost import sum_rho
from secagg.sum_spec import SumSpec
from sims.coordination.spending import delta_of
from sims.scenario.settings import Settings

_DELTA: Final = 1e-5
_SIZE: Final = 64  # elements of the all-zero vectors of the other clients
_SUMS: Final = 64


def canary_facts(settings: Settings, algorithms: Mapping[str, AnyAlgorithm]) -> dict[str, Any]:
    """Test the noise of every kind of sum that has noise, and return JSON values: "canaries", the number of
    sums with a canary (a known input) per test, and "specs", the list of the outcomes of all tests. The keys
    of `algorithms` are the parts of the run: "training", and "tail" for the histogram of errors."""
    return {
        "canaries": settings.audit.canaries,
        "specs": [
            _tried(settings, part, kind, spec)
            for part, algorithm in algorithms.items()
            for kind, spec in (algorithm.table or {}).items()
            if spec.is_private
        ],
    }


def _tried(settings: Settings, part: str, kind: str, spec: SumSpec) -> dict[str, Any]:
    """Test the noise of one kind of sum on synthetic vectors, with noise in the same ratio to the largest
    norm that a client's vector may have. Return the outcome as JSON values."""
    from sims.noise_audit.noise_check import NoiseTrial, run_trial

    promise = spec.promise
    assert promise is not None  # A private sum has one.
    rho = sum_rho(spec, roster=promise.clients)
    assert rho is not None  # A private sum has a cost.
    delta = delta_of(settings, part)
    trial = NoiseTrial(
        clients=promise.clients,
        size=_SIZE,
        sums=_SUMS,
        dropouts=promise.dropouts,
        removable=promise.removable,
        multiplier=1 / math.sqrt(2 * rho),
        canaries=settings.audit.canaries,
        delta=_DELTA if delta is None else delta,
        seed=settings.seed,
    )
    outcome = run_trial(trial)
    return {
        "part": part,
        "kind": kind,
        "rho": rho,
        "multiplier": trial.multiplier,
        "delta": trial.delta,
        "epsilon": outcome.epsilon,
        "epsilon_gaussian": outcome.bound.epsilon_gaussian,
        "epsilon_clopper_pearson": outcome.bound.epsilon_clopper_pearson,
        "confidence": outcome.confidence,
        "runs_per_arm": trial.canaries,
        "variance_ratio": outcome.finding.ratio,
        "noise_conforms": outcome.conforms,
        "bound_conforms": outcome.bounded,
        "holds": outcome.holds,
    }
