"""Settings of local SGD: learning-rate schedule, steps, batches and loss."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import torch

from fl.checks import is_integer, is_real, plain, unknown_name
from fl.errors import TrainingError
from fl.loss_functions import OBJECTIVES, Objective, objective

_PRECISIONS: Final = {"float32": torch.float32, "float64": torch.float64}
_NUMBERS: Final = ("rate", "steps", "epochs", "batch", "momentum", "weight_decay", "clip")


@dataclass(frozen=True)
class Schedule:
    """How the learning rate decreases. In round t = 0, 1, ... it is the first rate times, for each `kind`:

    constant  1
    steps     factor ** (t // every); the defaults halve the rate every 100 rounds, as in the RFA paper
    log       1 / (1 + log10(t + 1))
    sqrt      1 / sqrt(t + 1)
    linear    1 / (t + 1)
    """

    kind: str = "constant"
    every: int = 100
    factor: float = 0.5

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown_name("schedule", self.kind, KINDS, parameter="kind")
        every, factor = plain(self.every), plain(self.factor)
        if not is_integer(every) or every < 1:
            raise TrainingError(f"a schedule's `every` is a number of rounds, 1 or more, not {every!r}")
        if not is_real(factor) or not 0 < factor <= 1:
            raise TrainingError(f"a schedule's factor is above 0 and at most 1, not {factor!r}")
        object.__setattr__(self, "every", every)
        object.__setattr__(self, "factor", factor)

    def __call__(self, round_number: int) -> float:
        match self.kind:
            case "steps":
                return float(self.factor ** (round_number // self.every))
            case "log":
                return 1 / (1 + math.log10(round_number + 1))
            case "sqrt":
                return 1 / math.sqrt(round_number + 1)
            case "linear":
                return 1 / (round_number + 1)
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of stochastic gradient descent. Momentum is reset at the start of every training.

    `rate`          learning rate in the first round; `schedule` says how it decreases.
    `steps`         local steps per round, the same for all clients. Set either `steps` or `epochs`.
    `epochs`        passes over a client's data per round. If neither is set, there is one pass.
    `batch`         samples per step; None for all. Every pass is shuffled anew, and its last batch has the
                    remaining samples.
    `momentum`      heavy-ball momentum, from 0 to below 1.
    `weight_decay`  the model times this number is added to the gradient.
    `clip`          largest norm of a batch's gradient; longer gradients are scaled down to this norm.
    `loss`          one of cross-entropy, squared, logistic.
    `precision`     float32, or float64 if exactness matters more than speed.
    """

    rate: float = 0.1
    steps: int | None = None
    epochs: int | None = None
    batch: int | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    schedule: Schedule = field(default_factory=Schedule)
    loss: str = "cross-entropy"
    precision: str = "float32"

    def __post_init__(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise TrainingError("set either steps or epochs, not both")
        for name in _NUMBERS:
            object.__setattr__(self, name, plain(getattr(self, name)))
        for name in ("steps", "epochs", "batch"):
            value = getattr(self, name)
            if value is not None and (not is_integer(value) or value < 1):
                raise TrainingError(
                    f"{name} must be a whole number of 1 or more, not {value!r}", parameter=name
                )
        _check("rate", self.rate, above=0)
        _check("momentum", self.momentum, least=0, below=1)
        _check("weight_decay", self.weight_decay, least=0)
        if self.clip is not None:
            _check("clip", self.clip, above=0)
        kind: object = self.schedule
        if not isinstance(kind, Schedule):
            raise TrainingError(
                f"schedule must be a Schedule, such as Schedule('sqrt'), not {kind!r}", parameter="schedule"
            )
        if self.loss not in OBJECTIVES:
            objective(self.loss)  # raises
        if self.precision not in _PRECISIONS:
            raise TrainingError(
                f"precision must be one of {', '.join(_PRECISIONS)}, not {self.precision!r}",
                parameter="precision",
            )

    @property
    def objective(self) -> Objective:
        return objective(self.loss)

    @property
    def dtype(self) -> torch.dtype:
        return _PRECISIONS[self.precision]

    def batches_per_epoch(self, samples: int) -> int:
        """Return the number of batches in one pass over `samples` samples; the last one may be smaller."""
        return 1 if self.batch is None else math.ceil(samples / self.batch)

    def steps_of(self, samples: int) -> int:
        """Return how many local steps a client with `samples` samples takes in one round."""
        if self.steps is not None:
            return self.steps
        return (1 if self.epochs is None else self.epochs) * self.batches_per_epoch(samples)


def _check(
    name: str,
    value: float,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float = math.inf,
) -> None:
    if (
        is_real(value)
        and value < below
        and (above is None or value > above)
        and (least is None or value >= least)
    ):
        return
    lower = f"above {above:g}" if above is not None else f"at least {least:g}"
    upper = f" and below {below:g}" if below < math.inf else ""
    raise TrainingError(f"{name} must be {lower}{upper}, not {value!r}", parameter=name)


KINDS: Final = ("constant", "steps", "log", "sqrt", "linear")
