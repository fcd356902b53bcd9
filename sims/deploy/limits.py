"""What the system is to allow a server or a client, and what not."""

from __future__ import annotations

import resource
from typing import Final

from secagg.errors import ParameterError
from sims.config_problems import ConfigError
from sims.workers.os_processes import raise_open_file_limit

_OWN: Final = 64  # files of a process that are no connections: ledger, log, totals, libraries


def forbid_core_dumps() -> None:
    """A crash would otherwise write keys and values to disk."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def allow_connections(most: int) -> None:
    """Raises `ConfigError` if the system allows fewer open files than so many connections need."""
    try:
        raise_open_file_limit(most + _OWN)
    except ParameterError as error:
        raise ConfigError(str(error)) from None
