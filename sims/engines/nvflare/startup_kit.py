"""Adds secagg to a startup kit of NVFlare, which `nvflare provision` or `nvflare poc prepare` has made.

    python -m sims.engines.nvflare.startup_kit site-1 site-2     the kits of sites
    python -m sims.engines.nvflare.startup_kit --server server   that of the server

The operator of a kit runs this on it; no job can. It changes files in the kit's directory `local` only, and
none of them if something is to be corrected first.
"""

from __future__ import annotations

import argparse
import json
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from secagg.net.atomic_files import PUBLIC
from sims.config_problems import CONFIG, ConfigError, shown
from sims.engines.versions import check_nvflare

_RESOURCES: Final = "resources.json"
_AUTHORISATION: Final = "authorization.json"
_ALLOWED: Final = "class_allow_list"  # classes that a job may name
_MODE: Final = "class_list_enforcement_mode"
_CONTROLLER: Final = "sims.engines.nvflare.controller.SecaggController"
_EXECUTOR: Final = "sims.engines.nvflare.executor.SecaggExecutor"
_SITE: Final = {"id": "secagg_site", "path": "sims.engines.nvflare.site.SecaggSite", "args": {}}
_SERVER: Final = {"id": "secagg_server", "path": "sims.engines.nvflare.server.SecaggServer", "args": {}}
# Rights to run code at a site that is not installed there: "bring your own code", which is a job with Python
# files, and Flower apps, which Flower's server ships to the sites. The third is to read the site's files.
_SHELL: Final = "shell_commands"
_FORBIDDEN: Final = ("byoc", "server-predeployed-flwr", _SHELL)
_EVERY_RIGHT: Final = "*"
# Files that only the kit of a server, or only that of a site, has.
_SERVER_START: Final = Path("startup", "fed_server.json")
_SITE_START: Final = Path("startup", "fed_client.json")
_SIGNED: Final = "require_signed_jobs"  # if it is absent, NVFlare requires it of kits with the next
_AUTHORITY: Final = "rootCA.pem"


def install_on_site(kit: Path) -> None:
    """Let a site take part: its parent process answers for it, and jobs may name the executor. Jobs with
    code of their own are forbidden: it would run under the same account as the site's keys and data. Logs and
    files stay at the site: logs say why it refuses, and may quote its files."""
    check_nvflare()
    _check_kind(kit, _SERVER_START, "the kit of a server: add --server")
    _check_signed(kit)
    resources, authorisation = _read(kit, _RESOURCES), _read(kit, _AUTHORISATION)
    resources["components"] = [*_other_components(resources, kit, _SITE), _SITE]
    resources["allow_log_streaming"] = False
    _enforce(resources, _EXECUTOR, kit)
    permissions = authorisation.get("permissions")
    authorisation["permissions"] = dict(_without_forbidden(_checked_roles(permissions, kit)))
    _write(kit, _RESOURCES, resources)
    _write(kit, _AUTHORISATION, authorisation)


def install_on_server(kit: Path) -> None:
    """Let jobs name the controller, and no class that is not listed. Let sites send in their own name."""
    check_nvflare()
    _check_kind(kit, _SITE_START, "the kit of a site: leave out --server")
    resources = _read(kit, _RESOURCES)
    resources["components"] = [*_other_components(resources, kit, _SERVER), _SERVER]
    _enforce(resources, _CONTROLLER, kit)
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


def _check_kind(kit: Path, other: Path, hint: str) -> None:
    if (kit / other).exists():
        raise ConfigError(f"{kit} is {hint}")


def _check_signed(kit: Path) -> None:
    """Refuse a site that takes unsigned jobs: the server says who has submitted them. Nothing is changed
    here, because the files in `startup` may be signed themselves."""
    start = kit / _SITE_START
    if start.exists() and _read_table(start).get(_SIGNED, (start.parent / _AUTHORITY).exists()) is False:
        raise ConfigError(
            f"{start}: the site would take unsigned jobs, and believe its server who has submitted them: "
            f"provision the kit without {_SIGNED} = false, and with {_AUTHORITY}"
        )


def _allow(resources: dict[str, Any], name: str) -> None:
    allowed = resources.setdefault(_ALLOWED, [])
    if name not in allowed:
        allowed.append(name)


def _enforce(resources: dict[str, Any], name: str, kit: Path) -> None:
    """Let jobs name the class `name` and those that are listed, and no others."""
    allowed = resources.get(_ALLOWED, [])
    if not isinstance(allowed, list):
        raise _wrong(kit, _RESOURCES, f"{_ALLOWED} must be a list of classes")
    for entry in allowed:
        if not _is_class(entry):
            raise _wrong(
                kit,
                _RESOURCES,
                f"{_ALLOWED} has {shown(entry)}, with which a job could name classes that are not listed: "
                "replace it by the full names of the classes that jobs need, such as package.module.Class",
            )
    _allow(resources, name)
    resources[_MODE] = "enforce"


