"""Defines the tables of a scenario, which together describe one simulation, as pydantic models. Tables with a
`kind` (or, for an algorithm, a `name`) take the parameters of that kind as further keys. The packages that
implement the kinds define these parameters, and `sims.scenario.kind_parameters` checks them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticKnownError

from secagg.graph_parameters import GraphChoice
from secagg.hashing import digest
from secagg.hybrid_keys import KeyAgreement
from secagg.keys import Identity
from secagg.messages import MAX_SUMS
from secagg.session_params import SessionParams
from secagg.trust_levels import Trust
from sims.records.run_directory import PLAIN_CHANNELS

Share = Annotated[float, Field(ge=0, le=1)]
PartOfAll = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A table of a scenario. It refuses unknown keys and values of a wrong type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class OpenSection(Section):
    """A table of a scenario that also takes the parameters of its `kind` (or `name`) as further keys."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class DataSection(OpenSection):
    """The data set from which the samples of all clients are taken: its name, or "module:object"."""

    kind: str


NO_DATA: Final = DataSection(kind="")  # a scenario that is only served may have no data set


class PartitionSection(OpenSection):
    """The rule (`kind`) that distributes samples over `clients` clients, by default one per owner of samples.
    `held_out` of them never train. `validation` and `test` are parts of each client's samples; if `test` is
    "given", the data set's own test set is distributed like the training set."""

    kind: str = "iid"
    clients: Count | None = None
    validation: PartOfAll = 0.0
    test: PartOfAll | Literal["given"] = 0.2
    held_out: Whole = 0


class ModelSection(OpenSection):
    """The model that is trained: its name, or "module:object". `start` is the directory of a run of the same
    model, or its file model.npz, with whose weights this run starts; `{seed}` in it stands for the seed. By
    default, weights are new."""

    kind: str
    start: str | None = None


class ScheduleSection(Section):
    """How the learning rate decreases. The kind "steps" multiplies it by `factor` every `every` rounds.
    Others, such as "sqrt", have no parameters (see `fl.training_settings.Schedule`)."""

    kind: str = "constant"
    every: Count = 100
    factor: Annotated[float, Field(gt=0, le=1)] = 0.5


class TrainingSection(Section):
    """The local training of a client in a round: `epochs` passes over its data (default: 1) or `steps`
    gradient steps, each on `batch` samples (default: all). `clip` is the largest norm of a step's gradient.
    By default, `loss` is cross-entropy for classes and squared for a regression. `way` says whether clients
    train as one batch ("together") or one after another; "auto" takes the faster way."""

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
    """The optimiser, "sgd", "adam" or "yogi", with which the server moves the common model in every round."""

    kind: str


class PrivacySection(OpenSection):
    """The privacy budget of a client for all sums together: `rho`, or `epsilon` and `delta`. Sums then have
    noise, which suffices if up to `dropouts` clients drop out. If `removable`, surplus noise is removed
    afterwards. With `participations`, noise is planned for a client that takes part in so many rounds, by
    default in all. Then no client is drawn more often, and clients refuse more. At least `min_separation`
    rounds lie between two participations of a client."""

    rho: Positive | None = None
    epsilon: Positive | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    dropouts: Whole = 0  # most clients that may drop out of a sum without making its noise too small
    removable: bool = False  # whether surplus noise is removed when the survivors are known
    participations: Count | None = None  # rounds in which a client takes part at most; by default, all
    min_separation: Whole = 0  # rounds between two participations of a client, at least

    def rounds_of_client(self, rounds: int) -> int:
        """Return in how many of the `rounds` of a run a client takes part at most."""
        return rounds if self.participations is None else min(self.participations, rounds)


class CohortSection(Section):
    """The clients of a round: `per_round` clients, drawn uniformly without replacement (default: all). Each
    one does only some of its local steps with probability `stragglers`."""

    per_round: Count | None = None  # how many are drawn, uniformly and without replacement; by default, all
    stragglers: Share = 0.0  # part of them that completes only some of the local steps


