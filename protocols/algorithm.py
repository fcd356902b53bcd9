"""The base classes of all algorithms: `Algorithm`, and `ClientRound` for a client's side of one round.

The server and its clients construct equal `Algorithm` objects. The `table` of an algorithm lists the allowed
sums, with their bounds and how often each may occur in a round. Clients refuse all other sums. The server's
state and a client's memory are dataclasses that `protocols.serialisation` can save.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Final, Generic, TypeVar, cast

from numpy.typing import ArrayLike

from protocols import checks
from protocols.learner import Learner
from protocols.privacy_budget import PrivacyBudget
from protocols.query_encoding import QueryDecoder
from protocols.rounds import Query, Round
from protocols.serialisation import Vector, as_vector
from secagg.errors import ParameterError, SpecError
from secagg.noise.zcdp_cost import sum_rho
from secagg.sum_spec import SumSpec, Table
from secagg.trust_levels import Trust

S = TypeVar("S")
M = TypeVar("M")
A = TypeVar("A")

# In a sum without noise, under a malicious server, a client's weight must be at least this part of the
# largest one. Otherwise the server could choose a value that removes all clients but one from the sum.
LEAST_WEIGHT: Final = 0.1
_ROUNDED: Final = 1 + 1e-9  # a margin for rounding
_MOST_BITS: Final = 64


@dataclass(frozen=True)
class NoMemory:
    """The empty memory of clients that store no values between rounds."""


@dataclass(frozen=True)
class ModelState:
    """The state of a server that stores only the common model between rounds."""

    model: Vector


@dataclass(frozen=True, kw_only=True)
class Sum:
    """One kind of sum that the rounds of an algorithm may contain.

    `query`         the class of the queries that ask for this sum.
    `spec`          the named parts (vectors) that are summed, how many such sums a round may have, and the
                    name of the group of sums that must all have the same clients.
    `reveals`       text for users: what a server learns from the total.
    `least_weight`  the smallest weight that a server can give to a client by its choice of the values in a
                    query, relative to the largest weight; 1 if weights do not depend on the server.
    `remedy`        text for users: what to set so that `least_weight` is large enough under a malicious
                    server; empty if no setting helps.
    `needed`        how many sums of this kind must succeed for a round to complete; None for all of them.
    `seldom`        for fields that are None in some queries: how many queries of a round set them, by name.
    `lengths`       the lengths of the query's vectors, by field name, if they differ from the model's length.
    `binds`         whether a client keeps its new memory only if its answer was counted in this sum; False if
                    a model is only evaluated.

    >>> from protocols.averaging import Update
    >>> spec = SumSpec(parts=(Part(name="update", size=3, bits=32, bound=L2(1.0)),))
    >>> Sum(query=Update, spec=spec, reveals="the sum of all updates").singles_out
    False
    """

    query: type[Query]
    spec: SumSpec
    reveals: str
    least_weight: float = 1.0
    remedy: str = ""
    needed: int | None = None
    seldom: Mapping[str, int] = field(default_factory=dict)
    lengths: Mapping[str, int] = field(default_factory=dict)
    binds: bool = True

    @property
    def singles_out(self) -> bool:
        """Whether there is no noise, and a malicious server can make almost only one client count."""
        return self.least_weight < LEAST_WEIGHT and not self.spec.is_private


class ClientRound(ABC, Generic[M]):
    """A client's side of one round. Every round has a new object, which may store results between answers."""

    @abstractmethod
    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        """Return what this client adds to the sum that `query` asks for: an array for each part, by name."""

    def memory(self) -> M:
        """Return the memory that the client takes to the next rounds, empty by default. `Participant` stores
        it only if the round completes and the client's answers were counted."""
        return cast(M, NoMemory())


