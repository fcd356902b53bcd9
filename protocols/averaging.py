"""The weighted mean of clipped updates, from one sum. Has the base class of algorithms without other sums.

A client with n samples has the weight min(n, cap) / cap, or 1 if clients are not weighted. It sends its
clipped update times its weight and, if weighted, min(n, cap). Updates are clipped before they are weighted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from protocols import checks
from protocols.algorithm import Algorithm, ModelState, Sum
from protocols.parameter_fields import CAP_MEANING, parameter
from protocols.privacy_budget import PrivacyBudget
from protocols.rounds import Outcome, Query, Round
from protocols.serialisation import Vector, as_vector
from secagg.errors import CorruptTotal, ParameterError
from secagg.noise.part_plan import Plan
from secagg.noise.vector_calibration import calibrate_vector
from secagg.sum_spec import L2, Count, Part, SumSpec, Total, bits_for_cohort

UPDATE: Final = "update"
WEIGHT: Final = "weight"


@dataclass(frozen=True, kw_only=True)
class WeightedMean:
    """The weighted mean of updates of `dim` numbers over at most `clients` clients.

    `clip`  largest norm of an update; a longer one is scaled down to it.
    `cap`   largest weight of a client, in samples; 1 for the unweighted mean.
    `bits`  bits of every number on the wire.
    `privacy`  a budget for noise, or None. With noise, `cap` must be 1, because the total number of samples
               would need noise as well. `bits` is then not used: the noise determines the bits.
    """

    dim: int
    clients: int
    clip: float | None
    cap: int = 1
    bits: int = 32
    privacy: PrivacyBudget | None = None

    def __post_init__(self) -> None:
        checks.bound("clip", self.clip, "the largest norm that an update may have, such as 10.0")
        checks.whole("cap", self.cap, 1, 1 << 32)
        checks.whole("bits", self.bits, 2, 64)
        if self.privacy is not None:
            self.privacy.check_clients(self.clients)
            if self.cap != 1:
                raise ParameterError(
                    "with noise, all clients count the same: set weighted to False", parameter="weighted"
                )

    limit = checks.CheckedBound("clip")

    @cached_property
    def noise(self) -> Plan | None:
        """The calibrated noise of the one sum in a round; None without a privacy budget."""
        if self.privacy is None:
            return None
        goal, promise = self.privacy.per_sum(), self.privacy.promise
        return calibrate_vector(promise=promise, goal=goal, size=self.dim, clip=self.limit)

    def spec(self) -> SumSpec:
        """Return the spec of a sum that has only the parts of this mean."""
        return SumSpec(parts=self.parts(), promise=None if self.noise is None else self.noise.promise)

    @property
    def reveals(self) -> str:
        """Text for users: what a server learns from the sum of `spec`."""
        samples = ", and of their samples" if self.cap > 1 else ""
        return "the sum of the clients' updates" + (samples if self.noise is None else ", with noise")

    def parts(self) -> tuple[Part, ...]:
        if self.noise is not None:
            return (self.noise.part(UPDATE),)
        update = Part(name=UPDATE, size=self.dim, bits=self.bits, bound=L2(self.limit))
        if self.cap == 1:
            return (update,)
        return (update, weight_part(self.cap, self.clients))

    def weight(self, samples: int) -> float:
        """Return the weight of a client with `samples` samples: min(samples, cap) / cap."""
        return share_of(samples, self.cap)

    def contribution(self, update: Vector, samples: int) -> Mapping[str, ArrayLike]:
        """Return what a client adds to the sum, by part name. A weighted update is clipped before it is
        weighted. An unweighted one is returned as it is, because the sum's encoding clips it."""
        if self.cap == 1:
            return {UPDATE: update}
        weighted = clipped(update, self.limit) * self.weight(samples)
        return {UPDATE: weighted, WEIGHT: np.array([min(samples, self.cap)], np.uint64)}

    def total_weight(self, total: Total) -> float:
        """Return the weight of all clients in a sum: their number, or the sum of min(samples, cap) / cap."""
        return float(total.count) if self.cap == 1 else int(total[WEIGHT][0]) / self.cap

    def mean(self, total: Total) -> Vector:
        """Return the weighted mean of the updates, from the total of the sum. Raises `CorruptTotal` if the
        sum of the weights is not positive."""
        return mean_of(total, UPDATE, self.cap, weighted=self.cap != 1)


