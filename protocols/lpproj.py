"""lp-proj: personal models whose projections to a random subspace are pulled to a common point by a penalty.

"Personalized Federated Learning towards Communication Efficiency, Robustness and Fairness", Algorithm 1. P is
a matrix of few rows that all parties generate from a public seed. With clients' losses f_k, all minimise

    the mean over clients of   f_k(x_k) + pull / p * |P x_k - w|_p^p      with p = 1 or 2

over the personal models x_k and the reference w, which has one number for each row of P. Only vectors of this
length are sent, in either direction.

In the paper all clients train in every round, and some of them are selected for the mean afterwards. Here
only the clients in the sum train, and the others keep their models. Every client starts from the initial
model of the run, and keeps the result of a round only if the round was completed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from protocols import checks
from protocols.algorithm import Algorithm, Sum, TrainingClient
from protocols.averaging import WeightedMean
from protocols.checks import MissingBound
from protocols.learner import Learner, PenaltyTerm, Steering
from protocols.parameter_fields import parameter
from protocols.personal_model import KeepsOwnModel, OwnModel
from protocols.privacy_budget import PrivacyBudget
from protocols.random_projection import AUTO, Subspace
from protocols.rounds import Outcome, Query, Round
from protocols.rsa import SignedCounts
from protocols.serialisation import Vector, as_vector
from secagg.errors import ParameterError
from secagg.sum_spec import SumSpec, Total


@dataclass(frozen=True)
class Agree(Query):
    """Asks how each client moves its copy of `reference`, the point to which projected models are pulled."""

    kind: ClassVar[str] = "agree"
    reference: Vector


@dataclass(frozen=True)
class ReferenceState:
    """The server's state: `reference` is w, to which the clients' projected models are pulled, and `first` is
    the run's initial model, which is not sent."""

    reference: Vector
    first: Vector


@dataclass(frozen=True, kw_only=True)
class LpProj(KeepsOwnModel, Algorithm[ReferenceState, OwnModel]):
    """The base class of `LpProj1` and `LpProj2`. A penalty pulls the projection P x of each client's model x
    to the server's reference w. In a round, a client starts with a copy w_k of w, and repeats `rounds` times:

        x <- x - personal_rate * (gradient(x) + pull * P' psi(P x - w_k))       `personal_steps` times
        w_k <- w_k - rate * pull * psi(w_k - P x)

    where psi(v) is v for p = 2, and the signs of v for p = 1. The server moves w by `beta` times the mean
    move of the copies; all clients have the same weight.
    """

    state_type: ClassVar[type] = ReferenceState
    power: ClassVar[int]

    subspace: int | None = parameter(None, "d_sub, rows of P: as many numbers are sent")
    public_seed: int = parameter(0, "of P, which is no secret")
    transform: str = parameter(
        AUTO,
        '"dense" for Gaussian rows, "fast" for signs and a Walsh-Hadamard transform, or "auto": dense '
        "up to 1e8 entries. On a CPU, fast takes less time from some 1e6 entries on",
    )
    orthonormal: bool = parameter(False, "whether rows of P are made orthogonal to each other")
    pull: float = parameter(15.0, "lambda")
    rounds: int = parameter(5, "R, local rounds")
    personal_steps: int = parameter(20, "local steps on x in each of them")
    personal_rate: float | None = parameter(
        None,
        "of these; the learner's own by default. For p = 2 it must be below about 2 / (pull + "
        "curvature of the loss), or steps diverge",
    )
    rate: float = parameter(0.1, "eta, of the copy of w")
    beta: float = parameter(1.0, "how far w moves towards the mean of the copies")
    initial: Vector | None = field(default=None, compare=False)

    def check(self) -> None:
        if self.subspace is None:
            raise MissingBound("subspace", "how many numbers of a model are shared, such as 50")
        checks.whole("subspace", self.subspace, 1)
        if self.subspace > self.dim:
            most = f"{self.dim}, the number of the model's parameters"
            raise ParameterError(
                f"subspace must be at most {most}, not {self.subspace}", parameter="subspace"
            )
        checks.whole("public_seed", self.public_seed, 0, (1 << 63) - 1)
        checks.whole("rounds", self.rounds, 1, 1 << 20)
        checks.whole("personal_steps", self.personal_steps, 1)
        for name in ("pull", "rate", "beta"):
            checks.positive(name, getattr(self, name))
        if self.personal_rate is not None:
            checks.positive("personal_rate", self.personal_rate)
        if self.initial is not None and len(self.initial) != self.dim:
            raise ParameterError(
                f"initial must have as many numbers as the model, {self.dim}, not {len(self.initial)}",
                parameter="initial",
            )
        self.space  # noqa: B018  # raises if the transform is invalid

    @cached_property
    def space(self) -> Subspace:
        """The public random matrix P that projects models to the subspace."""
        assert self.subspace is not None  # checked above
        return Subspace(
            dim=self.dim,
            size=self.subspace,
            seed=self.public_seed,
            transform=self.transform,
            orthonormal=self.orthonormal,
        )

    @property
    def step(self) -> float:
        """The step size rate * pull with which a client moves its copy of the server's reference w."""
        return self.rate * self.pull

    @property
    @abstractmethod
    def reveals(self) -> str: ...

    @abstractmethod
    def spec(self) -> SumSpec:
        """Return the parts and bounds of the only sum of a round."""

    @abstractmethod
    def contribution(self, moves: Vector) -> Mapping[str, ArrayLike]:
        """Return what a client adds to each part, if its copy of the reference moved by -step * `moves`."""

    @abstractmethod
    def mean(self, total: Total) -> Vector:
        """Return the mean move of the clients' copies of the reference w, from the total of a round."""

    def sums(self) -> tuple[Sum, ...]:
        lengths = {"reference": self.space.size}
        return (Sum(query=Agree, spec=self.spec(), reveals=self.reveals, lengths=lengths),)

    def start(self, model: Vector) -> ReferenceState:
        return ReferenceState(as_vector(np.zeros(self.space.size)), as_vector(model))

    def model(self, state: ReferenceState) -> Vector:
        """Return the initial model, moved as little as possible so that its projection is the reference w.
        (The paper has no common model, and w determines a model only within the subspace.)"""
        off = state.reference - self.space.project(state.first)
        return as_vector(state.first + self.space.shift(off))

    def round(self, state: ReferenceState) -> Round[ReferenceState]:
        total = yield Agree(state.reference)
        move = self.beta * self.mean(total)
        facts = {"moved": float(np.linalg.norm(move))}
        return Outcome(ReferenceState(as_vector(state.reference + move), state.first), facts)

    def client(self, learner: Learner, memory: OwnModel) -> LpProjClient:
        return LpProjClient(self, learner, memory)


