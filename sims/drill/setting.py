"""What a drill is about: how many clients, what they sum, and how many of them are killed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from secagg import Count, Part, Policy, Registry, ServerMachine, SumSpec, Table, Trust
from secagg.errors import ParameterError

KIND: Final = "drill"
PART: Final = "numbers"
_BITS: Final = 32


@dataclass(frozen=True, kw_only=True)
class DrillSetting:
    """`kill` is the part of the clients that is killed over the whole session.

    `workers`     processes that host all clients; one for each client if 0.
    `neighbours`  least neighbours on a ring; everybody's if 0.
    """

    clients: int
    dim: int
    sums: int
    kill: Fraction
    corrupt: int
    trust: Trust
    seed: int
    workers: int = 0
    neighbours: int = 0
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
        self.make_server(self.unsigned_registry)  # raises what cannot work before any process is started

    @property
    def killed(self) -> int:
        return round(self.kill * self.clients)

    @property
    def limit(self) -> int:
        """The largest number that a client adds: all of them together fit. One less than a power of two."""
        return (1 << (((1 << _BITS) - 1) // self.clients).bit_length() - 1) - 1

    @property
    def table(self) -> Table:
        part = Part(name=PART, size=self.dim, bits=_BITS, bound=Count(self.limit))
        return Table({KIND: SumSpec(parts=(part,))})

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
        )

    @property
    def unsigned_registry(self) -> Registry:
        """Of nobody; good for a look at the parameters only."""
        return Registry(0, {})

    def make_server(self, registry: Registry) -> ServerMachine:
        return ServerMachine(
            table=self.table,
            trust=self.trust,
            sums=self.sums,
            corrupt=self.corrupt,
            dropout=self.dropout,
            min_cohort=self.corrupt + 2,
            max_cohort=self.clients,
            min_contributors=self.corrupt + 2,
            registry=registry if self.trust is Trust.MALICIOUS else None,
            graph="ring" if self.neighbours else "auto",
            min_neighbours=self.neighbours or 2,
        )

    @property
    def dropout(self) -> Fraction:
        """What the threshold is made for: everybody who is killed, as far as the colluders allow it."""
        most = self.clients - self.corrupt - 2
        if self.trust is Trust.MALICIOUS:
            most = self.clients - (self.clients + self.corrupt) // 2 - 1
        return Fraction(max(0, min(self.killed, most)), self.clients)

    def crews(self) -> list[tuple[int, ...]]:
        """The clients of each process."""
        workers = min(self.workers, self.clients) or self.clients
        share = math.ceil(self.clients / workers)
        members = range(self.clients)
        return [tuple(members[start : start + share]) for start in range(0, self.clients, share)]
