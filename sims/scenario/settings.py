"""The tables of a scenario: the complete description of one simulation.

Tables with a `kind` (or, for an algorithm, a `name`) take the parameters of that kind as further keys. Which
ones those are is known to the packages that offer the kinds, and checked in `sims.scenario.kind_parameters`.
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
    """A table. It refuses unknown keys and values of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class OpenSection(Section):
    """A table that also takes the parameters of its kind."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class DataSection(OpenSection):
    """The source of the samples."""

    kind: str


class PartitionSection(OpenSection):
    """How samples are distributed over clients, and which part of each client's is not for training.

    `clients`     how many; if samples have owners, by default all of them.
    `validation`, `test`  parts of every client's samples; a `test` of "given" is the test set of the data,
                  distributed over clients like the training samples.
    `held_out`    clients that never train.
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
    """How the learning rate falls from round to round: see `fl.training_settings`."""

    kind: str = "constant"
    every: Count = 100
    factor: Annotated[float, Field(gt=0, le=1)] = 0.5


class TrainingSection(Section):
    """The local training of a client between two sums. Without `batch`, a step takes all its data.

    `clip`  bounds the norm of every step's gradient.
    `loss`  by default, cross-entropy for classes and squared for a regression.
    `way`   train clients together on one device, or one after another; by default the faster one.
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
    """How the server moves the common model along a round's update: see `protocols.server_optimiser`."""

    kind: str


class PrivacySection(OpenSection):
    """A budget that all rounds of a private variant share: `rho`, or `epsilon` and `delta`."""

    rho: Positive | None = None
    epsilon: Positive | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    dropouts: Whole = 0
    removable: bool = False


class CohortSection(Section):
    """The clients that take part in a round."""

    per_round: Count | None = None  # how many are drawn, uniformly and without replacement; by default, all
    stragglers: Share = 0.0  # part of them that completes only some of the local steps


class AttackSection(OpenSection):
    """The attack of some clients.

    `fraction`   of the clients, or of all training samples, according to `selection`.
    `level`      "update" for attacks that follow the protocol, poisoned data included; "answer" for the same
                 kinds, where the answer is corrupt instead of the trained model; and "message" for attacks
                 that do not follow the protocol: arbitrary residues inside a sum.
    """

    kind: str
    fraction: PartOfAll
    selection: Literal["count", "samples"] = "count"
    level: Literal["update", "answer", "message"] = "update"


@dataclass(frozen=True)
class ObserverKind:
    """What an observer needs; the observers themselves are in `sims.simulation.observers`."""

    reads_clients: bool = False  # the memory of clients, which must run in this process
    needs_optimum: bool = False  # the best model, which is known for linear models only


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
    """What an observer that sees all clients measures, every `every` rounds and at the end."""

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
    """How sums are computed. All kinds give the same numbers.

    `kind`     "plain" adds up without protection, "secure" runs the real machines in one process, and
               "processes" runs them in separate processes over TLS.
    `trust`, `corrupt`, `dropout`  the assumptions of a session: what the server may do, how many clients
               collude with it, and which part of the cohort may be missing by the end.
    `workers`  how many worker processes share the clients; 0 is one for each client.
    `sums`     most sums of one session.
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
        """The parameters of a session, without the sizes of its cohort."""
        return SessionParams(
            trust=Trust(self.trust),
            corrupt=self.corrupt,
            sums=self.sums,
            dropout=self.dropout,
            graph=GraphChoice(self.graph),
        )


class DropoutSection(Section):
    """Which clients drop out, and when: drawn from the seed, for each client and round alike."""

    training: PartOfAll = 0.0  # part of the invited that sends no masked input in a round's first sum
    between: PartOfAll = 0.0  # probability to miss a later sum that is in no group with an earlier one
    group: PartOfAll = 0.0  # probability to leave between two sums of one group, which closes it
    reveal: PartOfAll = 0.0  # probability to leave after masking and before revealing

    @property
    def happens(self) -> bool:
        return bool(self.training or self.between or self.group or self.reveal)


class OutputSection(Section):
    """What is kept besides a line for every finished cell.

    `keep`      "run" keeps a directory of every cell, with its ledger, its metrics and its report; "table"
                keeps the line alone.
    `identity`  a key file of `secagg keygen`, which signs the head of the ledger; by default, one is made.
    """

    keep: Literal["run", "table"] = "run"
    identity: str | None = None


class AuditSection(Section):
    """Trials of the noise itself: `canaries` is the number of sums with and without a known client."""

    canaries: Whole = 0


class TailSection(Section):
    """A private histogram of clients' errors, over the same channel and with its own budget."""

    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1)]
    bins: Annotated[int, Field(ge=2, le=1024)] = 16
    every: Whole = 0  # number of rounds; 0 is at the end only. All histograms of a run share the budget.


class Settings(Section):
    """One simulation. Its `seed` determines everything that is drawn.

    `insecure_seed`  whether it also determines keys, rounding and noise, so that everything can be computed
                     from the seed. By default only over a plain channel, where nothing is secret.
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
        """Whether keys, rounding and noise follow from the seed."""
        return self.channel.kind == "plain" if self.insecure_seed is None else self.insecure_seed


def insecure_seed(seed: int) -> bytes:
    """Return the bytes that make keys, rounding and noise repeatable. Nothing is secret then."""
    return hashlib.sha256(f"secagg simulation {seed}".encode()).digest()


def insecure_server(seed: int) -> Identity:
    """Return the identity that signs the ledger of such a run. It is public."""
    return Identity.from_secret(digest("insecure identity of a server", insecure_seed(seed)))
