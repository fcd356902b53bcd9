"""Convolutional networks from papers: two 5 x 5 convolutions, then dense layers."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from torch import nn

from fl.checks import check_sizes
from fl.errors import TrainingError
from fl.models.base import Chain

_KERNEL: Final = 5


class ConvNet(Chain):
    """Two blocks of 5 x 5 convolution, ReLU and 2 x 2 max pooling, then dense layers.

    `channels`    number of channels of an input image.
    `size`        height and width of an input image.
    `classes`     number of classes.
    `filters`     numbers of filters of the first and the second convolution.
    `hidden`      widths of the dense layers before the last one.
    `padded`      whether convolutions pad the image and keep its size.
    `normalised`  whether there is local response normalisation after the first and before the second pooling.
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
        for number, (before, after) in enumerate(pairwise(width), start=1):
            layers[f"dense{number}"] = nn.Linear(before, after)
            layers[f"relu{number + 2}"] = nn.ReLU()
        layers["output"] = nn.Linear(width[-1], classes)
        super().__init__((channels, size, size), layers)


def _side(size: int, padding: int) -> int:
    """Return the height and width of a `size` x `size` image after the two blocks (convolution and pooling)
    of a `ConvNet`. Raise `TrainingError` if nothing of the image is left."""
    side = size
    for _ in range(2):
        side = (side + 2 * padding - _KERNEL + 1) // 2
    if side < 1:
        least = 4 if padding else 16
        raise TrainingError(f"images of {size} x {size} are too small: size must be {least} or more")
    return side


def cnn_mnist(*, channels: int = 1, size: int = 28, classes: int = 10) -> ConvNet:
    """Return the network for MNIST of Table 1 of "A Unifying Framework for Federated Learning"."""
    return ConvNet(channels=channels, size=size, classes=classes, filters=(10, 20), hidden=(20,))


def cnn_cifar(*, channels: int = 3, size: int = 32, classes: int = 10) -> ConvNet:
    """Return the network for CIFAR-10 of Table 2 of "A Unifying Framework for Federated Learning"."""
    return ConvNet(
        channels=channels, size=size, classes=classes, filters=(64, 64), hidden=(384, 192), normalised=True
    )


def rfa_convnet(*, channels: int = 1, size: int = 28, classes: int = 62) -> ConvNet:
    """Return the network for EMNIST of "Robust Aggregation for Federated Learning" (RFA)."""
    return ConvNet(
        channels=channels, size=size, classes=classes, filters=(32, 64), hidden=(2048,), padded=True
    )


def convnet(*, channels: int = 1, size: int = 28, classes: int = 62) -> ConvNet:
    """Return the network of "Federated Learning with Superquantile Aggregation for Heterogeneous Data"."""
    return ConvNet(channels=channels, size=size, classes=classes, filters=(32, 64))


def lenet(*, channels: int = 3, size: int = 32, classes: int = 10) -> ConvNet:
    """Return LeNet (6 and 16 filters, dense layers of 120 and 84 units), as papers use it for CIFAR-10."""
    return ConvNet(channels=channels, size=size, classes=classes, filters=(6, 16), hidden=(120, 84))
