"""Steps on some parameters alone."""

from __future__ import annotations

import pytest
import torch

from fl.gradient_step import Descent, StepTerms
from fl.training_settings import Training


@pytest.mark.parametrize(
    ("clip", "moved"),
    [(None, [0.0, 3.0, 4.0]), (5.0, [0.0, 3.0, 4.0]), (2.5, [0.0, 1.5, 2.0])],
)
def test_a_clip_bounds_the_gradient_of_what_moves(clip: float | None, moved: list[float]) -> None:
    """Where a part of the gradient is far longer, it would otherwise decide on the steps of the rest."""
    values = torch.zeros(3)
    descent = Descent(Training(clip=clip), values, 1.0, StepTerms(only=torch.tensor([0.0, 1.0, 1.0])))
    descent.step(torch.tensor([1000.0, -3.0, -4.0]))
    assert values.tolist() == pytest.approx(moved)
