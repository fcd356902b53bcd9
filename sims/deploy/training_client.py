"""The training side of `secagg join`: data, learner and memory of a client, and the end of its run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl.errors import FLError
from fl.federation import ClientData, Federation
from fl.samples import Samples
from protocols.learner import Learner
from protocols.participant import Participant
from protocols.serialisation import RecordError, unpack
from secagg.errors import InputError, SecaggError
from secagg.events import Asked
from secagg.net.atomic_files import PRIVATE
from secagg.trust_levels import Trust
from sims.config_problems import ConfigError
from sims.deploy.client_state_file import StateFile
from sims.deploy.config import InputSection, JoinConfig
from sims.deploy.imported_object import imported
from sims.deploy.model_files import write_model
from sims.deploy.run_terms import RunTerms, run_terms
from sims.runtime.client_runtime import BeginRound, ClientRuntime, RunOutcome, no_schedule
from sims.simulation.learners import make_crowd, training_of


@dataclass(frozen=True, eq=False)
class TrainingClient:
    """A client of a training run: the terms that it insists on, its runtime, and where its models go."""

    terms: RunTerms
    runtime: ClientRuntime
    section: InputSection

    def answer(self, asked: Asked) -> Mapping[str, Any]:
        """Return the values for a sum. Raise `InputError` if there is no answer, because training diverged,
        failed, or was interrupted by a restart."""
        try:
            values = self.runtime.answer(asked)
        except FLError as error:
            raise InputError(f"training failed: {error}") from None
        if values is None:
            raise InputError("there is no answer: training diverged, or a restart has lost it")
        return values

    def finish(self, body: bytes) -> None:
        """Keep the outcome of the run that the server sent, and write the final models. Raise `ConfigError`
        if a file cannot be written, and `RecordError` if the outcome cannot be read."""
        outcome = unpack(RunOutcome, body)
        if len(outcome.model) != self.terms.algorithm.dim:
            raise RecordError("the final model has another length than the terms say")
        personal = self.runtime.finish(outcome)
        if self.section.model is not None:
            write_model(self.section.model, outcome.model, self.terms.module)
        if self.section.personal is not None:
            write_model(self.section.personal, personal, self.terms.module, mode=PRIVATE)


def training_client(config: JoinConfig, directory: Path) -> TrainingClient:
    """Return the client that `config` describes. Raise `ConfigError` if its scenario, its data or its state
    cannot be used."""
    section, member = config.input, config.client.member
    if config.client.scenario is None:
        raise ConfigError("client.scenario: name the scenario to train")
    if section.state is None:
        raise ConfigError("input.state: name a file for the client's personal model and memory")
    terms = run_terms(config.client.scenario, directory)
    try:
        learner, begin_round = _learner(section, terms, member, directory)
        participant = Participant(terms.algorithm, learner, trust=Trust(config.policy.trust), member=member)
        store = StateFile(section.state, member, terms.digest)
        return TrainingClient(terms, ClientRuntime(participant, store, begin_round), section)
    except (FLError, SecaggError) as error:
        raise ConfigError(f"{config.client.scenario}: {error}") from None


def _learner(
    section: InputSection, terms: RunTerms, member: int, directory: Path
) -> tuple[Learner, BeginRound]:
    """Return what trains on the client's data, and a function that adapts its learning rate to a round."""
    given = [name for name in ("share", "data", "learner") if getattr(section, name) is not None]
    if len(given) != 1:
        raise ConfigError("input: name exactly one of share, data and learner for training")
    if section.learner is not None:
        made: Learner = imported("input.learner", section.learner, directory)()
        return made, no_schedule
    data = _data(section, terms, directory)
    settings = terms.settings
    federation = Federation({member: data}, classes=terms.federation.classes, name=terms.federation.name)
    crowd = make_crowd(settings, federation, training_of(settings, federation), federation.clients)
    return crowd[member], crowd.begin_round


def _data(section: InputSection, terms: RunTerms, directory: Path) -> ClientData:
    if section.share is not None:
        if section.share not in terms.federation.clients:
            raise ConfigError(
                f"input.share: the scenario has shares 0 to {len(terms.federation.clients) - 1}"
            )
        return terms.federation.clients[section.share]
    assert section.data is not None
    made = imported("input.data", section.data, directory)()
    if isinstance(made, ClientData):
        return made
    if isinstance(made, Samples):
        return ClientData(train=made, validation=made, test=made)
    raise ConfigError("input.data: its function must return fl.federation.ClientData or fl.samples.Samples")
