"""Observers: functions that measure more than accuracies in a simulation. A scenario lists their names.

An observer is created once for every simulation and called after every round. The value that it returns is
recorded, unless it is None. It may read everything, including personal models. To add one:

    register_observer("norm", lambda: lambda round, run, channel, crowd: float(np.linalg.norm(run.model)))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np

from fl.crowd import Crowd
from fl.errors import FLError
from fl.exact_proximal import ExactObjective
from fl.metrics.clients import ClientScores
from fl.metrics.model_change_and_loss_line import change, line_losses
from fl.samples import Array
from protocols.run import Run
from sims.runtime import ObservedChannel
from sims.scenario.settings import OBSERVER_KINDS, ObserverKind

# (number of the round, counted from 1; run; channel; honest learners) -> a JSON value, or None.
Observer: TypeAlias = Callable[[int, Run[Any], ObservedChannel, Crowd], Any]

_DIGITS: Final = 6
_SELDOM: Final = 50  # rounds between two slow observations


def multipliers() -> Observer:
    """Return an observer of FedBC: client id -> [samples, multiplier lambda]; no value without lambdas."""

    def observe(_number: int, _run: Run[Any], channel: ObservedChannel, crowd: Crowd) -> Any:
        found = {}
        for client, memory in channel.memories().items():
            value = getattr(memory, "multiplier", None)
            if value is not None:
                found[str(client)] = [crowd[client].samples, round(float(value), _DIGITS)]
        return found or None

    return observe


def movement() -> Observer:
    """Return an observer of the Euclidean distance by which a round moves the common model (from round 2)."""
    last: list[Any] = []

    def observe(_number: int, run: Run[Any], _channel: ObservedChannel, _crowd: Crowd) -> Any:
        before = last.pop() if last else None
        last.append(np.array(run.model))
        return None if before is None else round(float(np.linalg.norm(run.model - before)), _DIGITS)

    return observe


def training_loss() -> Observer:
    """Return an observer of the common model's mean loss on all training data; "diverged" if not finite."""

    def observe(_number: int, run: Run[Any], _channel: ObservedChannel, crowd: Crowd) -> Any:
        losses = crowd.losses(run.model, part="train")
        weights = [crowd[client].samples for client in losses]
        loss = float(np.average(list(losses.values()), weights=weights))
        return round(loss, _DIGITS) if np.isfinite(loss) else "diverged"

    return observe


def centralised() -> Observer:
    """Return an observer of a baseline: the test accuracy of a model trained centrally on the data of all
    clients. It begins as the common model after round 1, then trains like one client in every round."""
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
    """Return an observer of local accuracy, as in the FedBC paper. Every fiftieth round, each client's model
    after its last local training is tested on the client's own test samples; the common model, if the client
    has not trained since round 1. The values are the mean over clients and the mean over samples."""

    def observe(number: int, run: Run[Any], _channel: ObservedChannel, crowd: Crowd) -> Any:
        if crowd.latest is None:
            crowd.latest = {}
        if number % _SELDOM:
            return None
        models = {client: crowd.latest.get(client, run.model) for client in crowd}
        table = ClientScores.of(score for score in crowd.scores(models).values() if score.total)
        return [round(each, _DIGITS) for each in (table.mean_accuracy, table.pooled_accuracy)]

    return observe


def register_observer(name: str, make: Callable[[], Observer], kind: ObserverKind | None = None) -> None:
    """Add or replace an observer for scenarios. `make` makes one per simulation; `kind` is what it needs."""
    OBSERVERS[name] = make
    OBSERVER_KINDS[name] = ObserverKind() if kind is None else kind


_COSINE_DIGITS: Final = 4


def agreement() -> Observer:
    """Return an observer of the mean cosine between clients' updates, before an attack changes them, and
    their mean, both weighted by samples. It is 1 if all updates have the same direction, and about 0 if they
    cancel. A geometric median uses only the direction of an update. So the cosine shows how well honest
    clients resist attackers that all push against the mean update. The first round has no value."""
    models: list[Array] = []
    seen: dict[int, Array] = {}

    def observe(_number: int, run: Run[Any], _channel: ObservedChannel, crowd: Crowd) -> Any:
        before = models.pop() if models else None
        models.append(np.array(run.model))
        if crowd.latest is None:
            crowd.latest = {}
        trained = {client: own for client, own in crowd.latest.items() if seen.get(client) is not own}
        seen.update(trained)
        if before is None or not trained:
            return None
        updates = np.stack([own - before for own in trained.values()])
        return _cosine(updates, np.array([crowd[client].samples for client in trained], float))

    return observe


