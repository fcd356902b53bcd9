"""Federated averaging of updates that are rounded stochastically to a few levels of a common scale.

"QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding" rounds every number of an update to
one of a few levels, at random and without bias. There, every client has a scale of its own, the largest size
of its numbers, and levels on different scales cannot be summed. Here the scale is common and public, so
levels are small whole numbers that can be summed. A secure sum of n clients with s levels from zero to the
scale needs

    1 + ceil(log2(n * (s - 1) + 1)) = ceil(log2(2 * n * (s - 1) + 1))

bits per number on the wire, instead of 32 at full precision. The encoding of the sum does the rounding.

If the common scale is too small for a client's update, the update is clipped. The scale follows from the
round before: besides its update, a client adds one count to a histogram, in the cell for the ratio of its
largest number to the scale, by powers of two. The next scale is the least one that clips at most the fraction
`share` of the clients. The first scale is the largest that is allowed. If all numbers are far below the first
level, the total is mostly rounding errors. The model then stays, and the next round has a smaller scale.
Parameters may be divided into buckets that have a scale each.

A number beyond the scale is clipped to plus or minus the scale. A malicious server could therefore choose a
scale that is exceeded by all updates but the smallest. The other clients then add known whole numbers, which
the server can subtract. Only a fixed scale prevents this attack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protocols import checks
from protocols.algorithm import Algorithm, Sum, TrainingClient
from protocols.averaging import UPDATE, WEIGHT, mean_of, share_of, weight_part
from protocols.learner import Learner
from protocols.parameter_fields import CAP_MEANING, parameter
from protocols.rounds import Fact, Outcome, Query, Round
from protocols.serialisation import Vector, as_vector
from secagg.errors import SERVER, MalformedMessage
from secagg.sum_spec import Count, LInf, Part, SumSpec, Total, bits_for_cohort

OCTAVES: Final = "octaves"
_CELLS: Final = 8  # cells: above the scale, within each of six powers of two below it, and below all of them
_FINEST: Final = 40


@dataclass(frozen=True)
class Quantise(Query):
    """Asks for each client's update of `model`, divided by a scale. Every bucket (group of parameters) has
    its own scale, the largest allowed one times 2^-halvings. None means no halvings."""

    kind: ClassVar[str] = "quantise"
    model: Vector
    halvings: Vector | None


@dataclass(frozen=True)
class QuantisedState:
    """The server's state: the model, and how often each bucket's (parameter group's) scale was halved."""

    model: Vector
    halvings: Vector


@dataclass(frozen=True, repr=False)  # it is private
class Remainder:
    """What clipping removed from a client's last update. It is added to its next one (error feedback)."""

    value: Vector | None = None  # None: the client keeps nothing


@dataclass(frozen=True, kw_only=True)
class Quantised(Algorithm[QuantisedState, Remainder]):
    """Federated averaging of updates that are divided by a public scale and rounded at random to a few
    levels, so sums need few bits. If `adaptive`, the last round's largest numbers set the scale."""

    memory_type: ClassVar[type] = Remainder
    state_type: ClassVar[type] = QuantisedState

    levels: int = parameter(
        5,
        "from zero to the scale, both included; those below zero come on top. If bits leave room for "
        "more of them, there are more",
    )
    reach: float | None = parameter(
        None, "largest scale: the largest size of a number of an update, times the weight of its client"
    )
    adaptive: bool = parameter(True, "whether the scale follows the updates, or stays at `reach`")
    share: float = parameter(0.0, "part of the clients that may be clipped, on an adaptive scale")
    bucket: int | None = parameter(None, "parameters that have a scale in common, by default all of them")
    feedback: bool = parameter(
        False, "whether a client adds what was clipped to its next update, or forgets it"
    )
    local_steps: int | None = parameter(
        None,
        "of a client in a round, by default as many as its training has. With 1, what it sends is a "
        "gradient, times its learning rate",
    )
    weighted: bool = parameter(False, "whether clients count by their samples, up to `cap`, or all the same")
    cap: int = parameter(1000, CAP_MEANING)

    def check(self) -> None:
        checks.whole("levels", self.levels, 2, 1 << 32)
        checks.bound("reach", self.reach, "the largest size of a number of an update, such as 1.0")
        checks.real("share", self.share, 0, 1)
        if self.bucket is not None:
            checks.whole("bucket", self.bucket, 1)
        if self.local_steps is not None:
            checks.whole("local_steps", self.local_steps, 1)
        checks.whole("cap", self.cap, 1, 1 << 32)

    limit = checks.CheckedBound("reach")

    @property
    def bits(self) -> int:
        """The bits of every number on the wire: just enough for the signed sum of all clients' levels."""
        return 1 + (self.clients * (self.levels - 1)).bit_length()

    @cached_property
    def starts(self) -> NDArray[np.intp]:
        """The index of the first parameter of each bucket (a group of parameters with a common scale)."""
        return np.arange(0, self.dim, self.dim if self.bucket is None else self.bucket)

    def scales(self, halvings: Vector) -> Vector:
        return self.limit * 2.0**-halvings

    def spread(self, of_buckets: Vector) -> Vector:
        """Return one number for each parameter: the one that `of_buckets` has for its bucket (its group)."""
        return np.repeat(of_buckets, np.diff(self.starts, append=self.dim))

    def sums(self) -> tuple[Sum, ...]:
        reveals = "the sum of the clients' updates, rounded to levels"
        if self.adaptive:
            reveals += ", and a histogram of the clients' largest numbers by powers of two"
        if self.weighted:
            reveals += ", and the sum of their samples"
        return (
            Sum(
                query=Quantise,
                spec=SumSpec(parts=self._parts()),
                reveals=reveals,
                least_weight=2.0**-_FINEST if self.adaptive else 1.0,
                remedy="set adaptive to False",
                seldom={} if self.adaptive else {"halvings": 0},
                lengths={"halvings": len(self.starts)},
            ),
        )

    def _parts(self) -> tuple[Part, ...]:
        parts = [Part(name=UPDATE, size=self.dim, bits=self.bits, bound=LInf(1.0))]
        if self.adaptive:
            buckets, one = len(self.starts), bits_for_cohort(Count(1), self.clients)
            parts.append(Part(name=OCTAVES, size=buckets * _CELLS, bits=one, bound=Count(1, total=buckets)))
        if self.weighted:
            parts.append(weight_part(self.cap, self.clients))
        return tuple(parts)

    # --- the server's side ---

    def start(self, model: Vector) -> QuantisedState:
        return QuantisedState(as_vector(model), as_vector(np.zeros(len(self.starts))))

    def round(self, state: QuantisedState) -> Round[QuantisedState]:
        total = yield Quantise(state.model, state.halvings if self.adaptive else None)
        mean = mean_of(total, UPDATE, self.cap, weighted=self.weighted)  # in units of the scale
        step = mean * self.spread(self.scales(state.halvings))
        facts: dict[str, Fact] = {"scale": float(self.scales(state.halvings).max())}
        halvings = state.halvings
        if self.adaptive:
            finer = self._finer(total)
            # Buckets whose numbers are far below the first level do not move: their totals are mostly
            # rounding.
            step *= self.spread(np.where(2.0**finer < 2 * self.levels, 1.0, 0.0))
            halvings = as_vector(np.clip(halvings + finer, 0, _FINEST))
            facts["clipped"] = int(total[OCTAVES].reshape(-1, _CELLS)[:, 0].max())
        facts["moved"] = float(np.linalg.norm(step))
        return Outcome(QuantisedState(as_vector(state.model + step), halvings), facts)

    def _finer(self, total: Total) -> Vector:
        """Return how often the scale of each bucket (parameter group) can be halved while at most the
        fraction `share` of the clients is clipped; -1, which doubles the scale, if more are clipped now."""
        counts = np.asarray(total[OCTAVES], np.float64).reshape(-1, _CELLS)
        beyond = np.cumsum(counts, axis=1)[:, :-1]  # number of clipped clients after 0, 1, ... halvings
        return np.asarray((beyond <= self.share * total.count).sum(axis=1) - 1, np.float64)

    def client(self, learner: Learner, memory: Remainder) -> QuantisedClient:
        return QuantisedClient(self, learner, memory)


class QuantisedClient(TrainingClient[Quantised, Remainder]):
    _after: Remainder | None = None

    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        assert isinstance(query, Quantise)
        algorithm, samples = self._algorithm, min(self._learner.samples, self._algorithm.cap)
        scales = algorithm.scales(self._halvings(query))
        update = self._learner.train(query.model, steps=algorithm.local_steps) - query.model
        update = update * share_of(samples, algorithm.cap, weighted=algorithm.weighted)
        if self._memory.value is not None:
            update = update + self._memory.value
        answer: dict[str, ArrayLike] = {UPDATE: self._levelled(update, algorithm.spread(scales))}
        if algorithm.adaptive:
            answer[OCTAVES] = _octaves(np.maximum.reduceat(np.abs(update), algorithm.starts), scales)
        if algorithm.weighted:
            answer[WEIGHT] = np.array([samples], np.uint64)
        return answer

    def memory(self) -> Remainder:
        return self._memory if self._after is None else self._after

    def _halvings(self, query: Quantise) -> Vector:
        """Return how often the query halves each bucket's scale. Raises `MalformedMessage` if invalid."""
        algorithm, given = self._algorithm, query.halvings
        if algorithm.adaptive != (given is not None):
            raise MalformedMessage(SERVER, "a scale that is not what was agreed on")
        if given is None:
            return np.zeros(len(algorithm.starts))
        if not ((given >= 0) & (given <= _FINEST) & (given == np.floor(given))).all():
            raise MalformedMessage(SERVER, f"scales that were not halved from 0 to {_FINEST} times")
        return given

    def _levelled(self, update: Vector, scales: Vector) -> Vector:
        """Return update / scales, clipped to [-1, 1], or NaNs if `update` is not finite: the client then
        declines to answer. With `feedback`, store what was cut off, clipped to the largest scale."""
        if not np.isfinite(update).all():
            return np.full_like(update, np.nan)  # the participant declines
        limit = self._algorithm.limit
        if self._algorithm.feedback:
            beyond = update - np.clip(update, -scales, scales)
            self._after = Remainder(as_vector(np.clip(beyond, -limit, limit)))
        return np.clip(update / scales, -1.0, 1.0)


def _octaves(largest: Vector, scales: Vector) -> NDArray[np.uint64]:
    """Return the histograms of all buckets (parameter groups), one after another. Each has one count: in cell
    0 if the bucket's `largest` number is above its scale, in cell 1 if it is above half of it, and so on."""
    borders = scales[:, None] * 2.0 ** -np.arange(_CELLS - 1)
    cells = (largest[:, None] <= borders).sum(axis=1)
    return np.asarray(np.eye(_CELLS, dtype=np.uint64)[cells].ravel())
