"""Reads `serve.toml` and `join.toml`, the configurations of a server and a client. An unknown key is an
error, because a misspelt limit would have no effect. File names are relative to the file's directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainValidator,
    ValidationError,
    ValidationInfo,
)

from secagg.errors import LocalError
from secagg.graph_parameters import GraphChoice
from secagg.hybrid_keys import KeyAgreement
from secagg.identity_registry import MAX_ID
from secagg.net.settings import ENGINE, Address, Capacity, Deadlines, Patience
from secagg.noise.zcdp_cost import Adjacency
from secagg.policy import Policy
from secagg.session_params import LIVENESS_BITS, SECURITY_BITS, SessionParams
from secagg.trust_levels import Trust
from sims.config_problems import ConfigError, Problems, shown, toml_tables

STDOUT: Final = "-"
OFF: Final = "off"
THROUGH_ENGINE: Final = "engine"  # an address: connections are carried by Flower or NVFlare
_LONGER: Final = {"handshake": 120.0, "silence": 120.0, "grace": 60.0, "farewell": 10.0}  # through an engine
SAFETENSORS: Final = ".safetensors"
_OF_SCENARIOS: Final = frozenset({"algorithm", "deploy", "model", "training"})  # tables of no other file
METRICS_ADDRESS: Final = Address("127.0.0.1", 9464)


def state_key_path(state: Path) -> Path:
    """Return where the key of a client's state file `state` lies."""
    return state.with_name(f"{state.name}.key")


def safetensors_path(model: Path) -> Path:
    """Return where the same model as in `model` is written by parameter name."""
    return model.with_suffix(SAFETENSORS)


def _file(value: object, info: ValidationInfo) -> Path:
    if isinstance(value, Path):
        return value  # set by a program, not read from a file
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError(f"must be the name of a file, in quotes, not {shown(value)}")
    assert info.context is not None  # `load` gives one
    directory: Path = info.context["directory"]
    return directory / value


def _log(value: object, info: ValidationInfo) -> Path | None:
    return None if value == STDOUT else _file(value, info)


def _place(value: object) -> Address:
    return ENGINE if value == THROUGH_ENGINE else _address(value)


def _address(value: object) -> Address:
    if not isinstance(value, str):
        raise ValueError(f"must be a text such as 'localhost:7443', not {shown(value)}")
    try:
        return Address.parse(value)
    except LocalError as error:
        raise ValueError(str(error)) from None


def _server(value: object) -> Address:
    address = _place(value)
    if address.port == 0 and address is not ENGINE:
        raise ValueError(f"'{address}' has no port: name the one on which the server listens")
    return address


def _member(value: int) -> int:
    if not 0 <= value <= MAX_ID:
        raise ValueError(f"must be a whole number from 0 to {MAX_ID}, not {shown(value)}")
    return value


def _metrics(value: object) -> Address | None:
    return None if value == OFF else _address(value)


File = Annotated[Path, BeforeValidator(_file)]
# None means the standard output.
Log = Annotated[Path | None, BeforeValidator(_log)]
Place = Annotated[Address, PlainValidator(_address)]
PlaceOrEngine = Annotated[Address, PlainValidator(_place)]
ServerPlace = Annotated[Address, PlainValidator(_server)]
Member = Annotated[int, AfterValidator(_member)]
# None means that there is none.
MetricsPlace = Annotated[Address | None, PlainValidator(_metrics)]
TrustName = Literal["curious_server", "malicious_server"]
AgreementName = Literal["x25519", "x25519+ml-kem-768"]


