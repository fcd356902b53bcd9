"""How far an aggregation moves the models of clients, and losses on the line between two models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fl.checks import Floats, numeric_array, same_length, series, vector
from fl.errors import FLError
from fl.samples import Array


@dataclass(frozen=True)
class ModelChange:
    """How far an aggregation moves the models of clients (as in Figure 1 of the Fed+ paper).

    `mean`, `std`  mean and standard deviation over clients of the Euclidean length of the move.
    `relative`     mean over clients of this length / (norm of the model before); None if a norm is zero.
    """

    mean: float
    std: float
    relative: float | None


def change(after: ArrayLike, before: ArrayLike) -> ModelChange:
    """Return how far clients' models move in an aggregation. `before` has one model per row. So has `after`,
    unless it is one vector: then all clients have this model after the aggregation."""
    rows = _rows(before)
    targets = _targets(after, len(rows))
    moves = np.empty(len(rows))
    lengths = np.empty(len(rows))
    # Row by row, to avoid a copy of all models in double precision.
    for index, row in enumerate(rows):
        old = vector(f"model {index} before", row)
        new = vector(f"model {index} after", targets[index])
        same_length("elements of a model before", old, "after", new)
        moves[index], lengths[index] = np.linalg.norm(new - old), np.linalg.norm(old)
    relative = float(np.mean(moves / lengths)) if lengths.all() else None
    return ModelChange(float(moves.mean()), float(moves.std()), relative)


@dataclass(frozen=True, eq=False)
class LossLine:
    """Losses on the line between a client's model `local` and the model `common`: `losses[i]` is the loss of
    the model (1 - s) * local + s * common, where s is `shares[i]` (as in Figure 3 of the Fed+ paper)."""

    shares: Floats
    losses: Floats


def line_losses(loss: Callable[[Array], float], local: Array, common: Array, points: int = 11) -> LossLine:
    """Return the losses of `points` evenly spaced models from a client's model `local` to the `common` model,
    both included. `loss` is called with models in the precision of `local`, at least single precision."""
    if points < 2:
        raise FLError(f"points must be at least 2, not {points}")
    start, end = vector("the local model", local), vector("the common model", common)
    same_length("elements of the local model", start, "of the common one", end)
    shares = np.linspace(0.0, 1.0, points)
    # This form gives both ends exactly; start + share * (end - start) does not.
    models = ((1 - share) * start + share * end for share in shares)
    precision = np.result_type(local, np.float32)
    losses = [float(loss(model.astype(precision))) for model in models]
    return LossLine(shares, series("losses on the line", losses, finite=False))


def _rows(models: ArrayLike) -> Array:
    rows = np.atleast_2d(numeric_array("models", models))
    if rows.ndim != 2 or not len(rows):
        raise FLError(f"models must be rows of one array, at least one, not shape {rows.shape}")
    return rows


def _targets(after: ArrayLike, clients: int) -> Array:
    models = numeric_array("models", after)
    if models.ndim == 1:
        return np.broadcast_to(models, (clients, len(models)))
    rows = _rows(models)
    same_length("models before", range(clients), "models after", rows)
    return rows