def _is_class(entry: object) -> bool:
    """Return whether `entry` is the full name of a class. NVFlare takes that of a module or package for all
    classes in it."""
    parts = entry.split(".") if isinstance(entry, str) else []
    return len(parts) > 1 and all(map(str.isidentifier, parts)) and parts[-1].lstrip("_")[:1].isupper()


def _other_components(resources: dict[str, Any], kit: Path, ours: dict[str, Any]) -> list[dict[str, Any]]:
    components = resources.get("components", [])
    if not isinstance(components, list) or not all(isinstance(each, dict) for each in components):
        raise _wrong(kit, _RESOURCES, "components must be a list of tables")
    return [each for each in components if each.get("id") != ours["id"]]


def _checked_roles(permissions: object, kit: Path) -> dict[str, Any]:
    if not isinstance(permissions, dict) or not permissions:
        raise _wrong(kit, _AUTHORISATION, "permissions must be a table of roles")
    for role, rights in permissions.items():
        if not isinstance(rights, str | list | dict):
            raise _wrong(kit, _AUTHORISATION, f"the rights of {shown(role)} must be a table or a text")
    return permissions


def _without_forbidden(permissions: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rights of each role, without those to bring code and to read files. A role that has no table,
    but one condition such as "any" for all rights, gets a table with all of them: NVFlare has no other way to
    except some."""
    tables = [rights for rights in permissions.values() if isinstance(rights, dict)]
    everything = _every_right(right for rights in tables for right in rights)
    forbidden = {*_FORBIDDEN, *_commands_of(_SHELL)}
    for role, rights in permissions.items():
        named = rights if isinstance(rights, dict) else {_EVERY_RIGHT: rights}
        if _EVERY_RIGHT in named:  # it takes precedence over all that are named
            named = dict.fromkeys(everything, named[_EVERY_RIGHT])
        kept = {right: condition for right, condition in named.items() if _plain(right) not in forbidden}
        yield role, {**kept, **dict.fromkeys(_FORBIDDEN, "none")}


def _commands_of(category: str) -> list[str]:
    """Return the commands of a category, to each of which a role may have the right by itself."""
    from nvflare.security.security import COMMAND_CATEGORIES

    return [str(command) for command, found in COMMAND_CATEGORIES.items() if found == category]


def _every_right(named: Iterable[str]) -> list[str]:
    """Return all rights that NVFlare knows, and those that a file names. Where NVFlare has a category, the
    right is to all commands in it."""
    from nvflare.apis.fl_constant import AdminCommandNames
    from nvflare.security.security import COMMAND_CATEGORIES

    commands = [value for name, value in vars(AdminCommandNames).items() if not name.startswith("_")]
    known = {str(COMMAND_CATEGORIES.get(each, each)) for each in commands}
    return sorted(known | {_plain(each) for each in named} - {_EVERY_RIGHT})


def _plain(right: str) -> str:
    """Return the name of a right as NVFlare reads it."""
    return " ".join(right.lower().split())


def _read(kit: Path, name: str) -> dict[str, Any]:
    """Return a file of the kit as it is in force: a file that the operator has made replaces the default."""
    path = _in_force(kit, name)
    if path is None:
        raise ConfigError(f"{kit}: local/{name} is missing: name the directory of a startup kit")
    return _read_table(path)


def _read_table(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(CONFIG.read(path))
    except (ValueError, RecursionError) as error:
        where = f"line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else "no text"
        raise ConfigError(f"{path} is not valid JSON ({where}): correct it") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} must be a table of JSON, in braces: correct it")
    return found


def _in_force(kit: Path, name: str) -> Path | None:
    paths = (kit / "local" / name, kit / "local" / f"{name}.default")
    return next((each for each in paths if each.exists()), None)


def _wrong(kit: Path, name: str, why: str) -> ConfigError:
    return ConfigError(f"{kit}: local/{name}: {why}")


def _write(kit: Path, name: str, content: dict[str, Any]) -> None:
    """Write a file of the kit, which the same users may read as the one that it replaces."""
    before = _in_force(kit, name)
    mode = PUBLIC if before is None else stat.S_IMODE(before.stat().st_mode)
    CONFIG.replace(kit / "local" / name, (json.dumps(content, indent=2) + "\n").encode(), mode=mode)


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
        print(f"{kit / 'local'}: ready for secagg")


if __name__ == "__main__":
    main()
