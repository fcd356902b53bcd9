"""Simulated clients that lie: machines of `tests.attacks.attackers.liars` in the place of honest ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

from secagg.client import ClientMachine
from sims.runtime.processes import ClientFactory, WorkerClients, client_host
from tests.attacks.attackers.liars import CountLiar, DepositLiar, ShareLiar, WordLiar
from tests.sims.process_clients import centres, worker_clients

LIAR = 2
LIARS: dict[str, tuple[type[ClientMachine], dict[str, Any]]] = {
    "count": (CountLiar, {}),
    "word": (WordLiar, {"targets": [0]}),
    "share": (ShareLiar, {"dealers": [0]}),
    "deposit": (DepositLiar, {"targets": range(100), "in_tag": True}),
}


def made(lie: str, liars: Collection[int] | None = (LIAR,)) -> Callable[..., ClientMachine]:
    """What makes machines: those of `liars` (None: all) lie, all others are honest."""

    def make(*, member: int, **settings: Any) -> ClientMachine:
        if liars is not None and member not in liars:
            return ClientMachine(member=member, **settings)
        kind, attributes = LIARS[lie]
        liar = kind(member=member, **settings)
        for name, value in attributes.items():
            setattr(liar, name, value)
        return liar

    return make


@contextmanager
def lying(lie: str) -> Iterator[None]:
    """Within the block, client 2 lies in all sessions of this process."""
    with mock.patch("secagg.local_session.ClientMachine", made(lie)):
        yield


def lying_worker_clients(shared: Mapping[str, Any], owned: Mapping[int, Any]) -> WorkerClients:
    """Those of `process_clients`, in a worker process in which client 2 lies if it is there."""
    mock.patch.object(client_host, "ClientMachine", made(shared["lie"])).start()
    return worker_clients({}, owned)


def lying_factory(lie: str) -> ClientFactory:
    return ClientFactory(lying_worker_clients, {"lie": lie}, centres(), preload=("protocols.catalogue",))
