"""Opens the port on which a server waits for its clients."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from secagg.net.event_log import EventLog
from secagg.net.events import OnServerEvent
from secagg.net.nursery_and_threads import background_nursery
from secagg.net.open_client_and_server import open_server
from secagg.net.server import Server
from secagg.net.settings import ENGINE, Address, Capacity, Patience
from secagg.net.tunnel import Carrier, TunnelListener, open_tunnel
from sims.config_problems import ConfigError
from sims.deploy.listen_errors import cannot_listen
from sims.deploy.renewal import LiveServerCredentials, tls_context

_NO_ENGINE: Final = (
    'is "engine": flwr run or a job of NVFlare starts such a server. For secagg serve, write host:port'
)


@dataclass(frozen=True)
class ListenSettings:
    """The address and limits of a server; `where` names the setting of the address in error messages. If the
    address is `ENGINE`, `carrier` is the engine."""

    address: Address
    patience: Patience
    capacity: Capacity
    where: str
    carrier: Carrier | None = None


async def listen(
    stack: AsyncExitStack,
    settings: ListenSettings,
    own: LiveServerCredentials,
    on_event: OnServerEvent,
    log: EventLog,
) -> Server:
    """Return a server that listens until `stack` is closed, and takes up new credentials meanwhile. Raise
    `ConfigError` if it cannot listen."""
    place: Address | TunnelListener = settings.address
    if settings.carrier is not None:
        place = await stack.enter_async_context(
            open_tunnel(settings.carrier, farewell=settings.patience.farewell)
        )
    elif settings.address is ENGINE:
        raise ConfigError(f"{settings.where}: {_NO_ENGINE}")
    opened = open_server(
        place,
        members=own.registry.members,
        context=tls_context(own.current),
        patience=settings.patience,
        capacity=settings.capacity,
        on_event=on_event,
    )
    try:
        server = await stack.enter_async_context(opened)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{settings.where}: {cannot_listen(settings.address, error)}") from None
    nursery = await stack.enter_async_context(background_nursery())
    nursery.start_soon(own.follow, server, log)
    return server
