"""Imports an object of the operator's own code, which a configuration names as "package.module:object"."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from sims.config_problems import ConfigError


def imported(key: str, name: str, directory: Path) -> Any:
    """Return the object that `name` names. `key` is the setting that has the name, and `directory` is
    appended to `sys.path`. Raise `ConfigError` if the module cannot be imported or has no such object."""
    module_name, colon, object_name = name.partition(":")
    if not (colon and module_name and object_name):
        raise ConfigError(f"{key} must be 'package.module:object', not {name!r}")
    # At the end of the path, so that no file there can replace an installed library.
    sys.path.append(str(directory.resolve()))
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # not KeyboardInterrupt
        what = f"{error}" if isinstance(error, ModuleNotFoundError) else type(error).__name__
        raise ConfigError(f"{key}: {module_name} cannot be imported ({what})") from None
    if not hasattr(module, object_name):
        raise ConfigError(f"{key}: {module_name} has no object {object_name!r}")
    return getattr(module, object_name)
