"""The learners of all clients of a simulation. Many clients train in one computation where that is faster."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, Unpack

import numpy as np
import torch
from torch import nn

from fl.cooperative_batcher import CooperativeBatcher, JobResult, PendingRequest
from fl.device_and_threads import pick
from fl.errors import DataError, FLError, TrainingError
from fl.federation import ClientData
from fl.flat_model import FlatModel
from fl.sample_tensors import SampleTensors
from fl.samples import Array, Samples
from fl.stacked_trainer import StackedTask, StackedTrainer
from fl.stacking_policy import (
    AUTO,
    ONE_BY_ONE,
    can_stack,
    check_batching,
    client_batches,
    convolution_work,
    stacking_agrees,
)
from fl.trainer import Trainer, checked_mask, checked_rate
from fl.training_settings import Training
from protocols.learner import NO_STEERING, Score, Steering, TrainOptions

T = TypeVar("T")
PARTS: Final = ("train", "validation", "test")
_CHUNK = 8192  # samples evaluated at once


@dataclass(frozen=True, eq=False)
class _Exchange:
    value: Any


@dataclass(frozen=True, eq=False)
class _Gradient:
    task: StackedTask


class Member(Trainer):
    """The learner (local training) of one client of a `Crowd`. Inside a job of `Crowd.together`, its
    trainings and gradients are computed in one batch with those of other clients."""

    def __init__(self, batcher: CooperativeBatcher, *args: Any, **kwargs: Any) -> None:
        self._batcher = batcher
        super().__init__(*args, **kwargs)

    def train(self, start: Array, steering: Steering = NO_STEERING, **options: Unpack[TrainOptions]) -> Array:
        if not self._batcher.inside:
            return super().train(start, steering, **options)
        trained: Array = self._batcher.ask(self.task(start, steering, **options))
        return trained

    def task(
        self, start: Array, steering: Steering = NO_STEERING, **options: Unpack[TrainOptions]
    ) -> StackedTask:
        """Return a description of the training that `train` would do with these arguments; do not train."""
        steps, rate, only = options.get("steps"), options.get("rate"), options.get("only")
        steps = self.steps if steps is None else steps
        rate = self.rate if rate is None else checked_rate(rate)
        return StackedTask(self, start, steering, steps, rate, None if only is None else checked_mask(only))

    def gradient(self, model: Array) -> Array:
        if not self._batcher.inside:
            return super().gradient(model)
        gradient: Array = self._batcher.ask(_Gradient(StackedTask(self, model)))
        return gradient

    @property
    def in_batch(self) -> bool:
        """Whether the caller is inside a job of `Crowd.together`, where trainings are computed in batches."""
        return self._batcher.inside

    def exchange(self, value: Any) -> Mapping[int, Any]:
        """Wait until the job of every other client has called this method or ended. Return all values passed,
        by client id, so that omniscient attacks see them. Outside of jobs, raise `TrainingError`."""
        if not self.in_batch:
            raise TrainingError("only clients that run in Crowd.together can exchange values: use a Crowd")
        values: Mapping[int, Any] = self._batcher.ask(_Exchange(value))
        return values

    def alone(self, task: StackedTask) -> Array:
        """Return the model trained as `task` says, computed for this client alone, not in a batch."""
        return super().train(task.start, task.steering, steps=task.steps, rate=task.rate, only=task.only)

    def gradient_alone(self, task: StackedTask) -> Array:
        """Return the gradient at `task.start` on the client's next batch, computed for it alone."""
        return super().gradient(task.start)