class ConfigSection(BaseModel):
    """A table of a configuration file. It allows no unknown keys, and no text in place of a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


# --- server and client ------------------------------------------------------------------------------


class PatienceSection(ConfigSection):
    handshake: float = Patience.handshake
    silence: float = Patience.silence
    grace: float = Patience.grace
    farewell: float = Patience.farewell
    report: float = Patience.report

    def made(self, *, through_engine: bool = False) -> Patience:
        """Return the timeouts. Through an engine, those that the operator has not set are longer: each of its
        messages may take seconds."""
        longer = _LONGER if through_engine else {}
        return Patience(**{**self.model_dump(), **longer, **self.model_dump(exclude_unset=True)})


# --- a server ---------------------------------------------------------------------------------------


class ServeFileServer(ConfigSection):
    """The table [server] of `serve.toml`: the address, the identity and the files of a server."""

    listen: Place
    key: File
    certificate: File
    authority: File
    registry: File
    table: File
    ledger: File
    totals: File
    log: Log = None
    evidence: File | None = None  # None: evidence of lies is not kept
    hand_over: File | None = None  # None: beside the key


class SessionSection(ConfigSection):
    """The table [session] of `serve.toml`: parameters of sessions, their number, and the pause in between."""

    trust: TrustName
    corrupt: int
    dropout: float
    min_cohort: int
    max_cohort: int
    min_contributors: int
    graph: Literal["auto", "complete", "ring"] = "auto"
    neighbours: int = 2
    security_bits: int = SECURITY_BITS
    liveness_bits: int = LIVENESS_BITS
    key_agreement: AgreementName = "x25519"
    name_members: bool = True
    min_difference: int = 0
    sums: int | None = None  # None: every question once
    sessions: int = 0  # 0: for ever
    pause: float = 60.0
    first_round: int = 0

    def params(self, sums: int) -> SessionParams:
        """Return the parameters of a session of `sums` sums."""
        return SessionParams(
            trust=Trust(self.trust),
            corrupt=self.corrupt,
            sums=sums,
            dropout=self.dropout,
            graph=GraphChoice(self.graph),
            min_cohort=self.min_cohort,
            max_cohort=self.max_cohort,
            min_contributors=self.min_contributors,
            min_neighbours=self.neighbours,
            security_bits=self.security_bits,
            liveness_bits=self.liveness_bits,
            key_agreement=KeyAgreement(self.key_agreement),
            name_members=self.name_members,
            min_difference=self.min_difference,
        )


class AskSection(ConfigSection):
    """A table [[ask]] of `serve.toml`: a kind of sum that the server asks for in every session, and
    optionally a file to send with the question."""

    kind: str
    payload: File | None = None


class DeadlinesSection(ConfigSection):
    join: float = Deadlines.join
    absent: float = Deadlines.absent
    share: float = Deadlines.share
    mask: float = Deadlines.mask
    confirm: float = Deadlines.confirm
    reveal: float = Deadlines.reveal

    def made(self) -> Deadlines:
        return Deadlines(**self.model_dump())


class CapacitySection(ConfigSection):
    uploads: int = Capacity.uploads
    slowest: float = Capacity.slowest
    strangers: int = Capacity.strangers

    def made(self) -> Capacity:
        return Capacity(**self.model_dump())


class MetricsSection(ConfigSection):
    """The table [metrics] of `serve.toml`, or [deploy.metrics] of a scenario: where figures and health are
    served over HTTP."""

    listen: MetricsPlace = METRICS_ADDRESS

    @property
    def is_explicit(self) -> bool:
        """Whether the operator chose the address. Otherwise the server works without it, too."""
        return "listen" in self.model_fields_set


class ServeConfig(ConfigSection):
    """The content of `serve.toml`, the configuration of a server: one field for each table."""

    server: ServeFileServer
    session: SessionSection
    ask: list[AskSection]
    deadlines: DeadlinesSection = DeadlinesSection()
    patience: PatienceSection = PatienceSection()
    capacity: CapacitySection = CapacitySection()
    metrics: MetricsSection = MetricsSection()


class DeploySection(ConfigSection):
    """The table [deploy] of a scenario: how `secagg serve` trains with real clients. `run` is the directory
    of the run. A round begins with at least `min_cohort` clients; `rest` seconds are left after a failed one.
    After the last round, the server stays for up to `linger` seconds, so that clients get the final model.
    With `clients`, the most clients of the run, server and clients do not read the scenario's data set."""

    listen: PlaceOrEngine
    key: File
    certificate: File
    authority: File
    registry: File
    run: File
    min_cohort: int
    clients: int | None = None  # None: as many as the data set has
    min_contributors: int | None = None  # None: as many as the protocol needs
    log: Log = None
    evidence: File | None = None
    hand_over: File | None = None  # None: beside the key
    rest: float = 1.0
    linger: float = 60.0
    deadlines: DeadlinesSection = DeadlinesSection()
    patience: PatienceSection = PatienceSection()
    capacity: CapacitySection = CapacitySection()
    metrics: MetricsSection = MetricsSection()


