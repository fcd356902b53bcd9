"""What algorithms share whose server does no more than federated averaging does.

Their clients differ: in how they train what they send, and in what they keep for themselves. The common model
moves by the mean of the clients' updates, one sum in a round.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Generic, TypeVar

import numpy as np

from protocols.algorithm import Algorithm, ModelState, Sum
from protocols.averaging import Averaging
from protocols.privacy import Privacy
from protocols.record import Vector, as_vector
from protocols.vocabulary import Outcome, Query, Round

M = TypeVar("M")


@dataclass(frozen=True)
class Update(Query):
    """How would you change this model?"""

    kind: ClassVar[str] = "update"
    model: Vector


@dataclass(frozen=True, kw_only=True)
class Averaged(Algorithm[ModelState, M], Generic[M]):
    """The server's side of such an algorithm, with these parameters:

    `clip`      largest norm of an update.
    `weighted`  whether clients count by their samples, up to `cap`, or all the same.
    `bits`      of every number of an update on the wire.
    `privacy`   a budget for noise on every sum, or None. All clients then count the same.
    """

    clip: float | None = None
    weighted: bool = True
    cap: int = 1000
    bits: int = 32
    privacy: Privacy | None = None

    def check(self) -> None:
        self.averaging  # noqa: B018  # raises what is wrong with the bounds

    @cached_property
    def averaging(self) -> Averaging:
        cap = self.cap if self.weighted else 1
        return Averaging(
            dim=self.dim,
            clients=self.clients,
            clip=self.clip,
            cap=cap,
            bits=self.bits,
            privacy=self.privacy,
        )

    @property
    def server_rate(self) -> float:
        """How far the model moves along the mean of the updates."""
        return 1.0

    def sums(self) -> tuple[Sum, ...]:
        return (Sum(query=Update, spec=self.averaging.spec(), reveals=self.averaging.reveals),)

    def round(self, state: ModelState) -> Round[ModelState]:
        total = yield Update(state.model)
        step = self.server_rate * self.averaging.mean(total)
        facts = {"moved": float(np.linalg.norm(step))}
        return Outcome(ModelState(as_vector(state.model + step)), facts)
