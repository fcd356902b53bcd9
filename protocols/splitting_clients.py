"""The clients of operator splitting, and their queries.

Client i applies its local map P at its point u_i, and sends z_i = (1 - alpha) u_i + alpha P(u_i). With the
mean of all z, it then computes T u_i, its next point (formulas: splitting_formulas.py). If beta = 1, all
u_i are one vector u. The server stores and sends u, and clients have no memory. Otherwise every client stores
its u_i and the z_i that it sent last. The next query has the mean of all z, with which the client completes
its step. A client that was absent uses the first mean that it receives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from protocols.algorithm import ClientRound
from protocols.anderson import combined
from protocols.averaging import WeightedMean, clipped
from protocols.learner import Learner
from protocols.rounds import Query
from protocols.serialisation import Vector, as_vector
from protocols.splitting_anderson import GRAM, GramRow
from protocols.splitting_formulas import SplittingScheme
from secagg.errors import SERVER, MalformedMessage

_ROUNDED: Final = 1e-6  # largest error of the sum of weights, relative to the sum of their absolute values


@dataclass(frozen=True)
class AtPoint(Query):
    """Asks for each client's z = (1 - alpha) u + alpha P(u) at the common point u = `point`, where P is its
    proximal map or gradient steps. `step` is the number of completed rounds."""

    kind: ClassVar[str] = "split-common"
    point: Vector
    step: int


@dataclass(frozen=True)
class Split(Query):
    """Sends the last mean of all z, from which a client computes its next point u_i, and asks for the new z_i
    = (1 - alpha) u_i + alpha P(u_i), with its proximal map or gradient steps P. `step`: rounds completed."""

    kind: ClassVar[str] = "split"
    mean: Vector
    step: int


@dataclass(frozen=True)
class AcceleratedSplit(Split):
    """A `Split` that also asks for the newest row of the Gram matrix of a client's residuals u_i - T u_i. T
    maps its point u_i to the next one; Anderson acceleration combines several such images T u_i instead.

    `weights`  a client's new u_i is the sum of its last images with these weights; None: it is the last one.
    `window`   number of earlier rounds that have an entry in the row.
    `units`    a unit for each round; an entry is divided by those of its round and of the newest round.
    `measure`  whether clients send u_i instead of z_i, and do not train.
    """

    kind: ClassVar[str] = "split-accelerated"
    weights: Vector | None
    window: int
    units: Vector
    measure: bool


@dataclass(frozen=True, repr=False)  # it is private
class SplittingMemory:
    """What a client of operator splitting keeps. The last three fields are used only with acceleration.

    `step`       number of the round in which the client was counted last; -1 before its first.
    `point`      u_i, at which it applied its local map in that round; None before its first.
    `sent`       z_i, the relaxed result that it sent in that round; None if it sent none.
    `residuals`  u_i - T u_i of the earlier rounds, oldest first, where T u_i is the next u_i.
    `images`     T u_i of the same rounds.
    `means`      the mean of all z in each of these rounds.
    """

    step: int = -1
    point: Vector | None = None
    sent: Vector | None = None
    residuals: tuple[Vector, ...] = ()
    images: tuple[Vector, ...] = ()
    means: tuple[Vector, ...] = ()


def check_step(step: int) -> None:
    """Raise `MalformedMessage` if `step`, the round number in a server's query, is negative."""
    if step < 0:
        raise MalformedMessage(SERVER, f"a step with the number {step}")


class CommonClient(ClientRound[SplittingMemory]):
    """A client of operator splitting with beta = 1: it applies its map at a point u that the server sends."""

    def __init__(self, scheme: SplittingScheme, averaging: WeightedMean, learner: Learner) -> None:
        self._scheme = scheme
        self._averaging = averaging
        self._learner = learner

    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        assert isinstance(query, AtPoint)
        check_step(query.step)
        relaxed = self._scheme.relaxed(self._learner, query.point, query.step, average=query.point)
        return self._averaging.contribution(relaxed - query.point, self._learner.samples)

    def memory(self) -> SplittingMemory:
        return SplittingMemory()


