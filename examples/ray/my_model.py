"""A torch model for handwritten digits of 8 x 8 pixels."""

from torch import nn


def small_net(width: int = 16) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
