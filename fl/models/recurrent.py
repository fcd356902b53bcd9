"""A recurrent network that predicts the next character of a text.

torch's LSTM does not run under `vmap`, so the cell is implemented here. Everything that does not depend on
the previous state is computed for the whole window at once, so one step of the loop is one matrix product.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from fl.checks import check_sizes
from fl.errors import TrainingError


class CharLSTM(nn.Module):
    """Maps windows of characters, as integers, to one logit per possible next character.

    This is the Shakespeare network of "Robust Aggregation for Federated Learning". Windows have any length.

    `vocabulary`  the number of characters.
    `embedding`   size of a character's embedding.
    `hidden`      units per layer.
    `layers`      number of LSTM layers.
    """

    def __init__(
        self, *, vocabulary: int = 53, embedding: int = 8, hidden: int = 128, layers: int = 1
    ) -> None:
        check_sizes(vocabulary=vocabulary, embedding=embedding, hidden=hidden, layers=layers)
        super().__init__()
        self.input = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.ModuleList(
            LSTM(embedding if layer == 0 else hidden, hidden) for layer in range(layers)
        )
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, batch: Tensor) -> Tensor:
        if batch.ndim != 2 or batch.shape[1] == 0 or batch.is_floating_point():
            raise TrainingError(
                f"inputs must be windows of characters as whole numbers, not {batch.dtype} of shape "
                f"{tuple(batch.shape[1:])}"
            )
        states: Tensor = self.input(batch.long())
        for layer in self.lstm:
            states = layer(states)
        logits: Tensor = self.output(states[:, -1])
        return logits


class LSTM(nn.Module):
    """One LSTM layer: maps (batch, time, features) to states (batch, time, hidden). Forget biases start at 1,
    other biases at 0. Rows of matrices are in the order: input, forget, output gate, cell candidate."""

    def __init__(self, before: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        reach = 1 / math.sqrt(hidden)
        self.inputs = nn.Parameter(torch.empty(4 * hidden, before).uniform_(-reach, reach))
        self.states = nn.Parameter(torch.empty(4 * hidden, hidden).uniform_(-reach, reach))
        self.bias = nn.Parameter(torch.zeros(4 * hidden))
        with torch.no_grad():
            self.bias[hidden : 2 * hidden] = 1

    def forward(self, batch: Tensor) -> Tensor:
        drive = linear(batch, self.inputs, self.bias)
        weights = self.states.t()
        state = memory = drive.new_zeros(batch.shape[0], self.hidden)
        states = []
        for step in drive.unbind(1):
            mixed = torch.addmm(step, state, weights)
            enter, forget, leave = mixed[:, : 3 * self.hidden].sigmoid().chunk(3, dim=1)
            memory = torch.addcmul(forget * memory, enter, mixed[:, 3 * self.hidden :].tanh())
            state = leave * memory.tanh()
            states.append(state)
        return torch.stack(states, dim=1)
