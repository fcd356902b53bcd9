"""The result of an audit, as dataclasses that the command line, `--json` and the report read.

All of it comes from a run directory alone. `sims.audit.audit_run` builds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """What was run. `attackers` is the number of clients that attack. `graph`, `neighbours` and `threshold`
    are those of its last session, if any.
    """

    path: str
    name: str
    label: str
    algorithm: str
    clients: int
    per_round: int
    dim: int
    attackers: int
    channel: str
    trust: str
    graph: str | None
    neighbours: int | None
    threshold: int | None
    insecure_seed: str | None
    status: str
    why: str | None
    rounds: int
    done: int
    seconds: float
    command: str


@dataclass(frozen=True, kw_only=True)
class Integrity:
    """Whether the records are unaltered."""

    rows: int | None  # of the ledger's chain, as `head`; None where there is no ledger
    head: str | None
    key: str | None  # that signed the head
    fingerprint: str | None  # the short form of the key, which people compare
    expected: bool | None  # whether it is the key that the auditor expects; None if none was given
    problems: tuple[str, ...]  # what is wrong, one sentence each; empty if everything fits together
    remarks: tuple[str, ...]  # what cannot be checked, and why
    lost: int = 0  # sums that the ledger alone knows, of rounds that were cut off

    @property
    def intact(self) -> bool:
        return not self.problems


@dataclass(frozen=True, kw_only=True)
class SumPart:
    """A vector of a sum. `bound` states what one client can add."""

    name: str
    size: int
    bits: int
    bound: str
    noisy: bool


@dataclass(frozen=True, kw_only=True)
class SumKind:
    """One kind of sum: what it reveals, in words, and with which noise."""

    kind: str
    group: str  # the kinds with the same one are sums of the same private vectors
    times: int | None
    parts: tuple[SumPart, ...]
    reveals: str
    private: bool
    extra: bool = False  # whether it is no part of the algorithm, such as the histogram of [tail]


@dataclass(frozen=True, kw_only=True)
class Release:
    """One sum that was released. Rounds are counted from 1.

    `sigmas`   standard deviation of the noise on each number of the total, for every part in its own unit;
               None without noise.
    `rho`      what it cost a client that is in it, `epsilon` the same at the audit's delta; None if some
               part has no noise.
    `rho_so_far`, `epsilon_so_far`  of all noisy sums of the same budget up to this one together: of those of
               the algorithm, or of those that are asked beside it, at the delta of either.
    """

    number: int
    session: int
    sum: int
    round: int
    kind: str
    invited: int
    contributors: int
    sigmas: tuple[float | None, ...]
    rho: float | None
    epsilon: float | None
    rho_so_far: float
    epsilon_so_far: float | None


@dataclass(frozen=True, kw_only=True)
class RoundRange:
    """Consecutive rounds that released the same number of sums of each kind."""

    first: int
    last: int
    sums: Mapping[str, int]
    least_contributors: int
    most_contributors: int
    rho_so_far: float
    epsilon_so_far: float | None


@dataclass(frozen=True, kw_only=True)
class Spent:
    """The privacy cost by one party's ledger; `epsilon` is at `delta`."""

    rho: float
    epsilon: float | None
    unnoised: int
    delta: float | None = None


@dataclass(frozen=True, kw_only=True)
class PrivacySpending:
    """The privacy cost of the algorithm's sums, by whose ledger counts it. Epsilons are at `delta`."""

    adjacency: str
    delta: float
    server: Spent  # of a client that was in every released sum
    most: Spent | None  # of the clients' own ledgers, as `least`; None where there is no record of them
    least: Spent | None
    larger: str  # "server", "clients" or "equal", and `why` in a sentence
    why: str
    max_rho: float | None
    of_budgets: Mapping[str, Spent]  # "algorithm"; if there is a "tail", it at its own delta, and "together"
    most_of_tail: Spent | None = None  # as `most`, of extra sums


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """Something that is not private. `kind` is the kind of sum concerned, if any."""

    what: str
    why: str
    kind: str | None = None


@dataclass(frozen=True, kw_only=True)
class CutShort:
    """A round in which a group ended early. Rounds are counted from 1."""

    round: int
    steps: int
    why: str


