"""RSA: clients have personal models; the common model moves by the signs of its differences from them.

"RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed Learning from Heterogeneous Datasets",
with its l1 penalty. Clients and server minimise

    the sum over clients of   f_i(x_i) + pull * |x_i - x_0|_1     and   decay / 2 * |x_0|^2

over the clients' models x_i and the common one, x_0, where f_i is the loss of client i. Clients send only the
signs of x_0 - x_i, so a client's influence on a coordinate does not depend on its distance. The sum of signs
is exact, and needs only as many bits as counting the clients.

There are two differences from the paper; neither changes fixed points. In the paper, clients take the signs
before their step; here, after their steps. In the paper, all clients are in every sum; here, a client that is
not in a sum does not train in that round.

Signed numbers. Counts on the wire are not negative, so every client adds `most` to each of its numbers, and
the server, which knows the number of clients, subtracts it again. A client moves a total by at most `most`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protocols import checks
from protocols.algorithm import Algorithm, Sum, TrainingClient
from protocols.averaging import Update
from protocols.learner import Learner, PenaltyTerm, Steering
from protocols.parameter_fields import parameter
from protocols.personal_model import KeepsOwnModel, OwnModel
from protocols.rounds import Outcome, Query, Round
from protocols.serialisation import Vector, as_vector
from secagg.errors import CorruptTotal
from secagg.sum_spec import Count, Part, SumSpec, Total, bits_for_cohort

CONSTANT: Final = "constant"
SQRT: Final = "sqrt"


@dataclass(frozen=True)
class SteppedState:
    """The server's state: the common model, and the number of steps by which it has moved so far."""

    model: Vector
    steps: int = 0


@dataclass(frozen=True, kw_only=True)
class RSA(KeepsOwnModel, Algorithm[SteppedState, OwnModel]):
    """RSA: in a round, clients take steps x_i <- x_i - r * (gradient(x_i) + pull * sign(x_i - x_0)) on their
    own models x_i, with learning rate r. In step t = 1, 2, ..., the server moves the common model x_0:

        x_0 <- x_0 - rate_t * (pull * (sum of sign(x_0 - x_i)) + decay * x_0), with rate_t by `schedule`
    """

    state_type: ClassVar[type] = SteppedState

    pull: float = parameter(
        0.1, "lambda. Where it exceeds what gradients can weigh against it, all models are the same"
    )
    rate: float = parameter(
        0.001,
        "of the server's step. It moves a coordinate by rate * pull * clients at most. Clients have "
        "the learning rate of their training, and its schedule",
    )
    schedule: str = parameter(
        CONSTANT, 'how `rate` falls: "constant", or "sqrt" for rate / sqrt(t) as in the paper'
    )
    decay: float = parameter(0.0, "weight decay of the common model: the server's own loss")
    steps: int | None = parameter(
        None, "local steps of a round; as many as the learner takes by default. The paper has one"
    )

    def check(self) -> None:
        checks.positive("pull", self.pull)
        checks.positive("rate", self.rate)
        checks.real("decay", self.decay, 0)
        if self.steps is not None:
            checks.whole("steps", self.steps, 1)
        checks.either("schedule", self.schedule, CONSTANT, SQRT)

    @cached_property
    def signed_counts(self) -> SignedCounts:
        return SignedCounts(self.dim, 1, self.clients)

    def sums(self) -> tuple[Sum, ...]:
        reveals = (
            "in every coordinate, the number of clients' models below the common one, minus those above it"
        )
        return (Sum(query=Update, spec=SumSpec(parts=(self.signed_counts.part(),)), reveals=reveals),)

    def rate_of(self, step: int) -> float:
        """Return the server's learning rate in step 1, 2, ..."""
        return self.rate / math.sqrt(step) if self.schedule == SQRT else self.rate

    def round(self, state: SteppedState) -> Round[SteppedState]:
        total = yield Update(state.model)
        slope = self.pull * self.signed_counts.total(total) + self.decay * state.model
        move = -self.rate_of(state.steps + 1) * slope
        facts = {"moved": float(np.linalg.norm(move))}
        return Outcome(SteppedState(as_vector(state.model + move), state.steps + 1), facts)

    def client(self, learner: Learner, memory: OwnModel) -> RSAClient:
        return RSAClient(self, learner, memory)


class RSAClient(TrainingClient[RSA, OwnModel]):
    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        assert isinstance(query, Update)
        algorithm = self._algorithm
        penalty = PenaltyTerm(center=query.model, pull=algorithm.pull, power=1)
        start = query.model if self._memory.model is None else self._memory.model
        own = self._learner.train(start, Steering(penalty=penalty), steps=algorithm.steps)
        self._memory = OwnModel(as_vector(own))
        # The signs of infinities are finite, so they are replaced by NaN: the client then declines to answer.
        signs = np.sign(query.model - own) if np.isfinite(own).all() else np.full_like(own, np.nan)
        return algorithm.signed_counts.contribution(signs)


SIGNED_COUNTS: Final = "votes"
Whole: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class SignedCounts:
    """The encoding of sums over at most `clients` vectors of `size` whole numbers from -`most` to `most`.

    >>> counts = SignedCounts(size=2, most=1, clients=10)
    >>> counts.part().bits  # from 0 to 20
    5
    >>> counts.contribution(np.array([-1.0, 1.0]))
    {'votes': array([0, 2], dtype=uint64)}
    """

    size: int
    most: int
    clients: int

    def part(self) -> Part:
        bound = Count(2 * self.most)
        return Part(
            name=SIGNED_COUNTS, size=self.size, bits=bits_for_cohort(bound, self.clients), bound=bound
        )

    def contribution(self, numbers: Vector) -> Mapping[str, ArrayLike]:
        """Return what a client adds, by part name: its numbers plus `most`. If a number is not finite, return
        all numbers unchanged, so that the client declines to answer."""
        if not np.isfinite(numbers).all():
            return {SIGNED_COUNTS: numbers}
        return {SIGNED_COUNTS: (numbers + self.most).astype(np.uint64)}

    def total(self, total: Total) -> Whole:
        """Return the sum of all signed numbers. Raises `CorruptTotal` if the clients' bounds rule it out."""
        shifted = np.asarray(total[SIGNED_COUNTS]).astype(np.int64)
        if (shifted > 2 * self.most * total.count).any():
            raise CorruptTotal("counts add up to more than all clients may send: some client broke its bound")
        return shifted - self.most * total.count
