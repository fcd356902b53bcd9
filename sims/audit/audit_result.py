"""The result of auditing a simulated run, as dataclasses that `secagg audit` and the HTML report display.
`sims.audit.audit_run` builds the result from the files of a run directory alone. Rounds are counted from 1.
"Released" means that the server learned the total of a sum. Every epsilon is computed at some delta, from a
privacy cost rho of zero-concentrated differential privacy (zCDP)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from sims.records.run_directory import PLAIN_CHANNELS
from sims.text_format import counted

WITHHELD: Final = "(altered: not shown)"


class Verdict(StrEnum):
    """What the checks of a run's records come to."""

    AUTHENTICATED = "authenticated"  # all files are as they were signed with the key that the auditor gave
    CONSISTENT = "consistent, not authenticated"  # nothing is wrong, but anybody may have written all of it
    ALTERED = "altered"


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The settings and the status of the audited run."""

    path: str
    name: str
    label: str
    algorithm: str
    clients: int
    per_round: int
    dim: int
    attackers: int  # number of malicious clients
    channel: str  # how sums are computed, such as "plain", without secure aggregation, or "ray-secure"
    trust: str
    key_agreement: str
    graph: str | None  # of the last session that was set up, like `neighbours` and `threshold`
    neighbours: int | None
    threshold: int | None
    insecure_seed: str | None
    status: str
    why: str | None  # why the run failed or was stopped; None if it did not
    rounds: int
    done: int
    seconds: float  # the duration of the run
    command: str  # the command that repeats the run
    colluders: int | None = None  # clients that may collude with the server, as planned; None if unknown
    cluster: Mapping[str, Any] | None = None  # where the clients ran, as `run.json` says, if on a cluster
    # Names of these fields that `run.json` alone says, if it was altered: they are not shown.
    withheld: frozenset[str] = frozenset()

    def shown(self, name: str, form: str = "") -> str:
        """Return the field `name` as text, in a format such as ","; a remark if it must not be shown."""
        return WITHHELD if name in self.withheld else format(getattr(self, name), form)

    @property
    def is_plain(self) -> bool:
        """Whether sums had no protection."""
        return self.channel in PLAIN_CHANNELS

    @property
    def cluster_text(self) -> str:
        """The cluster in words; empty if there was none."""
        if self.cluster is None:
            return ""
        nodes, actors = (counted(self.cluster[name], name[:-1]) for name in ("nodes", "actors"))
        return f"Ray {self.cluster['ray']} at {self.cluster['address']}, {actors} on {nodes}"


@dataclass(frozen=True, kw_only=True)
class Integrity:
    """Whether the run's records are unaltered, above all the ledger: the server's signed list of sums."""

    rows: int | None  # the number of rows of the ledger; None if no ledger could be read
    head: str | None  # the hash of the ledger's last row, in hex; None if no ledger could be read
    key: str | None  # the public key that signed the head, in hex; None if no signature is valid
    fingerprint: str | None  # the short form of `key`, for people to compare
    expected: bool | None  # whether `key` is the key that the auditor gave; None if the auditor gave none
    problems: tuple[str, ...]  # contradictions between the records, one sentence each; empty if there is none
    remarks: tuple[str, ...]  # what cannot be checked, and why, one sentence each
    lost: int = 0  # number of sums that are in the ledger, but not in the log `sums.jsonl`
    files: int | None = None  # how many files the manifest lists; None if there is no valid manifest
    in_use: tuple[str, ...] = ()  # remarks about files that exist only while the run is in use
    withheld: tuple[str, ...] = ()  # names of files that were altered: nothing is shown of what they say
    unsigned: bool = False  # whether there is more than was signed, which anybody may have added

    @property
    def intact(self) -> bool:
        return not self.problems

    @property
    def verdict(self) -> Verdict:
        if not self.intact:
            return Verdict.ALTERED
        signed = self.expected and self.files is not None and not self.unsigned
        return Verdict.AUTHENTICATED if signed else Verdict.CONSISTENT


@dataclass(frozen=True, kw_only=True)
class SumPart:
    """One of the vectors that a sum consists of: `size` numbers of `bits` bits each."""

    name: str
    size: int
    bits: int
    bound: str  # the limit of what one honest client can add, in words
    noisy: bool  # whether clients add noise to it
    largest_norm: float | None = None  # of the vector of one client; None for residues
    counts: bool = False  # whether it is a histogram, or other whole numbers


@dataclass(frozen=True, kw_only=True)
class SumKind:
    """One kind of sum, such as the sum of all updates, and what the server learns from its total. `times` is
    the largest number of these sums in a round, or None if unknown. `private`: all parts have noise."""

    kind: str
    group: str  # kinds of the same group are sums of the same private vectors
    times: int | None  # the largest number of these sums in one round; None if it is not known
    parts: tuple[SumPart, ...]
    reveals: str  # what the server learns, in words
    private: bool  # whether all parts have noise
    extra: bool = False  # whether the training does not use it, such as the error histogram of [tail]


@dataclass(frozen=True, kw_only=True)
class Release:
    """One sum whose total was released to the server.

    `number`   counts all releases, from 1. `sum` is the index within `session`, which is -1 if unknown.
    `sigmas`   the standard deviation of the noise on each number of the total, one value for each part and in
               the unit of the part; None for a part without noise. Empty if the parts of the sum are unknown.
    `rho`      the privacy cost for a client that contributed; `epsilon` is the same cost at the delta of the
               budget. Both are None if some part has no noise.
    `rho_so_far`, `epsilon_so_far`  the cost of all noisy sums of the same part of the run up to this one, for
               a client that was in all of them, or in as many rounds as it may take part in. The sums of the
               training are one part, and the extra sums (see `SumKind.extra`) another.
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
    """Consecutive rounds that released the same number of sums of each kind, and the privacy cost so far."""

    first: int
    last: int
    sums: Mapping[str, int]  # the number of released sums of each kind, in every one of these rounds
    least_contributors: int
    most_contributors: int
    rho_so_far: float  # the privacy cost at the end of round `last`, as in `Release`
    epsilon_so_far: float | None


