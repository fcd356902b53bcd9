"""The training side of `secagg join`: data, learner and memory of a client, and the end of its run."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from typing import Any, Final, TypeAlias, TypeVar, cast

import numpy as np

from fl.errors import FLError
from fl.federation import ClientData
from fl.torch_datasets import client_data_of
from protocols.learner import Learner
from protocols.participant import Participant
from protocols.query_encoding import LARGEST
from protocols.serialisation import Vector, largest_of, unpack
from secagg.errors import SERVER, InputError, LocalError, MalformedMessage, SecaggError
from secagg.events import Asked
from secagg.net.atomic_files import PRIVATE
from secagg.trust_levels import Trust
from sims.config_problems import ConfigError, Problems
from sims.coordination.client_runtime import BeginRound, ClientRuntime, RunOutcome, no_schedule
from sims.deploy.client_state_file import StateFile
from sims.deploy.config import InputSection, JoinConfig
from sims.deploy.model_files import write_model
from sims.deploy.run_terms import RunTerms
from sims.imported_object import called, check_arguments, imported
from sims.scenario.training_task import make_crowd

_SINGLE_SUMS: Final = ("values", "answer")
_NUMBERS: Final = ("samples", "rate", "steps")  # of a learner
_METHODS: Final = ("loss", "gradient", "train", "score")
_NOTHING: Final = object()
_SPARE: Final = 100  # rounds, at least, that a server may lose
R = TypeVar("R")
OnEnd: TypeAlias = Callable[[Vector, Vector], None]


@dataclass(frozen=True, eq=False)
class RunClient:
    """A client of a training run: the terms that it insists on, its runtime, and where its models go."""

    terms: RunTerms
    runtime: ClientRuntime
    section: InputSection
    on_end: OnEnd  # receives the final models, as vectors: the common one and this client's
    _turn: Lock = field(default_factory=Lock)  # held while a thread trains or writes
    _closed: Event = field(default_factory=Event)

    def answer(self, asked: Asked) -> Mapping[str, Any]:
        """Return the values for a sum. Raise `InputError` if there is no answer, because training diverged,
        failed, or was interrupted by a restart. Its text does not quote errors of the owner's code, which
        could contain values. Raise other `SecaggError`s if the query or the state file is at fault."""
        self._check_round(asked.round)
        with self._turn:
            if self._closed.is_set():
                raise InputError("there is no answer: the client was stopped")
            return self._answer(asked)

    def _answer(self, asked: Asked) -> Mapping[str, Any]:
        try:
            values = self.runtime.answer(asked)
        except FLError as error:
            raise InputError(f"training failed: {error}") from None
        except SecaggError:
            raise
        except BaseException as error:  # including sys.exit() in the owner's code
            raise InputError(f"training failed: {type(error).__name__} was raised") from None
        if values is None:
            raise InputError("there is no answer: training diverged, or a restart has lost it")
        return values

    def _check_round(self, number: int) -> None:
        """Raise `MalformedMessage` for a round far beyond those of the terms. Numbers may exceed them: a
        server that was killed skips the round that it lost, and repeats it under a new number. Only the
        server says which rounds were lost, so the bound does not depend on what it says."""
        rounds = self.terms.settings.rounds
        if number >= rounds + max(rounds, _SPARE):
            raise MalformedMessage(SERVER, f"a query of round {number}, in a run of {rounds} rounds")

    @property
    def is_new(self) -> bool:
        """Whether the client has no state yet, because it has answered nothing in this run."""
        return self.section.state is None or not os.path.exists(self.section.state)

    def outcome(self, body: bytes) -> RunOutcome:
        """Return the outcome of the run in a notice of the server. Raise `MalformedMessage` if it cannot be
        read, or cannot be the outcome of this run. It is what the server says: no other client checks it."""
        try:
            outcome = unpack(RunOutcome, body)
        except LocalError as error:
            raise MalformedMessage(SERVER, f"an outcome that cannot be read: {error}") from None
        if len(outcome.model) != self.terms.algorithm.dim or largest_of(outcome) > LARGEST:
            raise MalformedMessage(SERVER, "a final model of another length, or with huge numbers")
        if outcome.round_info.number < self.terms.settings.rounds:
            raise MalformedMessage(SERVER, f"an outcome after {outcome.round_info.number} rounds")
        return outcome

    def finish(self, outcome: RunOutcome) -> None:
        """Keep the outcome of the run, and write the final models. This may wait for training that still
        runs. Raise `ConfigError` if a file cannot be written."""
        with self._turn:
            if not self._closed.is_set():
                self._finish(outcome)

    def _finish(self, outcome: RunOutcome) -> None:
        personal = self.runtime.finish(outcome)
        if self.section.model is not None:
            write_model(self.section.model, outcome.model, self.terms)
        if self.section.personal is not None:
            write_model(self.section.personal, personal, self.terms, mode=PRIVATE)
        self.on_end(outcome.model, personal)

    def close(self) -> None:
        """Wait for a thread that still trains, and let no other begin. An event loop that is stopped does not
        wait for it, but it writes the state file, which the next client may use."""
        self._closed.set()
        with self._turn:
            pass


def training_client(
    config: JoinConfig, terms: RunTerms, directory: Path, problems: Problems
) -> RunClient | None:
    """Return the client of a run with these `terms` that `config` describes. If its data or its state cannot
    be used, add a problem and return None."""
    learner = _learner(config.input, terms, config.client.member, directory, problems)
    if learner is None:
        return None
    with problems.about("policy.max_cohort"):
        check_cohort(config.policy.max_cohort, terms)
    with problems.about("policy.trust"):
        terms.algorithm.check_trust(Trust(config.policy.trust))
        with problems.about("input.state"):
            return client_with(terms, learner, config)
    return None


def no_end(_common: Vector, _personal: Vector) -> None:
    pass


def client_with(
    terms: RunTerms, learner: tuple[Learner, BeginRound], config: JoinConfig, on_end: OnEnd = no_end
) -> RunClient:
    """Return a client that trains with `learner`, and a function that adapts its learning rate to a round.
    `on_end` receives the final models. Raise `SecaggError` if its state cannot be used."""
    section, member = config.input, config.client.member
    if section.state is None:
        raise ConfigError("state: name a file for the client's personal model and memory")
    participant = Participant(terms.algorithm, learner[0], trust=Trust(config.policy.trust), member=member)
    store = StateFile(section.state, member, terms.digest)
    return RunClient(terms, ClientRuntime(participant, store, learner[1]), section, on_end)


def check_cohort(most: int, terms: RunTerms) -> None:
    """Raise `ConfigError` if the sums of a round cannot have `most` clients."""
    try:
        terms.table.check_fits(most)
    except SecaggError:
        clients = terms.algorithm.clients
        raise ConfigError(
            f"the sums of a round are for at most {clients} clients: set {clients} or less"
        ) from None


def _learner(
    section: InputSection, terms: RunTerms, member: int, directory: Path, problems: Problems
) -> tuple[Learner, BeginRound] | None:
    """Return what trains on the client's data, and a function that adapts its learning rate to a round. If
    there is none, add a problem and return None."""
    given = [name for name in ("share", "data", "learner") if getattr(section, name) is not None]
    if any(getattr(section, name) is not None for name in _SINGLE_SUMS):
        problems.add("input", f"{' and '.join(_SINGLE_SUMS)} are for single sums: remove them")
    elif len(given) != 1:
        problems.add("input", "name exactly one of share, data and learner for training")
    elif section.arguments is not None and section.share is not None:
        problems.add("input.arguments", "they are for data and learner: remove them, or share")
    else:
        with problems.about(f"input.{given[0]}"):
            try:
                return _learner_from(section, terms, member, directory)
            except FLError as error:
                raise ConfigError(str(error)) from None
    return None


def _learner_from(
    section: InputSection, terms: RunTerms, member: int, directory: Path
) -> tuple[Learner, BeginRound]:
    if section.learner is not None:
        made = _called_own(section.learner, section, directory, lambda made: made)
        return checked_learner(section.learner, made, terms), no_schedule
    return learner_of(_data(section, terms, directory), terms, member)


def checked_learner(name: str, learner: Any, terms: RunTerms) -> Learner:
    """Return a learner of the user's own, which messages call `name`. Raise `ConfigError` if it has not the
    attributes of one, or cannot compute the loss of the initial model of `terms`. It is not asked to train,
    which may take long."""
    kind = type(learner).__name__
    names = (*_NUMBERS, *_METHODS)
    # A property is code of the user's own, and may fail.
    found = called(f"{name}: {kind}", lambda: {n: getattr(learner, n, _NOTHING) for n in names}, private=True)
    lacks = [each for each in names if found[each] is _NOTHING]
    if lacks:
        raise ConfigError(f"{name}: {kind} is no learner: it lacks {', '.join(lacks)}")
    other = [each for each in _METHODS if not callable(found[each])]
    if other:
        raise ConfigError(f"{name}: {kind} is no learner: {', '.join(other)} must be a method")
    if not _is_count(found["samples"]):
        raise ConfigError(f"{name}: samples of {kind} must be a whole number from 1")
    _check_loss(f"{name}: the loss of a model of {len(terms.initial)} numbers", learner, terms)
    return cast(Learner, learner)


def _is_count(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= 1


def _check_loss(what: str, learner: Any, terms: RunTerms) -> None:
    """Raise `ConfigError`, which begins with `what`, if the loss of the initial model is no finite number. It
    is not shown: it may be private."""
    loss = called(what, lambda: learner.loss(terms.initial), private=True)
    try:
        is_finite = math.isfinite(loss)  # also of a tensor with one number
    except Exception:
        raise ConfigError(f"{what} must be a number, not {type(loss).__name__}") from None
    if not is_finite:
        raise ConfigError(f"{what} is infinite or NaN: correct the learner, or the initial model")


def learner_of(data: ClientData, terms: RunTerms, member: int) -> tuple[Learner, BeginRound]:
    """Return what trains the model of `terms` on the data of client `member`, and a function that adapts its
    learning rate to a round. Raise `FLError` if the data do not fit the model."""
    crowd = make_crowd(terms.settings, terms.module, terms.task.training, {member: data})
    return crowd[member], crowd.begin_round


def _data(section: InputSection, terms: RunTerms, directory: Path) -> ClientData:
    if section.share is not None:
        return _share(section.share, terms)
    assert section.data is not None
    return _called_own(section.data, section, directory, client_data_of)


def _called_own(name: str, section: InputSection, directory: Path, convert: Callable[[Any], R]) -> R:
    """Return what `convert` makes of the result of the owner's function `name`. Raise `ConfigError` if it
    cannot be called with the arguments of `section`, or if either function raises an exception."""
    function, arguments = imported(name, directory), section.arguments or {}
    check_arguments(name, function, arguments, "input.arguments")
    return called(name, lambda: convert(function(**arguments)), private=True)


def _share(number: int, terms: RunTerms) -> ClientData:
    if terms.federation is None:
        raise ConfigError("the scenario is served without its data set (deploy.clients): name input.data")
    if number not in terms.federation.clients:
        shares = ", ".join(map(str, sorted(terms.federation.clients)))
        raise ConfigError(f"no client that trains has share {number}; there are {shares}")
    return terms.federation.clients[number]
