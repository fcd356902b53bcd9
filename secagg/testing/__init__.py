"""Public tools to test programs that use secure sums. Here: clients and servers that draw randomness from a
seed, which is insecure, for test vectors and repeatable tests. In `faulty_wire`: a simulated faulty
network."""

from __future__ import annotations

from typing import Any

from secagg.client import ClientMachine
from secagg.insecure_seeds import insecure_client_hooks, insecure_server_hooks
from secagg.server import ServerMachine


class InsecureSeededClient(ClientMachine):
    """A client that draws all its secrets from `seed`. With `rounding`, a second seed, it rounds the answer
    to the same query in the same way in every session."""

    def __init__(self, *, seed: bytes, member: int, rounding: bytes | None = None, **settings: Any) -> None:
        hooks = insecure_client_hooks(seed, member, rounding=rounding)
        super().__init__(member=member, hooks=hooks, **settings)


class InsecureSeededServer(ServerMachine):
    """A server that draws its session nonce and the order of the clients on a ring from `seed`."""

    def __init__(self, *, seed: bytes, **settings: Any) -> None:
        super().__init__(hooks=insecure_server_hooks(seed), **settings)