@dataclass(frozen=True, kw_only=True)
class Spent:
    """The privacy cost of sums for a client: `rho` (zCDP) of all sums whose parts all have noise, and
    `epsilon` at `delta`. Other sums are only counted, in `unnoised`."""

    rho: float
    epsilon: float | None  # None if no sum has noise
    unnoised: int  # number of sums that have a part without noise, which the cost does not include
    delta: float | None = None


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """The one privacy guarantee of a run for each of its clients: the cost of all released sums together,
    whatever they are for. A run has an epsilon only if every released sum over its clients has noise.

    `epsilon`     at `delta`; None if a released sum has a part without noise, or if nothing has noise.
    `rho`         the cost (zCDP) from which epsilon follows; None if epsilon is.
    `adjacency`   which change of one client's input the noise hides, such as "zero-out".
    `covers`      what the sums with noise are for: "training", "evaluation" and "tail", the histograms of
                  errors.
    `unnoised`    the same of released sums without noise; if there are any, there is no epsilon.
    `most_spent`  the cost for the client that spent most, by its own record; None if there is no record.
    `why`         why the guarantee is what it is, in a sentence.
    """

    epsilon: float | None
    delta: float
    rho: float | None
    adjacency: str
    covers: tuple[str, ...]
    unnoised: tuple[str, ...]
    most_spent: Spent | None
    why: str


