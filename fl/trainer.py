"""One client: its data and its model on a device, and all that an algorithm may ask of them."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from fl.batches import BatchSampler, SampleOrder, SampleTensors
from fl.descent import Descent, PenaltyTensors, StepTerms, mixes, pulls
from fl.device import pick
from fl.errors import TrainingError
from fl.federation import ClientData
from fl.flat_model import FlatModel
from fl.proximal import ExactLeastSquares, LeastSquaresGradient, exact_objective
from fl.samples import Array, Samples
from fl.subspace import projection_of
from fl.training import Training
from protocols.learner import NO_STEERING, PenaltyTerm, Score, Steering

_WHOLE = "; its inputs are whole numbers, which stand for symbols: make floats of amounts, as by x / 255.0"
_CHUNK = 4096  # samples that are evaluated at once
_FEW = 2  # samples for a parameter, from which on a matrix of parameters is less work than one of samples


@dataclass(frozen=True)
class Usage:
    """What a client has cost so far: seconds of training and evaluation, and bytes on its device."""

    seconds: float
    data_bytes: int
    model_bytes: int


class Trainer:
    """A client with the settings `training`. Models come and go as flat vectors.

    `seed` and `client` decide the order of its samples: a client that is asked the same things in the same
    order computes the same, to the bit on a CPU. `flat` may be shared by clients that train one after
    another. `round` is what the schedule of the learning rate goes by; whoever runs rounds sets it, and a
    client that nobody tells counts what it was asked to train.

    `proximal` is there only where it is exact, which fl/proximal.py says: (point, eta) to the model that
    minimises loss + weight_decay / 2 |w|^2 + |w - point|^2 / (2 eta).
    """

    proximal: Callable[[Array, float], Array]

    def __init__(
        self,
        flat: FlatModel,
        data: ClientData,
        training: Training,
        *,
        seed: int = 0,
        client: int = 0,
        train: SampleTensors | None = None,
    ) -> None:
        self.flat = flat
        self.training = training
        self.client = client
        self.round: int | None = None
        self.calls = 0  # trainings and gradients so far, all that has to be known to go on after a restart
        self._data = data
        self.train_store = SampleTensors.of(data.train, training, flat.device) if train is None else train
        if seed < 0 or client < 0:
            raise TrainingError(f"seeds and ids of clients are 0 or more, not {seed} and {client}")
        self._batches = BatchSampler(len(self.train_store), training.batch, seed, client)
        self.seconds = 0.0
        check_model(flat.module, training, self.train_store, data)
        flat.watch(self.train_store.inputs)
        self.exact = exact_objective(flat, training, self.train_store)
        if self.exact is not None:
            self.proximal = self._proximal

    @classmethod
    def on(
        cls,
        module: nn.Module,
        data: ClientData,
        training: Training,
        *,
        device: str = "auto",
        seed: int = 0,
        client: int = 0,
    ) -> Trainer:
        """A client with a copy of `module`, on `device`; with `auto`, clients share what GPUs there are."""
        own = copy.deepcopy(module)  # a module that two clients shared would be trained by the last of them
        flat = FlatModel(own, device=pick(device, client), dtype=training.dtype)
        return cls(flat, data, training, seed=seed, client=client)

    def __repr__(self) -> str:
        return f"Trainer(client {self.client}, {self.samples} samples, {self.flat.dim} parameters)"

    @property
    def samples(self) -> int:
        return len(self.train_store)

    @property
    def width(self) -> int:
        """Samples of a batch."""
        return self.samples if self.training.batch is None else min(self.training.batch, self.samples)

    @property
    def steps(self) -> int:
        return self.training.steps_of(self.samples)

    @property
    def rate(self) -> float:
        number = self.calls if self.round is None else self.round
        return self.training.rate * self.training.schedule(number)

    @cached_property
    def slope(self) -> LeastSquaresGradient | None:
        """The gradient on all data, where no pass over the data is needed for it."""
        if not isinstance(self.exact, ExactLeastSquares) or _FEW * self.flat.dim > self.samples:
            return None
        return LeastSquaresGradient.of(self.exact, self.flat)

    @property
    def usage(self) -> Usage:
        copies = 3 if self.training.momentum else 2
        model = copies * self.flat.values.nbytes
        return Usage(self.seconds, self.train_store.bytes, model)

    # --- what an algorithm asks ---

    def loss(self, model: Array) -> float:
        """The mean loss over all training data."""
        return self.score_in(model, self.train_store).loss

    def gradient(self, model: Array) -> Array:
        """Of the loss on the next batch."""
        started = time.perf_counter()
        self.flat.load(model)
        with self._chance():
            (batch,) = self.batches(1)
            self.backward(batch)
        self.seconds += time.perf_counter() - started
        return self.flat.gradient.cpu().numpy().copy()

    def train(
        self,
        start: Array,
        steering: Steering = NO_STEERING,
        *,
        steps: int | None = None,
        rate: float | None = None,
        only: Array | None = None,
    ) -> Array:
        """The model after local steps from `start`; where `only` is given, others than its parameters stay.

        `only` has a true value for every parameter that may move.
        """
        started = time.perf_counter()
        rate = self.rate if rate is None else checked_rate(rate)
        self.flat.load(start)
        descent = Descent(self.training, self.flat.values, float(rate), self._terms(steering, only))
        with self._chance():
            for batch in self.batches(self.steps if steps is None else steps):
                self.backward(batch)
                with torch.no_grad():
                    descent.step(self.flat.gradient)
        self.seconds += time.perf_counter() - started
        return self.flat.read()

    def _proximal(self, point: Array, eta: float) -> Array:
        assert self.exact is not None  # or nobody would know of this
        started = time.perf_counter()
        found = self.exact.proximal(point, eta)
        self.seconds += time.perf_counter() - started
        return found

    def score(self, model: Array) -> Score:
        """On the client's test data."""
        return self.score_on(model, self._data.test)

    def score_on(self, model: Array, samples: Samples) -> Score:
        """On any samples."""
        return self.score_in(model, SampleTensors.of(samples, self.training, self.flat.device))

    # --- how it is done ---

    def next_order(self, steps: int) -> SampleOrder:
        """Which samples the next training sees, step by step. It counts as one."""
        if type(steps) is not int or steps < 0:
            raise TrainingError(f"steps must be a whole number of 0 or more, not {steps!r}")
        call, self.calls = self.calls, self.calls + 1
        return self._batches.of_call(call, steps)

    def batches(self, steps: int) -> Iterator[SampleTensors]:
        order = self.next_order(steps)
        for step in range(steps):
            if self._batches.full:
                yield self.train_store
            else:
                yield self.train_store.at(torch.from_numpy(order.of_step(step)).to(self.flat.device))

    def _chance(self) -> AbstractContextManager[object]:
        """Where the model draws lots, they depend on the seed and this training alone."""
        return _drawing(self._batches.number(self.calls)) if self.flat.draws else nullcontext()

    def backward(self, batch: SampleTensors) -> None:
        """Leave the gradient of the mean loss of `batch` in the flat one."""
        if batch is self.train_store and self.slope is not None:
            self.flat.gradient.copy_(self.slope(self.flat.values))
            return
        self.flat.module.train()
        self.flat.gradient.zero_()
        torch.autograd.backward(self._losses(batch).mean())

    def _losses(self, batch: SampleTensors) -> Tensor:
        outputs: Tensor = self.flat.module(batch.inputs)
        return self.training.objective.losses(outputs, batch.targets)

    def _terms(self, steering: Steering, only: Array | None) -> StepTerms:
        flat = self.flat
        return StepTerms(
            steering.pull,
            flat.tensor(steering.anchor) if steering.anchor is not None and pulls(steering) else None,
            None if steering.correction is None else flat.tensor(steering.correction),
            steering.mix,
            flat.tensor(steering.target) if steering.target is not None and mixes(steering) else None,
            None if only is None else flat.tensor(checked_mask(only)),
            None if steering.penalty is None else self._penalty(steering.penalty),
        )

    def _penalty(self, penalty: PenaltyTerm) -> PenaltyTensors:
        projection = projection_of(penalty.space, self.flat)
        return PenaltyTensors(
            projection, penalty_center(penalty, self.flat), float(penalty.pull), penalty.power
        )

    def score_in(self, model: Array, store: SampleTensors) -> Score:
        """On samples that are there already."""
        started = time.perf_counter()
        self.flat.load(model)
        score = evaluate(self.flat.module, self.training, store)
        self.seconds += time.perf_counter() - started
        return score


