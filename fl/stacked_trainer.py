"""Stacked training: the models of many clients are rows of a matrix, and every step changes all rows at once.

This is faster for small models, because the overhead of a step is paid once for all clients instead of once
for each. The results equal those of one-by-one training up to rounding. `fl.crowd` uses this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from fl.flat_model import FlatModel, ParameterSlice
from fl.gradient_step import Column, Descent, PenaltyTensors, StepTerms, column, mixes, pulls
from fl.loss_functions import CrossEntropy
from fl.models.linear_and_mlp import Softmax
from fl.sample_tensors import SampleTensors
from fl.samples import Array
from fl.subspace_projection import projection_of
from fl.trainer import Trainer, penalty_center
from fl.training_settings import Training
from protocols.learner import NO_STEERING, PenaltyTerm, Steering


@dataclass(frozen=True, eq=False)
class StackedTask:
    """A client's request to train the model `start` for `steps` steps, or to compute a gradient at it.
    `trainer` is its learner, `rate` the learning rate, `only` a mask of trained parameters (None: all)."""

    trainer: Trainer
    start: Array
    steering: Steering = NO_STEERING
    steps: int = 1
    rate: float = 0.0
    only: Array | None = None

    @property
    def shape(self) -> tuple[object, ...]:
        """The kinds of optional terms in the task's steps. Only tasks with equal kinds can be stacked."""
        steering, penalty = self.steering, self.steering.penalty
        penalty_kind = None if penalty is None else (penalty.space, penalty.power)
        return (
            pulls(steering),
            steering.correction is not None,
            mixes(steering),
            self.only is not None,
            penalty_kind,
        )


