"""The gain of training many clients together over one after another, for every model of a paper.

The ways take turns in the same run, each with one thread, and the best of each counts: other work on the
machine can only add. Data are random, and clients have different amounts of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch

from fl.crowd import Crowd
from fl.device_and_threads import one_thread
from fl.federation import ClientData
from fl.flat_model import flatten
from fl.models.base import Model
from fl.samples import Array, Samples
from fl.stacking_policy import AUTO, ONE_BY_ONE, TOGETHER, can_stack
from fl.training_settings import Training
from papers.model_setups import SETUPS, ModelSetup
from secagg.errors import LocalError
from sims.console_progress import OnProgress

RUNS: Final = 3  # of every way at least
MOST_RUNS: Final = 25  # where they take less than ENOUGH CPU seconds in all, because short ones vary more
ENOUGH: Final = 3.0
WINDOW: Final = 20  # characters that a recurrent network sees
RATE: Final = 0.01
SEED: Final = 0
# Models of which a step takes so long that fewer clients and fewer steps have to do.
FEWER: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        "cifar-cnn": (4, 1),
        "cifar-lenet": (20, 2),
        "emnist-convnet": (10, 2),
        "emnist-resnet18": (2, 1),
        "emnist-rfa-convnet": (2, 1),
        "mnist-cnn": (50, 2),
        "mnist-resnet": (10, 1),
        "shakespeare-lstm": (20, 1),
    }
)


@dataclass(frozen=True)
class TrainingSetting:
    """`model` is the name of a set-up, and None stands for all; `features` make a softmax regression."""

    clients: int = 100
    batch: int = 10
    steps: int = 5
    model: str | None = None
    features: int | None = None

    def __post_init__(self) -> None:
        if self.model is not None and self.features is not None:
            raise LocalError("a set-up has its own features: give either --model or --features")
        if self.model is not None and self.model not in SETUPS:
            raise LocalError(f"there is no set-up {self.model!r}; there are {', '.join(SETUPS)}")

    @property
    def setups(self) -> Mapping[str, ModelSetup]:
        if self.features is not None:
            parameters = {"features": self.features, "classes": 10}
            return {f"softmax-{self.features}": ModelSetup("softmax", parameters)}
        return dict(SETUPS) if self.model is None else {self.model: SETUPS[self.model]}

    def amount(self, name: str) -> tuple[int, int]:
        """Return clients and steps; fewer for large models, unless one is requested by name."""
        if self.model is not None or name not in FEWER:
            return self.clients, self.steps
        clients, steps = FEWER[name]
        return min(self.clients, clients), min(self.steps, steps)


@dataclass(frozen=True, kw_only=True)
class TrainingCosts:
    """CPU seconds until all clients have trained; `together` is None if a model cannot be stacked.

    `difference` is the largest one between two ways, over all clients and parameters.
    """

    setup: str
    dim: int
    clients: int
    batch: int
    steps: int
    one_by_one_cpu_s: float
    together_cpu_s: float | None
    auto_cpu_s: float
    difference: float

    @property
    def speedup(self) -> float | None:
        return None if self.together_cpu_s is None else self.one_by_one_cpu_s / self.together_cpu_s

    @property
    def auto_over_best(self) -> float:
        others = (self.one_by_one_cpu_s, self.together_cpu_s)
        return self.auto_cpu_s / min(each for each in others if each is not None)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "speedup": self.speedup, "auto_over_best": self.auto_over_best}


@dataclass(frozen=True)
class TrainingReport:
    setting: TrainingSetting
    costs: Sequence[TrainingCosts]

    def as_json(self) -> dict[str, Any]:
        return {"setups": [each.as_json() for each in self.costs]}


def measure(setting: TrainingSetting, progress: OnProgress) -> TrainingReport:
    costs = []
    with one_thread():
        for done, (name, setup) in enumerate(setting.setups.items()):
            progress(name, done, len(setting.setups))
            clients, steps = setting.amount(name)
            costs.append(_compare(name, setup, clients, setting.batch, steps))
    return TrainingReport(setting, costs)


def _compare(name: str, setup: ModelSetup, clients: int, batch: int, steps: int) -> TrainingCosts:
    data, loss = random_clients(setup, clients, batch)
    training = Training(rate=RATE, batch=batch, steps=steps, loss=loss)
    start = flatten(setup.build(seed=SEED))
    crowds = {
        way: Crowd(setup.build(), data, training, seed=SEED, device="cpu", batching=way)
        for way in (ONE_BY_ONE, TOGETHER, AUTO)
    }
    if not can_stack(crowds[AUTO].flat):
        del crowds[TOGETHER]
    # All ways see the same batches in their first run, which does not count: much is set up in it.
    models = {way: crowd.train(start) for way, crowd in crowds.items()}
    costs = _best({way: partial(crowd.train, start) for way, crowd in crowds.items()})
    return TrainingCosts(
        setup=name,
        dim=len(start),
        clients=clients,
        batch=batch,
        steps=steps,
        one_by_one_cpu_s=costs[ONE_BY_ONE],
        together_cpu_s=costs.get(TOGETHER),
        auto_cpu_s=costs[AUTO],
        difference=max(_difference(models[ONE_BY_ONE], each) for each in models.values()),
    )


def _best(works: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Return the least CPU seconds of each over several runs, in turns."""
    best, spent, runs = dict.fromkeys(works, float("inf")), 0.0, 0
    while runs < RUNS or (runs < MOST_RUNS and spent < ENOUGH):
        for name, work in works.items():
            seconds = cpu_seconds(work)
            best[name] = min(best[name], seconds)
            spent += seconds
        runs += 1
    return best


def _difference(one: Mapping[int, Array], other: Mapping[int, Array]) -> float:
    return max(float(np.abs(one[client] - other[client]).max()) for client in one)


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds of the process."""
    started = time.process_time()
    work()
    return time.process_time() - started


def random_clients(setup: ModelSetup, clients: int, batch: int) -> tuple[dict[int, ClientData], str]:
    """Return clients with one to four batches each, of which the last is seldom full, and their loss."""
    rng = np.random.default_rng(SEED)
    sizes = [int(size) for size in rng.integers(batch, 4 * batch, clients, endpoint=True)]
    inputs, classes = _inputs(setup, sum(sizes), rng)
    if classes is None:
        targets, loss = rng.choice([-1.0, 1.0], sum(sizes)), "logistic"
    else:
        targets, loss = rng.integers(0, classes, sum(sizes)), "cross-entropy"
    everything = Samples(inputs, targets)
    stops = np.cumsum(sizes)
    none = everything.take(np.arange(0))
    data = {
        client: ClientData(everything.take(np.arange(stop - size, stop)), none, none)
        for client, (size, stop) in enumerate(zip(sizes, stops, strict=True))
    }
    return data, loss


def _inputs(setup: ModelSetup, count: int, rng: np.random.Generator) -> tuple[Array, int | None]:
    """Return random inputs of the model, and its number of classes; None for one number instead."""
    module = setup.build()
    if isinstance(module, Model):
        inputs = rng.standard_normal((count, *module.shape), np.float32)
        outputs = module.eval()(torch.from_numpy(inputs[:1]))
        return inputs, None if outputs.ndim == 1 else outputs.shape[1]
    characters = module.get_parameter("input.weight").shape[0]
    return rng.integers(0, characters, (count, WINDOW)), characters
