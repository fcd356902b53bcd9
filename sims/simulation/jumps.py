"""How clients' models jump when a common one takes their place, and what that does to their losses.

Figures 1 and 3 of "Robustness and Personalization in Federated Learning: A Unified Approach via
Regularization".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from fl.crowd import Crowd
from fl.metrics.trajectory import change, line_losses
from fl.samples import Array
from protocols.run import Run
from sims.runtime import ObservedChannel

_DIGITS: Final = 4
_LINE_EVERY: Final = 10  # rounds; a line takes eleven looks at everybody's data


def jumps() -> Callable[[int, Run[Any], ObservedChannel, Crowd], Any]:
    """The lengths of the jumps, mean and deviation over clients; and in every tenth round the losses on what
    they train on, from their own models to the common one, mean over clients.

    A client that keeps a model of its own goes on from that, and does not jump. For others, who all have to
    take part and train plainly from the common model, the last training is done once more.
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
        found = {"mean": round(moved.mean, _DIGITS), "std": round(moved.std, _DIGITS)}
        return {**found, "line": _line(crowd, local, run.model)} if number % _LINE_EVERY == 0 else found

    return observe


def _kept(channel: ObservedChannel) -> dict[int, Array] | None:
    """The models that clients keep, if they do."""
    kept = {client: getattr(memory, "model", None) for client, memory in channel.memories().items()}
    found = {client: np.asarray(model) for client, model in kept.items() if model is not None}
    return found if len(found) == len(kept) else None


def _once_more(crowd: Crowd, start: Array | None) -> dict[int, Array]:
    """The models of the last training from `start`: a training is known by its number."""
    assert start is not None
    for member in crowd.values():
        member.calls -= 1
    return crowd.train(start)


def _line(crowd: Crowd, local: Mapping[int, Array], common: Array) -> list[float]:
    losses = [
        line_losses(crowd[client].loss, model, np.asarray(common)).losses for client, model in local.items()
    ]
    return [round(float(each), _DIGITS) for each in np.mean(losses, axis=0)]
