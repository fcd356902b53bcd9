"""Sessions over a network: `open_server`, `serve_sums` and `open_client`, with their settings.

Frames are sent over TLS 1.3 between identities that hold each other's certificates (`secagg.net.tls`). Only
this part of `secagg` uses sockets and an event loop, which is trio's. Programs that do not run trio use
`connect` and `listen`, whose methods block.
"""

from secagg.net.blocking import BlockingClient, BlockingServer, BlockingSession, connect, listen
from secagg.net.client import Client
from secagg.net.event_log import EventLog
from secagg.net.notices import Notice, Topic
from secagg.net.open_client_and_server import open_client, open_server, serve_sums
from secagg.net.server import Server
from secagg.net.server_session import Session
from secagg.net.settings import Address, Capacity, Deadlines, Patience
from secagg.net.tls import ClientTls, client_context, server_context

__all__ = [
    "Address",
    "BlockingClient",
    "BlockingServer",
    "BlockingSession",
    "Capacity",
    "Client",
    "ClientTls",
    "Deadlines",
    "EventLog",
    "Notice",
    "Patience",
    "Server",
    "Session",
    "Topic",
    "client_context",
    "connect",
    "listen",
    "open_client",
    "open_server",
    "serve_sums",
    "server_context",
]
