"""Linear models: regression, softmax regression, and the sum of a shared and a personal one."""

from __future__ import annotations

from torch import Tensor, nn

from fl.models import checks
from fl.models.model import Model


class Linear(Model):
    """Linear regression: one number for every input.

    With the logistic loss, it is logistic regression with labels -1 and 1.

    `features`  numbers of one input, which may come in any shape.
    `bias`      whether there is a constant term.
    `zero`      whether it starts at zero; else at random.
    """

    def __init__(self, *, features: int, bias: bool = True, zero: bool = True) -> None:
        super().__init__((_checked(features, bias=bias, zero=zero),))
        self.output = _layer(features, 1, bias=bias, zero=zero)

    def predict(self, batch: Tensor) -> Tensor:
        values: Tensor = self.output(batch)
        return values.squeeze(-1)


class Softmax(Model):
    """Softmax regression: one logit for every class.

    `features`  numbers of one input, which may come in any shape.
    `classes`   how many there are.
    `bias`      whether there is a constant term.
    `zero`      whether it starts at zero; else at random.
    """

    def __init__(self, *, features: int, classes: int, bias: bool = True, zero: bool = True) -> None:
        super().__init__((_checked(features, classes, bias=bias, zero=zero),))
        self.output = _layer(features, classes, bias=bias, zero=zero)

    def predict(self, batch: Tensor) -> Tensor:
        logits: Tensor = self.output(batch)
        return logits


class Additive(Model):
    """Two linear models whose outputs are added: one that all clients share, and one of a client's own.

    The additive model for personalisation of "Federated Learning with Partial Model Personalization", with
    linear parts.

    `features`  numbers of one input, which may come in any shape.
    `classes`   how many there are; none for a regression.
    `bias`      whether both parts have a constant term.
    `zero`      whether it starts at zero; else at random.
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
    checks.whole(features=features, classes=classes)
    checks.truth(bias=bias, zero=zero)
    return features


def _layer(features: int, outputs: int, *, bias: bool, zero: bool) -> nn.Linear:
    layer = nn.Linear(features, outputs, bias=bias)
    if zero:
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)
    return layer
