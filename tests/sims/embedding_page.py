"""docs/embedding.md as a program: its examples, and its hosts as directories with what was copied there.

Nothing here imports the project, so that the page can be run by another Python as well: that of an
environment into which a wheel was installed.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")
HOSPITALS: Final = ("1", "2", "3")
TIMEOUT: Final = 120  # seconds, for what takes a few

_EXAMPLE = re.compile(
    r"^<!-- example: (\w+) -->\n```python\n(.*?)^```$(?:\n\n((?:    [^\n]*\n)+))?", re.M | re.S
)
_HOSTS = re.compile(
    r"^<!-- on: ([\w ,]+) -->\n```sh\n(.*?)^```$(?:\n\n((?:    [^\n]*\n)+))?"
    r"|^`([\w.]+)`, ([\w ]+):\n\n```\w+\n(.*?)^```$",
    re.M | re.S,
)
# Another host is the directory beside this one.
_PRELUDE = """
set -e
scp() { cp -- "${@:1:$#-1}" "../${!#%:}/"; }
"""


def example(name: str) -> str:
    """The code of all blocks of an example."""
    return "\n".join(code for each, code, _ in _EXAMPLE.findall(PAGE) if each == name)


def shown(name: str) -> str:
    """What the page says that they print."""
    return "".join(textwrap.dedent(output) for each, _, output in _EXAMPLE.findall(PAGE) if each == name)


@dataclass(frozen=True)
class File:
    """A file that the page shows, and the hosts that have it."""

    name: str
    hosts: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Command:
    """A block of commands on some hosts, and what the page says that it prints."""

    hosts: tuple[str, ...]
    background: bool
    text: str
    shown: str


def steps() -> Iterator[File | Command]:
    """Section 3, in order."""
    for where, text, output, name, place, content in _HOSTS.findall(PAGE):
        if name:
            yield File(name, _hosts(place), content)
        else:
            yield Command(_hosts(where), "in the background" in where, text, textwrap.dedent(output))


def files() -> dict[str, str]:
    return {each.name: each.text for each in steps() if isinstance(each, File)}


def _hosts(text: str) -> tuple[str, ...]:
    hospitals = tuple(f"hospital-{number}" for number in HOSPITALS) if "every hospital" in text else ()
    return tuple(name for name in ("authority", "server") if name in text) + hospitals


class Hosts:
    """Runs the section with the commands `secagg` and `python` that are in the directory `programs`."""

    def __init__(self, directory: Path, programs: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self._environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        self._environment.pop("PYTHONPATH", None)

    def run(self) -> tuple[str, str]:
        """What the last command printed, and what the page says it does."""
        printed = expected = ""
        with self._background() as started:
            for step in steps():
                for host in step.hosts:
                    place = self._directory / host
                    place.mkdir(exist_ok=True)
                    if isinstance(step, File):
                        (place / step.name).write_text(self._adapted(step.text, host), encoding="utf-8")
                    elif step.background:
                        started.append(self._start(step.text, host))
                    else:
                        printed, expected = self._ended(self._start(step.text, host)), step.shown
        return printed, expected

    def _adapted(self, text: str, host: str) -> str:
        """With the address of this machine, and the number of the host."""
        for address in ("server:7443", "0.0.0.0:7443"):
            text = text.replace(f'"{address}"', f'"127.0.0.1:{self._port}"')
        number = host[-1]
        return text.replace("hospital-1", host).replace("member = 1 ", f"member = {number} ")

    def _start(self, commands: str, host: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-c", _PRELUDE + commands],  # noqa: S607  (whichever bash there is)
            cwd=self._directory / host,
            env=self._environment | {"N": host[-1]},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _ended(self, process: subprocess.Popen[str]) -> str:
        try:
            printed, _ = process.communicate(timeout=TIMEOUT)
        finally:
            process.kill()
        assert process.returncode == 0, printed
        return printed

    @contextmanager
    def _background(self) -> Iterator[list[subprocess.Popen[str]]]:
        """Processes that end by themselves if all is well, and otherwise with the test."""
        started: list[subprocess.Popen[str]] = []
        try:
            yield started
            for process in started:
                self._ended(process)
        finally:
            for process in started:
                process.kill()
                process.communicate()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def run_example(name: str, python: Path, directory: Path, extra: Mapping[str, str] | None = None) -> str:
    """What an example prints, run by `python` in `directory`."""
    script = directory / f"example_{name}.py"  # a name that shadows no library
    script.write_text(example(name), encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    ended = subprocess.run(
        [python, "-W", "error", script.name],
        cwd=directory,
        env=environment | dict(extra or {}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
