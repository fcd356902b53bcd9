"""Defines the tables of a scenario, which together describe one simulation, as pydantic models.

Tables with a `kind` (or, for an algorithm, a `name`) take the parameters of that kind as further keys. The
packages that implement the kinds define these parameters, and `sims.scenario.kind_parameters` checks them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticKnownError

from secagg.graph_parameters import GraphChoice
from secagg.hashing import digest
from secagg.keys import Identity
from secagg.messages import MAX_SUMS
from secagg.params import SessionParams
from secagg.trust_levels import Trust

Share = Annotated[float, Field(ge=0, le=1)]
PartOfAll = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A table of a scenario. It refuses unknown keys and values of a wrong type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class OpenSection(Section):
    """A table of a scenario that also takes the parameters of its kind, as further keys."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class DataSection(OpenSection):
    """The data set from which the samples of all clients are taken."""

    kind: str


class PartitionSection(OpenSection):
    """The distribution of samples over clients, and the split of each client's samples.

    `clients`     number of clients; if samples have owners, by default the number of owners.
    `validation`, `test`  parts of every client's samples. If `test` is "given", the test set of the data is
                  distributed over clients like the training samples.
    `held_out`    number of clients that never train.
    """

    kind: str = "iid"
    clients: Count | None = None
    validation: PartOfAll = 0.0
    test: PartOfAll | Literal["given"] = 0.2
    held_out: Whole = 0


class ModelSection(OpenSection):
    """The model that is trained.

    `start`  the directory of a run of the same model, or its model.npz, from which this one begins; `{seed}`
             in it stands for the seed. If it is missing or empty, the model has new weights.
    """

    kind: str
    start: str | None = None


class ScheduleSection(Section):
    """The schedule of the learning rate over rounds: see `fl.training_settings`."""

    kind: str = "constant"
    every: Count = 100
    factor: Annotated[float, Field(gt=0, le=1)] = 0.5


class TrainingSection(Section):
    """The local training of a client in a round. Without `batch`, a step uses all data of the client.

    `clip`  largest norm of every step's gradient.
    `loss`  by default, cross-entropy for classes and squared for a regression.
    `way`   whether clients train as one batch ("together") or one after another; by default the faster way.
    """

    rate: Positive
    epochs: Count | None = None
    steps: Count | None = None
    batch: Count | None = None
    momentum: PartOfAll = 0.0
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    clip: Positive | None = None
    schedule: ScheduleSection = ScheduleSection()
    loss: Literal["cross-entropy", "squared", "logistic"] | None = None
    device: str = "cpu"
    precision: Literal["float32", "float64"] = "float32"
    way: Literal["auto", "together", "one-by-one"] = "auto"


class AlgorithmSection(OpenSection):
    name: str


class ServerSection(OpenSection):
    """The optimiser with which the server updates the common model: see `protocols.server_optimiser`."""

    kind: str


class PrivacySection(OpenSection):
    """The total privacy budget of all rounds: `rho`, or `epsilon` and `delta`. With it, sums have noise."""

    rho: Positive | None = None
    epsilon: Positive | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    dropouts: Whole = 0  # most clients that may drop out of a sum without making its noise too small
    removable: bool = False  # whether surplus noise is removed when the survivors are known


class CohortSection(Section):
    """The clients that take part in a round."""

    per_round: Count | None = None  # how many are drawn, uniformly and without replacement; by default, all
    stragglers: Share = 0.0  # part of them that completes only some of the local steps


class AttackSection(OpenSection):
    """The attack that some clients carry out.

    `fraction`   corrupt part of the clients, or of all training samples, according to `selection`.
    `level`      what the attack changes: "update" is the data or the trained model, and "answer" the answer
                 that is computed from it; both follow the protocol. "message" attacks do not: they send
                 arbitrary residues in a sum.
    """

    kind: str
    fraction: PartOfAll
    selection: Literal["count", "samples"] = "count"
    level: Literal["update", "answer", "message"] = "update"


@dataclass(frozen=True)
class ObserverKind:
    """The requirements of an observer, which makes further measurements: see `sims.simulation.observers`."""

    reads_clients: bool = False  # whether it reads the memory of clients, which must run in this process
    needs_optimum: bool = False  # whether it needs the best model, which is known for linear models only


# The names that `evaluation.observe` may list.
OBSERVER_KINDS: Final[dict[str, ObserverKind]] = {
    "agreement": ObserverKind(reads_clients=True),
    "centralised": ObserverKind(),
    "ergodic-gap": ObserverKind(needs_optimum=True),
    "jumps": ObserverKind(reads_clients=True),
    "local-accuracy": ObserverKind(reads_clients=True),
    "movement": ObserverKind(),
    "multipliers": ObserverKind(reads_clients=True),
    "optimality-gap": ObserverKind(needs_optimum=True),
    "training-loss": ObserverKind(),
}


