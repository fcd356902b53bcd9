"""Adds the sum to an algorithm by which the server of real clients evaluates the model after every round."""

from __future__ import annotations

from typing import Final

from protocols.algorithm import AnyAlgorithm
from protocols.evaluation import EvaluationMetrics, WithEvaluation
from sims.scenario.settings import Settings

_LARGEST_LOSS: Final = 10.0  # larger losses count as this one in evaluations


def evaluated(algorithm: AnyAlgorithm, settings: Settings, *, has_classes: bool) -> AnyAlgorithm:
    """Return the algorithm with a sum after every round that evaluates the model, unless its sums have noise:
    an evaluation without noise would not be covered by its budget."""
    if algorithm.table is None or not has_classes:
        return algorithm
    if any(spec.is_private for spec in algorithm.table.values()):
        return algorithm
    measures = EvaluationMetrics(
        loss_bound=_LARGEST_LOSS, bins=0, personal=settings.evaluation.what == "personal"
    )
    return WithEvaluation(algorithm=algorithm, measures=measures)
