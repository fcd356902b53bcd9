"""The task on which channels and engines are compared: softmax regression on digits, federated averaging.

Every client takes full steps over all its data, so that training draws nothing at random: the same rounds
give the same model on any engine, up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

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

CLIP: Final = 10.0  # longer than any update here
RATE: Final = 0.5
SEED: Final = 0
_PIXELS: Final = 64


@dataclass(frozen=True)
class DigitsTask:
    """`clients` have about as many digits each, and take `steps` local steps in a round."""

    clients: int
    steps: int = 5

    def data(self) -> Mapping[int, Samples]:
        """Return all digits, shuffled and distributed: vectors of 64 pixels and their labels."""
        everything = digits()
        flat = Samples(everything.x.reshape(len(everything), _PIXELS), everything.y)
        order = np.random.default_rng(SEED).permutation(len(flat))
        parts = np.array_split(order, self.clients)
        return {client: flat.take(np.sort(part)) for client, part in enumerate(parts)}

    def crowd(self, way: str = AUTO) -> Crowd:
        data = self.data()
        none = data[0].take(np.arange(0))
        own = {client: ClientData(samples, none, none) for client, samples in data.items()}
        training = Training(rate=RATE, steps=self.steps)
        return Crowd(self._module(), own, training, seed=SEED, device="cpu", batching=way)

    def algorithm(self) -> FedAvg:
        return FedAvg(dim=len(self.start()), clients=self.clients, clip=CLIP)

    def start(self) -> Vector:
        model: Array = flatten(self._module())
        return model.astype(np.float64)

    def _module(self) -> torch.nn.Module:
        return build("softmax", seed=SEED, features=_PIXELS, classes=CLASSES)
