"""The directory in which a server keeps evidence of lies, if its operator wants it. Evidence has one-time
secrets of the sum in which a client lied, so that only the owner of the directory may read it. Each piece is
a file such as `client-7-0123456789abcdef.evidence`, whose name ends with the start of its SHA-256."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secagg.events import Convicted, ServerEvent
from secagg.evidence import Evidence
from secagg.net.atomic_files import PRIVATE, FileKind, file_status
from secagg.net.event_log import EventLog
from sims.config_problems import ConfigError

EVIDENCE: Final = FileKind("evidence of a lie", "correct the path", ConfigError)
_OWNER_ONLY: Final = 0o700
_OTHERS: Final = 0o077
_SHOWN: Final = 16  # digits of a SHA-256 in a file name


@dataclass(frozen=True)
class EvidenceDirectory:
    """A private directory with a file for each piece of evidence. Files are never overwritten."""

    directory: Path

    def prepare(self) -> None:
        """Create the directory if it does not exist. Raise `ConfigError` if it cannot be used."""
        try:
            self.directory.mkdir(mode=_OWNER_ONLY, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{self.directory} cannot be a directory: {error.strerror}") from None
        self.check()

    def check(self) -> None:
        """Raise `ConfigError` if the directory exists and is open to other users or cannot be written, or if
        it does not exist and cannot be made."""
        place, found = self.directory, file_status(self.directory, ConfigError)
        if found is None:
            if not os.access(place.parent, os.W_OK | os.X_OK):
                raise ConfigError(f"{place} cannot be a directory: nothing can be made in {place.parent}")
            return
        if not stat.S_ISDIR(found.st_mode):
            raise ConfigError(f"{place} is not a directory; name one, or a new one")
        mode = stat.S_IMODE(found.st_mode)
        if mode & _OTHERS:
            raise ConfigError(f"{place} is open to other users (mode {mode:04o}); run chmod 700 on it")
        if not os.access(place, os.W_OK | os.X_OK):
            raise ConfigError(f"{place} cannot be written to")

    def store(self, evidence: Evidence) -> Path:
        """Write the evidence to a new file that only its owner can read. Return its path. Raise `ConfigError`
        if this fails."""
        path = self.directory / f"client-{evidence.accused}-{evidence.sha256[:_SHOWN]}.evidence"
        EVIDENCE.create(path, evidence.encode(), mode=PRIVATE)
        return path


class EvidenceKeeper:
    """Stores the evidence of convictions in `directory`, if the operator wants to keep it (not None)."""

    def __init__(self, directory: Path | None, log: EventLog) -> None:
        self._directory = directory
        self._log = log

    def keep(self, event: ServerEvent) -> None:
        """Store the evidence of a conviction, if there is any. Log where it is, or why it is lost."""
        if self._directory is None or not isinstance(event, Convicted) or event.evidence is None:
            return
        try:
            path = EvidenceDirectory(self._directory).store(event.evidence)
        except ConfigError as error:
            self._log.write("evidence lost", member=event.peer, reason=str(error))
        else:
            self._log.write("evidence", member=event.peer, file=str(path))
