"""What an algorithm may add to plain local steps. Whoever writes algorithms has a class of this shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from fl.samples import Array


class Steering(Protocol):
    """With learning rate r and gradient g, one step without momentum is

        w <- w - r * (g(w) + pull * (w - anchor) + correction)
        w <- keep * w + (1 - keep) * target        with keep = 1 / (1 + r * mix)

    where what is None is left out.
    """

    @property
    def pull(self) -> float: ...
    @property
    def anchor(self) -> Array | None: ...
    @property
    def correction(self) -> Array | None: ...
    @property
    def mix(self) -> float: ...
    @property
    def target(self) -> Array | None: ...


@dataclass(frozen=True)
class NoSteering:
    """Plain steps."""

    pull: float = 0.0
    anchor: Array | None = None
    correction: Array | None = None
    mix: float = 0.0
    target: Array | None = None


PLAIN: Final = NoSteering()