class SplitClient(ClientRound[SplittingMemory]):
    """A client of operator splitting if beta is not 1, without acceleration: it stores its own point u_i."""

    def __init__(
        self, scheme: SplittingScheme, averaging: WeightedMean, learner: Learner, own: SplittingMemory
    ) -> None:
        self._scheme = scheme
        self._averaging = averaging
        self._learner = learner
        self._own = own
        self._made = own

    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        assert isinstance(query, Split)
        check_step(query.step)
        point = self.near(arrived(self._scheme, self._own, query.mean), query.mean)
        sent = self.relaxed(point, query.mean, query.step)
        self._made = SplittingMemory(query.step, as_vector(point), as_vector(sent))
        return self._averaging.contribution(sent - query.mean, self._learner.samples)

    def near(self, point: Vector, mean: Vector) -> Vector:
        """Return u_i = `point`, moved towards `mean`, the last mean of all z, if it is further away than
        honest rounds can lead to. Otherwise a malicious server could send a distant mean to all clients but
        one, and so move their u_i permanently. Their next answers would be clipped, in a direction that it
        can predict. It could subtract these from the total, which leaves the one client's answer."""
        return np.asarray(mean + clipped(point - mean, self._scheme.reach(self._averaging.limit)), np.float64)

    def relaxed(self, point: Vector, mean: Vector, step: int) -> Vector:
        """Return z_i = (1 - alpha) u_i + alpha P(u_i) for u_i = `point` and the client's local map P in round
        `step`. A z_i further than `clip` from `mean`, the last mean of all z, is moved to that distance."""
        relaxed = self._scheme.relaxed(self._learner, point, step, average=mean)
        return np.asarray(mean + clipped(relaxed - mean, self._averaging.limit), np.float64)

    def memory(self) -> SplittingMemory:
        return self._made