def weight_part(cap: int, clients: int) -> Part:
    """Return the part for the sum of the clients' numbers of samples, each limited to `cap`."""
    return Part(name=WEIGHT, size=1, bits=bits_for_cohort(Count(cap), clients), bound=Count(cap))


def mean_of(total: Total, name: str, cap: int, *, weighted: bool) -> Vector:
    """Return the mean of the part `name`: its total divided by the sum of the clients' weights if `weighted`,
    else by the number of clients. Raises `CorruptTotal` if the divisor is not positive."""
    weight = int(total[WEIGHT][0]) / cap if weighted else total.count
    if weight <= 0:
        raise CorruptTotal("the clients of this sum have no samples at all")
    return np.asarray(total[name], np.float64) / weight


def share_of(samples: int, cap: int, *, weighted: bool = True) -> float:
    """Return a client's weight, from 0 to 1: min(samples, cap) / cap if `weighted`, else 1."""
    return min(samples, cap) / cap if weighted else 1.0


def norm(vector: Vector) -> float:
    """Return the Euclidean norm of `vector`, computed so that squares cannot overflow. In a median, a
    client's weight is its inverse distance from a point. An overflow would make the weight zero, which a
    malicious server could provoke to remove chosen clients from a sum."""
    largest = float(np.abs(vector).max(initial=0.0))
    return largest * float(np.linalg.norm(vector / largest)) if 0.0 < largest < math.inf else largest


def clipped(vector: Vector, limit: float) -> Vector:
    """Return `vector`, scaled down to the norm `limit` if it is longer; unchanged if it is not finite."""
    largest = float(np.abs(vector).max(initial=0.0))
    if not 0.0 < largest < math.inf:
        return vector  # zeros, or a diverged model
    length = float(np.linalg.norm(vector / largest))
    return vector if length <= limit / largest else vector / largest * (limit / length)


M = TypeVar("M")


@dataclass(frozen=True)
class Update(Query):
    """Asks for each client's update of `model`: its trained model minus `model`."""

    kind: ClassVar[str] = "update"
    model: Vector


@dataclass(frozen=True, kw_only=True)
class AveragingAlgorithm(Algorithm[ModelState, M], Generic[M]):
    """The base class of algorithms that move a common model by the mean update, with one sum in a round.
    Subclasses define how clients compute updates, and what they remember between rounds. `privacy` is a
    budget for noise on every sum, or None. With noise, `weighted` must be False."""

    budget_type: ClassVar[type[PrivacyBudget] | None] = PrivacyBudget

    clip: float | None = parameter(None, "largest norm of an update")
    weighted: bool = parameter(True, "whether clients count by their samples, up to `cap`, or all the same")
    cap: int = parameter(1000, CAP_MEANING)
    bits: int = parameter(32, "of every number of an update on the wire")
    privacy: PrivacyBudget | None = None

    def check(self) -> None:
        self.averaging  # noqa: B018  # raises if the bounds are invalid

    @cached_property
    def averaging(self) -> WeightedMean:
        cap = self.cap if self.weighted else 1
        return WeightedMean(
            dim=self.dim, clients=self.clients, clip=self.clip, cap=cap, bits=self.bits, privacy=self.privacy
        )

    @property
    def server_rate(self) -> float:
        """The factor by which the mean update is multiplied before it is added to the model."""
        return 1.0

    def sums(self) -> tuple[Sum, ...]:
        return (Sum(query=Update, spec=self.averaging.spec(), reveals=self.averaging.reveals),)

    def round(self, state: ModelState) -> Round[ModelState]:
        total = yield Update(state.model)
        step = self.server_rate * self.averaging.mean(total)
        return Outcome(ModelState(as_vector(state.model + step)), {"moved": float(np.linalg.norm(step))})