class AttackSection(OpenSection):
    """The attack of some clients. `fraction` is the part of clients that attack or, if `selection` is
    "samples", the part of training samples that attackers hold. They change their data or trained models at
    level "update", and at "answer" the answers computed from these; both follow the protocol. At "message",
    they break it: they add arbitrary residues (integers modulo a power of two) to a secure sum."""

    kind: str
    fraction: PartOfAll
    selection: Literal["count", "samples"] = "count"
    level: Literal["update", "answer", "message"] = "update"


@dataclass(frozen=True)
class ObserverKind:
    """The requirements of an observer, a function that measures something after each round: whether it reads
    clients' memories, so that they must run in this process, and whether it needs a known optimum."""

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
    """What is measured every `every` rounds and at the end: the common model, every client's own or both, on
    this `part` of the clients' samples and, if `held_out`, also on clients that never train. `observe` lists
    functions that measure more, after every round (`sims.simulation.metric_observers`)."""

    every: Count = 10
    what: Literal["common", "personal", "both"] = "common"  # the common model, or every client's own
    part: Literal["train", "validation", "test"] = "test"  # the samples that they are measured on
    held_out: bool = False  # whether clients that never train are also measured
    observe: list[str] = []  # names of further observations, which see every round


# The names of channels; the channels themselves are in `sims.simulation.setup`.
CHANNEL_KINDS: Final = ["plain", "secure", "processes", "ray"]


def _known_channel(kind: str) -> str:
    if kind not in CHANNEL_KINDS:
        raise PydanticKnownError("literal_error", {"expected": ", ".join(map(repr, CHANNEL_KINDS))})
    return kind


_LEAST_OF_RAY: Final = 0.0001  # of a CPU or GPU


def _ray_amount(amount: float) -> float:
    if 0 < amount < _LEAST_OF_RAY:
        raise ValueError(f"{amount:g} is too little: Ray reserves nothing (0), or at least {_LEAST_OF_RAY}")
    return amount


def _ray_gpus(amount: float) -> float:
    if amount > 1 and amount != int(amount):
        raise ValueError(f"{amount:g} is no choice: Ray reserves a part of one GPU, or whole ones")
    return amount


_RayAmount: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(_ray_amount)]


class RaySection(Section):
    """How a channel of the kind "ray" uses Ray. The clients are in `channel.workers` actors.

    `kind`      "secure" runs the protocol, with the clients' machines in the actors; "plain" adds up without
                protection, in each actor and then their partial sums.
    `address`   "local" starts Ray on this machine; "auto" finds a cluster that runs here; or HOST:PORT.
    `num_cpus`  the CPUs that each actor reserves, and `num_gpus`, the GPUs: 1/k for k actors on one.
    """

    kind: Literal["plain", "secure"] = "secure"
    address: str = "local"
    num_cpus: _RayAmount = 1.0
    num_gpus: Annotated[_RayAmount, AfterValidator(_ray_gpus)] = 0.0


