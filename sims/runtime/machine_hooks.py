"""The hooks of a simulated client's machine: seeded randomness and tampering."""

from __future__ import annotations

from dataclasses import replace

from secagg.hooks import ClientHooks, ServerHooks
from secagg.seeded import insecure_client_hooks, insecure_server_hooks
from sims.runtime.tampering import Tamper, tampering_transform


def client_hooks(member: int, *, seed: bytes | None, number: int, tamper: Tamper | None) -> ClientHooks:
    """Return the hooks of a client in session `number`; with a seed it rounds alike in every session."""
    hooks = ClientHooks()
    if seed is not None:
        hooks = insecure_client_hooks(_of_session(seed, number), member, rounding=seed)
    return hooks if tamper is None else replace(hooks, transform=tampering_transform(tamper))


def server_hooks(*, seed: bytes | None, number: int) -> ServerHooks:
    """Return the hooks of the server in session `number`."""
    return ServerHooks() if seed is None else insecure_server_hooks(_of_session(seed, number))


def _of_session(seed: bytes, number: int) -> bytes:
    return seed + number.to_bytes(8, "big")
