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
from numpy.typing import ArrayLike

from fl.crowd import Crowd
from fl.errors import FLError
from fl.exact_proximal import ExactObjective
from fl.metrics.clients import ClientScores
from fl.metrics.model_drift import change, line_losses
from fl.samples import Array
from protocols.algorithm import AnyAlgorithm
from protocols.run import Run
from sims.runtime import ObservedChannel, SessionChannel
from sims.runtime.client_state import SimulatedParticipant
from sims.scenario.settings import OBSERVER_KINDS, ObserverKind

# (number of the round, counted from 1; run; channel; honest learners) -> a JSON value, or None.
Observer: TypeAlias = Callable[[int, Run[Any], ObservedChannel, Crowd], Any]

_DIGITS: Final = 6
_SELDOM: Final = 50  # rounds between two slow observations


def multipliers() -> Observer:
    """Return an observer of FedBC: client id -> [the client's number of samples, its multiplier lambda]."""

    def observe(_number: int, _run: Run[Any], channel: ObservedChannel, crowd: Crowd) -> Any:
        found = {}
        for client, memory in channel.memories().items():
            value = getattr(memory, "multiplier", None)
            if value is not None:
                found[str(client)] = [crowd[client].samples, round(float(value), _DIGITS)]
        return found or None

    return observe


def movement() -> Observer:
    """Return an observer of the Euclidean distance by which the common model moved in a round."""
    last: list[Any] = []

    def observe(_number: int, run: Run[Any], _channel: ObservedChannel, _crowd: Crowd) -> Any:
        before = last.pop() if last else None
        last.append(np.array(run.model))
        return None if before is None else round(float(np.linalg.norm(run.model - before)), _DIGITS)

    return observe


def training_loss() -> Observer:
    """Return an observer of the mean loss of the common model over the training samples of all clients."""

    def observe(_number: int, run: Run[Any], _channel: ObservedChannel, crowd: Crowd) -> Any:
        losses = crowd.losses(run.model, part="train")
        weights = [crowd[client].samples for client in losses]
        loss = float(np.average(list(losses.values()), weights=weights))
        return round(loss, _DIGITS) if np.isfinite(loss) else "diverged"

    return observe


def centralised() -> Observer:
    """Return an observer of a baseline: the accuracy of a model trained centrally on the data of all clients.
    It starts from the common model after the first round, and trains in each round as a client does."""
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
    """Return an observer of the accuracy of locally trained models, the local accuracy of the FedBC paper.

    Every fiftieth round, the model of each client after its last local training is tested on the client's own
    test samples. The values are the mean over clients and the mean over samples. Training is recorded from
    the second round on; for a client that has not trained since, the common model is tested.
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


def register_observer(name: str, make: Callable[[], Observer], kind: ObserverKind | None = None) -> None:
    """Add an observer that scenarios can name. `make` makes it anew for each simulation; `kind` says which
    data it needs."""
    OBSERVERS[name] = make
    OBSERVER_KINDS[name] = ObserverKind() if kind is None else kind


_COSINE_DIGITS: Final = 4


def agreement() -> Observer:
    """Return an observer of the mean cosine between honest updates and their mean, weighted by samples.

    It is 1 if all updates have the same direction, and about 0 if they cancel. A geometric median counts
    each update as a unit vector. So the cosine shows how well honest clients resist attackers that all push
    against the mean update. There is no value for the first round.
    """
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
    """Return the weighted mean cosine between updates and their mean, or None if an update is not finite."""
    if not np.isfinite(updates).all():
        return None
    mean = np.average(updates, axis=0, weights=weights)
    lengths = np.linalg.norm(updates, axis=1) * np.linalg.norm(mean)
    cosines = np.divide(updates @ mean, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return round(float(np.average(cosines, weights=weights)), _COSINE_DIGITS)


_GAP_DIGITS: Final = 5  # significant digits, because gaps span many orders of magnitude
_DIVERGED: Final = "diverged"


def optimality_gap() -> Observer:
    """Return an observer of the training objective at the common model, minus its least value: see `_gap`."""
    return _gap(lambda run: run.model)


def ergodic_gap() -> Observer:
    """Return an observer like `optimality_gap`, for the average of the models of all rounds. It observes
    nothing unless the algorithm's state has an `average`, as in `protocols.splitting`."""
    return _gap(lambda run: getattr(run.state, "average", None))


def _gap(chosen: Callable[[Run[Any]], Array | None]) -> Observer:
    """Return an observer of the objective, summed over all training samples, at the model `chosen(run)`,
    minus the least value of this sum. It observes nothing if that model is None."""
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
    """Return the mean objective over the training samples of all clients, and the number of these samples."""
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
    on a line from the trained to the common model. Clients that keep personal models have distance 0. For
    others, training is repeated, so all clients must take part and start from the common model.
    """
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
    """Return the clients' own models by client id, or None if some client keeps none."""
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


_NEVER = -1


class DivergenceObserver(SimulatedParticipant):
    """A client's side of a run, which records in `diverged` the last round without an answer because training
    diverged. In a sum with noise, such a client sends zeros instead, so its divergence is not recorded."""

    diverged = _NEVER

    def answer(
        self, kind: str, payload: bytes, *, round_number: int, invited: int
    ) -> Mapping[str, ArrayLike] | None:
        values = super().answer(kind, payload, round_number=round_number, invited=invited)
        if values is None:
            self.diverged = round_number
        return values


def observe_divergence(
    channel: SessionChannel, algorithm: AnyAlgorithm, trust: str
) -> dict[int, DivergenceObserver]:
    """Replace the clients (`participants`) of a new channel by `DivergenceObserver`s. Return these by id."""
    watched = {
        member: DivergenceObserver(algorithm, each.learner, trust=trust, member=member)
        for member, each in channel.participants.items()
    }
    channel.participants.update(watched)
    return watched


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
