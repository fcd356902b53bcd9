"""Every file of a configuration is a file of its own.

A log that is the key's file, for instance, would end the key with the first line that is written to it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

from pydantic import BaseModel

from secagg.ledger.seal import seal_path
from secagg.net.files import bundle_path
from sims.config_problems import Problems
from sims.deploy.config import JoinConfig, ServeConfig

# What a file is called in a message, and where it is.
Named: TypeAlias = tuple[str, Path]


def check_server_files(path: Path, config: ServeConfig, problems: Problems) -> bool:
    """Whether no two of them are the same; several questions may have the same payload."""
    payloads: dict[Path, str] = {}
    for number, ask in enumerate(config.ask, start=1):
        if ask.payload is not None:
            payloads.setdefault(ask.payload, f"ask#{number}.payload")
    beside = [("the configuration", path), ("the seal of server.ledger", seal_path(config.server.ledger))]
    if config.server.registry.suffix != ".pem":  # or there could be none, which is a problem of its own
        beside.append(("the file of certificates of server.registry", bundle_path(config.server.registry)))
    named = _named("server", config.server)
    return _check([*beside, *named, *((key, file) for file, key in payloads.items())], problems)


def check_client_files(path: Path, config: JoinConfig, problems: Problems) -> bool:
    """Whether no two of them are the same."""
    beside = [("the configuration", path), ("the seal of client.ledger", seal_path(config.client.ledger))]
    return _check([*beside, *_named("client", config.client), *_named("input", config.input)], problems)


def _named(name: str, section: BaseModel) -> Iterator[Named]:
    for key, value in section:
        if isinstance(value, Path):
            yield f"{name}.{key}", value


def _check(files: Iterable[Named], problems: Problems) -> bool:
    seen: dict[object, str] = {}
    clear = True
    for key, file in files:
        first = seen.setdefault(_identity(file), key)
        if first != key:
            clear = False
            problems.add(key, f"{file} is the same file as {first}; each needs one of its own")
    return clear


def _identity(file: Path) -> object:
    """The same for all names of one file, also if it does not exist yet."""
    try:
        status = file.stat()
    except OSError:
        return os.path.realpath(file)
    return status.st_dev, status.st_ino
