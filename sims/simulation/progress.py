"""The progress of a simulation, as it is shown to the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The state of a simulation, for the user: rounds `done`; the running `sum` of the round (from 1; None in
    set-up and between rounds), its `kind` and `stage`; clients in the last total; `bytes` sent by clients."""

    done: int  # rounds that are over
    rounds: int  # of the whole simulation
    sum: int | None = None  # running sum of the round, counted from 1; None in set-up
    kind: str = ""  # of the running sum
    stage: str = ""  # of the running sum or set-up; empty between rounds
    survivors: int | None = None  # clients in the last total
    accuracy: float | None = None  # as last measured
    epsilon: float | None = None
    bytes: int = 0  # that all clients have sent

    def __str__(self) -> str:
        return ", ".join(filter(None, (self._where(), *self._facts())))

    def _where(self) -> str:
        """Return a text with the round, the sum within the round, and the stage."""
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


OnProgress: TypeAlias = Callable[[Progress], None]


def no_progress(_progress: Progress) -> None:
    pass
