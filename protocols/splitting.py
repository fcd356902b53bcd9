"""Operator splitting: FedAvg, FedProx, FedSplit, FedPi and FedRP are settings of one scheme.

"A Unifying Framework for Federated Learning", (42)-(44): clients apply a map of their own, relax it by alpha,
are drawn to or reflected at the mean of all by beta, and mix the outcome with where they were by gamma.

| setting                                      | map      | alpha | beta | gamma |
|----------------------------------------------|----------|-------|------|-------|
| FedAvg, forward-backward (13)                | gradient | 1     | 1    | 1     |
| FedProx, backward-backward (23)              | proximal | 1     | 1    | 1     |
| FedSplit, Peaceman-Rachford (27)             | proximal | 2     | 2    | 1     |
| FedPi, Douglas-Rachford (30)                 | proximal | 2     | 2    | 1/2   |
| FedRP, reflection-projection (37)            | proximal | 2     | 1    | 1     |
| reflected FedAvg (35): the mean is reflected | gradient | 1     | 2    | 1     |
| reflected FedProx (36)                       | proximal | 1     | 2    | 1     |

All that clients have to know of each other is the mean of their z_i: one secure sum in a round. Their u_i
stay with them. The sum is of z_i minus a public vector, the last mean (where u is common: u), bounded by
`clip`; a z_i that is further away is moved to that distance, and the client goes on with what it sent.

Who takes part. The mean is that of the clients in the round's sum, as in the chapter's released scripts. Who
was not counted keeps its state, and completes its last step with the mean that it hears next. (A mean over
the last z_i of everybody, kept up to date by differences, would let a client that left weigh for ever.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Final

import numpy as np

from protocols import checks
from protocols.algorithm import Algorithm, ClientRound, Sum
from protocols.averaging import Averaging
from protocols.learner import Learner
from protocols.proximal import ProximalSteps
from protocols.record import Vector, as_vector
from protocols.splitting_clients import AtPoint, CommonClient, Own, Split, SplitClient
from protocols.splitting_scheme import Scheme, StepSizes
from protocols.vocabulary import Outcome, Query, Round
from secagg.spec import SumSpec, Total

_FEWEST_BITS: Final = 16
# Gradient steps have nothing of what approaches a proximal point.
_FORWARD: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "local_map": "gradient",
        "rate": None,
        "exact": True,
        "start_at": "average",
        "local_memory": 0,
        "local_chunk": 1,
    }
)


@dataclass(frozen=True)
class SplittingState:
    """What the server knows.

    `step`     rounds that were completed.
    `mean`     of the clients' z in the last of them: the model.
    `point`    u, where it is common; otherwise the mean of the clients' u_i.
    `average`  of all means so far, each with the weight eta_t, and
    `weight`   the sum of these.
    """

    step: int
    mean: Vector
    point: Vector
    average: Vector
    weight: float


@dataclass(frozen=True, kw_only=True)
class Splitting(Algorithm[SplittingState, Own]):
    """The grand scheme.

    `alpha`         how far beyond u_i towards its image z_i lies: 1 is the image, 2 a reflection.
    `beta`          how far beyond z_i towards the mean of all: 1 is the mean, 2 a reflection.
    `gamma`         how much of the way there is gone.
    `local_map`     what a client does: "proximal", or "gradient" for `steps` local steps of rate eta.
    `eta`           step size: of the proximal map, or the learning rate of gradient steps. It belongs to the
                    learner's own loss, which is a mean over its samples.
    `schedule`      of the step sizes: "constant", "log", "sqrt" or "linear" for eta / (1 + log10 t),
                    eta / sqrt(t) and eta / t with t = 1, 2, ..., or "exponential", halved in every `period`.
    `period`        rounds after which an exponential step size is halved.
    `steps`         local steps, for gradients and for proximal maps without a closed form; as many as the
                    learner takes by default.
    `rate`          learning rate of local steps towards a proximal point, by default the learner's; it is
                    never above eta.
    `exact`         whether a closed form of the proximal map is used where there is one.
    `start_at`      where local steps towards a proximal point begin: "average", the last mean, or "point",
                    the client's own u_i.
    `local_memory`  above 0, Anderson acceleration of these local steps by so many pairs and one.
    `local_chunk`   local steps that are one application of the map that is accelerated.
    `ergodic`       whether the model is the average of all rounds' means, weighted by eta_t (Theorem 3).
    `clip`          largest distance of a client's z from the public vector that it is sent relative to.
    `weighted`      whether clients count by their samples, up to `cap`, or all the same.
    """

    memory_type: ClassVar[type] = Own
    state_type: ClassVar[type] = SplittingState

    alpha: float = 2.0
    beta: float = 2.0
    gamma: float = 1.0
    local_map: str = "proximal"
    eta: float | None = None
    schedule: str = "constant"
    period: int = 500
    steps: int | None = None
    rate: float | None = None
    exact: bool = True
    start_at: str = "average"
    local_memory: int = 0
    local_chunk: int = 1
    ergodic: bool = False
    clip: float | None = None
    weighted: bool = False
    cap: int = 1000
    bits: int = 64

    def check(self) -> None:
        checks.bound("eta", self.eta, "the step size, such as 0.1")
        checks.whole("bits", self.bits, _FEWEST_BITS, 64)
        self.scheme  # noqa: B018  # raises what is wrong with the others
        self.averaging  # noqa: B018

    @cached_property
    def scheme(self) -> Scheme:
        assert self.eta is not None  # checked above
        steps = ProximalSteps(
            steps=self.steps,
            rate=self.rate,
            memory=self.local_memory,
            chunk=self.local_chunk,
            exact=self.exact,
        )
        return Scheme(
            alpha=self.alpha,
            beta=self.beta,
            gamma=self.gamma,
            local_map=self.local_map,
            sizes=StepSizes(eta=self.eta, schedule=self.schedule, period=self.period),
            proximal=steps,
            start=self.start_at,
        )

    @cached_property
    def averaging(self) -> Averaging:
        cap = self.cap if self.weighted else 1
        return Averaging(dim=self.dim, clients=self.clients, clip=self.clip, cap=cap, bits=self.bits)

    def sums(self) -> tuple[Sum, ...]:
        query: type[Query] = AtPoint if self.scheme.is_common else Split
        samples = ", and of their samples" if self.weighted else ""
        reveals = f"the sum of the clients' relaxed models z{samples}"
        return (Sum(query=query, spec=SumSpec(parts=self.averaging.parts()), reveals=reveals),)

    def start(self, model: Vector) -> SplittingState:
        first = as_vector(model)
        return SplittingState(0, first, first, first, 0.0)

    def model(self, state: SplittingState) -> Vector:
        return state.average if self.ergodic else state.mean

    def round(self, state: SplittingState) -> Round[SplittingState]:
        if self.scheme.is_common:
            total = yield AtPoint(state.point, state.step)
            mean = self.mean(state.point, total)
        else:
            total = yield Split(state.mean, state.step)
            mean = self.mean(state.mean, total)
        point = self.scheme.image_of_means(state.point, mean)
        return self._outcome(state, mean, as_vector(point))

    def mean(self, reference: Vector, total: Total) -> Vector:
        """The mean of all z, of which a total says how far it is from a public vector."""
        return as_vector(reference + self.averaging.mean(total))

    def _outcome(self, state: SplittingState, mean: Vector, point: Vector) -> Outcome[SplittingState]:
        eta = self.scheme.sizes.at(state.step)
        weight = state.weight + eta
        average = as_vector(state.average + eta / weight * (mean - state.average))
        facts = {"moved": float(np.linalg.norm(mean - state.mean)), "eta": eta}
        return Outcome(SplittingState(state.step + 1, mean, point, average, weight), facts)

    def client(self, learner: Learner, memory: Own) -> ClientRound[Own]:
        if self.scheme.is_common:
            return CommonClient(self.scheme, self.averaging, learner)
        return SplitClient(self.scheme, self.averaging, learner, memory)


# What makes each of the chapter's algorithms one of this family.
SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "fedsplit": {"alpha": 2.0, "beta": 2.0, "gamma": 1.0, "local_map": "proximal"},
        "fedpi": {"alpha": 2.0, "beta": 2.0, "gamma": 0.5, "local_map": "proximal"},
        "fedrp": {"alpha": 2.0, "beta": 1.0, "gamma": 1.0, "local_map": "proximal"},
        "splitting-fedprox": {"alpha": 1.0, "beta": 1.0, "gamma": 1.0, "local_map": "proximal"},
        "splitting-fedavg": {"alpha": 1.0, "beta": 1.0, "gamma": 1.0, **_FORWARD},
        "reflected-fedprox": {"alpha": 1.0, "beta": 2.0, "gamma": 1.0, "local_map": "proximal"},
        "reflected-fedavg": {"alpha": 1.0, "beta": 2.0, "gamma": 1.0, **_FORWARD},
    }
)
