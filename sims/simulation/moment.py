"""Where a simulation is right now, for whoever watches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias


@dataclass(frozen=True, kw_only=True)
class Moment:
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

    def now(self, **changes: Any) -> Moment:
        return replace(self, **changes)


Watch: TypeAlias = Callable[[Moment], None]


def nobody_watches(_moment: Moment) -> None:
    pass
