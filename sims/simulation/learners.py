"""Makes the learners of clients: objects that train a model on one client's data, honestly or as attackers.
The same functions make all clients in one process, or the clients of one worker process."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fl.attacks import corrupt_learners, slow_down, tampering
from fl.crowd import Crowd
from fl.federation import ClientData, Federation
from fl.models import build as build_model
from fl.training_settings import Schedule, Training
from sims.runtime.processes import ClientFactory, WorkerClients
from sims.scenario.kind_parameters import MODELS, attacks
from sims.scenario.settings import Settings


def training_of(settings: Settings, federation: Federation) -> Training:
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
        loss=given.loss or ("squared" if federation.classes is None else "cross-entropy"),
        precision=given.precision,
    )


def first_module(settings: Settings, federation: Federation) -> nn.Module:
    """Return the untrained model. Its input and output sizes fit the data unless the settings give them."""
    kind = settings.model.kind
    shape = next(iter(federation.clients.values())).train.x.shape[1:]
    follows: dict[str, int | None] = {"features": math.prod(shape), "classes": federation.classes}
    if len(shape) == 3:
        follows |= {"channels": shape[0], "size": shape[1]}
    accepted = MODELS.parameters(MODELS.find(kind))
    fitting = {name: value for name, value in follows.items() if name in accepted and value is not None}
    own = MODELS.arguments_or_raise(settings.model, kind)
    return build_model(kind, seed=settings.seed, **{**fitting, **own})


def make_crowd(
    settings: Settings, federation: Federation, training: Training, data: Mapping[int, Any]
) -> Crowd:
    given = settings.training
    module = first_module(settings, federation)
    return Crowd(module, data, training, seed=settings.seed, device=given.device, batching=given.way)


def make_learners(settings: Settings, crowd: Crowd, who: frozenset[int]) -> Mapping[int, Any]:
    """Return the learners of all clients by id, with stragglers if the settings ask for them. The learners of
    the clients in `who` attack, unless the attack has the level "message" (see `make_tamper`)."""
    learners: Mapping[int, Any] = crowd
    if settings.cohort.stragglers:
        epochs = settings.training.epochs or settings.training.steps or 1
        share = settings.cohort.stragglers
        learners = slow_down(learners, fraction=share, epochs=epochs, seed=settings.seed)
    attack = settings.attack
    if attack is None or attack.level == "message" or not who:
        return learners
    registry = attacks(attack.level)
    made = registry.find(attack.kind)(**registry.arguments_or_raise(attack, attack.kind))
    return corrupt_learners(learners, made, who, settings.seed, answers=attack.level == "answer")


def make_tamper(settings: Settings, who: frozenset[int]) -> dict[int, Any]:
    """Return, by client id, the functions with which the attackers `who` change the residues that they add to
    secure sums; {} if there is no attack of level "message"."""
    attack = settings.attack
    if attack is None or attack.level != "message":
        return {}
    own = attacks(attack.level).arguments_or_raise(attack, attack.kind)
    return dict(tampering(attack.kind, who, settings.seed, **own))


@dataclass(frozen=True)
class WorkerSettings:
    """What every worker process needs to make its clients, besides the samples of these clients."""

    settings: Mapping[str, Any]  # of the scenario
    classes: int | None  # None in a regression
    name: str  # of the data set
    corrupt: frozenset[int]  # the clients that attack


def clients_of(settings: Settings, federation: Federation, corrupt: frozenset[int]) -> ClientFactory:
    """Return the factory with which worker processes make the clients; those in `corrupt` attack."""
    common = WorkerSettings(settings.model_dump(), federation.classes, federation.name, corrupt)
    return ClientFactory(worker_clients, common, federation.clients)


def worker_clients(common: WorkerSettings, owned: Mapping[int, ClientData]) -> WorkerClients:
    """Make the clients of one worker process, with data `owned` by client id. Limit torch to one thread."""
    torch.set_num_threads(1)  # As `fl.device_and_threads.one_thread`, but for the rest of the process.
    settings = Settings.model_validate(common.settings)
    federation = Federation(owned, classes=common.classes, name=common.name)
    crowd = make_crowd(settings, federation, training_of(settings, federation), owned)
    who = common.corrupt & owned.keys()
    return WorkerClients(
        make_learners(settings, crowd, who), make_tamper(settings, who), begin_round=crowd.begin_round
    )
