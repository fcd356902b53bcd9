"""The data loaders of the project, as they were before secure sums. A real site would read its own files."""

from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from fl.data.digits import digits

SITES = 5


def loaders(site: int) -> tuple["DataLoader[Any]", "DataLoader[Any]"]:
    """Return the samples of a site (1 to 5), for training and for tests."""
    samples = digits()
    inputs = torch.as_tensor(samples.x[site - 1 :: SITES], dtype=torch.float32)
    targets = torch.as_tensor(samples.y[site - 1 :: SITES], dtype=torch.int64)
    cut = len(inputs) * 4 // 5
    train = TensorDataset(inputs[:cut], targets[:cut])
    test = TensorDataset(inputs[cut:], targets[cut:])
    return DataLoader(train, batch_size=16, shuffle=True), DataLoader(test, batch_size=64)