@dataclass(frozen=True, kw_only=True)
class GroupSteps:
    """Sums of one group per round: `rounds` maps a number of sums to the number of rounds with it."""

    group: str
    planned: int
    rounds: Mapping[int, int]
    cut_short: tuple[CutShort, ...]

    @property
    def mean(self) -> float:
        count = sum(self.rounds.values())
        return sum(steps * often for steps, often in self.rounds.items()) / count if count else 0.0


@dataclass(frozen=True, kw_only=True)
class ClientDropouts:
    """Clients that dropped out in one stage of a sum, or of a session's set-up (`kind` is then empty)."""

    round: int
    kind: str
    stage: str
    clients: int


@dataclass(frozen=True, kw_only=True)
class ClientRefusal:
    """A client that refused, with its error."""

    round: int
    kind: str
    member: int
    error: str
    sentence: str


@dataclass(frozen=True, kw_only=True)
class FailedSum:
    """A sum, or a session (`kind` is then empty), that released nothing."""

    round: int
    kind: str
    why: str


@dataclass(frozen=True, kw_only=True)
class ClientLosses:
    missed: tuple[ClientDropouts, ...]
    refused: tuple[ClientRefusal, ...]
    failed: tuple[FailedSum, ...]


@dataclass(frozen=True, kw_only=True)
class StageBytes:
    """Bytes of all clients together in one stage; `expected` ones follow from the protocol's sizes."""

    stage: str
    up: int
    expected_up: int | None
    down: int
    expected_down: int | None
    frames_up: int
    frames_down: int


@dataclass(frozen=True, kw_only=True)
class ByteGrowth:
    """Bytes of a whole round over cohort sizes m, as `a m log2 m + b m d` by least squares."""

    sizes: tuple[int, ...]
    dims: tuple[int, ...]
    log_coefficient: float  # a
    size_coefficient: float  # b
    worst: float  # relative error where it is largest


@dataclass(frozen=True, kw_only=True)
class ByteTraffic:
    """Measured bytes, beside what the protocol predicts."""

    stages: tuple[StageBytes, ...]
    sums: int  # sums and sessions that were compared; `exact` of them agree to the byte
    exact: int
    differences: tuple[str, ...]  # the others, one sentence each
    up: int
    down: int
    up_per_client: float  # of a whole run, as `down_per_client`: all bytes over the clients of a round
    down_per_client: float
    fedavg_up: float  # the same of plain federated averaging, as `fedavg_down`: 4 bytes for each parameter
    fedavg_down: float
    growth: ByteGrowth | None  # with the cohort, where the run has cohorts of several sizes
    wrong: int = 0  # differences that contradict the protocol; the rest cannot be predicted


@dataclass(frozen=True, kw_only=True)
class Canary:
    """An empirical lower bound on the epsilon of one sum of a kind, beside what is claimed for it."""

    kind: str
    runs: int
    bound: float  # if the noise is Gaussian, which makes it tight; `bound_of_any_noise` without that
    claimed: float | None
    delta: float
    confidence: float | None
    holds: bool  # whether the noise is what was promised, and the bound no more than what is claimed
    bound_of_any_noise: float | None = None


@dataclass(frozen=True, kw_only=True)
class Achieved:
    """Results of the run, for a comparison; None where nothing was measured."""

    accuracy: float | None
    error_90: float | None
    worst_tenth: float | None
    completed: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The whole audit. `remarks` name files that were missing or incomplete."""

    subject: RunSummary
    integrity: Integrity
    kinds: tuple[SumKind, ...]
    releases: tuple[Release, ...]
    stretches: tuple[RoundRange, ...]
    spending: PrivacySpending
    exposures: tuple[Exposure, ...]
    groups: tuple[GroupSteps, ...]
    losses: ClientLosses
    traffic: ByteTraffic | None
    canaries: tuple[Canary, ...]
    achieved: Achieved
    remarks: tuple[str, ...] = ()
    tail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def intact(self) -> bool:
        """Whether the records agree. Otherwise the audit proves nothing."""
        return self.integrity.intact

    @property
    def sound(self) -> bool:
        """Whether the records agree, all bytes follow the protocol, and no canary refutes the noise."""
        wrong = 0 if self.traffic is None else self.traffic.wrong
        return self.intact and not wrong and all(each.holds for each in self.canaries)
