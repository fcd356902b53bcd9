"""The learner of one client: it trains and evaluates models on the client's data with torch."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from fl.batches import BatchSampler, SampleOrder
from fl.device_and_threads import pick
from fl.errors import TrainingError
from fl.exact_proximal import ExactLeastSquares, LeastSquaresGradient, exact_objective
from fl.federation import ClientData
from fl.flat_model import FlatModel
from fl.gradient_step import Descent, PenaltyTensors, StepTerms, mixes, pulls
from fl.sample_tensors import SampleTensors
from fl.samples import Array, Samples
from fl.subspace_projection import projection_of
from fl.training_settings import Training
from protocols.learner import NO_STEERING, PenaltyTerm, Score, Steering

_WHOLE = "; integer inputs are symbols: convert quantities to floats, for example by x / 255.0"
_CHUNK = 4096  # samples evaluated at once
_FEW = 2  # with at least this many samples per parameter, normal equations are cheaper than a pass over data


class Trainer:
    """The learner (`protocols.learner.Learner`) of one client. Models are passed as flat vectors.

    `seed` and `client` determine the order of its samples: the same sequence of calls gives the same results,
    bit for bit on a CPU. Clients that train one after another may share the torch model `flat`. The argument
    `train` passes training samples that are on the device already. The learning rate depends on the attribute
    `round`, a round number; if this is None, on `calls`, the number of trainings and gradients so far.

    `proximal` exists only if it can be computed exactly (see fl/exact_proximal.py): it maps (point, eta) to
    the model w that minimises loss(w) + weight_decay / 2 |w|^2 + |w - point|^2 / (2 eta).
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
        self.calls = 0  # trainings and gradients so far: the only state needed to resume after a restart
        self._data = data
        self.train_store = SampleTensors.of(data.train, training, flat.device) if train is None else train
        if seed < 0 or client < 0:
            raise TrainingError(f"seed and client id must be 0 or more, not {seed} and {client}")
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
        """Return a learner with a copy of `module` on `device`; `auto` spreads clients over all GPUs."""
        own = copy.deepcopy(module)  # clients must not share parameters
        flat = FlatModel(own, device=pick(device, client), dtype=training.dtype)
        return cls(flat, data, training, seed=seed, client=client)

    def __repr__(self) -> str:
        return f"Trainer(client {self.client}, {self.samples} samples, {self.flat.dim} parameters)"

    @property
    def samples(self) -> int:
        return len(self.train_store)

    @property
    def width(self) -> int:
        """The number of samples in a full batch: the batch size, or all samples if they are fewer."""
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
        """A formula for the loss's gradient on all training data; None if unknown or not worthwhile."""
        if not isinstance(self.exact, ExactLeastSquares) or _FEW * self.flat.dim > self.samples:
            return None
        return LeastSquaresGradient.of(self.exact, self.flat)

    # --- learner interface ---

    def loss(self, model: Array) -> float:
        """Return the mean loss of `model` over all training data."""
        return self.score_in(model, self.train_store).loss

    def gradient(self, model: Array) -> Array:
        """Return the gradient, at `model`, of the mean loss of the client's next batch."""
        started = time.perf_counter()
        self.flat.load(model)
        with self._seeded_layers():
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
        """Return the model after local steps from `start` with the extra terms of `steering`. `only` masks
        the parameters that may change (None: all). Steps and learning rate default to the client's."""
        started = time.perf_counter()
        rate = self.rate if rate is None else checked_rate(rate)
        self.flat.load(start)
        descent = Descent(self.training, self.flat.values, float(rate), self._terms(steering, only))
        with self._seeded_layers():
            for batch in self.batches(self.steps if steps is None else steps):
                self.backward(batch)
                with torch.no_grad():
                    descent.step(self.flat.gradient)
        self.seconds += time.perf_counter() - started
        return self.flat.read()

    def _proximal(self, point: Array, eta: float) -> Array:
        assert self.exact is not None  # `proximal` is set only if `exact` is
        started = time.perf_counter()
        found = self.exact.proximal(point, eta)
        self.seconds += time.perf_counter() - started
        return found

    def score(self, model: Array) -> Score:
        """Return the score of `model` on the client's test data."""
        return self.score_on(model, self._data.test)

    def score_on(self, model: Array, samples: Samples) -> Score:
        """Return the score of `model` on `samples`."""
        return self.score_in(model, SampleTensors.of(samples, self.training, self.flat.device))

    # --- implementation ---

    def next_order(self, steps: int) -> SampleOrder:
        """Return which samples each step of the next training uses. Each call counts as one training."""
        if type(steps) is not int or steps < 0:
            raise TrainingError(
                f"steps must be a whole number of 0 or more, not {steps!r}", parameter="steps"
            )
        call, self.calls = self.calls, self.calls + 1
        return self._batches.of_call(call, steps)

    def batches(self, steps: int) -> Iterator[SampleTensors]:
        """Yield the batches of the next training, one for each of `steps` steps."""
        order = self.next_order(steps)
        for step in range(steps):
            if self._batches.full:
                yield self.train_store
            else:
                yield self.train_store.at(torch.from_numpy(order.of_step(step)).to(self.flat.device))

    def _seeded_layers(self) -> AbstractContextManager[object]:
        """Return a context that seeds random layers, such as dropout, by seed, client and `calls`."""
        return _torch_seed(self._batches.layer_seed(self.calls)) if self.flat.draws else nullcontext()

    def backward(self, batch: SampleTensors) -> None:
        """Store the gradient of the mean loss of `batch`, at the model in `flat`, in `self.flat.gradient`."""
        if batch is self.train_store and self.slope is not None:
            self.flat.gradient.copy_(self.slope(self.flat.values))
            return
        self.flat.module.train()
        self.flat.gradient.zero_()
        outputs: Tensor = self.flat.module(batch.inputs)
        torch.autograd.backward(self.training.objective.losses(outputs, batch.targets).mean())

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
        projection, center = projection_of(penalty.space, self.flat), penalty_center(penalty, self.flat)
        return PenaltyTensors(projection, center, float(penalty.pull), penalty.power)

    def score_in(self, model: Array, store: SampleTensors) -> Score:
        """Return the score of `model` on the samples in `store`, which are on the device already."""
        started = time.perf_counter()
        self.flat.load(model)
        score = evaluate(self.flat.module, self.training, store)
        self.seconds += time.perf_counter() - started
        return score