class AcceleratedClient(SplitClient):
    """A client of operator splitting with Anderson acceleration: it stores its last residuals u_i - T u_i and
    images T u_i, where T u_i is the next u_i, and also sends the newest row of the residuals' Gram matrix."""

    def __init__(
        self,
        scheme: SplittingScheme,
        averaging: WeightedMean,
        learner: Learner,
        own: SplittingMemory,
        gram: GramRow,
    ) -> None:
        super().__init__(scheme, averaging, learner, own)
        self._gram = gram

    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        assert isinstance(query, AcceleratedSplit)
        self._check(query)
        own = self._completed(query)
        point, centre = self._begun(own, query)
        if query.measure:
            return self._measured(query, point)
        away, sent = self._leaning(point, query)
        self._made = self._keeping(own, query.step, point, sent)
        row = self._row(own, query, self._scheme.centred(point, sent, centre))
        return {
            **self._averaging.contribution(away, self._learner.samples),
            GRAM: self._gram.none() if row is None else row,
        }

    def _check(self, query: AcceleratedSplit) -> None:
        check_step(query.step)
        if not 0 <= query.window <= self._gram.memory or not (query.units > 0).all():
            raise MalformedMessage(SERVER, "a window that is none, or units that are not above zero")
        if query.measure and self._scheme.gamma == 1:
            raise MalformedMessage(SERVER, "it asks for points, whose mean it knows")
        if query.weights is not None:
            size = float(np.abs(query.weights).sum())
            if abs(float(query.weights.sum()) - 1) > _ROUNDED * size:
                raise MalformedMessage(SERVER, "weights that do not add up to 1")

    def _completed(self, query: AcceleratedSplit) -> SplittingMemory:
        """Return the memory with the next u_i, computed from the query's mean of all z, and with the last
        round's residual, image and mean appended. If the client was not in the last round, these lists are
        emptied instead. If it sent no z_i in that round, they stay."""
        own, image = self._own, arrived(self._scheme, self._own, query.mean)
        if own.step != query.step - 1:
            return SplittingMemory(point=as_vector(image))
        if own.point is None or own.sent is None:
            return replace(own, point=as_vector(image))
        return SplittingMemory(
            own.step,
            as_vector(image),
            residuals=(*own.residuals, as_vector(own.point - image)),
            images=(*own.images, as_vector(image)),
            means=(*own.means, as_vector(query.mean)),
        )

    def _begun(self, own: SplittingMemory, query: AcceleratedSplit) -> tuple[Vector, Vector]:
        """Return the new u_i and a guess of the next mean of z: the last images and the last means, summed
        with the query's weights. Without weights or enough images: `own.point` and the query's mean."""
        assert own.point is not None
        if query.weights is None or len(own.images) < len(query.weights):
            return own.point, query.mean
        return combined(query.weights, own.images), combined(query.weights, own.means)

    def _leaning(self, point: Vector, query: AcceleratedSplit) -> tuple[Vector, Vector]:
        """Return the clipped vector that a client with u_i = `point` sends, and the z_i that it implies."""
        relaxed = self._scheme.relaxed(self._learner, point, query.step, average=query.mean)
        reference, scale = leaning(self._scheme, query, point)
        away = clipped((relaxed - reference) / scale, self._averaging.limit)
        return away, np.asarray(reference + scale * away, np.float64)

    def _keeping(self, own: SplittingMemory, step: int, point: Vector, sent: Vector) -> SplittingMemory:
        """Return the memory after round `step`, with u_i = `point`, z_i = `sent`, and the residuals, images
        and means of z of the last tau rounds before it. Acceleration combines tau + 1 rounds."""
        last = slice(-self._gram.memory, None)
        return SplittingMemory(
            step, as_vector(point), as_vector(sent), own.residuals[last], own.images[last], own.means[last]
        )

    def _row(self, own: SplittingMemory, query: AcceleratedSplit, centred: Vector) -> Vector | None:
        """Return the newest row of the Gram matrix of the client's residuals; `centred` is the newest
        residual. None if the client was absent in rounds of the window, or if an entry is too large."""
        is_here = query.step == 0 or own.step == query.step - 1
        first = len(own.residuals) - query.window
        if not is_here or first < 0:
            return None
        averaging = self._averaging
        share = 1.0 if averaging.cap == 1 else averaging.weight(self._learner.samples)
        return self._gram.of(centred, own.residuals[first:], query.units, share)

    def _measured(self, query: AcceleratedSplit, point: Vector) -> Mapping[str, ArrayLike]:
        """Return the answer to a query with `measure`: u_i instead of z_i, moved to within `clip` of the last
        mean. Store this u_i, and discard all residuals and images."""
        away = clipped(point - query.mean, self._averaging.limit)
        self._made = SplittingMemory(query.step, as_vector(query.mean + away))
        contribution = self._averaging.contribution(away, self._learner.samples)
        return {**contribution, GRAM: np.zeros(self._gram.memory + 1)}


def leaning(scheme: SplittingScheme, query: AcceleratedSplit, point: Vector) -> tuple[Vector, float]:
    """Return (reference, scale): a client with u_i = `point` sends (z_i - reference) / scale. The server
    calls this with the mean of u_i to decode the mean of z_i. After a plain step the reference is the last
    mean. After an accelerated step, a multiple of u_i is added, so that the sum gives the mean of the next
    u_i. If the server used its own estimate instead, every such step would multiply the estimate's error."""
    lean = 0.0 if query.weights is None else scheme.lean
    return np.asarray(query.mean + lean * (point - query.mean), np.float64), 1 + abs(lean)


def arrived(scheme: SplittingScheme, own: SplittingMemory, mean: Vector) -> Vector:
    """Return the client's next point u_i, given the mean of all z. For a client that never took part, it is
    the mean. If the client sent no z_i in its last round, it is the stored point, unchanged."""
    if own.point is None:
        return mean
    return own.point if own.sent is None else scheme.image(own.point, own.sent, mean)