class EvaluationSection(Section):
    """What the simulation measures with access to all clients, every `every` rounds and at the end."""

    every: Count = 10
    what: Literal["common", "personal", "both"] = "common"  # the common model, or every client's own
    part: Literal["train", "validation", "test"] = "test"  # the samples that they are measured on
    held_out: bool = False  # whether clients that never train are also measured
    observe: list[str] = []  # names of further observations, which see every round


# The names of channels; the channels themselves are in `sims.simulation.setup`.
CHANNEL_KINDS: Final = ["plain", "secure", "processes"]


def _known_channel(kind: str) -> str:
    if kind not in CHANNEL_KINDS:
        raise PydanticKnownError("literal_error", {"expected": ", ".join(map(repr, CHANNEL_KINDS))})
    return kind


class ChannelSection(Section):
    """The channel: the way in which sums are computed. All kinds give the same numbers.

    `kind`     "plain" adds up without protection, "secure" runs the protocol in one process, and "processes"
               runs it in separate processes over TLS.
    `trust`, `corrupt`, `dropout`  the assumptions of a session: what the server may do, how many clients
               collude with it, and which part of the cohort may be missing by the end.
    `workers`  number of worker processes that share the clients; 0 means one for each client.
    `sums`     largest number of sums in one session.
    `graph`    which clients share secrets; by default, it depends on the size of the cohort.
    """

    kind: Annotated[str, AfterValidator(_known_channel)] = "plain"
    trust: Literal["curious_server", "malicious_server"] = "curious_server"
    corrupt: Whole = 0
    dropout: PartOfAll = 0.0
    workers: Whole = 0
    sums: Annotated[int, Field(ge=1, le=MAX_SUMS)] = MAX_SUMS
    graph: Literal["auto", "complete", "ring"] = "auto"

    @property
    def params(self) -> SessionParams:
        """The parameters of a session, without limits on the number of its clients."""
        return SessionParams(
            trust=Trust(self.trust),
            corrupt=self.corrupt,
            sums=self.sums,
            dropout=self.dropout,
            graph=GraphChoice(self.graph),
        )


class DropoutSection(Section):
    """The drop-out probabilities. Drop-outs are drawn from the seed for each client and round."""

    training: PartOfAll = 0.0  # part of the invited that sends no masked input in a round's first sum
    between: PartOfAll = 0.0  # probability to miss a later sum that is in no group with an earlier one
    group: PartOfAll = 0.0  # probability to leave between two sums of one group, which closes it
    reveal: PartOfAll = 0.0  # probability to leave after masking and before revealing

    @property
    def happens(self) -> bool:
        return bool(self.training or self.between or self.group or self.reveal)


class OutputSection(Section):
    """The files that are kept besides a line of results for every finished cell.

    `keep`      "run" keeps a directory for every cell, with its ledger, its metrics and its report; "table"
                keeps only the line.
    `identity`  a key file of `secagg keygen`, which signs the head of the ledger; by default, a key is made.
    """

    keep: Literal["run", "table"] = "run"
    identity: str | None = None


class AuditSection(Section):
    """Tests of the noise, by `canaries` sums with a known input (a canary) and as many sums without it."""

    canaries: Whole = 0


class TailSection(Section):
    """A noisy histogram of clients' error rates, summed over the same channel and with its own budget."""

    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1)]
    bins: Annotated[int, Field(ge=2, le=1024)] = 16
    every: Whole = 0  # number of rounds; 0 is at the end only. All histograms of a run share the budget.


class Settings(Section):
    """The settings of one simulation. Its `seed` determines all random draws of the simulation.

    `insecure_seed`  whether the seed also determines keys, rounding and noise, so that everything can be
                     computed from it. By default only over a plain channel, where nothing is secret.
    """

    seed: Whole = 0
    insecure_seed: bool | None = None
    rounds: Count
    data: DataSection
    partition: PartitionSection | None = None
    model: ModelSection
    training: TrainingSection
    algorithm: AlgorithmSection
    server: ServerSection | None = None
    privacy: PrivacySection | None = None
    cohort: CohortSection = CohortSection()
    dropout: DropoutSection = DropoutSection()
    attack: AttackSection | None = None
    evaluation: EvaluationSection = EvaluationSection()
    tail: TailSection | None = None
    channel: ChannelSection = ChannelSection()
    output: OutputSection = OutputSection()
    audit: AuditSection = AuditSection()

    @property
    def seeded(self) -> bool:
        """Whether keys, rounding and noise follow from the seed: the run is repeatable, but not secret."""
        return self.channel.kind == "plain" if self.insecure_seed is None else self.insecure_seed


def insecure_seed(seed: int) -> bytes:
    """Return public bytes from which keys, rounding and noise are derived, so that a run can be repeated."""
    return hashlib.sha256(f"secagg simulation {seed}".encode()).digest()


def insecure_server(seed: int) -> Identity:
    """Return the ledger-signing key pair of runs with `insecure_seed`. Anyone can compute it from `seed`."""
    return Identity.from_secret(digest("insecure identity of a server", insecure_seed(seed)))
