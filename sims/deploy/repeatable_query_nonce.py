"""Adds and removes the nonce, 16 random bytes, with which each payload of a server begins. A client never
answers a question (kind and payload) twice. With a new nonce, a repeated question counts as a new one."""

from __future__ import annotations

import secrets
from typing import Final

from sims.config_problems import ConfigError

NONCE_BYTES: Final = 16


def fresh(payload: bytes) -> bytes:
    """Return the payload with a new random nonce in front, so that clients take it for a new question."""
    return secrets.token_bytes(NONCE_BYTES) + payload


def without_nonce(payload: bytes) -> bytes:
    """Return the payload without the nonce in front. Raise `ConfigError` if it is shorter than a nonce."""
    if len(payload) < NONCE_BYTES:
        raise ConfigError(f"the question does not begin with a nonce of {NONCE_BYTES} bytes")
    return payload[NONCE_BYTES:]


def content(_kind: str, payload: bytes) -> bytes:
    """Return the payload without its random nonce: what stays the same if a question is repeated."""
    return payload[NONCE_BYTES:]