class TrainingClient(ClientRound[M], Generic[A, M]):
    """A base class for clients that train a model with `learner`, which holds their data. After the round the
    client remembers `_memory`: the given `memory`, unless a subclass replaces it while it answers."""

    def __init__(self, algorithm: A, learner: Learner, memory: M) -> None:
        self._algorithm = algorithm
        self._learner = learner
        self._memory = memory

    def memory(self) -> M:
        return self._memory


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC, Generic[S, M]):
    """The base class of algorithms. It has the parameters, the server's side and the clients' side.

    `dim`      number of parameters of the model.
    `clients`  largest number of clients in one sum.

    The constructor raises `ParameterError` or `SpecError` for invalid parameters.

    >>> from protocols.fedavg import FedAvg
    >>> algorithm = FedAvg(dim=3, clients=10, clip=1.0)
    >>> list(algorithm.table), algorithm.most_sums
    (['update'], 1)
    >>> steps = algorithm.round(algorithm.start(np.zeros(3)))
    >>> next(steps).model  # what the server asks
    array([0., 0., 0.])
    """

    memory_type: ClassVar[type] = NoMemory
    state_type: ClassVar[type] = ModelState
    # The class of the privacy budget of the private variant; None if there is no private variant.
    budget_type: ClassVar[type[PrivacyBudget] | None] = None
    # Whether every client must be in every round, for example because the clients' weights add up to one.
    needs_all_clients: ClassVar[bool] = False

    dim: int
    clients: int

    def __post_init__(self) -> None:
        checks.whole("dim", self.dim, 1)
        checks.whole("clients", self.clients, 1)
        for each in fields(self):
            if each.type in ("bool", bool):
                checks.truth(each.name, getattr(self, each.name))
        self.check()
        self.query_decoder  # noqa: B018  # raises if two sums have the same kind
        if self.table is not None:
            self._check_fits(self.table)  # raises now, not in the first round

    def _check_fits(self, table: Table) -> None:
        try:
            table.check_fits(self.clients)
        except SpecError as error:
            needed = error.bits_needed
            if needed is None or needed > _MOST_BITS:
                raise
            raise SpecError(f"{error}: set bits to {needed} or more", bits_needed=needed) from None

    def check(self) -> None:
        """Raise `ParameterError`, with a message that says what is valid, if a parameter is invalid."""

    @abstractmethod
    def sums(self) -> tuple[Sum, ...]:
        """Return one `Sum` for each kind of sum that a round may ask for; () if clients train alone."""

    def start(self, model: Vector) -> S:
        """Return the server's state before the first round: `model`, and what subclasses add to it."""
        state: S = self.state_type(as_vector(model))
        return state

    def model(self, state: S) -> Vector:
        """Return the common model of the server's state."""
        return cast(ModelState, state).model

    def with_model(self, state: S, model: Vector) -> S:
        """Return `state` with `model` as its common model, for code that changes the model between rounds.
        Raises `ParameterError` if the state of this algorithm is not based on one common model."""
        if getattr(state, "model", None) is not self.model(state):
            raise ParameterError(
                f"{type(self).__name__} has no common model that could be moved from outside"
            )
        changed: S = replace(cast(Any, state), model=as_vector(model))
        return changed

    @abstractmethod
    def round(self, state: S) -> Round[S]:
        """Run the server's side of a round: yield queries, receive their totals, return an `Outcome`."""

    @abstractmethod
    def client(self, learner: Learner, memory: M) -> ClientRound[M]:
        """Return the object that runs a client's side of one round, with its `memory` of earlier rounds."""

    def first_memory(self) -> M:
        """Return the memory of a client that has not taken part in any round."""
        memory: M = self.memory_type()
        return memory

    def personal(self, memory: M, model: Vector, learner: Learner) -> Vector:  # noqa: ARG002
        """Return the model that this client uses: its personal one, or else `model`, the common one."""
        return model

    # --- derived from the sums ---

    @cached_property
    def table(self) -> Table | None:
        """The specs of all sums that a server can ask for, by kind of query; None if there are no sums."""
        sums = {each.query.kind: each.spec for each in self.sums()}
        return Table(sums) if sums else None

    @cached_property
    def query_decoder(self) -> QueryDecoder:
        lengths = {each.query.kind: each.lengths for each in self.sums()}
        return QueryDecoder(tuple(each.query for each in self.sums()), self.dim, lengths)

    @property
    def most_sums(self) -> int:
        """The largest number of sums in a round."""
        return 0 if self.table is None else sum(spec.times for spec in self.table.values())

    @property
    def budget(self) -> PrivacyBudget | None:
        """The privacy budget for which the noise is calibrated, if every sum has noise; None otherwise."""
        privacy: PrivacyBudget | None = getattr(self, "privacy", None)
        sums = () if self.table is None else tuple(self.table.values())
        return privacy if sums and all(spec.is_private for spec in sums) else None

    @property
    def max_rho(self) -> float | None:
        """The largest privacy loss (zCDP rho) of a client over all rounds; None if a sum has no noise."""
        return None if self.budget is None else self.rho_of_noise

    @cached_property
    def rho_of_noise(self) -> float:
        """The largest privacy loss (zCDP rho) of a client over all rounds by the sums with noise, even if
        there are others without."""
        privacy: PrivacyBudget | None = getattr(self, "privacy", None)
        if privacy is None or self.table is None:
            return 0.0
        return privacy.rounds * rho_of_round(self.table, self.clients, privacy)

    def check_trust(self, trust: Trust) -> None:
        """Raise `ParameterError` if the server may be malicious and could single out one client in a sum. If
        clients' weights depend on a value that the server chooses, such as a threshold, the server can give
        the weight zero to all clients but one, so that the total is that client's vector. Noise on the sum
        prevents this. So does a lower limit of weights: the total then mixes all vectors."""
        for each in self.sums():
            if trust is Trust.MALICIOUS and each.singles_out:
                remedy = f"to prevent that, {each.remedy}" if each.remedy else "nothing prevents that"
                raise ParameterError(
                    f"in {each.query.kind!r}, a value that the server chooses can lower a client's weight to "
                    f"{each.least_weight:g}: under {trust}, the server could single out one client; {remedy}"
                )


def rho_of_round(table: Table, clients: int, privacy: PrivacyBudget) -> float:
    """Return a client's zCDP rho in a round of all sums in `table`, rounded up. Sums without noise add 0."""
    adjacency = privacy.goal.adjacency
    costs = (
        spec.times * (sum_rho(spec, roster=clients, adjacency=adjacency) or 0.0) for spec in table.values()
    )
    return sum(costs) * _ROUNDED


AnyAlgorithm = Algorithm[Any, Any]