@dataclass(frozen=True, kw_only=True)
class PrivacySpending:
    """The privacy cost of all sums, by the server's count and by the counts of the clients that spent `most`
    and `least`. `of_budgets` maps parts of the run to the server's count: "algorithm" and, if extra sums
    (which the training does not use) were released, "tail" (the cost of these, at their own delta)."""

    adjacency: str  # which change of one client's input the cost is about, such as "zero-out"
    delta: float
    server: Spent  # by the server's ledger, for a client in every total, of as many rounds as it may be in
    most: Spent | None  # by the client that spent most; None if the run has no record of it
    least: Spent | None  # by the client that spent least; None if the run has no record of it
    larger: str  # whose count is larger: "server", "clients" or "equal"
    why: str  # the reason for `larger`, in a sentence
    max_rho: float | None  # clients refuse to spend more than this; None if there is no limit
    of_budgets: Mapping[str, Spent]
    participations: int | None = None  # rounds in which a client takes part at most; None for all


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """Information about clients that the run did not keep private."""

    what: str
    why: str  # the reason, in a sentence
    kind: str | None = None  # the kind of sum that reveals it; None if that is not a single kind


@dataclass(frozen=True, kw_only=True)
class CutShort:
    """A round in which a group of sums over the same private vectors ended early, because a sum failed."""

    round: int
    steps: int  # number of sums of the group that were released in the round
    why: str


@dataclass(frozen=True, kw_only=True)
class GroupSteps:
    """How many sums of a group were released per round. A group's sums are over the same private vectors.
    `rounds` maps a number of released sums to the number of rounds with this number."""

    group: str
    planned: int  # the largest number of sums of the group in one round
    rounds: Mapping[int, int]  # number of released sums -> number of such rounds
    cut_short: tuple[CutShort, ...]

    @property
    def mean(self) -> float:
        """The mean number of released sums of the group per round."""
        count = sum(self.rounds.values())
        return sum(steps * often for steps, often in self.rounds.items()) / count if count else 0.0


@dataclass(frozen=True, kw_only=True)
class ClientDropouts:
    """How many clients dropped out in one stage of a sum, or of a session's set-up (`kind` is then empty)."""

    round: int
    kind: str
    stage: str
    clients: int


@dataclass(frozen=True, kw_only=True)
class ClientRefusal:
    """A client that left a sum because it refused a message of the server, and why it refused."""

    round: int
    kind: str
    member: int  # the client's id
    error: str  # the name of the error's class
    sentence: str  # the text of the error


@dataclass(frozen=True, kw_only=True)
class ClientExclusion:
    """A client that the server excluded from a session, because it broke the protocol. If it lied, or was in
    a dispute with another client, it is `barred` from all later sessions."""

    round: int
    kind: str  # empty in set-up
    member: int  # the client's id
    error: str  # the name of the error's class; for a lie, the offence
    sentence: str  # the text of the error
    barred: bool


@dataclass(frozen=True, kw_only=True)
class FailedSum:
    """A sum that released no total, or a session that could not be set up (`kind` is then empty)."""

    round: int
    kind: str
    why: str


@dataclass(frozen=True, kw_only=True)
class ClientLosses:
    """All drop-outs of clients, refusals by clients, exclusions by the server, and failed sums of the run."""

    missed: tuple[ClientDropouts, ...]
    refused: tuple[ClientRefusal, ...]
    excluded: tuple[ClientExclusion, ...]
    failed: tuple[FailedSum, ...]


@dataclass(frozen=True, kw_only=True)
class StageBytes:
    """Bytes and messages (frames) that clients sent (up) and received (down) in a stage, in the whole run."""

    stage: str
    up: int
    expected_up: int | None  # predicted by the protocol's message lengths; None if that is not possible
    down: int
    expected_down: int | None
    frames_up: int
    frames_down: int


@dataclass(frozen=True, kw_only=True)
class ByteGrowth:
    """The formula `a m log2 m + b m d`, fitted to a round's bytes, with m clients and d model parameters."""

    sizes: tuple[int, ...]  # the values of m that were measured
    dims: tuple[int, ...]  # the value of d for each of them
    log_coefficient: float  # a
    size_coefficient: float  # b
    worst: float  # the largest relative error of the fit


