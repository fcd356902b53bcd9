"""The tasks on which channels of several processes are compared: digits, and a CNN for MNIST.

Clients are made from a factory, by a channel of one process as by the workers of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from fl.crowd import Crowd
from fl.data.digits import CLASSES, digits
from fl.federation import ClientData
from fl.flat_model import flatten
from fl.models import build
from fl.samples import Array, Samples
from fl.stacking_policy import AUTO
from fl.training_settings import Training
from protocols.fedavg import FedAvg
from protocols.serialisation import Vector
from sims.runtime.hosted_clients import ClientFactory, WorkerClients

TASKS: Final = ("digits", "mnist")
_SIDE: Final = 28
_IMAGES: Final = 60_000
_CLIP: Final = 10.0
_SEED: Final = 0


@dataclass(frozen=True)
class RoundTask:
    """Federated averaging with `steps` local steps on batches of `batch` samples. `way` is that of
    `fl.crowd.Crowd`. The model is a softmax regression for digits, and "cnn-mnist" for MNIST."""

    name: str
    clients: int
    steps: int = 5
    batch: int = 10
    way: str = AUTO

    def samples(self, file: Path | None) -> Samples:
        """Return all samples. `file` is an archive with the arrays x_train and y_train of MNIST; if it is
        None, images are random, which takes as long to train."""
        if self.name == "digits":
            found = digits()
            return Samples(found.x.reshape(len(found), -1), found.y)
        if file is None:
            rng = np.random.default_rng(_SEED)
            images = rng.random((_IMAGES, 1, _SIDE, _SIDE), np.float32)
            return Samples(images, rng.integers(0, CLASSES, _IMAGES))
        with np.load(file) as archive:
            images, labels = archive["x_train"], archive["y_train"]
        return Samples((images / np.float32(255))[:, None], labels.astype(np.int64))

    def data(self, file: Path | None) -> dict[int, ClientData]:
        """Return the samples of each client, by id: equal parts at random."""
        everything = self.samples(file)
        order = np.random.default_rng(_SEED).permutation(len(everything))
        none = everything.take(np.arange(0))
        return {
            client: ClientData(everything.take(np.sort(part)), none, none)
            for client, part in enumerate(np.array_split(order, self.clients))
        }

    def crowd(self, data: Mapping[int, ClientData]) -> Crowd:
        training = Training(rate=0.1, steps=self.steps, batch=self.batch)
        return Crowd(self._module(), data, training, seed=_SEED, device="cpu", batching=self.way)

    def factory(self, data: Mapping[int, ClientData]) -> ClientFactory:
        return ClientFactory(made_clients, self, data)

    def algorithm(self) -> FedAvg:
        return FedAvg(dim=len(self.start()), clients=self.clients, clip=_CLIP)

    def start(self) -> Vector:
        model: Array = flatten(self._module())
        return model.astype(np.float64)

    def _module(self) -> torch.nn.Module:
        if self.name == "digits":
            return build("softmax", seed=_SEED, features=64, classes=CLASSES)
        return build("cnn-mnist", seed=_SEED)


def made_clients(task: Any, owned: Mapping[int, Any]) -> WorkerClients:
    """Make the clients of one worker, which has one thread."""
    torch.set_num_threads(1)
    return WorkerClients(task.crowd(owned))
