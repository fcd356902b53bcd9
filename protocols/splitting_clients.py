"""Clients of the splitting schemes, and what they are asked.

Where beta = 1, all u_i are one vector u. The server has it and sends it, and clients keep nothing. Otherwise
every client keeps its u_i and the z_i that it sent last, and learns the mean of all z from the next query:
with it, it completes its own step. A client that stayed away meanwhile completes its step with the mean that
it hears first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from protocols.algorithm import ClientRound
from protocols.averaging import Averaging, clipped
from protocols.learner import Learner
from protocols.record import Vector, as_vector
from protocols.splitting_scheme import Scheme
from protocols.vocabulary import Query
from secagg.errors import SERVER, MalformedMessage


@dataclass(frozen=True)
class AtPoint(Query):
    """What is your z at this common point? `step` counts the rounds that were completed before."""

    kind: ClassVar[str] = "split-common"
    point: Vector
    step: int


@dataclass(frozen=True)
class Split(Query):
    """This is the last mean of all z: complete your step, take the next one, and what is your new z?"""

    kind: ClassVar[str] = "split"
    mean: Vector
    step: int


@dataclass(frozen=True, repr=False)  # it is private
class Own:
    """What a client keeps.

    `step`       of the round in which it was counted last; -1 before.
    `point`      u_i of that round; None before.
    `sent`       z_i of that round; None where there was none to send.
    `residuals`  u_i - T u_i of the rounds before, oldest first, and
    `images`     T u_i of the same rounds: only where the iteration is accelerated.
    """

    step: int = -1
    point: Vector | None = None
    sent: Vector | None = None
    residuals: tuple[Vector, ...] = ()
    images: tuple[Vector, ...] = ()


def check_step(step: int) -> None:
    """Refuse what cannot count rounds."""
    if step < 0:
        raise MalformedMessage(SERVER, f"a step with the number {step}")


class CommonClient(ClientRound[Own]):
    """Where u is common. It keeps nothing."""

    def __init__(self, scheme: Scheme, averaging: Averaging, learner: Learner) -> None:
        self._scheme = scheme
        self._averaging = averaging
        self._learner = learner

    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        assert isinstance(query, AtPoint)
        check_step(query.step)
        relaxed = self._scheme.relaxed(self._learner, query.point, query.step, average=query.point)
        return self._averaging.contribution(relaxed - query.point, self._learner.samples)

    def memory(self) -> Own:
        return Own()


class SplitClient(ClientRound[Own]):
    """Where every client has a u_i of its own."""

    def __init__(self, scheme: Scheme, averaging: Averaging, learner: Learner, own: Own) -> None:
        self._scheme = scheme
        self._averaging = averaging
        self._learner = learner
        self._own = own
        self._made = own

    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        assert isinstance(query, Split)
        check_step(query.step)
        point = arrived(self._scheme, self._own, query.mean)
        sent = self.relaxed(point, query.mean, query.step)
        self._made = Own(query.step, as_vector(point), as_vector(sent))
        return self._averaging.contribution(sent - query.mean, self._learner.samples)

    def relaxed(self, point: Vector, mean: Vector, step: int) -> Vector:
        """z_i as it is sent: no further from the last mean than the sum's bound, or the mean were another."""
        relaxed = self._scheme.relaxed(self._learner, point, step, average=mean)
        return np.asarray(mean + clipped(relaxed - mean, self._averaging.limit), np.float64)

    def memory(self) -> Own:
        return self._made


def arrived(scheme: Scheme, own: Own, mean: Vector) -> Vector:
    """u_i, once the mean is known: that of who has never taken part is the mean itself."""
    if own.point is None:
        return mean
    return own.point if own.sent is None else scheme.image(own.point, own.sent, mean)
