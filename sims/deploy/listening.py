"""Opens the port on which a server waits for its clients."""

from __future__ import annotations

import errno
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from secagg.net.events import OnServerEvent
from secagg.net.server import Server, open_server
from secagg.net.settings import Address, Capacity, Patience
from secagg.net.tls import server_context
from sims.config_problems import ConfigError
from sims.deploy.credentials import ServerCredentials

# Hints for an address that cannot be used.
_HINTS: Final = {
    errno.EADDRINUSE: "; stop the program that listens there, or choose another port",
    errno.EACCES: "; ports below 1024 need a privilege: choose a higher one",
    errno.EADDRNOTAVAIL: "; name an address of this machine, or 0.0.0.0 for all of them",
}


@dataclass(frozen=True)
class ListenSettings:
    """The address and limits of a server; `where` names the setting of the address in error messages."""

    address: Address
    patience: Patience
    capacity: Capacity
    where: str


async def listen(
    stack: AsyncExitStack, settings: ListenSettings, own: ServerCredentials, on_event: OnServerEvent
) -> Server:
    """Return a server that listens until `stack` is closed. Raise `ConfigError` if it cannot listen."""
    opened = open_server(
        settings.address,
        members=own.registry.members,
        context=server_context(own.identity, own.certificate, list(own.clients.values())),
        patience=settings.patience,
        capacity=settings.capacity,
        on_event=on_event,
    )
    try:
        return await stack.enter_async_context(opened)
    except OSError as error:
        hint = _HINTS.get(error.errno or 0, "")
        raise ConfigError(
            f"{settings.where}: cannot listen on {settings.address}: {error.strerror or error}{hint}"
        ) from None
