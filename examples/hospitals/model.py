"""What the hospitals and the server have in common: the model and the terms. And the patients, which only the
hospital itself has: here they are invented."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sims.deploy.training import training_terms


class Net(nn.Module):
    """Predicts from ten measurements whether a patient is ill."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layers(x)
        return scores


def patients(hospital: int) -> tuple[TensorDataset, TensorDataset]:
    """Return the patients of a hospital, for training and for tests."""
    rng = np.random.default_rng(hospital)
    x = rng.standard_normal((500, 10)).astype(np.float32)
    ill = x[:, :5].sum(axis=1) + 0.3 * hospital * x[:, 9] > 0  # hospitals differ a little
    inputs, targets = torch.from_numpy(x), torch.from_numpy(ill.astype(np.int64))
    return TensorDataset(inputs[:400], targets[:400]), TensorDataset(inputs[400:], targets[400:])


ALGORITHM = {"name": "fedgeomed+"}  # robust, and with a personal model for each hospital
TRAINING = {"rate": 0.1, "epochs": 2, "batch": 20}
CHANNEL = {"trust": "malicious_server", "corrupt": 1}
TERMS = training_terms(Net, clients=3, rounds=12, algorithm=ALGORITHM, training=TRAINING, channel=CHANNEL)
