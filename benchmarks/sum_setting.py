"""The setting of a benchmark of whole sums, and the machines for it.

Clients and server are made apart, because they live in different processes; together they are what
`secagg.local_machines` makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Final, Self

from secagg import L2, ClientMachine, Identity, Part, Policy, Registry, ServerMachine, SumSpec, Table, Trust
from secagg.client_memory import VolatileMemory
from secagg.distributed_noise import NoiseAssumptions
from secagg.errors import ParameterError
from secagg.graph_parameters import GraphChoice
from secagg.hybrid_keys import KeyAgreement
from secagg.noise.privacy_goal import Goal
from secagg.noise.vector_calibration import calibrate_vector
from secagg.self_and_pair_masks import Expander
from secagg.session_params import SessionParams, largest_cohort
from secagg.trust_levels import dropouts_allowed

KIND: Final = "update"
PART: Final = "update"
_CLIP: Final = 1.0
_RHO: Final = 1.0  # of a sum with noise; about epsilon 7 at delta 1e-5


@dataclass(frozen=True, kw_only=True)
class SumSetting:
    """What is summed, among how many, and how many of them leave.

    `corrupt`     most clients that collude with the server.
    `dropout`     part of the clients that vanish after sharing their secrets and before masking.
    `neighbours`  least neighbours on a ring; chosen from `corrupt` and `dropout` where it is None.
    `processes`   in which the server expands masks.
    `noise`       whether clients add noise, enough for these colluders and drop-outs, on a grid as fine as
                  `bits` allow.
    `agreement`   how clients agree on secrets: by X25519 alone, or also by ML-KEM-768.
    """

    clients: int
    dim: int
    bits: int
    corrupt: int
    dropout: Fraction
    trust: Trust
    neighbours: int | None = None
    processes: int = 1
    noise: bool = False
    agreement: KeyAgreement = KeyAgreement.X25519

    def __post_init__(self) -> None:
        if self.neighbours is not None and self.trust is Trust.MALICIOUS:
            raise ParameterError("neighbours cannot be chosen under malicious_server: its graph is complete")
        if self.clients > (most := largest_cohort(self.trust)):
            raise ParameterError(f"under {self.trust} a session takes at most {most} clients")
        if self.clients < self.corrupt + 2:
            raise ParameterError(
                f"{self.clients} clients with {self.corrupt} colluders: a total could show one honest input"
            )

    @property
    def dropped(self) -> int:
        return dropouts_allowed(self.clients, self.dropout)

    @property
    def graph(self) -> str:
        return "auto" if self.neighbours is None else "ring"

    @cached_property
    def spec(self) -> SumSpec:
        if not self.noise:
            return SumSpec(parts=(Part(name=PART, size=self.dim, bits=self.bits, bound=L2(_CLIP)),))
        promise = NoiseAssumptions(clients=self.clients, dropouts=self.dropped, colluders=self.corrupt)
        plan = calibrate_vector(
            promise=promise, goal=Goal(rho=_RHO), size=self.dim, clip=_CLIP, bits=self.bits
        )
        return SumSpec(parts=(plan.part(PART),), promise=promise)

    @property
    def table(self) -> Table:
        return Table({KIND: self.spec})

    def as_json(self) -> dict[str, Any]:
        words = {"dropout": str(self.dropout), "trust": str(self.trust), "agreement": str(self.agreement)}
        return {**asdict(self), **words}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        dropout, trust = Fraction(values["dropout"]), Trust.parse(values["trust"])
        agreement = KeyAgreement.parse(values["agreement"])
        return cls(**{**values, "dropout": dropout, "trust": trust, "agreement": agreement})


def make_server(setting: SumSetting, registry: Registry | None, expander: Expander) -> ServerMachine:
    least = setting.corrupt + 2
    return ServerMachine(
        table=setting.table,
        params=SessionParams(
            trust=setting.trust,
            sums=1,
            corrupt=setting.corrupt,
            dropout=setting.dropout,
            min_cohort=least,
            max_cohort=setting.clients,
            min_contributors=least,
            graph=GraphChoice.parse(setting.graph),
            min_neighbours=setting.neighbours or 2,
            key_agreement=setting.agreement,
        ),
        registry=registry,
        expander=expander,
    )


def make_clients(setting: SumSetting) -> tuple[dict[int, ClientMachine], Registry | None]:
    """Return a client for each id from zero on, and the registry that they share with the server."""
    least = setting.corrupt + 2
    policy = Policy(
        trust=setting.trust,
        corrupt=setting.corrupt,
        min_cohort=least,
        max_cohort=setting.clients,
        min_contributors=least,
        max_sums=1,
        unnoised_sums=1,
        key_agreement=setting.agreement,
    )
    identities, registry = _identities(setting)
    table = setting.table
    clients = {
        member: ClientMachine(
            member=member,
            table=table,
            policy=policy,
            memory=VolatileMemory(),
            identity=identities.get(member),
            registry=registry,
        )
        for member in range(setting.clients)
    }
    return clients, registry


def _identities(setting: SumSetting) -> tuple[dict[int, Identity], Registry | None]:
    if setting.trust is Trust.CURIOUS:
        return {}, None
    identities = {member: Identity.generate() for member in range(setting.clients)}
    return identities, Registry(0, {member: identity.public for member, identity in identities.items()})