def _cosine(updates: Array, weights: Array) -> float | None:
    """Return the weighted mean cosine between updates (rows) and their mean; None if any is not finite."""
    if not np.isfinite(updates).all():
        return None
    mean = np.average(updates, axis=0, weights=weights)
    lengths = np.linalg.norm(updates, axis=1) * np.linalg.norm(mean)
    cosines = np.divide(updates @ mean, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return round(float(np.average(cosines, weights=weights)), _COSINE_DIGITS)


_GAP_DIGITS: Final = 5  # significant digits, because gaps span many orders of magnitude
_DIVERGED: Final = "diverged"


def optimality_gap() -> Observer:
    """Return an observer of the common model's objective, summed over training samples, minus its minimum."""
    return _gap(lambda run: run.model)


def ergodic_gap() -> Observer:
    """Return an observer of the objective, summed over all training samples, at the average of all rounds'
    models, minus its least value. It observes nothing unless the algorithm's state has an `average`."""
    return _gap(lambda run: getattr(run.state, "average", None))


def _gap(chosen: Callable[[Run[Any]], Array | None]) -> Observer:
    """Return an observer of the optimality gap at the model `chosen(run)`: the objective, summed over all
    training samples, minus its minimum. "diverged" if not finite; no value if the model is None."""
    known: list[tuple[ExactObjective, int]] = []

    def observe(_number: int, run: Run[Any], _channel: ObservedChannel, crowd: Crowd) -> Any:
        model = chosen(run)
        if model is None:
            return None
        if not known:
            known.append(_everybody(crowd))
        objective, samples = known[0]
        gap = samples * objective.excess(np.asarray(model)) if np.isfinite(model).all() else math.inf
        return float(f"{gap:.{_GAP_DIGITS}g}") if math.isfinite(gap) else _DIVERGED

    return observe


def _everybody(crowd: Crowd) -> tuple[ExactObjective, int]:
    """Return the mean objective over the training samples of all clients, and the number of these samples.
    Raise `FLError` if its minimum is not known, as for models that are not linear."""
    pooled = crowd.pooled()
    if pooled.exact is None:
        raise FLError(
            "the optimum is not known, so there is no gap to it: observe optimality-gap and ergodic-gap with "
            'a linear model (kind = "linear") and the loss squared or logistic, or leave them out'
        )
    return pooled.exact, pooled.samples


_JUMP_DIGITS: Final = 4
_LINE_EVERY: Final = 10  # rounds between two lines of losses, each of which evaluates all data 11 times


def jumps() -> Observer:
    """Return an observer of the distance between each client's trained model and the one it continues with.
    The values are mean and standard deviation over clients; every tenth round, also the mean training losses
    on the line from the trained to the common model. If all clients keep personal models, distances are 0.
    Otherwise it trains again, which is right only if all clients trained and began with the common model."""
    last: list[Array] = []

    def observe(number: int, run: Run[Any], channel: ObservedChannel, crowd: Crowd) -> Any:
        before = last.pop() if last else None
        last.append(np.array(run.model))
        own = _kept(channel)
        if own is None and before is None:
            return None
        local = _once_more(crowd, before) if own is None else own
        after = run.model if own is None else np.stack(list(local.values()))
        moved = change(after, np.stack(list(local.values())))
        found = {"mean": round(moved.mean, _JUMP_DIGITS), "std": round(moved.std, _JUMP_DIGITS)}
        return {**found, "line": _line(crowd, local, run.model)} if number % _LINE_EVERY == 0 else found

    return observe


def _kept(channel: ObservedChannel) -> dict[int, Array] | None:
    """Return the personal models that clients keep, by client id, or None if some client keeps none."""
    kept = {client: getattr(memory, "model", None) for client, memory in channel.memories().items()}
    found = {client: np.asarray(model) for client, model in kept.items() if model is not None}
    return found if len(found) == len(kept) else None


def _once_more(crowd: Crowd, start: Array | None) -> dict[int, Array]:
    """Repeat all clients' last training from `start`, with the same random draws. Return the models by id."""
    assert start is not None
    for member in crowd.values():
        member.calls -= 1
    return crowd.train(start)


def _line(crowd: Crowd, local: Mapping[int, Array], common: Array) -> list[float]:
    losses = [
        line_losses(crowd[client].loss, model, np.asarray(common)).losses for client, model in local.items()
    ]
    return [round(float(each), _JUMP_DIGITS) for each in np.mean(losses, axis=0)]


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
assert OBSERVERS.keys() == OBSERVER_KINDS.keys()  # scenarios check the names without importing this module
