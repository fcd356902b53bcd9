"""Adds secagg to a startup kit of NVFlare, which `nvflare provision` or `nvflare poc prepare` has made.

    python -m sims.engines.nvflare.startup_kit site-1 site-2     the kits of sites
    python -m sims.engines.nvflare.startup_kit --server server   that of the server

The operator of a kit runs this on it; no job can. It changes files in the kit's directory `local` only.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from sims.config_problems import ConfigError

_RESOURCES: Final = "resources.json"
_AUTHORISATION: Final = "authorization.json"
_ALLOWED: Final = "class_allow_list"  # classes that a job may name
_CONTROLLER: Final = "sims.engines.nvflare.controller.SecaggController"
_EXECUTOR: Final = "sims.engines.nvflare.executor.SecaggExecutor"
_SITE: Final = {"id": "secagg_site", "path": "sims.engines.nvflare.site.SecaggSite", "args": {}}
_OWN_CODE: Final = "byoc"  # "bring your own code": the right to submit jobs with Python files


def install_on_site(kit: Path) -> None:
    """Let a site take part: its parent process answers for it, and jobs may name the executor. Jobs with
    code of their own are forbidden: it would run under the same account as the site's keys and data. Logs
    stay at the site: they say why it refuses, and may quote its files."""
    resources = _read(kit, _RESOURCES)
    others = [each for each in resources.get("components", []) if each.get("id") != _SITE["id"]]
    resources["components"] = [*others, _SITE]
    resources["allow_log_streaming"] = False
    _allow(resources, _EXECUTOR)
    _write(kit, _RESOURCES, resources)
    authorisation = _read(kit, _AUTHORISATION)
    authorisation["permissions"] = dict(_without_own_code(authorisation.get("permissions", {})))
    _write(kit, _AUTHORISATION, authorisation)


def install_on_server(kit: Path) -> None:
    """Let jobs name the controller."""
    resources = _read(kit, _RESOURCES)
    _allow(resources, _CONTROLLER)
    _write(kit, _RESOURCES, resources)


def install_in_simulation(workspace: Path) -> None:
    """Let a simulation in the directory `workspace`, the server and all sites of which are one program of one
    user, run jobs with our classes, besides those that NVFlare allows itself."""
    resources: dict[str, Any] = {"format_version": 2}
    if (workspace / "local").exists():
        resources = _read(workspace, _RESOURCES)
    if _ALLOWED not in resources:
        from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

        resources[_ALLOWED] = list(DEFAULT_CLASS_ALLOW_LIST)
    _allow(resources, _CONTROLLER)
    _allow(resources, _EXECUTOR)
    (workspace / "local").mkdir(parents=True, exist_ok=True)
    _write(workspace, _RESOURCES, resources)


def _allow(resources: dict[str, Any], name: str) -> None:
    allowed = resources.setdefault(_ALLOWED, [])
    if name not in allowed:
        allowed.append(name)


def _without_own_code(permissions: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """Yield the rights of each role, in which "any" stands for all of them, without that to bring code."""
    tables = [rights for rights in permissions.values() if isinstance(rights, dict)]
    everything = sorted({right for rights in tables for right in rights})
    for role, rights in permissions.items():
        named = rights if isinstance(rights, dict) else dict.fromkeys(everything, rights)
        yield role, {**named, _OWN_CODE: "none"}


def _read(kit: Path, name: str) -> dict[str, Any]:
    """Return a file of the kit as it is in force: a file that the operator has made replaces the default."""
    paths = (kit / "local" / name, kit / "local" / f"{name}.default")
    path = next((each for each in paths if each.exists()), None)
    if path is None:
        raise ConfigError(f"{kit}: local/{name} is missing: name the directory of a startup kit")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _write(kit: Path, name: str, content: dict[str, Any]) -> None:
    (kit / "local" / name).write_text(json.dumps(content, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m sims.engines.nvflare.startup_kit")
    parser.add_argument("kits", nargs="+", type=Path, help="directories of startup kits")
    parser.add_argument("--server", action="store_true", help="the kits are those of servers, not of sites")
    arguments = parser.parse_args()
    for kit in arguments.kits:
        try:
            (install_on_server if arguments.server else install_on_site)(kit)
        except ConfigError as error:
            parser.error(str(error))


if __name__ == "__main__":
    main()
