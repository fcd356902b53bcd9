"""Observations that an experiment needs beside accuracies, by name.

An observer is created once for every simulation and called after every round. What it returns is recorded,
except None. It sees everything, including personal models; the system never sees what it records. To add one:

    register_observer("norm", lambda: lambda round, run, channel, crowd: float(np.linalg.norm(run.model)))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np

from fl.crowd import Crowd
from fl.metrics.clients import ClientScores
from protocols.run import Run
from sims.runtime import ObservedChannel
from sims.scenario.settings import OBSERVER_KINDS, ObserverKind
from sims.simulation.agreement import agreement
from sims.simulation.gaps import ergodic_gap, optimality_gap
from sims.simulation.jumps import jumps

# (number of the round, counted from 1; run; channel; honest learners) to something that JSON can hold.
Observer: TypeAlias = Callable[[int, Run[Any], ObservedChannel, Crowd], Any]

_DIGITS: Final = 6
_SELDOM: Final = 50  # rounds between two observations that take long


def multipliers() -> Observer:
    """What binds every client to the common model, as in FedBC: lambda, beside its number of samples."""

    def observe(_number: int, _run: Run[Any], channel: ObservedChannel, crowd: Crowd) -> Any:
        found = {}
        for client, memory in channel.memories().items():
            value = getattr(memory, "multiplier", None)
            if value is not None:
                found[str(client)] = [crowd[client].samples, round(float(value), _DIGITS)]
        return found or None

    return observe


def movement() -> Observer:
    """How far the common model went in this round."""
    last: list[Any] = []

    def observe(_number: int, run: Run[Any], _channel: ObservedChannel, _crowd: Crowd) -> Any:
        before = last.pop() if last else None
        last.append(np.array(run.model))
        return None if before is None else round(float(np.linalg.norm(run.model - before)), _DIGITS)

    return observe


def training_loss() -> Observer:
    """The common model's loss on what clients train on, each sample counting the same."""

    def observe(_number: int, run: Run[Any], _channel: ObservedChannel, crowd: Crowd) -> Any:
        losses = crowd.losses(run.model, part="train")
        weights = [crowd[client].samples for client in losses]
        loss = float(np.average(list(losses.values()), weights=weights))
        return round(loss, _DIGITS) if np.isfinite(loss) else "diverged"

    return observe


def centralised() -> Observer:
    """The accuracy of a model that is trained on all data in one place, as a client trains in a round.

    It starts as the common model is after the first round.
    """
    known: list[Any] = []  # the trainer, and its model so far

    def observe(_number: int, run: Run[Any], _channel: ObservedChannel, crowd: Crowd) -> Any:
        if not known:
            known.extend((crowd.pooled(), run.model))
            return None
        trainer, model = known
        known[1] = trainer.train(model)
        score = trainer.score(known[1])
        return round(score.correct / score.total, _DIGITS)

    return observe


def local_accuracy() -> Observer:
    """Of every client's model as it last left local training, on that client's own test samples.

    It is what FedBC's authors call local accuracy, of algorithms without personal models as well. Trainings
    are seen from the second round on; whoever had none has the common model. The mean over clients, and that
    over their samples, in every fiftieth round.
    """

    def observe(number: int, run: Run[Any], _channel: ObservedChannel, crowd: Crowd) -> Any:
        if crowd.latest is None:
            crowd.latest = {}
        if number % _SELDOM:
            return None
        models = {client: crowd.latest.get(client, run.model) for client in crowd}
        table = ClientScores.of(score for score in crowd.scores(models).values() if score.total)
        return [round(each, _DIGITS) for each in (table.mean_accuracy, table.pooled_accuracy)]

    return observe


OBSERVERS: Final[dict[str, Callable[[], Observer]]] = {
    "agreement": agreement,
    "centralised": centralised,
    "ergodic-gap": ergodic_gap,
    "local-accuracy": local_accuracy,
    "jumps": jumps,
    "movement": movement,
    "multipliers": multipliers,
    "optimality-gap": optimality_gap,
    "training-loss": training_loss,
}


def register_observer(name: str, make: Callable[[], Observer], kind: ObserverKind | None = None) -> None:
    """Add an observer that scenarios can name; `kind` says what it needs."""
    OBSERVERS[name] = make
    OBSERVER_KINDS[name] = ObserverKind() if kind is None else kind
