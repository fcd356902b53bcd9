"""The terms of a training run: what its server and clients must agree on before anything is trained.

Each side builds the terms from its own copy of the scenario. The server sends its terms as text, so that a
client can say what differs. Their digest is part of the table of sums, so that clients refuse others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from fl.errors import FLError
from fl.federation import Federation
from fl.flat_model import check_stateless
from protocols.algorithm import AnyAlgorithm
from protocols.serialisation import Vector
from secagg.errors import SecaggError
from secagg.sum_spec import Table
from secagg.trust_levels import Trust
from sims.config_problems import ConfigError, toml_tables
from sims.scenario import federated_data
from sims.scenario.evaluation_sum import evaluated
from sims.scenario.loading_and_variants import load as load_scenario
from sims.scenario.settings import AuditSection, DropoutSection, Settings
from sims.scenario.training_task import DataFacts, TrainingTask

_LONGEST: Final = 80  # characters of a name or a value that a message shows
_MOST_BYTES: Final = 1 << 20  # of a server's terms that differ
_FEWEST: Final = 2  # clients of a run
_NOT_TRAINED: Final = " (not trained)"  # ends the names of terms about the values of fixed tensors
_DIGITS: Final = 16  # of a hash of such values


@dataclass(frozen=True, eq=False)
class RunTerms:
    """What server and clients of a training run agree on. `run_terms` makes it."""

    name: str
    settings: Settings
    facts: DataFacts
    task: TrainingTask
    federation: Federation | None  # the clients that a simulation would invent; None if no data were read
    cautions: tuple[str, ...] = ()  # what the scenario asks for and only a simulation does

    @property
    def module(self) -> nn.Module:
        return self.task.module

    @property
    def algorithm(self) -> AnyAlgorithm:
        return self.task.algorithm

    @property
    def initial(self) -> Vector:
        return self.task.initial

    @property
    def clients(self) -> int:
        return self.facts.clients

    @cached_property
    def document(self) -> dict[str, str]:
        """The terms as a flat mapping of names to texts."""
        given = self.settings
        parts = {
            "algorithm": self.algorithm,
            "training": {**given.training.model_dump(), "loss": self.task.training.loss},
            "rounds": given.rounds,
            "seed": given.seed,
            "model": {"kind": given.model.kind, **dict(_shapes(self.module)), **dict(_fixed(self.module))},
            "trust": given.channel.trust,
            "min_difference": given.channel.min_difference,
        }
        return {name: text for part, value in parts.items() for name, text in _flat(part, value)}

    @cached_property
    def text(self) -> bytes:
        return json.dumps(self.document, sort_keys=True).encode()

    @cached_property
    def digest(self) -> bytes:
        return hashlib.sha256(self.text).digest()

    @cached_property
    def table(self) -> Table:
        """The sums of the run, bound to its terms."""
        assert self.algorithm.table is not None  # `run_terms` has checked it
        return Table(self.algorithm.table.kinds, terms=self.digest)

    def differences(self, other: bytes) -> list[str]:
        """Return how the terms `other`, a text of the server's, differ from these; [] if they are equal.
        A text that cannot be read is one difference: it is not what this client agreed to, either."""
        if other == self.text:
            return []
        theirs, own = _parsed(other), self.document
        if theirs is None:
            return ["those of the server cannot be read; does it run another version?"]
        names = sorted(theirs.keys() | own.keys())
        return [
            _difference(name, theirs.get(name), own.get(name))
            for name in names
            if theirs.get(name) != own.get(name)
        ]


def run_terms(path: Path, root: Path, clients: int | None = None) -> RunTerms:
    """Return the terms of the scenario at `path`. `root` contains the directories of data sets, which are not
    read if `clients`, or else the scenario's table [deploy], says how many clients there are. Raise
    `ConfigError` if the scenario is invalid, or describes several runs."""
    clients = _deployed_clients(path, clients)
    scenario = load_scenario(path, data=root, with_data=clients is None)
    if len(scenario.variants) != 1:
        raise ConfigError(
            f"{path}: sweep: {len(scenario.variants)} runs; serve and join take one: remove [sweep], and set "
            "its keys to the values of that run"
        )
    settings = scenario.variants[0].settings
    try:
        federation = federated_data.federation(settings, root) if clients is None else None
        return terms_of(scenario.name, settings, clients=clients, federation=federation)
    except (FLError, SecaggError) as error:
        raise ConfigError(f"{path}: {error}") from None


def terms_of(
    name: str,
    settings: Settings,
    *,
    clients: int | None = None,
    federation: Federation | None = None,
    module: nn.Module | None = None,
) -> RunTerms:
    """Return the terms of a run called `name`, for the clients of `federation` or, without data, for at most
    `clients` clients. `module` is the untrained model; by default, that of the settings. Raise `FLError` or
    `SecaggError` if the settings allow no such run."""
    settings, cautions = _served(settings)
    if federation is not None:
        facts = DataFacts.of(settings, federation)
    else:
        assert clients is not None
        facts = DataFacts.without_data(settings, clients)
    task = TrainingTask.of(settings, facts, module)
    check_stateless(task.module)
    task.algorithm.check_trust(Trust(settings.channel.trust))
    if task.algorithm.table is None:
        raise ConfigError("algorithm.name: its clients train alone, so there is nothing to serve or join")
    algorithm = evaluated(task.algorithm, settings, has_classes=facts.has_classes)
    _check_rounds(algorithm, settings)
    return RunTerms(name, settings, facts, replace(task, algorithm=algorithm), federation, cautions)


def _check_rounds(algorithm: AnyAlgorithm, settings: Settings) -> None:
    """Raise `ConfigError` if a round of `algorithm`, with its evaluation, does not fit the settings."""
    if algorithm.most_sums > settings.channel.sums:
        raise ConfigError(
            f"channel.sums: a round of {settings.algorithm.name} takes {algorithm.most_sums} with its "
            "evaluation: set that or more"
        )
    if algorithm.needs_all_clients and settings.cohort.per_round is not None:
        raise ConfigError(
            f"cohort.per_round: {settings.algorithm.name} needs all clients in every round: remove this"
        )


def _served(settings: Settings) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings without those that only a simulation follows, and a sentence for each of them. Keys
    and noise of a served run never follow from its seed, so `insecure_seed` is False."""
    given = settings.evaluation
    what = "common" if given.what == "both" else given.what
    changes = {
        "attack": None,
        "dropout": DropoutSection(),
        "cohort": settings.cohort.model_copy(update={"stragglers": 0.0}),
        "tail": None,
        "audit": AuditSection(),
        "evaluation": given.model_copy(update={"observe": [], "held_out": False, "what": what}),
        "insecure_seed": False,
        "output": settings.output.model_copy(update={"identity": None}),
    }
    cautions = tuple(f"a served run does not follow {each}" for each in _left_out(settings))
    return settings.model_copy(update=changes), cautions


