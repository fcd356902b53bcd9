"""Returns hooks that draw the secrets of a simulated session from a seed, and let attackers tamper."""

from __future__ import annotations

from dataclasses import replace

from secagg.insecure_seeds import insecure_client_hooks, insecure_server_hooks
from secagg.machine_hooks import ClientHooks, ServerHooks
from sims.runtime.residue_tampering import Tamper, tampering_transform


def client_hooks(member: int, *, seed: bytes | None, number: int, tamper: Tamper | None) -> ClientHooks:
    """Return a client's hooks. `seed`, if given, determines its secrets in session `number`, and its rounding
    in all sessions. With `tamper`, the client sends the residues that this function returns."""
    hooks = ClientHooks()
    if seed is not None:
        hooks = insecure_client_hooks(_of_session(seed, number), member, rounding=seed)
    return hooks if tamper is None else replace(hooks, transform=tampering_transform(tamper))


def server_hooks(*, seed: bytes | None, number: int) -> ServerHooks:
    """Return the server's hooks for session `number`, which draw its secrets from the seed, if any."""
    return ServerHooks() if seed is None else insecure_server_hooks(_of_session(seed, number))


def _of_session(seed: bytes, number: int) -> bytes:
    return seed + number.to_bytes(8, "big")
