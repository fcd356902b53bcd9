"""Checks that no two keys of a deployment's configuration name the same file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from pydantic import BaseModel

from secagg.ledger.file_location import tag_key_path
from secagg.ledger.rollback_seal import seal_path
from secagg.net.identity_and_registry_files import bundle_path
from sims.config_problems import ConfigError, Problems, toml_tables
from sims.deploy.config import JoinConfig, ServeConfig, safetensors_path, state_key_path
from sims.imported_object import is_reference

# The name of a file in error messages, and its path.
Named: TypeAlias = tuple[str, Path]


def check_server_files(path: Path, config: ServeConfig, problems: Problems) -> bool:
    """Check that each file of a server's configuration, itself included, has only one purpose. Add a problem
    for each that has two. Return whether there is none. Questions may share a payload file."""
    payloads: dict[Path, str] = {}
    for number, ask in enumerate(config.ask, start=1):
        if ask.payload is not None:
            payloads.setdefault(ask.payload, f"ask#{number}.payload")
    beside = [("the configuration", path), ("the seal of server.ledger", seal_path(config.server.ledger))]
    if config.server.registry.suffix != ".pem":  # otherwise the name is invalid, which is reported elsewhere
        beside.append(("the file of certificates of server.registry", bundle_path(config.server.registry)))
    named = named_files("server", config.server)
    return check_one_purpose([*beside, *named, *((key, file) for file, key in payloads.items())], problems)


def check_client_files(path: Path, config: JoinConfig, problems: Problems) -> bool:
    """Check that each file of a client's configuration, itself included, has only one purpose. Add a problem
    for each that has two. Return whether there is none."""
    ledger = config.client.ledger
    beside = [("the configuration", path), ("the seal of client.ledger", seal_path(ledger))]
    beside.append(("the tag key of client.ledger", tag_key_path(ledger)))
    given = config.input
    beside += code_files(path.parent, (given.data, given.learner, given.answer))
    if config.client.scenario is not None:
        beside += scenario_code(config.client.scenario)
    if config.input.state is not None:
        beside.append(("the key of input.state", state_key_path(config.input.state)))
    models = {"model": config.input.model, "personal": config.input.personal}
    beside += [
        (f"the safetensors file of input.{key}", safetensors_path(model))
        for key, model in models.items()
        if model is not None
    ]
    return check_one_purpose(
        [*beside, *named_files("client", config.client), *named_files("input", config.input)], problems
    )


def scenario_code(path: Path) -> Iterator[Named]:
    """Yield the files of the operator's own code that the scenario at `path` names. A scenario that cannot be
    read, or is none, has none: this is reported elsewhere."""
    with suppress(ConfigError):
        found = toml_tables(path)
        sections = [found.get(name) for name in ("model", "data")]
        kinds = [each.get("kind") for each in sections if isinstance(each, dict)]
        yield from code_files(path.parent, [each for each in kinds if isinstance(each, str)])


def code_files(directory: Path, references: Iterable[str | None]) -> Iterator[Named]:
    """Yield the files in `directory` of the modules that these references, "module:object", name. All have
    the same name in messages, since one module may have several objects."""
    for each in references:
        if each is not None and is_reference(each):
            module = each.partition(":")[0].replace(".", "/")
            files = (directory / f"{module}.py", directory / module / "__init__.py")
            yield from (("code of your own", file) for file in files if file.is_file())


def named_files(name: str, section: BaseModel) -> Iterator[Named]:
    """Yield the files that a section of a configuration names, with their keys."""
    for key, value in section:
        if isinstance(value, Path):
            yield f"{name}.{key}", value


def check_one_purpose(files: Iterable[Named], problems: Problems) -> bool:
    """Add a problem for each file that is named twice. Return whether there is none."""
    seen: dict[object, str] = {}
    clear = True
    for key, file in files:
        first = seen.setdefault(_identity(file), key)
        if first != key:
            clear = False
            problems.add(key, f"{file} is the same file as {first}; each needs one of its own")
    return clear


def _identity(file: Path) -> object:
    """Return a value that is equal for all names of the same file, even if the file does not exist yet."""
    try:
        status = file.stat()
    except OSError:
        return os.path.realpath(file)
    return status.st_dev, status.st_ino
