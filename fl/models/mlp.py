"""Networks of fully connected layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from fl.models import checks
from fl.models.model import Chain


class MLP(Chain):
    """Fully connected layers with ReLU between them.

    With hidden layers of 100 and 100 it is the `2nn` of "Personalized Federated Learning towards
    Communication Efficiency, Robustness and Fairness"; with one of 128 and dropout 0.5, the network that
    "FedBC: Federated Learning Beyond Consensus" trains on MNIST.

    `features`  numbers of one input, which may come in any shape.
    `classes`   how many there are.
    `hidden`    widths of the hidden layers.
    `dropout`   chance that a hidden unit is left out of a training step.
    """

    def __init__(
        self, *, features: int, classes: int, hidden: Sequence[int] = (100, 100), dropout: float = 0.0
    ) -> None:
        checks.whole(features=features, classes=classes)
        checks.probability(dropout=dropout)
        width = (features, *checks.widths("hidden", hidden))
        layers: dict[str, nn.Module] = {}
        for place, (before, after) in enumerate(pairwise(width), start=1):
            layers["input" if place == 1 else f"dense{place}"] = nn.Linear(before, after)
            layers[f"relu{place}"] = nn.ReLU()
            if dropout:
                layers[f"dropout{place}"] = nn.Dropout(dropout)
        layers["output"] = nn.Linear(width[-1], classes)
        super().__init__((features,), layers)
