"""The convolutional networks of the papers: two convolutions with kernels of 5 x 5, then dense layers."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from torch import nn

from fl.checks import check_sizes
from fl.errors import TrainingError
from fl.models.base import Chain

_KERNEL: Final = 5


class ConvNet(Chain):
    """Twice a convolution, ReLU and the maximum over 2 x 2; then dense layers with ReLU, and one without.

    `channels`    of an input image.
    `size`        its height and width.
    `classes`     how many there are.
    `filters`     of the first and the second convolution.
    `hidden`      widths of the dense layers before the last one.
    `padded`      whether images are padded, so that a convolution keeps their size.
    `normalised`  whether responses of neighbouring filters are normalised, after the first maximum and before
                  the second one.
    """

    def __init__(
        self,
        *,
        channels: int,
        size: int,
        classes: int,
        filters: tuple[int, int],
        hidden: tuple[int, ...] = (),
        padded: bool = False,
        normalised: bool = False,
    ) -> None:
        check_sizes(channels=channels, size=size, classes=classes)
        padding = _KERNEL // 2 if padded else 0
        first, second = filters
        layers: dict[str, nn.Module] = {
            "input": nn.Conv2d(channels, first, _KERNEL, padding=padding),
            "relu1": nn.ReLU(),
            "pool1": nn.MaxPool2d(2),
        }
        if normalised:
            layers["norm1"] = nn.LocalResponseNorm(2)
        layers["conv2"] = nn.Conv2d(first, second, _KERNEL, padding=padding)
        layers["relu2"] = nn.ReLU()
        if normalised:
            layers["norm2"] = nn.LocalResponseNorm(2)
        layers["pool2"] = nn.MaxPool2d(2)
        layers["flat"] = nn.Flatten()
        width = (second * _side(size, padding) ** 2, *hidden)
        for place, (before, after) in enumerate(pairwise(width), start=1):
            layers[f"dense{place}"] = nn.Linear(before, after)
            layers[f"relu{place + 2}"] = nn.ReLU()
        layers["output"] = nn.Linear(width[-1], classes)
        super().__init__((channels, size, size), layers)


def _side(size: int, padding: int) -> int:
    """Height and width after both convolutions."""
    side = size
    for _ in range(2):
        side = (side + 2 * padding - _KERNEL + 1) // 2
    if side < 1:
        least = 4 if padding else 16
        raise TrainingError(f"images of {size} x {size} are too small: size must be {least} or more")
    return side


def cnn_mnist(*, channels: int = 1, size: int = 28, classes: int = 10) -> ConvNet:
    """Table 1 of "A Unifying Framework for Federated Learning"."""
    return ConvNet(channels=channels, size=size, classes=classes, filters=(10, 20), hidden=(20,))


def cnn_cifar(*, channels: int = 3, size: int = 32, classes: int = 10) -> ConvNet:
    """Table 2 of "A Unifying Framework for Federated Learning"."""
    return ConvNet(
        channels=channels, size=size, classes=classes, filters=(64, 64), hidden=(384, 192), normalised=True
    )


def rfa_convnet(*, channels: int = 1, size: int = 28, classes: int = 62) -> ConvNet:
    """The network of "Robust Aggregation for Federated Learning" for EMNIST."""
    return ConvNet(
        channels=channels, size=size, classes=classes, filters=(32, 64), hidden=(2048,), padded=True
    )


def convnet(*, channels: int = 1, size: int = 28, classes: int = 62) -> ConvNet:
    """That of "Federated Learning with Superquantile Aggregation for Heterogeneous Data" for EMNIST."""
    return ConvNet(channels=channels, size=size, classes=classes, filters=(32, 64))


def lenet(*, channels: int = 3, size: int = 32, classes: int = 10) -> ConvNet:
    """LeNet, in the form in which papers on federated learning train it on CIFAR-10."""
    return ConvNet(channels=channels, size=size, classes=classes, filters=(6, 16), hidden=(120, 84))