class Crowd(Mapping[int, Member]):
    """Learners of all clients, by id. They train a copy of `module` on `data` with the settings `training`.

    `batching`  "together" computes the trainings of several clients in one batch, "one-by-one" does not, and
                "auto" does where it is faster. All give the same models up to rounding.
    `latest`    the model that each client last trained in `together` or `train`; set it to {} to record them.

    Only `together` and `train` make batches. Called in any other way, a learner trains by itself.
    """

    latest: dict[int, Array] | None = None

    def __init__(
        self,
        module: nn.Module,
        data: Mapping[int, ClientData],
        training: Training,
        *,
        seed: int = 0,
        device: str = "auto",
        batching: str = AUTO,
    ) -> None:
        check_batching(batching)
        if not data:
            raise DataError("a crowd needs at least one client")
        self.training = training
        self.batching = batching
        self._seed = seed
        self.flat = FlatModel(copy.deepcopy(module), device=pick(device), dtype=training.dtype)
        self._data = dict(data)
        self._stores: dict[str, tuple[SampleTensors, dict[int, int]]] = {}
        self._batcher = CooperativeBatcher(self._serve)
        store, offsets = self._part("train")
        self._stack = StackedTrainer(self.flat, training, store, offsets)
        self._members = {
            client: Member(
                self._batcher,
                self.flat,
                each,
                training,
                seed=seed,
                client=client,
                train=store.part(*self._bounds(client, "train")),
            )
            for client, each in self._data.items()
        }
        self._stacks: bool | None = None
        self._work = convolution_work(self.flat.module, store.inputs)

    def __getitem__(self, client: int) -> Member:
        return self._members[client]

    def __iter__(self) -> Iterator[int]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __repr__(self) -> str:
        return f"Crowd({len(self)} clients, {self.flat.dim} parameters)"

    @property
    def dim(self) -> int:
        return self.flat.dim

    def begin_round(self, number: int) -> None:
        """Set the round number that the learning-rate schedules of all learners use."""
        for member in self._members.values():
            member.round = number

    def together(self, jobs: Mapping[int, Callable[[], T]]) -> dict[int, JobResult[T]]:
        """Run one job per client, a function such as the client's part of a round. Return the value or the
        error of each job, by client id. When all unfinished jobs wait for a training or gradient of their
        learner, these are computed in one batch (see `batching`), which is usually faster than one by one."""
        return self._batcher.run(jobs)

    def train(self, starts: Array | Mapping[int, Array], **options: Any) -> dict[int, Array]:
        """Return the trained models by client id. `starts` is one start model for all clients, or start
        models by client id. `options` are `steering`, `steps`, `rate` and `only`, as for a single learner."""
        chosen = starts if isinstance(starts, Mapping) else dict.fromkeys(self, starts)
        waiting = [
            PendingRequest(client, self[client].task(start, **options)) for client, start in chosen.items()
        ]
        self._serve(waiting)
        return {each.client: each.result() for each in waiting}

    def pooled(self) -> Trainer:
        """Return a learner with the data of all clients, to compare federated with centralised training."""
        parts = {part: Samples.join(self._of(client, part) for client in self) for part in PARTS}
        return Trainer(
            self.flat, ClientData(**parts), self.training, seed=self._seed, client=max(self._members) + 1
        )

    # --- evaluation by an observer of all clients ---

    def scores(self, models: Array | Mapping[int, Array], part: str = "test") -> dict[int, Score]:
        """Return each client's score (numbers of correct samples and of samples, mean loss), by client id, on
        its data of `part` ("train", "validation" or "test"). Without samples, the loss is 0. `models` is one
        model for all clients, or the models of some clients by id."""
        store, offsets = self._part(part)
        if isinstance(models, Mapping):
            return {
                client: self[client].score_in(model, store.part(*self._bounds(client, part)))
                for client, model in models.items()
            }
        return self._common(models, store, offsets)

    def losses(self, models: Array | Mapping[int, Array], part: str = "train") -> dict[int, float]:
        """Return mean losses (0 without samples) by client id, on the data of `part` ("train", "validation"
        or "test"). `models` is one model for all clients, or models by client id."""
        return {client: score.loss for client, score in self.scores(models, part).items()}

    def _common(self, model: Array, store: SampleTensors, offsets: Mapping[int, int]) -> dict[int, Score]:
        """Return the score of `model` on each client's samples, by client id; the loss is 0 without samples.
        `store` has all samples, client after client, and `offsets` each client's first index."""
        objective, module = self.training.objective, self.flat.module
        self.flat.load(model)
        module.eval()
        rights, losses = [np.zeros(0)], [np.zeros(0)]
        with torch.no_grad():
            for first in range(0, len(store), _CHUNK):
                batch = store.part(first, first + _CHUNK)
                outputs = module(batch.inputs)
                rights.append(objective.right(outputs, batch.targets).cpu().numpy())
                losses.append(objective.losses(outputs, batch.targets).double().cpu().numpy())
        right, loss = np.concatenate(rights), np.concatenate(losses)
        bounds = [*offsets.values(), len(store)]
        scores = {}
        for client, start, stop in zip(offsets, bounds, bounds[1:], strict=False):
            mean = float(loss[start:stop].mean()) if stop > start else 0.0
            scores[client] = Score(int(right[start:stop].sum()), stop - start, mean)
        return scores

    def _bounds(self, client: int, part: str) -> tuple[int, int]:
        start = self._part(part)[1][client]
        return start, start + len(self._of(client, part))

    def _of(self, client: int, part: str) -> Samples:
        samples: Samples = getattr(self._data[client], part)
        return samples

    def _part(self, part: str) -> tuple[SampleTensors, dict[int, int]]:
        """Return all clients' samples of `part`, concatenated, and each client's first index, by its id."""
        if part not in PARTS:
            raise TrainingError(f"a client's data has no part {part!r}; there are {', '.join(PARTS)}")
        if part not in self._stores:
            pieces = [self._of(client, part) for client in self._data]
            starts = np.cumsum([0, *map(len, pieces)])
            store = SampleTensors.of(Samples.join(pieces), self.training, self.flat.device)
            self._stores[part] = store, dict(zip(self._data, map(int, starts), strict=False))
        return self._stores[part]

    # --- serving the requests of members ---

    def _serve(self, waiting: Sequence[PendingRequest]) -> Sequence[PendingRequest]:
        """Answer all waiting requests for trainings and gradients, or, if there are none, all exchanges of
        values (`Member.exchange`). Return the requests that were answered."""
        work = [each for each in waiting if not isinstance(each.request, _Exchange)]
        if not work:
            values = {each.client: each.request.value for each in waiting}
            for each in waiting:
                each.answer = values
            return waiting
        for gradients in (False, True):
            chosen = [each for each in work if isinstance(each.request, _Gradient) is gradients]
            shapes: dict[tuple[object, ...], list[PendingRequest]] = {}
            for each in chosen:
                task: StackedTask = each.request.task if gradients else each.request
                shapes.setdefault(task.shape, []).append(each)
            for alike in shapes.values():
                self._compute(alike, gradients=gradients)
        return work

    def _compute(self, alike: Sequence[PendingRequest], *, gradients: bool) -> None:
        tasks: list[StackedTask] = [each.request.task if gradients else each.request for each in alike]
        widths, steps = [task.trainer.width for task in tasks], [task.steps for task in tasks]
        quick = self.batching == AUTO and all(task.trainer.slope is not None for task in tasks)
        batching = self.batching if len(tasks) > 1 and not quick and self._stackable() else ONE_BY_ONE
        formula = self._stack.formula
        for indices in client_batches(self.flat, batching, widths, steps, self._work, formula=formula):
            some = [tasks[index] for index in indices]
            try:
                if len(some) == 1 and (batching == ONE_BY_ONE or not formula):
                    results = [self._one(some[0], gradients=gradients)]
                else:
                    results = self._many(some, gradients=gradients)
            except FLError as error:
                for index in indices:
                    alike[index].error = error
                continue
            for index, result in zip(indices, results, strict=True):
                alike[index].answer = result
                if self.latest is not None and not gradients:
                    self.latest[alike[index].client] = result

    def _one(self, task: StackedTask, *, gradients: bool) -> Array:
        member = task.trainer
        assert isinstance(member, Member)
        return member.gradient_alone(task) if gradients else member.alone(task)

    def _many(self, tasks: Sequence[StackedTask], *, gradients: bool) -> list[Array]:
        started = time.perf_counter()
        results = self._stack.gradients(tasks) if gradients else self._stack.train(tasks)
        for task in tasks:  # each client is charged an equal share of the time
            task.trainer.seconds += (time.perf_counter() - started) / len(tasks)
        return results

    def _stackable(self) -> bool:
        """Return whether models of several clients can be trained as rows of a matrix. Unless it is known,
        the first call tests it by comparing gradients computed in this way and one by one."""
        if self._stacks is None:
            known = self._stack.formula or self.batching == ONE_BY_ONE
            self._stacks = known or (
                can_stack(self.flat) and stacking_agrees(self._stack, list(self.values()))
            )
        return self._stacks
