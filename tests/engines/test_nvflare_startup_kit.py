"""What `startup_kit` changes in the kits of a server and of sites, and which kits it refuses."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="the extra nvflare is not installed")

from nvflare.apis.fl_constant import WorkspaceConstants
from nvflare.apis.workspace import Workspace
from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
from nvflare.fuel.sec.authz import AuthzContext, Person
from nvflare.private.fed.utils.fed_utils import require_signed_jobs
from nvflare.security.security import FLAuthorizer

from sims.config_problems import ConfigError
from sims.engines.nvflare.controller import SecaggController
from sims.engines.nvflare.executor import SecaggExecutor
from sims.engines.nvflare.server import SecaggServer
from sims.engines.nvflare.site import SecaggSite
from sims.engines.nvflare.startup_kit import install_in_simulation, install_on_server, install_on_site
from tests.engines.nvflare_rig import write_kit

CLIENT_START = WorkspaceConstants.CLIENT_STARTUP_CONFIG


def test_a_site_gets_the_component_and_forbids_code_of_jobs(tmp_path: Path) -> None:
    write_kit(tmp_path)
    install_on_site(tmp_path)
    once = (tmp_path / "local" / "resources.json").read_text()
    install_on_site(tmp_path)
    assert (tmp_path / "local" / "resources.json").read_text() == once
    resources = json.loads(once)
    assert [each["id"] for each in resources["components"]] == ["resource_manager", "secagg_site"]
    assert resources["class_allow_list"] == ["nvflare.A", "sims.engines.nvflare.executor.SecaggExecutor"]
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert resources["allow_log_streaming"] is False
    rights = json.loads((tmp_path / "local" / "authorization.json").read_text())["permissions"]
    no_code = {"byoc": "none", "server-predeployed-flwr": "none", "shell_commands": "none"}
    assert rights["lead"] == {"submit_job": "any", **no_code}
    assert rights["member"] == {"view": "any", **no_code}


CODE = ("byoc", "server-predeployed-flwr")
FILES = ("pwd", "ls", "cat", "head", "tail", "grep")
COMMANDS = ("submit_job", "clone_job", "abort_job", "download_job", "list_jobs", "sys_info", "mine")


def is_allowed(kit: Path, role: str, right: str, org: str = "site") -> bool:
    """Return whether NVFlare lets a user with this role do something at a site."""
    content = json.loads((kit / "local" / "authorization.json").read_text())
    user = Person("user", org, role)
    allowed, _error = FLAuthorizer("site", content).authorize(AuthzContext(right, user, user))
    return bool(allowed)


@pytest.mark.parametrize(
    "permissions",
    [
        {"lead": "any"},
        {"lead": "any", "other": {"mine": "any"}},
        {"lead": ["any"]},
        {"lead": {"*": "any", "byoc": "any"}},
        {"lead": {**dict.fromkeys(COMMANDS, "any"), "byoc": "any", "BYOC": "any"}},
        {"Lead": {**dict.fromkeys(COMMANDS, "any"), "Server-Predeployed-FLWR": "any"}},
        {"lead": {**dict.fromkeys(COMMANDS, "any"), "Shell_Commands": "any"}},
        {"lead": {**dict.fromkeys(COMMANDS, "any"), "cat": "any", "LS": "any"}},
    ],
)
def test_a_role_keeps_all_rights_but_those_to_bring_code_and_to_read_files(
    tmp_path: Path, permissions: Any
) -> None:
    write_kit(tmp_path, permissions)
    install_on_site(tmp_path)
    assert [right for right in CODE + FILES if is_allowed(tmp_path, "lead", right)] == []
    denied = {right for right in COMMANDS if not is_allowed(tmp_path, "lead", right)}
    assert denied <= {"mine"}
    assert ("mine" in denied) == ("mine" not in str(permissions))


def test_files_of_a_kit_stay_as_private_as_they_are(tmp_path: Path) -> None:
    write_kit(tmp_path)
    (tmp_path / "local" / "resources.json.default").chmod(0o600)
    install_on_site(tmp_path)
    assert (tmp_path / "local" / "resources.json").stat().st_mode & 0o777 == 0o600


def test_a_role_with_one_condition_for_all_rights_keeps_it(tmp_path: Path) -> None:
    write_kit(tmp_path, {"lead": "o:site", "guest": "none"})
    install_on_site(tmp_path)
    assert is_allowed(tmp_path, "lead", "submit_job")
    assert not is_allowed(tmp_path, "lead", "submit_job", org="elsewhere")
    assert not is_allowed(tmp_path, "guest", "submit_job")


@pytest.mark.parametrize("install", [install_on_site, install_on_server])
@pytest.mark.parametrize("entry", ["*", "nvflare.", "nvflare.app_common", "nvflare", "A", "", "a..B", 7])
def test_a_list_that_allows_more_classes_than_it_names_is_refused(
    tmp_path: Path, install: Any, entry: Any
) -> None:
    write_kit(tmp_path, class_allow_list=["nvflare.A", entry])
    with pytest.raises(ConfigError, match=r"class_allow_list has .* full names of the classes"):
        install(tmp_path)
    assert {each.suffix for each in (tmp_path / "local").iterdir()} == {".default"}


@pytest.mark.parametrize("install", [install_on_site, install_on_server])
def test_a_list_that_only_warns_is_enforced(tmp_path: Path, install: Any) -> None:
    write_kit(tmp_path, class_list_enforcement_mode="warn")
    install(tmp_path)
    resources = json.loads((tmp_path / "local" / "resources.json").read_text())
    assert resources["class_list_enforcement_mode"] == "enforce"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("resources.json", "{not json", "line 1"),
        ("resources.json", "[]", "in braces"),
        ("resources.json", "[" * 100_000, "not valid JSON"),
        ("resources.json", '{"components": 7}', "components must be a list"),
        ("resources.json", '{"class_allow_list": {}}', "must be a list of classes"),
        ("authorization.json", "\xff", "not valid JSON"),
        ("authorization.json", "{}", "table of roles"),
        ("authorization.json", '{"permissions": []}', "table of roles"),
        ("authorization.json", '{"permissions": {"lead": 7}}', "the rights of 'lead'"),
    ],
)
def test_a_damaged_kit_is_refused_in_words(tmp_path: Path, name: str, text: str, words: str) -> None:
    write_kit(tmp_path)
    (tmp_path / "local" / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=words) as refused:
        install_on_site(tmp_path)
    assert name in str(refused.value)
    assert len(list((tmp_path / "local").iterdir())) == 3  # nothing is written


def test_the_default_kit_of_nvflare_allows_named_classes_only(tmp_path: Path) -> None:
    write_kit(tmp_path, class_allow_list=list(DEFAULT_CLASS_ALLOW_LIST))
    install_on_site(tmp_path)
    allowed = json.loads((tmp_path / "local" / "resources.json").read_text())["class_allow_list"]
    assert len(allowed) == len(DEFAULT_CLASS_ALLOW_LIST) + 1


def test_a_server_allows_the_controller_only(tmp_path: Path) -> None:
    write_kit(tmp_path)
    for _ in range(2):
        install_on_server(tmp_path)
    resources = json.loads((tmp_path / "local" / "resources.json").read_text())
    assert resources["class_allow_list"] == ["nvflare.A", "sims.engines.nvflare.controller.SecaggController"]
    assert [each["id"] for each in resources["components"]] == ["resource_manager", "secagg_server"]
    with pytest.raises(ConfigError, match="startup kit"):
        install_on_server(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("install", "start"),
    [(install_on_site, "fed_server.json"), (install_on_server, "fed_client.json")],
    ids=["site", "server"],
)
def test_the_kit_of_another_kind_is_left_as_it_is(tmp_path: Path, install: Any, start: str) -> None:
    write_kit(tmp_path)
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup" / start).write_text("{}")
    with pytest.raises(ConfigError, match="--server"):
        install(tmp_path)
    assert not (tmp_path / "local" / "resources.json").exists()


@pytest.mark.parametrize(
    ("start", "has_authority"),
    [({"require_signed_jobs": False}, True), ({"require_signed_jobs": False}, False), ({}, False)],
)
def test_a_site_that_would_take_unsigned_jobs_is_refused(
    tmp_path: Path, start: Any, has_authority: bool
) -> None:
    write_start(tmp_path, start, has_authority)
    assert not require_signed_jobs(Workspace(str(tmp_path)), CLIENT_START)
    with pytest.raises(ConfigError, match="unsigned jobs"):
        install_on_site(tmp_path)
    assert not (tmp_path / "local" / "resources.json").exists()


@pytest.mark.parametrize(
    ("start", "has_authority"),
    [
        ({}, True),
        ({"require_signed_jobs": True}, True),
        ({"require_signed_jobs": True}, False),
        ({"require_signed_jobs": "no"}, True),  # NVFlare reads this as true
    ],
)
def test_a_site_that_takes_signed_jobs_only_is_taken(tmp_path: Path, start: Any, has_authority: bool) -> None:
    write_start(tmp_path, start, has_authority)
    assert require_signed_jobs(Workspace(str(tmp_path)), CLIENT_START)
    install_on_site(tmp_path)
    assert json.loads((tmp_path / "startup" / CLIENT_START).read_text()) == start


def write_start(kit: Path, start: Any, has_authority: bool) -> None:
    write_kit(kit)
    (kit / "startup").mkdir()
    (kit / "startup" / CLIENT_START).write_text(json.dumps(start))
    if has_authority:
        (kit / "startup" / "rootCA.pem").write_text("")


@pytest.mark.parametrize(
    ("install", "kind"), [(install_on_site, SecaggSite), (install_on_server, SecaggServer)]
)
@pytest.mark.usefixtures("nvflare_process")
def test_the_components_in_startup_kits_exist(tmp_path: Path, install: Any, kind: Any) -> None:
    write_kit(tmp_path)
    install(tmp_path)
    added = json.loads((tmp_path / "local" / "resources.json").read_text())["components"][-1]
    module, _, name = added["path"].rpartition(".")
    assert type(getattr(import_module(module), name)(**added["args"])) is kind


def test_the_names_in_startup_kits_are_those_of_the_classes(tmp_path: Path) -> None:
    install_in_simulation(tmp_path)
    install_in_simulation(tmp_path)
    allowed = json.loads((tmp_path / "local" / "resources.json").read_text())["class_allow_list"]
    for kind in (SecaggController, SecaggExecutor):
        assert allowed.count(f"{kind.__module__}.{kind.__qualname__}") == 1
