"""Opens the port on which a server waits for its clients."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass

from secagg.net.events import OnServerEvent
from secagg.net.server import Server, open_server
from secagg.net.settings import Address, Capacity, Patience
from secagg.net.tls import server_context
from sims.config_problems import ConfigError
from sims.deploy.credentials import ServerCredentials
from sims.deploy.listen_errors import cannot_listen


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
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{settings.where}: {cannot_listen(settings.address, error)}") from None
