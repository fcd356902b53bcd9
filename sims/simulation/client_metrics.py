"""Scores of models on the data of every client, which the server of the simulation does not see. Numbers are
rounded, so that files stay small and do not differ in the last bits. A number that is not finite, because a
model diverged, is replaced by None."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from fl.crowd import Crowd
from fl.metrics.clients import ClientScores, percentile, worst_share
from fl.samples import Array
from protocols.algorithm import AnyAlgorithm
from protocols.learner import Score
from sims.simulation.setup import SimulationSetup

_DIGITS: Final = 6
_ARRAY_DIGITS: Final = 4
Scores = Mapping[int, Score]


def measured(setup: SimulationSetup) -> dict[str, Scores]:
    """Return the scores of the clients by measure, then by client id. Measures are "common", for the common
    model, and "personal", for each client's own model; with the prefix "held_out_", they are about clients
    that never train. Clients without samples to measure are left out."""
    given, model = setup.settings.evaluation, np.asarray(setup.run.model)
    crowds = {"": setup.crowd}
    if given.held_out and setup.strangers is not None:
        crowds["held_out_"] = setup.strangers
    found: dict[str, Scores] = {}
    for prefix, crowd in crowds.items():
        if given.what in ("common", "both"):
            found[f"{prefix}common"] = _judged(crowd.scores(model, given.part))
        if given.what in ("personal", "both"):
            memories = setup.channel.memories() if crowd is setup.crowd else {}
            models = personal_models(setup.algorithm, crowd, memories, model)
            found[f"{prefix}personal"] = _judged(crowd.scores(models, given.part))
    return found


def personal_models(
    algorithm: AnyAlgorithm, crowd: Crowd, memories: Mapping[int, Any], model: Array
) -> dict[int, Array]:
    """Return every client's personal model by id. If this needs training, `crowd` is restored afterwards."""

    def job(client: int) -> Callable[[], Array]:
        memory = memories.get(client, algorithm.first_memory())
        return lambda: algorithm.personal(memory, model, crowd[client])

    with _unchanged(crowd):
        done = crowd.together({client: job(client) for client in crowd})
    return {client: each.result() for client, each in done.items()}


@contextmanager
def _unchanged(crowd: Crowd) -> Iterator[None]:
    """On exit, undo what training in the block did to `crowd`: counts of calls, records of trained models."""
    calls = {client: member.calls for client, member in crowd.items()}
    latest, crowd.latest = crowd.latest, None
    try:
        yield
    finally:
        crowd.latest = latest
        for client, count in calls.items():
            crowd[client].calls = count


def _judged(scores: Scores) -> Scores:
    """Return only the scores of clients that had at least one sample to measure."""
    return {client: score for client, score in scores.items() if score.total}


def summary(scores: Scores, *, classes: bool) -> dict[str, float | None]:
    """Return statistics of losses and, if `classes`, accuracies and error rates, by name; {} if no scores."""
    if not scores:
        return {}
    table = ClientScores.of(scores.values())
    numbers = {"mean_loss": table.mean_loss, "pooled_loss": table.pooled_loss}
    if classes:
        numbers |= {
            "mean_accuracy": table.mean_accuracy,
            "pooled_accuracy": table.pooled_accuracy,
            "error_10": percentile(table.error, 10),
            "error_50": percentile(table.error, 50),
            "error_90": percentile(table.error, 90),
            "worst_tenth": worst_share(table.accuracy),
            "variance": float(np.var(table.accuracy)),
        }
    return {name: rounded(value) for name, value in numbers.items()}


def arrays(scores: Scores, *, classes: bool) -> dict[str, list[Any]]:
    """Return lists over clients: "client" (id), "total" (samples), "loss" and, if `classes`, "correct"."""
    each = list(scores.values())
    found: dict[str, list[Any]] = {
        "client": list(scores),
        "total": [score.total for score in each],
        "loss": [rounded(score.loss, _ARRAY_DIGITS) for score in each],
    }
    if classes:
        found["correct"] = [score.correct for score in each]
    return found


def only(scores: Scores, clients: Collection[int]) -> Scores:
    return {client: score for client, score in scores.items() if client in clients}


def rounded(value: float, digits: int = _DIGITS) -> float | None:
    """Return the value rounded to `digits` decimals, or None if it is not finite."""
    return round(value, digits) if math.isfinite(value) else None
