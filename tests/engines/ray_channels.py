"""Channels to clients in actors of Ray, for tests."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protocols.algorithm import AnyAlgorithm
from protocols.learner import Learner
from sims.runtime import SessionChannel, Setting
from sims.runtime.hosted_clients import ClientFactory, WorkerClients
from sims.runtime.insecure_seed_hooks import client_hooks
from sims.runtime.processes import ProcessesChannel
from sims.runtime.ray import RayChannel, RayPlace, client_actor, ray_sum
from sims.runtime.ray.commands import ActorCommand

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


class Wire:
    """Ray, as a pool of actors uses it, which keeps all that it carries for the pool (`sent`), and what of it
    lies in the object store for several actors (`shared`). Actors are of the class `actor`, made with
    `arguments`."""

    def __init__(self, ray: Any, actor: type = client_actor.ClientActor, *arguments: Any) -> None:
        self.sent: list[bytes] = []
        self.shared: list[bytes] = []
        self._ray = ray
        self._actor = actor
        self._arguments = arguments

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ray, name)

    def put(self, content: bytes) -> Any:
        self.shared.append(content)
        self.sent.append(content)
        return self._ray.put(content)

    def get(self, reference: Any) -> Any:
        reply = self._ray.get(reference)
        self.sent.append(pickle.dumps(reply))
        return reply

    def kill(self, handle: WiredActor, **options: Any) -> None:
        self._ray.kill(handle.actor, **options)

    def remote(self, _actor: type) -> Any:
        made = self._ray.remote(self._actor)
        return WiredClass(self, made, self._arguments)


class WiredClass:
    """A class of actors, the calls of which pass through a `Wire`."""

    def __init__(self, wire: Wire, made: Any, arguments: tuple[Any, ...]) -> None:
        self._wire = wire
        self._made = made
        self._arguments = arguments

    def options(self, **options: Any) -> WiredClass:
        return WiredClass(self._wire, self._made.options(**options), self._arguments)

    def remote(self) -> WiredActor:
        return WiredActor(self._wire, self._made.remote(*self._arguments))


class WiredActor:
    """A handle of an actor, and of its method `execute`."""

    def __init__(self, wire: Wire, actor: Any) -> None:
        self.actor = actor
        self._wire = wire

    def __getattr__(self, name: str) -> Any:
        return getattr(self.actor, name)

    @property
    def execute(self) -> WiredActor:
        return self

    def remote(self, commands: Sequence[ActorCommand], *references: Any) -> Any:
        self._wire.sent.append(pickle.dumps(commands))
        assert all(type(each).__name__ == "ObjectRef" for each in references)  # of what `put` has kept
        return self.actor.execute.remote(commands, *references)


class NotingActor(client_actor.ClientActor):
    """Notes in a file of `directory` all secrets that its clients' machines draw, and their signing keys."""

    def __init__(self, directory: str) -> None:
        super().__init__()
        self._file = Path(directory) / f"{os.getpid()}"
        vars(client_actor)["client_hooks"] = self._hooks  # in the process of this actor alone

    def _hooks(self, member: int, **more: Any) -> Any:
        hooks = client_hooks(member, **more)
        self._note(self._identities[member].secret())
        return replace(hooks, random=lambda size: self._note(hooks.random(size)))

    def _note(self, secret: bytes) -> bytes:
        with self._file.open("a") as file:
            file.write(f"{secret.hex()}\n")
        return secret


def noted_secrets(directory: Path) -> list[bytes]:
    """The secrets that actors have noted."""
    return [bytes.fromhex(line) for file in directory.iterdir() for line in file.read_text().split()]
