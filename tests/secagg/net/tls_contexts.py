"""Certificates and TLS contexts of a server and of the clients of a `World`."""

from __future__ import annotations

import ssl
import time

from secagg.insecure_seeds import seeded_identity
from secagg.net.certificates import make_certificate
from secagg.net.settings import Patience
from secagg.net.tls import client_context, server_context
from tests.secagg.net.rig import SEED, World

NOW = int(time.time())
HOST = seeded_identity(SEED, 100)
PATIENCE = Patience(farewell=0.5)


def certificate(member: int) -> bytes:
    return make_certificate(seeded_identity(SEED, member), now=NOW)


def host_context(world: World) -> ssl.SSLContext:
    certificates = [certificate(member) for member in range(world.clients)]
    return server_context(HOST, certificate(100), certificates)


def context_of(member: int, host: int = 100) -> ssl.SSLContext:
    return client_context(seeded_identity(SEED, member), certificate(member), certificate(host))
