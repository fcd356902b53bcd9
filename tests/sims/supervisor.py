"""A supervisor for tests: it runs a training deployment as processes, kills them, and restarts what has died.

`KillPlan` draws which process is killed after which line of whose log, and how much later. Kills are spread
over the rounds of the run, so that none is left when it ends.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from tests.sims.deploy_site import ROOT
from tests.sims.training_site import TrainingSite

SERVER = "server"
# Lines of logs that show what stage a process is in. The first ones come only after a restart.
STARTING = ("started", "connected")
SERVER_MOMENTS = (*STARTING, "session", "asked", "answered", "released", "round")
CLIENT_MOMENTS = (*STARTING, "session", "asked", "answered", "counted")
_LOOK = 0.005  # seconds between two looks at all processes
_LONGEST_WAIT = 2.0  # seconds for a line of a log
_LONGEST_DELAY = 0.4  # seconds from that line to the kill
_LONGEST_RUN = 1800.0  # seconds after which a run has hung
Entry: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Kill:
    """Kill `victim`, `delay` seconds after a line `event` in the log of `watched` (both are the names of
    processes), when `done` rounds are over; or somewhat later, if there is no such line."""

    victim: str
    watched: str
    event: str
    delay: float
    done: int


def draw_kills(seed: int, clients: tuple[int, ...], *, kills: int, of_server: int, rounds: int) -> list[Kill]:
    """Return `kills` kills, of which `of_server` hit the server, spread over `rounds` rounds."""
    rng = random.Random(seed)
    names = [client_name(member) for member in clients]
    kinds = [(SERVER, _nth(SERVER_MOMENTS, each)) for each in range(of_server)]
    kinds += [("client", _nth(CLIENT_MOMENTS, each)) for each in range(kills - of_server)]
    rng.shuffle(kinds)
    drawn, last = [], names[0]
    for number, (kind, event) in enumerate(kinds):
        # What starts is a process that was killed before.
        last = rng.choice(names) if event not in STARTING else last
        victim = SERVER if kind == SERVER else last
        watched = rng.choice(names) if kind == SERVER and event in ("asked", "answered") else victim
        drawn.append(Kill(victim, watched, event, rng.uniform(0, _LONGEST_DELAY), number * rounds // kills))
    return drawn


def _nth(moments: tuple[str, ...], number: int) -> str:
    return moments[number % len(moments)]


def client_name(member: int) -> str:
    return f"client-{member}"


@dataclass
class Supervised:
    """One command that is started again whenever it has died. Its log is one file, over all its lives."""

    arguments: tuple[str, ...]
    directory: Path
    log: Path
    entries: list[Entry] = field(default_factory=list)
    exits: list[int] = field(default_factory=list)
    _lines: int = 0  # of the log, when the process was started
    _process: subprocess.Popen[bytes] | None = None
    _read: int = 0

    def start(self) -> None:
        self._lines = len(self.entries)
        with self.log.open("ab") as out, self.log.with_suffix(".stderr").open("ab") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "secagg", *self.arguments],
                cwd=self.directory,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                stdout=out,
                stderr=err,
            )

    @property
    def is_over(self) -> bool:
        return bool(self.exits) and self.exits[-1] == 0

    def kill(self) -> bool:
        """Kill the process. Return whether there was one."""
        if self._process is None:
            return False
        self._process.kill()
        self._process.wait()
        return True

    def look(self) -> None:
        """Read new lines of the log. Note the exit status of a process that has ended."""
        if self._process is not None and self._process.poll() is not None:
            self.exits.append(self._process.returncode)
            self._process = None
        with self.log.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        complete = data[: data.rfind(b"\n") + 1]
        self._read += len(complete)
        self.entries += [json.loads(line) for line in complete.splitlines()]

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def stage(self) -> str:
        """The last line of the log of this life."""
        return str(self.entries[-1]["event"]) if len(self.entries) > self._lines else "starting"

    def count(self, event: str) -> int:
        return sum(entry["event"] == event for entry in self.entries)

    def stderr(self) -> str:
        return self.log.with_suffix(".stderr").read_text()


class Supervisor:
    """Runs `secagg serve` and `secagg join` for all clients of a site until all have ended with status 0."""

    def __init__(self, site: TrainingSite) -> None:
        arguments = {SERVER: ("serve", "train.toml")}
        arguments |= {client_name(each): ("join", f"join-{each}.toml") for each in site.clients}
        self.processes = {
            name: Supervised(given, site.directory, site / f"{name}.log") for name, given in arguments.items()
        }
        self.stages: list[tuple[str, str]] = []  # of each kill: the victim, and the last line of its log

    def run(self, kills: list[Kill], on_kill: Callable[[str], None]) -> None:
        """Run to the end, and kill on the way. `on_kill` is called with each victim while it is down."""
        end = time.monotonic() + _LONGEST_RUN
        with self._started():
            left = self._kills(kills, on_kill)
            while not all(each.is_over for each in self.processes.values()):
                assert time.monotonic() < end, f"it hangs: {self.stages}"
                self._look()
                next(left, None)
                time.sleep(_LOOK)

    @contextmanager
    def _started(self) -> Iterator[None]:
        for each in self.processes.values():
            each.start()
        try:
            yield
        finally:
            for each in self.processes.values():
                each.kill()

    def _look(self) -> None:
        """Read all logs, and restart what a signal has ended."""
        for name, each in self.processes.items():
            each.look()
            if not each.is_running and not each.is_over:
                assert each.exits[-1] == -signal.SIGKILL, f"{name} gave up: {each.stderr()}"
                each.start()

    def _kills(self, kills: list[Kill], on_kill: Callable[[str], None]) -> Iterator[None]:
        """A step for each look at the processes, until all kills are done."""
        for kill in kills:
            while self.processes[SERVER].count("round") < kill.done:
                yield
            watched, victim = self.processes[kill.watched], self.processes[kill.victim]
            seen = watched.count(kill.event)
            while victim.stage == "starting":
                yield
            latest = time.monotonic() + _LONGEST_WAIT
            while watched.count(kill.event) == seen and time.monotonic() < latest:
                yield
            due = time.monotonic() + kill.delay
            while time.monotonic() < due:
                yield
            while not victim.kill():
                yield
            victim.look()
            self.stages.append((kill.victim, victim.stage))
            on_kill(kill.victim)

    def killed(self) -> Counter[str]:
        """How often each process was killed."""
        return Counter(victim for victim, _stage in self.stages)
