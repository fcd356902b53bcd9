"""The terms of a training run: what its server and clients must agree on before anything is trained.

Each side builds the terms from its own copy of the scenario. The server sends its terms as text, so that a
client can say what differs. Their digest is part of the table of sums, so that clients refuse others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from torch import nn

from fl.errors import FLError
from fl.federation import Federation
from protocols.algorithm import AnyAlgorithm
from protocols.evaluation import EvaluationMetrics, WithEvaluation
from protocols.serialisation import Vector
from secagg.errors import LocalError, SecaggError
from secagg.sum_spec import Table
from secagg.trust_levels import Trust
from sims.config_problems import ConfigError
from sims.scenario.algorithm_builder import build as build_algorithm
from sims.scenario.initial_model import first_model
from sims.scenario.loading_and_variants import load as load_scenario
from sims.scenario.settings import Settings
from sims.simulation import client_data
from sims.simulation.learners import first_module, make_crowd, training_of

_LARGEST_LOSS: Final = 10.0  # larger losses count as this one in evaluations
_LONGEST: Final = 80  # characters of a value that a message shows


@dataclass(frozen=True, eq=False)
class RunTerms:
    """What server and clients of a training run agree on. `run_terms` makes it."""

    name: str
    settings: Settings
    federation: Federation  # the clients that a simulation would invent; gives the shapes of model and data
    module: nn.Module
    algorithm: AnyAlgorithm
    initial: Vector

    @property
    def clients(self) -> int:
        return len(self.federation.clients)

    @cached_property
    def document(self) -> dict[str, str]:
        """The terms as a flat mapping of names to texts."""
        given = self.settings
        parts = {
            "algorithm": self.algorithm,
            "training": given.training.model_dump(),
            "rounds": given.rounds,
            "model": {"kind": given.model.kind, **dict(_parameters(self.module))},
            "trust": given.channel.trust,
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
        """Return how the terms `other`, a text of the server's, differ from these; [] if they are equal."""
        theirs, own = _parsed(other), self.document
        names = sorted(theirs.keys() | own.keys())
        return [
            f"{name}: the server has {_shown(theirs.get(name))}, this client {_shown(own.get(name))}"
            for name in names
            if theirs.get(name) != own.get(name)
        ]


def run_terms(path: Path, root: Path) -> RunTerms:
    """Return the terms of the scenario at `path`. `root` contains the directories of data sets. Raise
    `ConfigError` if the scenario is invalid, or describes several runs."""
    scenario = load_scenario(path, data=root)
    if len(scenario.variants) != 1:
        raise ConfigError(f"{path}: a sweep of {len(scenario.variants)} runs; serve and join take one")
    settings = scenario.variants[0].settings
    try:
        terms = _made(scenario.name, settings, root)
        terms.algorithm.check_trust(Trust(settings.channel.trust))
        if terms.algorithm.table is None:
            raise ConfigError("algorithm.name: its clients train alone, so there is nothing to serve or join")
        return terms
    except (FLError, SecaggError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _made(name: str, settings: Settings, root: Path) -> RunTerms:
    federation = client_data.federation(settings, root)
    module = first_module(settings, federation)
    initial = first_model(settings, module)
    crowd = make_crowd(settings, federation, training_of(settings, federation), federation.clients)
    algorithm = build_algorithm(
        settings,
        dim=crowd.dim,
        initial=initial,
        module=module,
        clients=settings.cohort.per_round or len(crowd),
        known={
            "rate": settings.training.rate,
            "steps": max(member.steps for member in crowd.values()),
            "population": len(crowd),
        },
    )
    return RunTerms(name, settings, federation, module, _evaluated(algorithm, settings, federation), initial)


def _evaluated(algorithm: AnyAlgorithm, settings: Settings, federation: Federation) -> AnyAlgorithm:
    """Return the algorithm with a sum after every round that evaluates the model, unless its sums have noise:
    an evaluation without noise would not be covered by its budget."""
    if algorithm.table is None or federation.classes is None:
        return algorithm
    if any(spec.is_private for spec in algorithm.table.values()):
        return algorithm
    measures = EvaluationMetrics(
        loss_bound=_LARGEST_LOSS, bins=0, personal=settings.evaluation.what == "personal"
    )
    return WithEvaluation(algorithm=algorithm, measures=measures)


def _parameters(module: nn.Module) -> Iterator[tuple[str, str]]:
    for name, tensor in module.state_dict().items():
        yield name, "x".join(map(str, tensor.shape))


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


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise LocalError("the server's terms cannot be read; does it run another version?")
    return found


def _shown(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    clean = "".join(each if each.isprintable() else "?" for each in text)
    return clean if len(clean) <= _LONGEST else f"{clean[:_LONGEST]}..."