class LpProjClient(TrainingClient[LpProj, OwnModel]):
    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        assert isinstance(query, Agree)
        algorithm, own, copy = self._algorithm, self._first(), query.reference
        moves = np.zeros(len(copy))
        for _ in range(algorithm.rounds):
            own = self._towards(own, copy)
            off = copy - algorithm.space.project(own)
            moves += np.sign(off) if algorithm.power == 1 else off
            copy = query.reference - algorithm.step * moves
        self._memory = OwnModel(as_vector(own))
        # The signs of infinities are finite, so they are replaced by NaN: the client then declines to answer.
        return algorithm.contribution(moves if np.isfinite(own).all() else np.full_like(moves, np.nan))

    def _first(self) -> Vector:
        """Return the client's model from earlier rounds; at first, `initial`, or zeros if that is None."""
        if self._memory.model is not None:
            return self._memory.model
        initial = self._algorithm.initial
        return as_vector(np.zeros(self._algorithm.dim) if initial is None else initial)

    def _towards(self, own: Vector, copy: Vector) -> Vector:
        """Return the model after local steps from `own`; a penalty pulls its projection to `copy`."""
        algorithm = self._algorithm
        penalty = PenaltyTerm(center=copy, pull=algorithm.pull, power=algorithm.power, space=algorithm.space)
        return self._learner.train(
            own, Steering(penalty=penalty), steps=algorithm.personal_steps, rate=algorithm.personal_rate
        )


@dataclass(frozen=True, kw_only=True)
class LpProj1(LpProj):
    """lp-proj with p = 1. A client's copy of the server's reference w moves by rate * pull times integers
    from -`rounds` to `rounds`, which are summed exactly in few bits. With n clients, an honest client moves a
    coordinate of w by at most beta * rate * pull * rounds / n, even if its data are wrong."""

    power: ClassVar[int] = 1

    @cached_property
    def signed_counts(self) -> SignedCounts:
        return SignedCounts(self.space.size, self.rounds, self.clients)

    @property
    def reveals(self) -> str:
        return (
            "in every coordinate of the subspace, how often clients were on one side of w, minus how often "
            "on the other"
        )

    def spec(self) -> SumSpec:
        return SumSpec(parts=(self.signed_counts.part(),))

    def contribution(self, moves: Vector) -> Mapping[str, ArrayLike]:
        return self.signed_counts.contribution(moves)

    def mean(self, total: Total) -> Vector:
        return -self.step * self.signed_counts.total(total) / total.count


@dataclass(frozen=True, kw_only=True)
class LpProj2(LpProj):
    """lp-proj with p = 2. A client's copy of the server's reference w moves by a real vector, which is sent
    with a norm of at most `clip`. `privacy` is a budget for noise on every sum, or None.

    Against a malicious server this variant needs noise. The server could send a distant w to all clients but
    one, which pulls their models there. Their next answers are then clipped vectors in a direction that the
    server can predict. It can subtract them from the total, which leaves the answer of the other client. With
    p = 1 the pull is bounded.
    """

    power: ClassVar[int] = 2
    budget_type: ClassVar[type[PrivacyBudget] | None] = PrivacyBudget

    clip: float | None = parameter(None, "largest norm of that; a longer one is scaled down to it")
    bits: int = parameter(24, "of every number on the wire")
    privacy: PrivacyBudget | None = None

    @cached_property
    def averaging(self) -> WeightedMean:
        size, bits = self.space.size, self.bits
        return WeightedMean(dim=size, clients=self.clients, clip=self.clip, bits=bits, privacy=self.privacy)

    def check(self) -> None:
        super().check()
        self.averaging  # noqa: B018  # raises if the bounds are invalid

    @property
    def reveals(self) -> str:
        noise = "" if self.privacy is None else ", with noise"
        return f"the sum of the clients' proposed moves of w in the subspace{noise}"

    def sums(self) -> tuple[Sum, ...]:
        remedy = "take lp-proj-1, or add noise to every sum"
        return tuple(replace(each, least_weight=0.0, remedy=remedy) for each in super().sums())

    def spec(self) -> SumSpec:
        return self.averaging.spec()

    def contribution(self, moves: Vector) -> Mapping[str, ArrayLike]:
        return self.averaging.contribution(-self.step * moves, 1)

    def mean(self, total: Total) -> Vector:
        return self.averaging.mean(total)