@dataclass
class StackedTrainer:
    """Trains the models of many clients at once. `store` has the training samples of all clients,
    concatenated. `offsets` maps each client id to the index in `store` of the client's first sample."""

    flat: FlatModel
    training: Training
    store: SampleTensors
    offsets: dict[int, int]
    _forward: Callable[..., Tensor] = field(init=False)
    formula: bool = field(init=False)  # whether gradients need no automatic differentiation

    def __post_init__(self) -> None:
        module = self.flat.module

        def forward(parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
            outputs: Tensor = functional_call(module, parameters, (inputs,))
            return outputs

        self._forward = vmap(forward)
        self.formula = has_formula(self.flat, self.training)

    def train(self, tasks: Sequence[StackedTask]) -> list[Array]:
        """Return the trained model of every task, in the order of `tasks`. The caller ensures that the tasks
        have equal `StackedTask.shape`, and that the model has no random layers, such as dropout."""
        order = sorted(range(len(tasks)), key=lambda k: -tasks[k].steps)
        ordered = [tasks[k] for k in order]
        values = self._matrix([task.start for task in ordered])
        self._descend(ordered, values)
        trained = values.cpu().numpy()
        results: list[Any] = [None] * len(tasks)
        for row, index in enumerate(order):
            results[index] = trained[row].copy()
        return results

    def gradients(self, tasks: Sequence[StackedTask]) -> list[Array]:
        """Return, for every task, the loss's gradient at its model `start` on the client's next batch."""
        self.flat.module.train()
        values = self._matrix([task.start for task in tasks])
        found = self._rows(values).gradient(StackedBatches(self, tasks), 0)
        return list(found.cpu().numpy())

    def gradient_at(self, values: Tensor, batch: SampleTensors, weights: Tensor) -> Tensor:
        """Return a matrix. Row k is the gradient, at model `values[k]`, of the sum of the losses in
        `batch[k]`, each times its weight in `weights[k]`."""
        self.flat.module.train()
        return _Rows(self, values).gradient_of(batch, weights)

    def _descend(self, tasks: Sequence[StackedTask], values: Tensor) -> None:
        self.flat.module.train()
        schedule = StackedBatches(self, tasks)
        rates = column([float(task.rate) for task in tasks], values)
        descent = Descent(self.training, values, rates, self._terms(tasks, values))
        active, rows = len(tasks), self._rows(values)
        for step in range(tasks[0].steps):
            while tasks[active - 1].steps <= step:
                active -= 1
            if active < rows.count:
                rows = self._rows(values[:active])
                descent.rows(active)
            gradient = rows.gradient(schedule, step)
            with torch.no_grad():
                descent.step(gradient)

    def _rows(self, values: Tensor) -> _Rows | FormulaRows:
        return FormulaRows(self.flat, values) if self.formula else _Rows(self, values)

    def outputs(self, parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
        return self._forward(parameters, inputs)

    def _matrix(self, vectors: Sequence[Array]) -> Tensor:
        """Return the vectors as rows of a tensor. If all are one object, it is transferred only once."""
        if all(vector is vectors[0] for vector in vectors):
            return self.flat.tensor(vectors[0]).repeat(len(vectors), 1)
        return torch.stack([self.flat.tensor(vector) for vector in vectors])

    def _terms(self, tasks: Sequence[StackedTask], values: Tensor) -> StepTerms:
        steered = [task.steering for task in tasks]
        pull, correction, mix, only = map(bool, tasks[0].shape[:4])
        penalties = [each.penalty for each in steered if each.penalty is not None]

        def rows(name: str, *, present: bool) -> Tensor | None:
            return self._matrix([getattr(each, name) for each in steered]) if present else None

        def numbers(name: str, *, present: bool) -> Column:
            return column([float(getattr(each, name)) for each in steered], values) if present else 0.0

        return StepTerms(
            numbers("pull", present=pull),
            rows("anchor", present=pull),
            rows("correction", present=correction),
            numbers("mix", present=mix),
            rows("target", present=mix),
            self._matrix([task.only for task in tasks if task.only is not None]) if only else None,
            self._penalty(penalties, values) if penalties else None,
        )

    def _penalty(self, penalties: Sequence[PenaltyTerm], values: Tensor) -> PenaltyTensors:
        centers = torch.stack([penalty_center(penalty, self.flat) for penalty in penalties])
        pulls = column([float(penalty.pull) for penalty in penalties], values)
        projection = projection_of(penalties[0].space, self.flat)
        return PenaltyTensors(projection, centers, pulls, penalties[0].power)


class _Rows:
    """Computes the gradients of many clients' losses by autograd. The models are the rows of `values`. The
    tensors that autograd uses are views of `values`, so that changes of the models need no copy."""

    def __init__(self, stack: StackedTrainer, values: Tensor) -> None:
        self._stack = stack
        self.count = len(values)
        self._leaves = {slot.name: _view(values, slot).requires_grad_() for slot in stack.flat.slots}
        self._gradient = torch.empty_like(values)
        self._targets = [_view(self._gradient, slot) for slot in stack.flat.slots]

    def gradient(self, schedule: StackedBatches, step: int) -> Tensor:
        """Return the gradients of the clients' mean losses in step `step`, as rows of a reused buffer."""
        return self.gradient_of(*schedule.at(step, self.count))

    def gradient_of(self, batch: SampleTensors, weights: Tensor) -> Tensor:
        """Return the gradients of the clients' weighted sums of losses, as rows of a reused buffer."""
        outputs = self._stack.outputs(self._leaves, batch.inputs)
        losses = self._stack.training.objective.losses(outputs, batch.targets)
        # Clients share no parameters, so the gradient of the sum contains every client's own gradient.
        total = (losses * weights).sum()  # as `grad_outputs`, the weights would make torch import sympy
        found = torch.autograd.grad(total, list(self._leaves.values()), materialize_grads=True)
        for target, gradient in zip(self._targets, found, strict=True):
            target.copy_(gradient)
        return self._gradient


def _view(matrix: Tensor, slot: ParameterSlice) -> Tensor:
    return matrix[:, slot.start : slot.stop].view(len(matrix), *slot.shape).detach()


class StackedBatches:
    """The batches of all clients in every step, padded to equal size with samples of weight zero. Its
    construction counts as one training of every client, because it takes the order of the next samples."""

    def __init__(self, stack: StackedTrainer, tasks: Sequence[StackedTask]) -> None:
        self._stack = stack
        orders = [task.trainer.next_order(task.steps) for task in tasks]
        self._once = all(len(order.indices) == 1 for order in orders)
        steps = 1 if self._once else max(task.steps for task in tasks)
        widest = max(int(order.sizes.max(initial=0)) for order in orders)
        indices = np.zeros((steps, len(tasks), widest), np.int64)
        sizes = np.ones((steps, len(tasks), 1), np.int64)
        for row, (order, task) in enumerate(zip(orders, tasks, strict=True)):
            width = min(widest, order.indices.shape[1])
            rows = steps if len(order.indices) == 1 else order.steps
            indices[:rows, row, :width] = order.indices[:, :width]
            indices[:, row] += stack.offsets[task.trainer.client]
            sizes[:rows, row, 0] = order.sizes
        device = stack.store.inputs.device
        self._indices = torch.from_numpy(indices).to(device)
        weights = (np.arange(widest) < sizes) / sizes
        self._weights = torch.from_numpy(weights).to(device, stack.training.dtype)
        self._kept: tuple[int, SampleTensors] = (-1, stack.store)

    def at(self, step: int, active: int) -> tuple[SampleTensors, Tensor]:
        """Return the first `active` clients' batches of step `step`, as rows, and each sample's weight."""
        if not self._once:
            return self._select(step, active), self._weights[step, :active]
        if self._kept[0] != active:  # if every step uses all samples, they are copied only once
            self._kept = active, self._select(0, active)
        return self._kept[1], self._weights[0, :active]

    def _select(self, step: int, active: int) -> SampleTensors:
        """Return a copy of the samples that the first `active` clients use in a step, one row per client. A
        flat list of indices selects them, which is several times faster than a matrix of indices."""
        indices, store = self._indices[step, :active], self._stack.store
        inputs, targets = (each.index_select(0, indices.view(-1)) for each in (store.inputs, store.targets))
        return SampleTensors(inputs.view(*indices.shape, *inputs.shape[1:]), targets.view(indices.shape))


class BatchSchedule(Protocol):
    """Batches by step. `at` returns those of the first `active` clients, as rows, and the sample weights."""

    def at(self, step: int, active: int) -> tuple[SampleTensors, Tensor]: ...


def has_formula(flat: FlatModel, training: Training) -> bool:
    """Return whether `FormulaRows` applies: softmax regression, cross-entropy, no fixed parameters."""
    return (
        type(flat.module) is Softmax
        and isinstance(training.objective, CrossEntropy)
        and len(flat.slots) == len(list(flat.module.parameters()))
    )


class FormulaRows:
    """Computes gradients of softmax regressions, the rows of `values`, by a formula: faster than autograd."""

    def __init__(self, flat: FlatModel, values: Tensor) -> None:
        self.count = len(values)
        self._gradient = torch.empty_like(values)
        classes, features = flat.slots[0].shape
        size, shape = classes * features, (self.count, classes, features)
        self._weights = values[:, :size].view(shape).transpose(1, 2)
        self._slopes = self._gradient[:, :size].view(shape)
        self._biased = len(flat.slots) > 1
        self._biases, self._shifts = values[:, None, size:], self._gradient[:, size:]

    @torch.no_grad()
    def gradient(self, schedule: BatchSchedule, step: int) -> Tensor:
        """Return the gradients of the clients' mean losses in step `step`, as rows of a reused buffer."""
        batch, weights = schedule.at(step, self.count)
        inputs = batch.inputs.view(*batch.targets.shape, -1)
        if self._biased:
            logits = torch.baddbmm(self._biases, inputs, self._weights)
        else:
            logits = torch.bmm(inputs, self._weights)
        errors = logits.softmax(dim=2)
        errors.scatter_add_(
            2, batch.targets[:, :, None], errors.new_full((1,), -1.0).expand(*batch.targets.shape, 1)
        )
        errors.mul_(weights[:, :, None])
        self._slopes.copy_(torch.bmm(errors.transpose(1, 2), inputs))
        if self._biased:
            torch.sum(errors, dim=1, out=self._shifts)
        return self._gradient