def penalty_center(penalty: PenaltyTerm, flat: FlatModel) -> Tensor:
    """Return the point that a penalty pulls a model to."""
    return flat.tensor(penalty.center, None if penalty.space is None else penalty.space.size)


@contextmanager
def _drawing(seed: int) -> Iterator[None]:
    """Seed torch's own chance, and leave it afterwards as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def evaluate(module: nn.Module, training: Training, store: SampleTensors) -> Score:
    """How `module` does on all that is in `store`."""
    module.eval()
    total, correct, loss = len(store), 0, 0.0
    with torch.no_grad():
        for first in range(0, total, _CHUNK):
            part = store.part(first, first + _CHUNK)
            outputs: Tensor = module(part.inputs)
            correct += int(training.objective.right(outputs, part.targets).sum())
            loss += float(training.objective.losses(outputs, part.targets).sum(dtype=torch.float64))
    return Score(correct, total, loss / total if total else 0.0)


def checked_rate(rate: float) -> float:
    if not 0 <= rate < math.inf:
        raise TrainingError(f"a learning rate is 0 or more and finite, not {rate!r}")
    return float(rate)


def checked_mask(only: Array) -> Array:
    """Which parameters may move."""
    mask = np.asarray(only)
    if not np.isin(mask, (0, 1)).all():
        raise TrainingError("`only` says true or false of every parameter, and nothing else")
    return mask


def check_model(module: nn.Module, training: Training, store: SampleTensors, data: ClientData) -> None:
    """Raise if `module` and the samples do not go together, rather than in the midst of a round."""
    module.eval()
    try:
        with torch.no_grad():
            outputs: Tensor = module(store.inputs[:1])
    except Exception as error:  # a module is anybody's code
        shape = tuple(store.inputs.shape[1:])
        hint = "" if store.inputs.is_floating_point() else _WHOLE
        raise TrainingError(f"the model does not take inputs of shape {shape}: {error}{hint}") from None
    if not isinstance(outputs, Tensor):
        raise TrainingError(f"the model must return a tensor, not a {type(outputs).__name__}")
    classes = training.objective.whole_targets
    if outputs.ndim != (2 if classes else 1) or len(outputs) != 1:
        raise TrainingError(
            f"for one sample the model gives outputs of shape {tuple(outputs.shape)}, but the loss "
            f"{training.loss} needs {'(1, classes)' if classes else '(1,)'}"
        )
    for samples in (data.train, data.validation, data.test):
        training.objective.check(samples.y, outputs.shape[-1])
        if len(samples) and samples.x.shape[1:] != data.train.x.shape[1:]:
            raise TrainingError(
                f"a client trains on inputs of shape {data.train.x.shape[1:]}, but has others of "
                f"{samples.x.shape[1:]} to be judged by"
            )
