"""Defines a drill: a session in which clients add known numbers, and some client processes are killed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, ClassVar, Final, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protocols.algorithm import Algorithm, ClientRound, NoMemory, Sum
from protocols.learner import Learner
from protocols.query_encoding import query_content
from protocols.rounds import Outcome, Query, Round
from secagg import Count, Part, Policy, Registry, ServerMachine, SumSpec, Table, Trust
from secagg.errors import ParameterError
from secagg.graph_parameters import GraphChoice
from secagg.machine_hooks import SERVER_DEFAULTS, ServerHooks
from secagg.session_params import SessionParams
from sims.coordination.sum_settings import SumSettings

KIND: Final = "drill"
PART: Final = "numbers"
_BITS: Final = 32

NumbersOf: TypeAlias = Callable[[int], NDArray[np.uint32]]  # the index of a sum -> what a client adds to it


@dataclass(frozen=True)
class NumbersQuery(Query):
    """Asks clients for the numbers that they add to sum `index`."""

    kind: ClassVar[str] = KIND
    index: int


@dataclass(frozen=True)
class LastTotal:
    """The state of a drill's server: the index of the next sum, and the last total."""

    index: int
    total: NDArray[Any] = field(default_factory=lambda: np.zeros(0))


class _NumbersClient(ClientRound[NoMemory]):
    def __init__(self, numbers: NumbersOf) -> None:
        self._numbers = numbers

    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        assert isinstance(query, NumbersQuery)
        return {PART: self._numbers(query.index)}


@dataclass(frozen=True, kw_only=True)
class NumbersAlgorithm(Algorithm[LastTotal, NoMemory]):
    """Asks for one sum in every round. A client's learner is a `NumbersOf`, so every total is known."""

    state_type: ClassVar[type] = LastTotal

    limit: int  # the largest number

    def sums(self) -> tuple[Sum, ...]:
        part = Part(name=PART, size=self.dim, bits=_BITS, bound=Count(self.limit))
        return (Sum(query=NumbersQuery, spec=SumSpec(parts=(part,)), reveals="the sum of known numbers"),)

    def round(self, state: LastTotal) -> Round[LastTotal]:
        total = yield NumbersQuery(state.index)
        return Outcome(LastTotal(state.index + 1, total[PART]))

    def client(self, learner: Learner, memory: NoMemory) -> ClientRound[NoMemory]:  # noqa: ARG002
        return _NumbersClient(cast(NumbersOf, learner))


@dataclass(frozen=True, kw_only=True)
class DrillConfig:
    """Parameters of a drill: a session in which at most the fraction `kill` of all clients is killed. Raise
    `ParameterError` if they are invalid."""

    clients: int
    dim: int  # length of the vector that each client adds to a sum
    kill: Fraction
    params: SessionParams  # of which trust, corrupt, sums and key agreement are used
    seed: int  # of the numbers that clients add and of the kills
    workers: int = 0  # processes that host all clients; 0: one per client
    neighbours: int = 0  # least neighbours of a client on a ring; 0: chosen by the number of clients
    tls: bool = True

    def __post_init__(self) -> None:
        if self.clients < self.corrupt + 2:
            raise ParameterError(
                f"{self.clients} clients with {self.corrupt} colluders: a total could show one honest input"
            )
        if self.neighbours and self.trust is Trust.MALICIOUS:
            raise ParameterError("neighbours cannot be chosen under malicious_server: its graph is complete")
        if self.neighbours == 1 or self.neighbours >= self.clients:
            most = self.clients - 1
            raise ParameterError(f"on a ring of {self.clients}, each has from 2 to {most} neighbours")
        self.make_server(Registry(0, {}))  # Raises before any process is started; members are not needed.

    @property
    def trust(self) -> Trust:
        return self.params.trust

    @property
    def corrupt(self) -> int:
        return self.params.corrupt

    @property
    def sums(self) -> int:
        return self.params.sums

    @property
    def killed(self) -> int:
        """Return the largest number of clients that the drill may kill."""
        return round(self.kill * self.clients)

    @property
    def limit(self) -> int:
        """Return the largest number in a client's vector: the largest 2^k - 1 so that sums fit 32 bits."""
        return (1 << (((1 << _BITS) - 1) // self.clients).bit_length() - 1) - 1

    @property
    def algorithm(self) -> NumbersAlgorithm:
        return NumbersAlgorithm(dim=self.dim, clients=self.clients, limit=self.limit)

    @property
    def table(self) -> Table:
        table = self.algorithm.table
        assert table is not None
        return table

    @property
    def policy(self) -> Policy:
        return Policy(
            trust=self.trust,
            corrupt=self.corrupt,
            min_cohort=self.corrupt + 2,
            max_cohort=self.clients,
            min_contributors=self.corrupt + 2,
            max_sums=self.sums,
            unnoised_sums=self.sums,
            key_agreement=self.params.key_agreement,
        )

    @property
    def sum_settings(self) -> SumSettings:
        return SumSettings(
            trust=self.trust,
            corrupt=self.corrupt,
            dropout=self.dropout,
            graph=self._graph,
            key_agreement=self.params.key_agreement,
            sums=self.sums,
        )

    @property
    def _graph(self) -> GraphChoice:
        return GraphChoice.RING if self.neighbours else GraphChoice.AUTO

    def make_server(self, registry: Registry, hooks: ServerHooks = SERVER_DEFAULTS) -> ServerMachine:
        """Return the server's state machine. `registry` (public keys) is used only for `malicious_server`."""
        return ServerMachine(
            table=self.table,
            params=replace(
                self.params,
                dropout=self.dropout,
                max_cohort=self.clients,
                graph=self._graph,
                min_neighbours=self.neighbours or 2,
            ),
            registry=registry if self.trust is Trust.MALICIOUS else None,
            content_of=query_content,
            hooks=hooks,
        )

    @property
    def dropout(self) -> Fraction:
        """Return the fraction of clients that may drop out: all that may be killed, or fewer if the privacy
        of inputs requires that more clients stay."""
        most = self.clients - self.corrupt - 2
        if self.trust is Trust.MALICIOUS:
            most = self.clients - (self.clients + self.corrupt) // 2 - 1
        return Fraction(max(0, min(self.killed, most)), self.clients)

    def groups(self) -> list[tuple[int, ...]]:
        """Return the clients of each worker process: one tuple of client numbers per process."""
        workers = min(self.workers, self.clients) or self.clients
        share = math.ceil(self.clients / workers)
        members = range(self.clients)
        return [tuple(members[start : start + share]) for start in range(0, self.clients, share)]
