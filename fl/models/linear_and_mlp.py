"""Linear and softmax regression, the sum of a shared and a personal linear model, and MLPs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from fl.checks import check_booleans, check_probabilities, check_sizes, layer_widths
from fl.models.base import Chain, Model


class Linear(Model):
    """Linear regression: one number per input. With the logistic loss, it is a logistic regression.

    `features`  numbers per input, which may have any shape.
    `bias`      whether there is a constant term.
    `zero`      whether parameters start at zero instead of at random.
    """

    def __init__(self, *, features: int, bias: bool = True, zero: bool = True) -> None:
        super().__init__((_checked(features, bias=bias, zero=zero),))
        self.output = _layer(features, 1, bias=bias, zero=zero)

    def predict(self, batch: Tensor) -> Tensor:
        values: Tensor = self.output(batch)
        return values.squeeze(-1)


class Softmax(Model):
    """Softmax regression: one logit per class.

    `features`  numbers per input, which may have any shape.
    `classes`   the number of classes.
    `bias`      whether there is a constant term.
    `zero`      whether parameters start at zero instead of at random.
    """

    def __init__(self, *, features: int, classes: int, bias: bool = True, zero: bool = True) -> None:
        super().__init__((_checked(features, classes, bias=bias, zero=zero),))
        self.output = _layer(features, classes, bias=bias, zero=zero)

    def predict(self, batch: Tensor) -> Tensor:
        logits: Tensor = self.output(batch)
        return logits


class Additive(Model):
    """The sum of two linear models, one shared by all clients and one personal: the additive model of
    "Federated Learning with Partial Model Personalization" with linear parts.

    `features`  numbers per input, which may have any shape.
    `classes`   the number of classes; None for a regression.
    `bias`      whether both parts have a constant term.
    `zero`      whether parameters start at zero instead of at random.
    """

    def __init__(
        self, *, features: int, classes: int | None = None, bias: bool = False, zero: bool = True
    ) -> None:
        outputs = 1 if classes is None else classes
        super().__init__((_checked(features, outputs, bias=bias, zero=zero),))
        self.regression = classes is None
        self.shared = _layer(features, outputs, bias=bias, zero=zero)
        self.personal = _layer(features, outputs, bias=bias, zero=zero)

    def predict(self, batch: Tensor) -> Tensor:
        outputs: Tensor = self.shared(batch) + self.personal(batch)
        return outputs.squeeze(-1) if self.regression else outputs


def _checked(features: int, classes: int = 1, *, bias: bool, zero: bool) -> int:
    check_sizes(features=features, classes=classes)
    check_booleans(bias=bias, zero=zero)
    return features


def _layer(features: int, outputs: int, *, bias: bool, zero: bool) -> nn.Linear:
    layer = nn.Linear(features, outputs, bias=bias)
    if zero:
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)
    return layer


class MLP(Chain):
    """Fully connected layers with ReLU between them.

    With two hidden layers of 100 units, it is the `2nn` of "Personalized Federated Learning towards
    Communication Efficiency, Robustness and Fairness". With one hidden layer of 128 units and dropout 0.5, it
    is the network that "FedBC: Federated Learning Beyond Consensus" trains on MNIST.

    `features`  numbers per input, which may have any shape.
    `classes`   the number of classes.
    `hidden`    widths of the hidden layers.
    `dropout`   probability that a hidden unit is dropped in a training step.
    """

    def __init__(
        self, *, features: int, classes: int, hidden: Sequence[int] = (100, 100), dropout: float = 0.0
    ) -> None:
        check_sizes(features=features, classes=classes)
        check_probabilities(dropout=dropout)
        width = (features, *layer_widths("hidden", hidden))
        layers: dict[str, nn.Module] = {}
        for number, (before, after) in enumerate(pairwise(width), start=1):
            layers["input" if number == 1 else f"dense{number}"] = nn.Linear(before, after)
            layers[f"relu{number}"] = nn.ReLU()
            if dropout:
                layers[f"dropout{number}"] = nn.Dropout(dropout)
        layers["output"] = nn.Linear(width[-1], classes)
        super().__init__((features,), layers)
