"""Where a server and a site find their configuration: only in their own files and environment.

No argument of a job is part of a path, except the plain name of a scenario at the server.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sims.config_problems import ConfigError

SITE_VARIABLE: Final = "SECAGG_SITE_CONFIG"
SERVER_VARIABLE: Final = "SECAGG_SERVER_CONFIG"
SITE_PLACEHOLDER: Final = "{site}"
DEFAULT_SCENARIO: Final = "secagg"
_LOCAL: Final = "local"  # the directory of a workspace that belongs to its site, and to no job
_SITE_FILE: Final = "secagg.toml"
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def site_config(site: str, workspace: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the configuration of `site`, in the form of a `join.toml`. It is that of the
    environment, in which several sites of a simulation may be meant, or that in the site's `workspace`. Raise
    `ConfigError` if there is no such file."""
    named = environment.get(SITE_VARIABLE)
    path = workspace / _LOCAL / _SITE_FILE if named is None else Path(named.replace(SITE_PLACEHOLDER, site))
    return _existing(path, SITE_VARIABLE, "a client's configuration (join.toml)")


def server_config(scenario: str, workspace: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the server's scenario, with its table [deploy]. Raise `ConfigError` if there is no
    such file, or `scenario`, which a job names, is not a plain name."""
    if not isinstance(scenario, str) or not _PLAIN_NAME.fullmatch(scenario):
        raise ConfigError(f"scenario: {scenario!r} is no plain name of letters, digits, - and _")
    named = environment.get(SERVER_VARIABLE)
    path = workspace / _LOCAL / f"{scenario}.toml" if named is None else Path(named)
    return _existing(path, SERVER_VARIABLE, "a scenario with a table [deploy]")


def _existing(path: Path, variable: str, what: str) -> Path:
    if not path.is_file():
        raise ConfigError(f"{path} does not exist: put {what} there, or name its path in {variable}")
    return path
