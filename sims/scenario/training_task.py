"""Makes what server and clients of a scenario have in common: model, settings of training, and algorithm."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn

from fl.crowd import Crowd
from fl.errors import TrainingError
from fl.federation import ClientData, Federation
from fl.flat_model import dim_of, parameter_slices
from fl.models import build as build_model
from fl.models import build_from
from fl.training_settings import Schedule, Training
from protocols.algorithm import AnyAlgorithm
from protocols.catalogue import find
from protocols.serialisation import Vector
from sims.config_problems import ConfigError
from sims.imported_object import called, is_reference
from sims.scenario.algorithm_builder import build as build_algorithm
from sims.scenario.initial_model import first_model
from sims.scenario.kind_parameters import MODELS
from sims.scenario.settings import Settings

_CROSS_ENTROPY = "cross-entropy"


@dataclass(frozen=True)
class DataFacts:
    """What a training task depends on in the data of all clients, besides the samples.

    `clients`      how many clients train.
    `has_classes`  False in a regression.
    `classes`      how many classes there are, and `shape`, that of one input; None if unknown.
    `steps`        the most gradient steps of a client in a round; None if unknown.
    """

    clients: int
    has_classes: bool
    classes: int | None = None
    shape: tuple[int, ...] | None = None
    steps: int | None = None

    @classmethod
    def of(cls, settings: Settings, federation: Federation) -> DataFacts:
        """Return the facts of these data. Raise `FLError` if the settings of training do not fit them."""
        training, data = training_of(settings, federation.classes is not None), federation.clients.values()
        return cls(
            clients=len(federation.clients),
            has_classes=federation.classes is not None,
            classes=federation.classes,
            shape=next(iter(data)).train.x.shape[1:],
            steps=max(training.steps_of(len(each.train)) for each in data),
        )

    @classmethod
    def without_data(cls, settings: Settings, clients: int) -> DataFacts:
        """Return what the settings alone tell: there are classes if the loss is cross-entropy, its default,
        and the number of steps is known unless training is by epochs."""
        given = settings.training
        return cls(clients=clients, has_classes=given.loss in (None, _CROSS_ENTROPY), steps=given.steps)


@dataclass(frozen=True, eq=False)
class TrainingTask:
    """The untrained module, the training of a client, the algorithm, and the first model as a vector."""

    module: nn.Module
    training: Training
    algorithm: AnyAlgorithm
    initial: Vector

    @classmethod
    def of(cls, settings: Settings, facts: DataFacts, module: nn.Module | None = None) -> TrainingTask:
        """Return the task of a scenario, with its own model or `module`. Raise `ConfigError`, `FLError` or
        `ParameterError` if the settings do not allow it."""
        module = first_module(settings, facts) if module is None else module
        initial = first_model(settings, module)
        algorithm = build_algorithm(
            settings,
            dim=dim_of(module),
            initial=initial,
            module=module,
            clients=settings.cohort.per_round or facts.clients,
            known=_known(settings, facts),
        )
        return cls(module, training_of(settings, facts.has_classes), algorithm, initial)


def _known(settings: Settings, facts: DataFacts) -> dict[str, Any]:
    """Return values for parameters that an algorithm needs and the scenario does not set."""
    known: dict[str, Any] = {"rate": settings.training.rate, "population": facts.clients}
    if facts.steps is not None:
        return {**known, "steps": facts.steps}
    entry, own = find(settings.algorithm.name), settings.algorithm.parameters
    if "steps" not in own and any(each.required and each.name == "steps" for each in entry.settings):
        raise ConfigError(
            f"training.steps: {entry.name} needs the number of local steps, which epochs do not tell without "
            "a data set: set training.steps in place of epochs, or algorithm.steps"
        )
    return known


def training_of(settings: Settings, has_classes: bool) -> Training:
    given = settings.training
    return Training(
        rate=given.rate,
        steps=given.steps,
        epochs=given.epochs,
        batch=given.batch,
        momentum=given.momentum,
        weight_decay=given.weight_decay,
        clip=given.clip,
        schedule=Schedule(**given.schedule.model_dump()),
        loss=given.loss or (_CROSS_ENTROPY if has_classes else "squared"),
        precision=given.precision,
    )


def first_module(settings: Settings, facts: DataFacts) -> nn.Module:
    """Return the untrained model. Its input and output sizes fit the data unless the settings give them.
    Raise `ConfigError` or `FLError` if it cannot be made."""
    shape = facts.shape
    follows: dict[str, int | None] = {"classes": facts.classes}
    if shape is not None:
        follows["features"] = math.prod(shape)
        if len(shape) == 3:
            follows |= {"channels": shape[0], "size": shape[1]}
    try:
        return module_with(settings, follows)
    except ConfigError as error:
        raise ConfigError(f"model.kind: {error}") from None


def module_with(settings: Settings, follows: Mapping[str, int | None]) -> nn.Module:
    """Return the untrained model. `follows` has sizes that follow from the data, for the parameters with
    these names that the settings do not set. Raise `ConfigError` or `FLError` if it cannot be made."""
    kind = settings.model.kind
    maker = MODELS.find(kind)
    accepted = MODELS.parameters(maker)
    fitting = {name: value for name, value in follows.items() if name in accepted and value is not None}
    arguments = {**fitting, **MODELS.arguments_or_raise(settings.model, kind)}
    if not is_reference(kind):
        return build_model(kind.replace("_", "-"), seed=settings.seed, **arguments)
    if isinstance(maker, nn.Module):  # a model can be called, too, but makes no other
        raise ConfigError(f"{kind} is a model itself: name its class, or a function that returns a new one")
    return own_module(kind, partial(maker, **arguments), settings.seed)


def own_module(name: str, make: Any, seed: int) -> nn.Module:
    """Return the model that the user's function `make` returns; its weights depend on `seed`. Raise
    `ConfigError`, which begins with `name`, if it raises an exception or returns something else, or a model
    that cannot be trained."""
    made: object = called(name, build_from, private=False, make=make, seed=seed)
    if not isinstance(made, nn.Module):
        raise ConfigError(f"{name} must return a torch.nn.Module, not {type(made).__name__}")
    if why := _why_untrainable(made):
        raise ConfigError(f"{name}: {why}")
    return made.cpu()


def _why_untrainable(module: nn.Module) -> str | None:
    """Return why a model of the user's own cannot be trained, and what to do; None if it can be."""
    for part, tensor in chain(module.named_parameters(), module.named_buffers()):
        if tensor.is_meta:
            return f'{part} has no values, because it is on the device "meta": make it on the CPU'
    try:
        trained = [slot.name for slot in parameter_slices(module)]
        copy.deepcopy(module)  # as for every client
    except TrainingError as error:
        return str(error)
    except RuntimeError:  # such as torch.nn.utils.weight_norm makes it
        return "torch cannot copy the model: keep no tensors that are computed from parameters"
    for part in trained:
        if not torch.isfinite(module.get_parameter(part)).all():
            return f"{part} has numbers that are infinite or NaN: correct its initial values"
    return None


def make_crowd(
    settings: Settings, module: nn.Module, training: Training, data: Mapping[int, ClientData]
) -> Crowd:
    """Return the learners of these clients, which train copies of `module`."""
    given = settings.training
    return Crowd(module, data, training, seed=settings.seed, device=given.device, batching=given.way)
