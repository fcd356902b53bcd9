"""The file in which a client keeps its personal model and other memory of a run, encrypted.

The key is random. It lies in a file of its own beside the state, which only its owner can read. Both files
belong to one run: the terms of the run and the id of the client are authenticated with the state.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg.hashing import digest
from secagg.net.atomic_files import PRIVATE, FileKind
from sims.config_problems import ConfigError
from sims.deploy.config import state_key_path

_MAGIC: Final = b"secagg client state 2\n"
_NONCE: Final = 12
_KEY: Final = 32
STATE: Final = FileKind("the state of a client", "correct the path", ConfigError)
KEY: Final = FileKind("the key of a client's state", "restore it from a backup", ConfigError)


@dataclass
class StateFile:
    """A state file at `path`, of client `member` in the run with these `terms` (a digest). All methods raise
    `ConfigError` if a file cannot be read or written, or is of another client or run."""

    path: Path
    member: int
    terms: bytes
    _is_own: bool = field(default=False, init=False)  # whether this process has read or made the file

    def load(self) -> bytes | None:
        if not os.path.lexists(self.path):
            return None
        data = STATE.read(self.path)
        start = len(_MAGIC) + _NONCE
        if len(data) < start or data[: len(_MAGIC)] != _MAGIC:
            raise ConfigError(f"{self.path} is not the state of a client; correct the path")
        try:
            state = AESGCM(self._key()).decrypt(data[len(_MAGIC) : start], data[start:], self._context)
        except InvalidTag:
            raise ConfigError(
                f"{self.path} is of another client or run, or damaged, or {state_key_path(self.path)} is not "
                "its key; restore both from a backup, or name a file that no other client uses to begin "
                "without a personal model"
            ) from None
        self._is_own = True
        return state

    def save(self, state: bytes) -> None:
        if not os.path.lexists(state_key_path(self.path)):
            KEY.create(state_key_path(self.path), secrets.token_bytes(_KEY), mode=PRIVATE)
        nonce = secrets.token_bytes(_NONCE)
        data = _MAGIC + nonce + AESGCM(self._key()).encrypt(nonce, state, self._context)
        # Since this client began without a state, another one with the same file may have written its own.
        if self._is_own or self.load() is not None:
            STATE.replace(self.path, data, mode=PRIVATE)
        else:
            STATE.create(self.path, data, mode=PRIVATE)
            self._is_own = True

    def _key(self) -> bytes:
        key = KEY.read(state_key_path(self.path), secret=lambda _: True)
        if len(key) != _KEY:
            raise ConfigError(f"{state_key_path(self.path)} is not the key of a client's state; restore it")
        return key

    @property
    def _context(self) -> bytes:
        return digest("client state", self.member.to_bytes(8, "big"), self.terms)
