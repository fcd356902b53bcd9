"""Clients of a scenario in worker processes: what a worker is told, and what it makes of that.

It is told the settings as plain data and is handed what belongs to its clients, poisoned where an attack
poisons it; model, training and attacks it makes for itself, as `World` does for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fl.federation import ClientData, Federation
from sims.runtime.processes import ClientFactory, WorkerClients
from sims.scenario.settings import Settings
from sims.simulation.learners import make_crowd, make_learners, make_tamper, training_of


@dataclass(frozen=True)
class Told:
    """What all workers know. `corrupt` are the clients that an attack has."""

    settings: Mapping[str, Any]
    classes: int | None
    name: str
    corrupt: frozenset[int]


def clients_of(settings: Settings, federation: Federation, corrupt: frozenset[int]) -> ClientFactory:
    """All clients that train, for workers to make."""
    told = Told(settings.model_dump(), federation.classes, federation.name, corrupt)
    return ClientFactory(worker_clients, told, federation.clients)


def worker_clients(told: Told, owned: Mapping[int, ClientData]) -> WorkerClients:
    """The clients of one worker."""
    torch.set_num_threads(1)  # as in `fl.device`, for as long as the process lives
    settings = Settings.model_validate(told.settings)
    federation = Federation(owned, classes=told.classes, name=told.name)
    crowd = make_crowd(settings, federation, training_of(settings, federation), owned)
    who = told.corrupt & owned.keys()
    return WorkerClients(
        make_learners(settings, crowd, who), make_tamper(settings, who), begin_round=crowd.begin_round
    )
