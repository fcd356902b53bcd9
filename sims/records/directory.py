"""One run's directory: the names of its files, its lock, and what its `run.json` says."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from sims.config_problems import ConfigError
from sims.records.files import PUBLIC, json_object, read_file, replace_file, told
from sims.records.lines import read_lines
from sims.records.run_paths import LOCK, RUN, RUN_FILES, draft_of

FORMAT: Final = 1
RUNNING, INTERRUPTED, FINISHED, FAILED = "running", "interrupted", "finished", "failed"


@dataclass(frozen=True)
class RunDirectory:
    """What is kept of one simulation, in the directory `path`."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    # --- what there is ---

    @property
    def exists(self) -> bool:
        """Whether there is a run in it, finished or not."""
        return (self / RUN).is_file()

    def facts(self) -> dict[str, Any]:
        """What `run.json` says. Raises `ConfigError` if there is no run here, or a newer one."""
        if not self.exists:
            raise ConfigError(f"{self.path} is not the directory of a run: there is no {RUN} in it")
        facts = self.read_json(RUN)
        if facts.get("format") != FORMAT:
            raise ConfigError(f"{self / RUN} is of another version: its format is {facts.get('format')!r}")
        return facts

    @property
    def status(self) -> str:
        return str(self.facts().get("status"))

    def read_json(self, name: str) -> dict[str, Any]:
        """The JSON object in a file of this run."""
        path = self / name
        data = read_file(path, "the run has not come so far, or the file was removed")
        found = json_object(data)
        if found is None:
            raise ConfigError(f"{path} is damaged: it holds no JSON object")
        return found

    def read_lines(self, name: str) -> list[dict[str, Any]]:
        return read_lines(self / name)

    # --- writing ---

    def make(self) -> None:
        """The directory itself, if there is none. Raises `ConfigError` if it holds anything else."""
        with told(self.path, "made"):
            self.path.mkdir(parents=True, exist_ok=True)
            strangers = sorted(set(os.listdir(self.path)) - {*RUN_FILES, *map(draft_of, RUN_FILES), LOCK})
        if strangers and not self.exists:
            raise ConfigError(
                f"{self.path} holds something else than a run, such as {strangers[0]}: take another --out"
            )

    def clear(self) -> None:
        """Remove all that a run left here, and nothing else."""
        with told(self.path, "cleared"):
            for name in (*RUN_FILES, *map(draft_of, RUN_FILES)):
                with suppress(FileNotFoundError):
                    (self / name).unlink()

    def remove(self) -> None:
        """The directory itself as well, if it holds nothing else."""
        self.clear()
        with told(self.path, "removed"):
            (self / LOCK).unlink(missing_ok=True)
            self.path.rmdir()

    def write(self, name: str, data: bytes, *, mode: int = PUBLIC, sync: bool = True) -> None:
        replace_file(self / name, data, mode=mode, sync=sync)

    def write_json(self, name: str, content: Mapping[str, Any], *, sync: bool = True) -> None:
        self.write(name, json.dumps(content, indent=1, allow_nan=False).encode() + b"\n", sync=sync)

    @contextmanager
    def locked(self) -> Iterator[Self]:
        """Nobody else writes here meanwhile. The lock ends with the process, however that ends."""
        with told(self.path, "opened"):
            handle = os.open(self / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PUBLIC)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(f"{self.path} is in use: another process runs this simulation") from None
            yield self
        finally:
            os.close(handle)


def find_runs(path: Path) -> list[RunDirectory]:
    """The run in `path`, or all runs in the directories in it. Raises `ConfigError` if there is none."""
    if not path.is_dir():
        raise ConfigError(f"{path} is no directory; give that of a run, such as results/NAME")
    if RunDirectory(path).exists:
        return [RunDirectory(path)]
    found = [RunDirectory(each) for each in sorted(path.iterdir()) if RunDirectory(each).exists]
    if not found:
        raise ConfigError(f"there is no run in {path}: secagg simulate makes one")
    return found
