"""How a learning rate falls from round to round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from fl.errors import TrainingError
from fl.scalars import is_real, is_whole, plain

KINDS: Final = ("constant", "steps", "log", "sqrt", "linear")


@dataclass(frozen=True)
class Schedule:
    """The rate in round t, counted from 0, as a part of the first one:

    constant  1
    steps     factor ** (t // every): RFA halves every 100 rounds, the splitting chapter every 500
    log       1 / (1 + log10(t + 1))
    sqrt      1 / sqrt(t + 1)
    linear    1 / (t + 1)
    """

    kind: str = "constant"
    every: int = 100
    factor: float = 0.5

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            near = get_close_matches(str(self.kind), KINDS, n=1)
            meant = f": did you mean {near[0]}?" if near else ""
            raise TrainingError(f"no schedule is called {self.kind!r}{meant}; there are {', '.join(KINDS)}")
        every, factor = plain(self.every), plain(self.factor)
        if not is_whole(every) or every < 1:
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
