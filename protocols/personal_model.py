"""The personal model that a client keeps from round to round, and the mixin of algorithms that have one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from protocols.learner import Learner
from protocols.serialisation import Vector


@dataclass(frozen=True, repr=False)  # it is private
class OwnModel:
    """A client's memory: the personal model that it has trained; None before its first round."""

    model: Vector | None = None


class KeepsOwnModel:
    """A mixin for algorithms whose clients keep an `OwnModel` from round to round."""

    memory_type: ClassVar[type] = OwnModel

    def personal(self, memory: OwnModel, model: Vector, learner: Learner) -> Vector:  # noqa: ARG002
        """Return the client's own model, or the common one, `model`, if the client has none."""
        return model if memory.model is None else memory.model