@dataclass(frozen=True, kw_only=True)
class ByteTraffic:
    """Bytes that clients sent (up) and received (down) in a run: measured, and predicted from the protocol.
    For comparison: bytes of one client in plain averaging."""

    stages: tuple[StageBytes, ...]
    sums: int  # number of sums and set-ups that were compared with the prediction
    exact: int  # number of these that agree to the byte
    differences: tuple[str, ...]  # the first differences, one sentence each
    up: int  # by all clients together
    down: int
    up_per_client: float  # `up` divided by the number of clients in a round
    down_per_client: float
    fedavg_up: float  # bytes of a client in plain federated averaging: 4 per parameter and round
    fedavg_down: float
    growth: ByteGrowth | None  # None if all cohorts of the run have the same size
    wrong: int = 0  # number of differences that contradict the protocol; the others could not be predicted


@dataclass(frozen=True, kw_only=True)
class CheckedNoise:
    """What was tested of the noise in one kind of sum: `sums` of `elements` elements (None if that is not
    known) by `tests` tests, and a sentence for each that contradicts the promised noise. If nothing was
    tested, `why_not` says why."""

    sums: int = 0
    elements: int | None = None
    tests: int = 0
    skipped: int = 0  # sums that could not be tested
    alarms: tuple[str, ...] = ()
    why_not: str = ""


@dataclass(frozen=True, kw_only=True)
class Canary:
    """The result of the tests of the noise of one kind of sum: measured lower bounds on epsilon, and the
    claimed epsilon. They compare sums with and without a canary: a client's vector of the largest allowed
    norm. `bound` assumes that the noise is Gaussian, and `bound_of_any_noise` assumes nothing. A bound of 0
    proves nothing. `spec` is what was tested with the run's own spec, in sums of known inputs, and `own` what
    was tested in the run's own sums."""

    kind: str
    runs: int  # number of sums that were measured
    bound: float  # a lower bound that assumes Gaussian noise
    claimed: float | None
    delta: float
    confidence: float | None  # the probability with which the bounds are correct
    holds: bool  # whether no test contradicts the promised noise, and no bound exceeds `claimed`
    bound_of_any_noise: float | None = None  # a lower bound that assumes nothing about the noise
    spec: CheckedNoise = CheckedNoise(why_not="the file of the run does not say that it was")
    own: CheckedNoise = CheckedNoise(why_not="the file of the run does not say that it was")


@dataclass(frozen=True, kw_only=True)
class Achieved:
    """The clients' accuracy when last measured (None if never), and the run's completed rounds and time."""

    accuracy: float | None  # the mean over clients
    error_90: float | None  # the 90th percentile of the clients' error rates
    worst_tenth: float | None  # the mean accuracy of the tenth of clients with the lowest accuracy
    completed: int  # number of rounds that were completed
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The result of auditing one run."""

    subject: RunSummary
    integrity: Integrity
    kinds: tuple[SumKind, ...]
    releases: tuple[Release, ...]
    stretches: tuple[RoundRange, ...]  # the releases, by ranges of rounds
    spending: PrivacySpending
    guarantee: Guarantee
    exposures: tuple[Exposure, ...]
    groups: tuple[GroupSteps, ...]
    losses: ClientLosses
    traffic: ByteTraffic | None
    canaries: tuple[Canary, ...]
    achieved: Achieved
    untested: tuple[str, ...] = ()  # kinds of sums whose noise nothing has tested
    remarks: tuple[str, ...] = ()  # missing files and assumptions, one sentence each
    # The last private histogram of errors, as in `metrics.jsonl`; empty if there is none.
    tail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def intact(self) -> bool:
        """Whether the records of the run agree with each other. If not, the audit proves nothing."""
        return self.integrity.intact

    @property
    def sound(self) -> bool:
        """Whether the records agree, no byte count contradicts the protocol, and all tests of noise pass."""
        wrong = 0 if self.traffic is None else self.traffic.wrong
        return self.intact and not wrong and all(each.holds for each in self.canaries)
