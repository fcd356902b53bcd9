"""examples/hospitals as processes: a server and three hospitals, whose files are in one directory."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
from pathlib import Path
from typing import Final

from tests.sims.embedding_page import ROOT, free_port

EXAMPLE: Final = ROOT / "examples" / "hospitals"
HOSPITALS: Final = (1, 2, 3)
PATIENCE: Final = 300.0  # seconds after which a process has hung
SOON: Final = 20.0  # seconds after which an interrupted process should have ended, on a busy machine
_KEYS: Final = re.compile(r"^```sh\n(secagg keygen .*?)^```$", re.M | re.S)


class Program:
    """A program of the example in a process of its own; `lines` are what it has printed."""

    def __init__(self, directory: Path, environment: dict[str, str], *command: str) -> None:
        self._process = subprocess.Popen(
            ["python", "-W", "error", *command],  # noqa: S607  (that of the environment's PATH)
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def wait_for_rounds(self, number: int) -> None:
        """Wait until it has printed that many lines about rounds."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: len(self.rounds) >= number or self._process.poll() is not None, PATIENCE
            ), self.lines
        assert len(self.rounds) >= number, self.lines

    @property
    def rounds(self) -> list[str]:
        return [line for line in self.lines if line.startswith("round ")]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def interrupt(self) -> None:
        """Press Ctrl-C, and wait for the end, which must come soon."""
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(SOON)
        finally:
            self.kill()
        assert self._process.returncode == -signal.SIGINT, self.lines

    def wait(self) -> None:
        """Wait for its end, which must be a good one."""
        try:
            status = self._process.wait(PATIENCE)
        finally:
            self.kill()
        assert status == 0, self.lines


class Hospitals:
    """The example in `directory`, run by the commands `python` and `secagg` in the directory `programs`."""

    def __init__(self, directory: Path, programs: Path, path: Path | None = None) -> None:
        """`path` is searched for packages first."""
        self.directory = directory
        self.address = f"127.0.0.1:{free_port()}"
        self._environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        self._environment.pop("PYTHONPATH", None)
        if path is not None:
            self._environment["PYTHONPATH"] = str(path)
        self.started: list[Program] = []
        for file in EXAMPLE.glob("*.py"):
            shutil.copy(file, directory)
        (commands,) = _KEYS.findall((EXAMPLE / "README.md").read_text(encoding="utf-8"))
        self._run(commands)

    def _run(self, commands: str) -> None:
        ended = subprocess.run(
            ["bash", "-e", "-c", commands],  # noqa: S607  (whichever bash there is)
            cwd=self.directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr

    def start(self, *command: str) -> Program:
        program = Program(self.directory, self._environment, *command)
        self.started.append(program)
        return program

    def server(self) -> Program:
        return self.start("server.py", self.address)

    def hospital(self, number: int, file: str = "client.py") -> Program:
        return self.start(file, str(number), self.address)

    def end(self) -> None:
        for program in self.started:
            program.kill()