class ChannelSection(Section):
    """How sums of clients' vectors are computed. The totals of all kinds agree up to rounding and noise.

    `kind`     "plain" adds up without protection, "secure" runs the protocol in one process, "processes" runs
               it in separate processes over TLS, and "ray" does as `ray.kind` says, in actors of Ray.
    `trust`, `corrupt`, `dropout`  the assumptions of a session: what the server may do, how many clients
               collude with it, and which part of the cohort may be missing by the end.
    `workers`  for "processes" and "ray": how many worker processes or actors share the clients; 0 means one
               process for each client, or as many actors as the Ray cluster has room for.
    `sums`     largest number of sums in one session; after these, a new session begins.
    `graph`    which clients share secrets with each other; "auto" depends on the size of the cohort.
    `key_agreement`  how clients agree on secrets: by X25519 alone, or also by ML-KEM-768, which protects
               recorded messages from a later quantum computer.
    `min_difference`  if above 0, clients refuse a sum whose clients differ from those of an earlier sum of
               its kind, but by fewer than this number. The server leaves out and takes in clients by batches.
    """

    kind: Annotated[str, AfterValidator(_known_channel)] = "plain"
    trust: Literal["curious_server", "malicious_server"] = "curious_server"
    corrupt: Whole = 0
    dropout: PartOfAll = 0.0
    workers: Whole = 0
    sums: Annotated[int, Field(ge=1, le=MAX_SUMS)] = MAX_SUMS
    graph: Literal["auto", "complete", "ring"] = "auto"
    key_agreement: Literal["x25519", "x25519+ml-kem-768"] = "x25519"
    min_difference: Whole = 0
    ray: RaySection = RaySection()

    @property
    def name(self) -> str:
        """The name of the channel in the records of a run: its kind, and on Ray also how sums are made."""
        return f"{self.kind}-{self.ray.kind}" if self.kind == "ray" else self.kind

    @property
    def is_plain(self) -> bool:
        """Whether sums have no protection."""
        return self.name in PLAIN_CHANNELS

    @property
    def params(self) -> SessionParams:
        """The protocol parameters of all sessions. They set no smallest or largest number of clients."""
        return SessionParams(
            trust=Trust(self.trust),
            corrupt=self.corrupt,
            sums=self.sums,
            dropout=self.dropout,
            graph=GraphChoice(self.graph),
            key_agreement=KeyAgreement(self.key_agreement),
            min_difference=self.min_difference,
            name_members=self.min_difference > 0,
        )


class DropoutSection(Section):
    """Probabilities that a client drops out. Before it sends masked input, this is `training` in the first
    sum of a round, `between` in a later sum of a new vector, and `group` in a later sum of the same vector.
    `reveal` is the probability to drop out of any sum after sending masked input."""

    training: PartOfAll = 0.0  # part of the invited that sends no masked input in a round's first sum
    between: PartOfAll = 0.0  # probability to miss a later sum that is in no group with an earlier one
    group: PartOfAll = 0.0  # probability to leave between two sums of one group, which closes it
    reveal: PartOfAll = 0.0  # probability to leave after masking and before revealing

    @property
    def happens(self) -> bool:
        return bool(self.training or self.between or self.group or self.reveal)


class OutputSection(Section):
    """The files that are kept besides a line of results per finished cell. If `keep` is "table", there are
    none; if it is "run", a directory for each cell, with ledger, metrics and report. `identity` is the path
    of a key file that `secagg keygen` made. The key signs the head of the ledger. By default, it is computed
    from the seed if `insecure_seed` applies, and otherwise new."""

    keep: Literal["run", "table"] = "run"
    identity: str | None = None


class AuditSection(Section):
    """A test of noise after a run: `canaries` sums with a known input and as many without; 0 for no test."""

    canaries: Whole = 0


class TailSection(Section):
    """A private histogram of clients' error rates, every `every` rounds and at the end (0: only then). All
    histograms of a run share a privacy budget of their own: `epsilon` and `delta`."""

    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1)]
    bins: Annotated[int, Field(ge=2, le=1024)] = 16
    every: Whole = 0  # number of rounds; 0 is at the end only. All histograms of a run share the budget.


class Settings(Section):
    """The settings of one simulation. `seed` determines random draws. `insecure_seed` says whether it also
    determines keys, rounding and noise, so that anyone can compute them; default: only on a plain channel."""

    seed: Whole = 0
    insecure_seed: bool | None = None
    rounds: Count
    data: DataSection = NO_DATA
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
        return self.channel.is_plain if self.insecure_seed is None else self.insecure_seed


def insecure_seed(seed: int) -> bytes:
    """Return public bytes, computed from `seed`, that determine keys, rounding and noise of a seeded run."""
    return hashlib.sha256(f"secagg simulation {seed}".encode()).digest()


def insecure_server(seed: int) -> Identity:
    """Return the key pair with which a seeded run signs its ledger. Anyone can compute it from `seed`."""
    return Identity.from_secret(digest("insecure identity of a server", insecure_seed(seed)))
