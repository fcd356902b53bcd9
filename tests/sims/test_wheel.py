"""What others install: the wheel holds all of the project and nothing else, and works where only it is.

By default the wheel is unpacked and run beside this environment's libraries, of which it sees those that it
depends on. The long tests install it into new environments.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Sequence
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any, Final

import pytest

from sims.cli import commands
from sims.cli.commands import COMMANDS
from tests.sims import embedding_page as page
from tests.sims.hospitals import Hospitals
from tests.sims.test_hospitals import train_and_kill

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("secagg", "protocols", "fl", "sims")
CORE: Final = {"cryptography", "msgpack", "numpy", "trio"}
# All that comes with them.
WITH_CORE: Final = CORE | {"attrs", "cffi", "idna", "outcome", "pycparser", "sniffio", "sortedcontainers"}
HEAVY: Final = ("torch", "pydantic", "rich", "matplotlib", "scipy", "dp_accounting", "flwr")
# Commands that do something by themselves; the others need an argument to go on.
ARGUMENTS: Final = {
    "plan": ("rfa",),
    "simulate": ("none.toml",),
    "serve": ("none.toml",),
    "join": ("none.toml",),
}


def copied(place: Path) -> None:
    """The source tree, in which building leaves nothing behind."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in (*PACKAGES, "scripts", "tests"):
        shutil.copytree(ROOT / name, place / name, ignore=ignored)
    for path in (*ROOT.glob("*.py"), *(ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE"))):
        shutil.copy(path, place)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    copied(source)
    code = "import setuptools.build_meta as build; build.build_wheel('dist')"
    (source / "dist").mkdir()
    run([sys.executable, "-c", code], cwd=source)
    (made,) = (source / "dist").glob("*.whl")
    return made


def run(
    command: Sequence[str | Path], *, cwd: Path, status: int | None = 0
) -> subprocess.CompletedProcess[str]:
    """Without any path but the environment's own. A status of None is any."""
    ended = subprocess.run(
        command,
        cwd=cwd,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if status is not None:
        assert ended.returncode == status, ended.stdout + ended.stderr
    return ended


def files_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def about(wheel: Path, name: str) -> str:
    """A file of its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        (found,) = (each for each in archive.namelist() if each.endswith(f".dist-info/{name}"))
        return archive.read(found).decode()


# --- what it holds ---


def in_the_tree(source: Path) -> Iterator[str]:
    """Every module, and every other file that the packages read or that says they are typed."""
    yield from (path.name for path in source.glob("*.py"))
    for package in PACKAGES:
        for path in (source / package).rglob("*"):
            if path.is_file():
                yield path.relative_to(source).as_posix()


def test_it_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    held = files_in(wheel)
    assert held == set(in_the_tree(wheel.parent.parent))
    assert {f"{package}/py.typed" for package in PACKAGES} <= held
    assert "fl/data/digits.npz" in held
    assert "sims/scenarios/digits.toml" in held


def metadata_of(wheel: Path) -> Message:
    return Parser().parsestr(about(wheel, "METADATA"))


def test_it_depends_on_four_libraries(wheel: Path) -> None:
    required = metadata_of(wheel).get_all("Requires-Dist", [])
    always = {re.match(r"[\w-]+", each)[0] for each in required if "extra ==" not in each}  # type: ignore[index]
    assert always == CORE


def test_every_extra_that_a_command_names_is_there(wheel: Path) -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "sims").rglob("*.py"))
    named = {name for names in re.findall(r"secagg\[([\w,]+)\]", sources) for name in names.split(",")}
    assert named
    assert named | set(commands.MODULES) <= set(metadata_of(wheel).get_all("Provides-Extra", []))


def test_it_brings_the_command(wheel: Path) -> None:
    parser = configparser.ConfigParser()
    parser.read_string(about(wheel, "entry_points.txt"))
    assert list(parser["console_scripts"]) == ["secagg"]


# --- beside this environment's libraries ---

ALONE: Final = """
import importlib.metadata as metadata, json, runpy, sys
from importlib.abc import MetaPathFinder

unpacked, script, allowed = sys.argv[1], sys.argv[2], set(json.loads(sys.argv[3]))
owners = metadata.packages_distributions()

class Refuse(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in owners and not {each.lower() for each in owners[top]} & allowed:
            raise ModuleNotFoundError(f"No module named {name!r}: it is no dependency", name=name)

sys.meta_path.insert(0, Refuse())
sys.path.insert(0, unpacked)
runpy.run_path(script, run_name="__main__")
import secagg
assert secagg.__file__.startswith(unpacked), secagg.__file__
"""


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    return place


def run_alone(code: str, unpacked: Path, place: Path, *, status: int = 0) -> subprocess.CompletedProcess[str]:
    """With the wheel's packages, and none but those libraries that it depends on."""
    script = place / "script.py"
    script.write_text(code, encoding="utf-8")
    allowed = json.dumps(sorted(WITH_CORE | {"secagg"}))
    command = [sys.executable, "-W", "error", "-c", ALONE, str(unpacked), str(script), allowed]
    return run(command, cwd=place, status=status)


@pytest.mark.parametrize("name", ["sum", "asyncio", "algorithm"])
def test_an_example_runs_with_four_libraries(name: str, unpacked: Path, tmp_path: Path) -> None:
    assert run_alone(page.example(name), unpacked, tmp_path).stdout == page.shown(name)


def test_others_are_refused_there(unpacked: Path, tmp_path: Path) -> None:
    """Or the test above would say nothing."""
    assert "it is no dependency" in run_alone("import rich", unpacked, tmp_path, status=1).stderr


# --- in environments of its own ---


class Environment:
    """A new one, with the wheel in it."""

    def __init__(self, place: Path, wheel: Path, extra: str = "") -> None:
        self.programs = place / "venv" / "bin"
        run([sys.executable, "-m", "venv", str(place / "venv")], cwd=place)
        install = (self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        run((*install, "-c", ROOT / "constraints.txt", f"{wheel}{extra}"), cwd=place)

    @property
    def python(self) -> Path:
        return self.programs / "python"

    def told(self, code: str, place: Path) -> Any:
        """What `code` prints as JSON."""
        return json.loads(run([self.python, "-c", f"import json\n{code}"], cwd=place).stdout)


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("core"), wheel)


@pytest.mark.slow  # makes an environment
def test_the_core_needs_four_libraries(core: Environment, tmp_path: Path) -> None:
    found = core.told(
        "import sys, secagg, secagg.net, protocols.run, sims.runtime\n"
        "from importlib import metadata, util\n"
        "print(json.dumps({\n"
        "    'place': secagg.__file__, 'loaded': sorted(sys.modules),\n"
        "    'installed': [each.name.lower() for each in metadata.distributions()],\n"
        f"    'there': [name for name in {HEAVY!r} if util.find_spec(name)],\n"
        "}))",
        tmp_path,
    )
    assert Path(found["place"]).is_relative_to(core.programs.parent)
    assert set(found["installed"]) - {"pip", "setuptools"} == WITH_CORE | {"secagg"}
    assert found["there"] == []
    assert set(HEAVY) & set(found["loaded"]) == set()


@pytest.mark.slow
def test_commands_work_there_or_name_what_is_missing(core: Environment, tmp_path: Path) -> None:
    command = core.programs / "secagg"
    assert all(name in run([command, "--help"], cwd=tmp_path).stdout for name in COMMANDS)
    assert "torch not installed" in run([command, "version"], cwd=tmp_path).stdout
    assert "neighbours" in run([command, "params"], cwd=tmp_path).stdout
    for name in COMMANDS:
        run([command, name, "--help"], cwd=tmp_path)
        ended = run([command, name, *ARGUMENTS.get(name, ())], cwd=tmp_path, status=None)
        if ended.returncode:
            assert ended.returncode == 2, ended.stderr
            assert len(ended.stderr.splitlines()) == 1, ended.stderr
            assert re.search(r"pip install ['\"]secagg\[\w+\]|required|does not exist", ended.stderr), (
                ended.stderr
            )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sum", "asyncio", "algorithm"])
def test_an_example_runs_in_the_core(name: str, core: Environment, tmp_path: Path) -> None:
    assert page.run_example(name, core.python, tmp_path) == page.shown(name)


@pytest.mark.slow
def test_the_hosts_of_the_page_run_with_the_extra_that_it_names(wheel: Path, tmp_path: Path) -> None:
    """Server, hospitals and authority, each in a directory of its own, outside the source tree."""
    environment = Environment(tmp_path, wheel, "[deploy]")
    hosts = tmp_path / "hosts"
    hosts.mkdir()

    printed, expected = page.Hosts(hosts, environment.programs).run()

    assert expected
    assert printed == expected


@pytest.mark.slow
def test_the_hospitals_train_with_an_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    """The libraries are those of this environment. Only the wheel is installed into the new one."""
    programs = tmp_path / "venv" / "bin"
    run([sys.executable, "-m", "venv", str(tmp_path / "venv")], cwd=tmp_path)
    install = (programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run((*install, "--no-deps", "--no-index", wheel), cwd=tmp_path)
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = Path(run([programs / "python", "-c", code], cwd=tmp_path).stdout.strip())
    (own / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    place = run([programs / "python", "-c", "import secagg; print(secagg.__file__)"], cwd=tmp_path).stdout
    assert Path(place.strip()).is_relative_to(own)

    directory = tmp_path / "hosts"
    directory.mkdir()
    hospitals = Hospitals(directory, programs)
    try:
        train_and_kill(hospitals)
    finally:
        hospitals.end()
