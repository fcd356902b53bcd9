"""Channels to clients in actors of Ray, for tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

import pytest

from protocols.algorithm import AnyAlgorithm
from protocols.learner import Learner
from sims.runtime import SessionChannel, Setting
from sims.runtime.hosted_clients import ClientFactory, WorkerClients
from sims.runtime.processes import ProcessesChannel
from sims.runtime.ray import RayChannel, RayPlace, ray_sum

# Ray leaves files and sockets to the end of the process, of which Python warns.
QUIET = (
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
)
SMALL = RayPlace(num_cpus=0.25)  # several actors share a core
ACTORS = 2


def as_given(_shared: Any, owned: Mapping[int, Any]) -> WorkerClients:
    """The data of a client is its learner."""
    return WorkerClients(owned)


def on_ray(
    algorithm: AnyAlgorithm,
    learners: Mapping[int, Learner],
    setting: Setting,
    *,
    secure: bool,
    actors: int = ACTORS,
    told: list[str] | None = None,
    place: RayPlace = SMALL,
    clients: ClientFactory | None = None,
) -> RayChannel:
    return ray_sum(
        algorithm,
        learners,
        setting,
        clients=clients or ClientFactory(as_given, None, learners),
        secure=secure,
        actors=actors,
        place=place,
        on_worker_event=([] if told is None else told).append,
    )


def kill_host(channel: SessionChannel, slot: int) -> None:
    """Kill the actor or worker process of a group of clients."""
    assert isinstance(channel, ProcessesChannel | RayChannel)
    os.kill(channel.pids[slot][-1], signal.SIGKILL)
