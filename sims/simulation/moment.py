"""Where a simulation is right now, for whoever watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias


@dataclass(frozen=True, kw_only=True)
class Progress:
    """`done` rounds are over. The rest is of the round and the sum in the making, as far as there is any."""

    done: int
    rounds: int
    sum: int | None = None
    kind: str = ""
    stage: str = ""
    survivors: int | None = None  # of the last sum
    accuracy: float | None = None  # when it was last measured
    epsilon: float | None = None
    bytes: int = 0  # that all clients have sent

    def __str__(self) -> str:
        return ", ".join(filter(None, (self._where(), *self._facts())))

    def _where(self) -> str:
        """Round, sum within the round, stage."""
        if self.done == self.rounds or not self.stage:
            return f"round {self.done} of {self.rounds} over"
        which = "set-up" if self.sum is None else f"sum {self.sum} ({self.kind})"
        return f"round {self.done + 1} of {self.rounds}, {which}, {self.stage}"

    def _facts(self) -> Iterator[str]:
        if self.survivors is not None:
            yield f"{self.survivors} in the last sum"
        if self.accuracy is not None:
            yield f"accuracy {self.accuracy:.1%}"
        if self.epsilon is not None:
            yield f"epsilon {self.epsilon:.3g}"
        if self.bytes:
            yield f"{self.bytes / 1e6:.1f} MB sent"

    def now(self, **changes: Any) -> Progress:
        return replace(self, **changes)


Watch: TypeAlias = Callable[[Progress], None]


def no_progress(_progress: Progress) -> None:
    pass
