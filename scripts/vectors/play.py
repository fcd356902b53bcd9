"""`Play`: who takes part in a transcript, on which terms, what is asked, and what goes wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from secagg.hybrid_keys import KeyAgreement
from secagg.identity_registry import Registry
from secagg.insecure_seeds import seeded_registry
from secagg.policy import Policy
from secagg.sum_spec import Table
from secagg.trust_levels import Trust

SEED: Final = b"transcript"
NOW: Final = 1_800_000_000  # seconds of Unix time: before the registries expire
SET_UP: Final = -1  # in place of the number of a sum

Values: TypeAlias = Mapping[str, list[Any]]


@dataclass(frozen=True)
class FalseCount:
    """In sum `index`, a client puts `count` on the hidden count instead of 1."""

    index: int
    count: int


@dataclass(frozen=True)
class WrongShare:
    """In sum `index`, a client reveals a wrong share of the self mask of `dealer`."""

    index: int
    dealer: int


@dataclass(frozen=True)
class FalseDealing:
    """A client deals shares of `decoy` instead of its self-mask secret of sum `index`, and its envelope for
    client `unreadable` does not open."""

    index: int
    decoy: bytes
    unreadable: int


Lie: TypeAlias = FalseCount | WrongShare | FalseDealing


@dataclass(frozen=True, kw_only=True)
class Play:
    """One session. `queries` are (kind, round, payload); the payload stands for a broadcast model."""

    name: str
    about: str
    trust: Trust
    members: tuple[int, ...]
    corrupt: int
    max_cohort: int
    dropout: float
    table: Table
    values: Mapping[str, Mapping[int, Values]]  # kind -> client -> what it answers in every sum of the kind
    queries: Sequence[tuple[str, int, bytes]]
    lost: Mapping[tuple[int, str], tuple[int, ...]]  # (sum, type of frame) -> whom it does not reach
    declined: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    silent: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    leavers: tuple[int, ...] = ()
    graph: Mapping[str, Any] = field(default_factory=lambda: {"graph": "complete"})
    policy_changes: Mapping[str, Any] = field(default_factory=dict)
    key_agreement: KeyAgreement = KeyAgreement.X25519
    lies: Mapping[int, Lie] = field(default_factory=dict)  # by the client that lies

    @property
    def sums(self) -> int:
        return len(self.queries)

    @property
    def limits(self) -> dict[str, Any]:
        """What the server and its clients agree on beforehand."""
        least = self.corrupt + 2
        sizes = {"min_cohort": least, "max_cohort": self.max_cohort, "min_contributors": least}
        return {"trust": self.trust, "corrupt": self.corrupt, "key_agreement": self.key_agreement, **sizes}

    @property
    def policy(self) -> Policy:
        return Policy(**self.limits, max_sums=self.sums, unnoised_sums=10, **self.policy_changes)

    @property
    def registry(self) -> Registry | None:
        """One identity more than takes part; it expires in the year 2100."""
        if self.trust is Trust.CURIOUS:
            return None
        listed = [*self.members, self.members[-1] + 1]
        return replace(seeded_registry(SEED, listed, version=2), expires=4_102_444_800)
