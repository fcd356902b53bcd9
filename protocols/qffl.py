"""q-FFL: clients with a higher loss get a larger weight, so that losses become more equal.

"Fair Resource Allocation in Federated Learning", Algorithm 2 (q-FedAvg). The objective is the sum over
clients with loss F of F^(q+1) / (q+1). With a client's update u by local steps at rate eta and g = -u / eta,
the paper has

    Delta = F^q g,    h = q F^(q-1) |g|^2 + F^q / eta,    w <- w - (sum of Delta) / (sum of h).

Clients send -Delta and h, both multiplied by eta / loss_cap^q, which does not change the ratio of the sums.
These are v * u and v * (1 + q |u|^2 / (eta F)), with a weight v = (F / loss_cap)^q of at most 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from protocols import checks
from protocols.algorithm import Algorithm, ModelState, NoMemory, Sum, TrainingClient
from protocols.averaging import UPDATE, Update, WeightedMean, clipped
from protocols.learner import Learner
from protocols.parameter_fields import BITS_MEANING, CAP_MEANING, parameter
from protocols.rounds import Outcome, Query, Round
from protocols.serialisation import as_vector
from secagg.errors import CorruptTotal, ParameterError
from secagg.sum_spec import LInf, Part, SumSpec

STIFFNESS: Final = "stiffness"
_BITS: Final = 64  # bits of the sum of stiffness, by which the server divides the other total


@dataclass(frozen=True, kw_only=True)
class QFFL(Algorithm[ModelState, NoMemory]):
    """q-FFL: clients weight their updates by the power q of their loss at the common model. The server
    divides their sum by the sum of the clients' stiffness, an estimate of the curvature of the objective."""

    q: float = parameter(1.0, "0 is federated averaging; the larger it is, the more the worst clients count")
    rate: float | None = parameter(
        None,
        "eta, the learning rate of local steps; its inverse is L of the paper. It is set here, and "
        "not by each learner, because the bounds depend on it",
    )
    loss_cap: float | None = parameter(None, "largest loss that is told apart; a larger one counts as this")
    loss_floor: float = parameter(
        1e-3,
        "the least, likewise. The released code adds 1e-10 to every loss instead; the wider the range "
        "from floor to cap is, the fewer bits remain for clients with a small loss",
    )
    clip: float | None = parameter(None, "largest norm of an update")
    weighted: bool = parameter(True, "whether clients count by their samples, too, up to `cap`")
    cap: int = parameter(1000, CAP_MEANING)
    bits: int = parameter(48, BITS_MEANING)

    def check(self) -> None:
        checks.real("q", self.q, 0)
        checks.bound("rate", self.rate, "the learning rate of clients' local steps, such as 0.1")
        checks.bound("loss_cap", self.loss_cap, "the largest loss that a client may report, such as 10.0")
        checks.positive("loss_floor", self.loss_floor)
        assert self.loss_cap is not None  # checked above
        if self.loss_floor >= self.loss_cap:
            raise ParameterError("loss_floor must be below loss_cap", parameter="loss_floor")
        self.averaging  # noqa: B018  # raises if the other bounds are invalid
        if not self._largest <= checks.LARGEST:  # also true for NaN
            raise ParameterError(
                "q * clip^2 / (rate * loss_floor) is too large for any sum: set a smaller clip or q, or a "
                "larger rate or loss_floor",
                parameter="q",
            )

    @property
    def _largest(self) -> float:
        """The largest `stiffness` of a client, which bounds what it adds to the sum. As a function of the
        loss, stiffness falls and then rises, so it is largest at an end of the range of losses."""
        assert self.loss_cap is not None
        return max(self.stiffness(loss, self.averaging.limit) for loss in (self.loss_floor, self.loss_cap))

    @cached_property
    def averaging(self) -> WeightedMean:
        cap = self.cap if self.weighted else 1
        return WeightedMean(dim=self.dim, clients=self.clients, clip=self.clip, cap=cap, bits=self.bits)

    # --- weights, relative to the largest weight ---

    def weight(self, loss: float) -> float:
        """Return a client's weight (loss / loss_cap)^q, for a loss from loss_floor to loss_cap."""
        assert self.loss_cap is not None
        return float((loss / self.loss_cap) ** self.q)

    def stiffness(self, loss: float, norm: float) -> float:
        """Return weight * (1 + q * norm^2 / (rate * loss)): what a client with this loss and an update of
        this norm adds to the number by which the server divides the sum of weighted updates."""
        assert self.rate is not None
        return self.weight(loss) * (1 + self.q * norm**2 / (self.rate * loss))

    def within(self, loss: float) -> float:
        assert self.loss_cap is not None
        return min(max(loss, self.loss_floor), self.loss_cap)

    def sums(self) -> tuple[Sum, ...]:
        largest = self._largest
        update = self.averaging.parts()[0]
        stiffness = Part(name=STIFFNESS, size=1, bits=_BITS, bound=LInf(largest))
        return (
            Sum(
                query=Update,
                spec=SumSpec(parts=(update, stiffness)),
                reveals="the sum of the clients' updates, weighted by powers of their losses, and one number "
                "that grows with their weights and with the norms of their updates",
                least_weight=min(self.weight(self.loss_floor), self.weight(self.loss_floor) / largest),
                remedy="set q to 0, which is federated averaging",
            ),
        )

    def round(self, state: ModelState) -> Round[ModelState]:
        total = yield Update(state.model)
        stiffness = float(total[STIFFNESS][0])
        if stiffness <= 0:
            raise CorruptTotal("the weights of this sum's clients add up to nothing")
        step = np.asarray(total[UPDATE], np.float64) / stiffness
        return Outcome(ModelState(as_vector(state.model + step)), {"moved": float(np.linalg.norm(step))})

    def client(self, learner: Learner, memory: NoMemory) -> QFFLClient:
        return QFFLClient(self, learner, memory)


class QFFLClient(TrainingClient[QFFL, NoMemory]):
    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        assert isinstance(query, Update)
        algorithm, learner = self._algorithm, self._learner
        loss = algorithm.within(learner.loss(query.model))
        update = learner.train(query.model, rate=algorithm.rate) - query.model
        update = clipped(update, algorithm.averaging.limit)
        share = algorithm.averaging.weight(learner.samples)
        stiffness = algorithm.stiffness(loss, float(np.linalg.norm(update)))
        return {UPDATE: share * algorithm.weight(loss) * update, STIFFNESS: np.array([share * stiffness])}
