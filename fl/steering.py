"""What an algorithm may add to plain local steps. Whoever writes algorithms has a class of this shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from fl.samples import Array
from fl.subspace import Subspace


class Tie(Protocol):
    """The term pull / power * |P w - place|^power, with the norm of that power, 1 or 2; `space` has P, and is
    None for P = 1.
    """

    @property
    def place(self) -> Array: ...
    @property
    def pull(self) -> float: ...
    @property
    def power(self) -> int: ...
    @property
    def space(self) -> Subspace | None: ...


class Steering(Protocol):
    """With learning rate r and gradient g, one step without momentum is

        w <- w - r * (g(w) + pull * (w - anchor) + correction + gradient of tie)
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
    @property
    def tie(self) -> Tie | None: ...


@dataclass(frozen=True)
class NoSteering:
    """Plain steps."""

    pull: float = 0.0
    anchor: Array | None = None
    correction: Array | None = None
    mix: float = 0.0
    target: Array | None = None
    tie: Tie | None = None


PLAIN: Final = NoSteering()
