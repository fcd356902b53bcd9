"""Residual networks with group normalisation, which has no running statistics.

The networks are those of "Federated Learning with Partial Model Personalization", at any width: a 3 x 3
convolution without pooling, stages of residual blocks (each stage but the first halves the image), and a
linear layer on the spatial mean. Adapters are small personal layers after both convolutions of every block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from torch import Tensor, nn
from torch.nn.functional import relu

from fl.checks import check_booleans, check_sizes, layer_widths
from fl.errors import TrainingError
from fl.models.base import Model

# Small, so that a new adapter hardly changes the output.
_ADAPTER_SCALE: Final = 1e-4


class ResNet(Model):
    """A residual network. Widths 64, 128, 256, 512 with 2 blocks each give ResNet-18.

    `channels`  number of channels of an input image.
    `size`      height and width of an input image.
    `classes`   number of classes.
    `widths`    number of channels of each stage.
    `blocks`    number of residual blocks per stage.
    `adapters`  whether every block has adapters, small layers that can be personal to a client.
    """

    def __init__(
        self,
        *,
        channels: int = 1,
        size: int = 28,
        classes: int = 10,
        widths: Sequence[int] = (16, 32, 64),
        blocks: int = 1,
        adapters: bool = False,
    ) -> None:
        check_sizes(channels=channels, size=size, classes=classes, blocks=blocks)
        check_booleans(adapters=adapters)
        width = layer_widths("widths", widths)
        if not width:
            raise TrainingError("widths must name at least one stage, such as [16]", parameter="widths")
        super().__init__((channels, size, size))
        self.input = nn.Sequential()
        self.input.add_module("conv", _conv(channels, width[0], kernel=3))
        self.input.add_module("norm", _norm(width[0]))
        self.blocks = nn.Sequential(*_stage(width[0], width[0], 1, blocks, adapters))
        for before, after in pairwise(width):
            self.blocks.extend(_stage(before, after, 2, blocks, adapters))
        self.output = nn.Linear(width[-1], classes)

    def predict(self, batch: Tensor) -> Tensor:
        hidden: Tensor = self.blocks(relu(self.input(batch)))
        logits: Tensor = self.output(hidden.mean(dim=(2, 3)))
        return logits


class Block(nn.Module):
    """A residual block: two 3 x 3 convolutions and a skip path (a 1 x 1 convolution if shapes differ)."""

    def __init__(self, before: int, after: int, stride: int, *, adapters: bool) -> None:
        super().__init__()
        self.conv1 = _conv(before, after, kernel=3, stride=stride)
        self.adapter1 = Adapter(after) if adapters else None
        self.norm1 = _norm(after)
        self.conv2 = _conv(after, after, kernel=3)
        self.adapter2 = Adapter(after) if adapters else None
        self.norm2 = _norm(after)
        self.skip = None
        if stride != 1 or before != after:
            self.skip = nn.Sequential()
            self.skip.add_module("conv", _conv(before, after, kernel=1, stride=stride))
            self.skip.add_module("norm", _norm(after))

    def forward(self, images: Tensor) -> Tensor:
        hidden = relu(self.norm1(_adapted(self.conv1(images), self.adapter1)))
        hidden = self.norm2(_adapted(self.conv2(hidden), self.adapter2))
        return relu(hidden + (images if self.skip is None else self.skip(images)))


class Adapter(nn.Module):
    """A layer x + W norm(x): group normalisation, then a channels x channels matrix W at every pixel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = _norm(channels)
        self.conv = nn.Conv2d(channels, channels, 1, bias=False)
        nn.init.normal_(self.conv.weight, std=_ADAPTER_SCALE)

    def forward(self, images: Tensor) -> Tensor:
        change: Tensor = self.conv(self.norm(images))
        return images + change


def _adapted(images: Tensor, adapter: Adapter | None) -> Tensor:
    """Return images + adapter(images), or `images` without an adapter. The adapter itself adds its input, so
    `images` count twice, as in the code of "Federated Learning with Partial Model Personalization". The
    normalisation that follows makes the scale irrelevant."""
    if adapter is None:
        return images
    added: Tensor = images + adapter(images)
    return added


def _stage(before: int, after: int, stride: int, blocks: int, adapters: bool) -> list[Block]:
    first = Block(before, after, stride, adapters=adapters)
    return [first, *(Block(after, after, 1, adapters=adapters) for _ in range(blocks - 1))]


def _conv(before: int, after: int, *, kernel: int, stride: int = 1) -> nn.Conv2d:
    layer = nn.Conv2d(before, after, kernel, stride=stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


def _norm(channels: int) -> nn.GroupNorm:
    """Return a group normalisation with about 8 channels per group or, above 64 channels, about 16 channels
    per group and at most 32 groups."""
    wanted = max(1, channels // 8) if channels <= 64 else min(32, channels // 16)
    return nn.GroupNorm(math.gcd(wanted, channels), channels)