def penalty_center(penalty: PenaltyTerm, flat: FlatModel) -> Tensor:
    """Return the penalty's center as a tensor: a point of its subspace, or a model if it has no subspace."""
    return flat.tensor(penalty.center, None if penalty.space is None else penalty.space.size)


@contextmanager
def _torch_seed(seed: int) -> Iterator[None]:
    """Return a context that seeds torch's random generators with `seed` and restores them at its end."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def evaluate(module: nn.Module, training: Training, store: SampleTensors) -> Score:
    """Return the score of `module` on all samples of `store`. Leaves `module` in evaluation mode."""
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
    """Return `rate` as a float. Raise `TrainingError` unless it is finite and at least 0."""
    if not 0 <= rate < math.inf:
        raise TrainingError(f"a learning rate must be finite and at least 0, not {rate!r}")
    return float(rate)


def checked_mask(only: Array) -> Array:
    """Return the mask `only` as an array. Raise `TrainingError` unless all values are true, false, 0 or 1."""
    mask = np.asarray(only)
    if not np.isin(mask, (0, 1)).all():
        raise TrainingError("`only` must be true or false for every parameter")
    return mask


def check_model(module: nn.Module, training: Training, store: SampleTensors, data: ClientData) -> None:
    """Raise `TrainingError` unless `module` and its loss fit the samples. Leaves it in evaluation mode."""
    module.eval()
    try:
        with torch.no_grad():
            outputs: Tensor = module(store.inputs[:1])
    except Exception as error:  # a module is user code and may raise anything
        shape = tuple(store.inputs.shape[1:])
        hint = "" if store.inputs.is_floating_point() else _WHOLE
        raise TrainingError(f"the model rejects inputs of shape {shape}: {error}{hint}") from None
    if not isinstance(outputs, Tensor):
        raise TrainingError(
            f"the model must return a tensor, not a {type(outputs).__name__}", parameter="model"
        )
    classes = training.objective.whole_targets
    if outputs.ndim != (2 if classes else 1) or len(outputs) != 1:
        raise TrainingError(
            f"for one sample the model returns outputs of shape {tuple(outputs.shape)}, but the loss "
            f"{training.loss} needs {'(1, classes)' if classes else '(1,)'}"
        )
    for samples in (data.train, data.validation, data.test):
        training.objective.check(samples.y, outputs.shape[-1])
        if len(samples) and samples.x.shape[1:] != data.train.x.shape[1:]:
            raise TrainingError(
                f"training inputs have shape {data.train.x.shape[1:]}, but validation or test inputs have "
                f"{samples.x.shape[1:]}"
            )