class ScenarioDeployment(BaseModel):
    """A scenario of which only the table [deploy] is read; `sims.scenario` reads the rest."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    deploy: DeploySection


# --- a client ---------------------------------------------------------------------------------------


class ClientSection(ConfigSection):
    """The table [client] of `join.toml`: the identity, the server and the files of a client."""

    member: Member
    server: ServerPlace
    key: File
    certificate: File
    server_certificate: File
    authority: File
    registry: File
    table: File | None = None  # for single sums
    scenario: File | None = None  # for training
    ledger: File
    log: Log = None
    hand_over: File | None = None  # None: beside the key


class PolicySection(ConfigSection):
    """The table [policy] of `join.toml`: the least protection under which a client takes part."""

    trust: TrustName
    corrupt: int
    min_cohort: int
    max_cohort: int
    min_contributors: int
    max_sums: int
    unnoised_sums: int
    max_rho: float | None = None
    adjacency: Literal["zero-out", "add-remove", "replace"] = "zero-out"
    max_query_bytes: int = Policy.max_query_bytes
    min_difference: int = 0
    security_bits: int = SECURITY_BITS
    key_agreement: AgreementName = "x25519"

    def made(self) -> Policy:
        names = {
            "trust": Trust(self.trust),
            "adjacency": Adjacency(self.adjacency),
            "key_agreement": KeyAgreement(self.key_agreement),
        }
        return Policy(**{**self.model_dump(), **names})


class InputSection(ConfigSection):
    """The table [input] of `join.toml`: the source of a client's values. For single sums, either a file or a
    function. For training, the data: either a `share` of the scenario's own data set, or `data`, a function
    of the operator's that returns them; or `learner`, a function that returns a `protocols.learner.Learner`.
    `arguments` are the keyword arguments of either function. `state` is the file of the client's memory. The
    final models are written to `model` and `personal`."""

    values: File | None = None
    answer: str | None = None
    share: int | None = None
    data: str | None = None
    learner: str | None = None
    arguments: dict[str, Any] | None = None
    state: File | None = None
    model: File | None = None
    personal: File | None = None


class JoinConfig(ConfigSection):
    """The content of `join.toml`, the configuration of a client: one field for each table."""

    client: ClientSection
    policy: PolicySection
    input: InputSection
    patience: PatienceSection = PatienceSection()


# --- reading ----------------------------------------------------------------------------------------

M = TypeVar("M", bound=BaseModel)


def load(path: Path, model: type[M]) -> M:
    """Return the file at `path`, parsed as a `model`. Raise one `ConfigError` that lists all problems."""
    return validated(toml_tables(path), model, path)


def validated(tables: Mapping[str, Any], model: type[M], path: Path) -> M:
    """Return `tables` as a `model`. File names are relative to the directory of `path`. Raise one
    `ConfigError` that lists all problems, of the file `path`."""
    try:
        return model.model_validate(tables, context={"directory": path.parent})
    except ValidationError as error:
        problems = Problems(path)
        problems.add_all(error, model)
        raise problems.error() from None


def is_scenario(path: Path) -> bool:
    """Return whether the file describes a training run, and not single sums. Raise `ConfigError` if it cannot
    be read, or is empty."""
    tables = toml_tables(path)
    if not tables:
        raise ConfigError(f"{path} is empty; write a configuration, or correct the path")
    # One table is enough, so that a misspelt name of another is reported as one of a scenario.
    return not _OF_SCENARIOS.isdisjoint(tables)