def _left_out(settings: Settings) -> Iterator[str]:
    """Yield the settings that only a simulation follows, each with the reason."""
    given, attack = settings.evaluation, settings.attack
    found = {
        "[attack]: real clients are what they are": attack is not None and attack.fraction > 0,
        "[dropout]: real clients drop out by themselves": settings.dropout.happens,
        "cohort.stragglers: real clients train as long as they are asked to": settings.cohort.stragglers > 0,
        "[tail]: the server asks for no private histogram of errors": settings.tail is not None,
        "audit.canaries: test the noise with secagg check-noise": settings.audit.canaries > 0,
        "evaluation.observe: the server sees no single client": bool(given.observe),
        "evaluation.held_out: clients that never train are not asked": given.held_out,
        'evaluation.what = "both": only the common model is evaluated': given.what == "both",
        f'evaluation.part = "{given.part}": a client evaluates on its test samples, if at all': given.part
        != "test",
        "insecure_seed: keys and noise are secret": bool(settings.insecure_seed),
        "output.identity: the server signs with deploy.key": settings.output.identity is not None,
    }
    yield from (text for text, is_set in found.items() if is_set)


def _deployed_clients(path: Path, clients: int | None) -> int | None:
    """Return `clients`, or else how many clients the table [deploy] of a scenario expects; None if it does
    not say so."""
    table = toml_tables(path).get("deploy", {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: deploy: must be a table: write [deploy], once")
    if clients is None:
        clients = table.get("clients")
    if clients is not None and (type(clients) is not int or clients < _FEWEST):
        raise ConfigError(f"{path}: deploy.clients: must be a whole number from {_FEWEST}")
    return clients


def _shapes(module: nn.Module) -> Iterator[tuple[str, str]]:
    for name, tensor in module.state_dict().items():
        yield name, "x".join(map(str, tensor.shape))


def _fixed(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield a hash of each frozen parameter and each buffer. No sum carries these values, so that parties
    with different ones would train different models unnoticed."""
    frozen = ((name, each) for name, each in module.named_parameters() if not each.requires_grad)
    for name, tensor in (*frozen, *module.named_buffers()):
        yield name + _NOT_TRAINED, _hash(tensor)


def _hash(tensor: Tensor) -> str:
    values = tensor.detach().cpu().to_dense().contiguous().reshape(-1)
    content = values.view(torch.uint8).numpy().tobytes()  # numpy does not know all types of torch
    return hashlib.sha256(f"{values.dtype} {tuple(tensor.shape)} ".encode() + content).hexdigest()[:_DIGITS]


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, np.ndarray):
        yield name, hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
    elif is_dataclass(value) and not isinstance(value, type):
        yield f"{name}.type", type(value).__name__
        for each in fields(value):
            yield from _flat(f"{name}.{each.name}", getattr(value, each.name))
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _flat(f"{name}.{key}", each)
    else:
        yield name, repr(value)


def _parsed(text: bytes) -> dict[str, str] | None:
    """Return the terms in `text`, or None if it has none."""
    try:
        found = json.loads(text) if len(text) <= _MOST_BYTES else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        return None
    return found


def _difference(name: str, theirs: str | None, own: str | None) -> str:
    """Return how a term differs. The server is told, too, so that hashes of this client's values, from which
    values could be guessed, are left out."""
    if not name.endswith(_NOT_TRAINED):
        return f"{_shown(name)}: the server has {_shown(theirs)}, this client {_shown(own)}"
    if theirs is None or own is None:
        return f"{_shown(name)}: only at {'the server' if own is None else 'this client'}"
    remedy = "load them from one file, in place of computing them"
    return f"{_shown(name)}: the server has other values than this client: {remedy}"


def _shown(value: str | None) -> str:
    text = "nothing" if value is None else value
    clean = "".join(each if each.isprintable() else "?" for each in text)
    return clean if len(clean) <= _LONGEST else f"{clean[:_LONGEST]}..."
