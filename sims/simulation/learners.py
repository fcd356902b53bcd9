"""Makes the learners of clients: objects that train a model on one client's data, honestly or as attackers.
The same functions make all clients in one process, or the clients of one worker process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fl.attacks import corrupt_learners, slow_down, tampering
from fl.crowd import Crowd
from fl.federation import ClientData, Federation
from sims.runtime.hosted_clients import ClientFactory, WorkerClients
from sims.scenario.kind_parameters import attacks
from sims.scenario.settings import Settings
from sims.scenario.training_task import DataFacts, first_module, make_crowd, training_of


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
    module = first_module(settings, DataFacts.of(settings, federation))
    crowd = make_crowd(settings, module, training_of(settings, federation.classes is not None), owned)
    who = common.corrupt & owned.keys()
    return WorkerClients(
        make_learners(settings, crowd, who), make_tamper(settings, who), begin_round=crowd.begin_round
    )
