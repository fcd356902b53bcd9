"""`secagg serve` and its clients as processes of their own, for tests, and the same scenario simulated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from scipy.stats import t as student

from sims.scenario.loading_and_variants import load
from sims.simulation.progress import no_progress
from sims.simulation.simulate import Simulation
from tests.sims.deploy_site import ROOT
from tests.sims.training_site import SCENARIO, TrainingSite

PATIENCE: Final = 900.0  # seconds after which a process has hung
IID: Final = 'kind = "iid"'  # partitions
SKEWED: Final = 'kind = "dirichlet"\nalpha = 1.0'


@dataclass(frozen=True)
class EndedProcess:
    """A process that has ended: its exit status, the entries of its log, and its text on standard error."""

    status: int
    log: tuple[Mapping[str, Any], ...]
    errors: str

    def facts(self, event: str) -> list[Mapping[str, Any]]:
        return [entry for entry in self.log if entry["event"] == event]


class Command:
    """`python -m secagg` in a process of its own. Threads read what it writes."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "secagg", *arguments],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._log: list[Mapping[str, Any]] = []
        self._errors: list[str] = []
        self.listens_or_ended = threading.Event()
        self._readers = [
            self._reading(self._process.stdout, self._take_entry),
            self._reading(self._process.stderr, self._errors.append),
        ]

    def _reading(self, stream: IO[str] | None, take: Any) -> threading.Thread:
        assert stream is not None

        def read() -> None:
            with stream:
                for line in stream:
                    take(line)
            self.listens_or_ended.set()

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        return thread

    def _take_entry(self, line: str) -> None:
        self._log.append(json.loads(line))
        if self._log[-1]["event"] == "started":
            self.listens_or_ended.set()

    @property
    def address(self) -> str | None:
        """Where a server listens; None if it has ended without listening. Waits until that is known."""
        assert self.listens_or_ended.wait(PATIENCE)
        return next((str(entry["address"]) for entry in self._log if entry["event"] == "started"), None)

    def wait(self) -> EndedProcess:
        status = self._process.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        return EndedProcess(status, tuple(self._log), "".join(self._errors))

    def stop(self) -> None:
        """No process outlives its test."""
        self._process.kill()
        self._process.wait()


@contextmanager
def command(directory: Path, *arguments: str) -> Iterator[Command]:
    running = Command(directory, *arguments)
    try:
        yield running
    finally:
        running.stop()


class ProcessSite(TrainingSite):
    """A training site whose server and clients are processes."""

    scenario_text = SCENARIO.replace("linger = 20.0", "linger = 120.0").replace(IID, SKEWED)

    def run(self) -> tuple[EndedProcess, dict[int, EndedProcess]]:
        """Run the server and all clients to their end. Return how each of them has ended."""
        with ExitStack() as stack:
            server = stack.enter_context(command(self.directory, "serve", "train.toml"))
            address = server.address
            clients = {}
            for member in self.clients:
                name = f"join-{member}.toml"
                if address is not None:
                    self.change(name, 'server = "127.0.0.1:1"', f'server = "{address}"')
                clients[member] = stack.enter_context(command(self.directory, "join", name))
            ended = {member: client.wait() for member, client in clients.items()}
            return server.wait(), ended


class SimulatedRun:
    """The scenario of a site with invented clients, after its last round. `changes` override its settings."""

    def __init__(self, path: Path, **changes: Any) -> None:
        self.settings = load(path, changes).variants[0].settings
        self._simulation = Simulation(self.settings, Path(), None, no_progress)
        self._simulation.run(lambda _round: None, lambda: False)

    @property
    def model(self) -> Any:
        return self._simulation.setup.run.model

    @cached_property
    def personal(self) -> dict[int, Any]:
        watched = self._simulation.setup.watched
        return {member: each.personal(self.model) for member, each in watched.items()}

    def accuracy(self, models: Any) -> float:
        """The accuracy on the test data of all clients together, of one model or of each client's own."""
        scores = self._simulation.setup.crowd.scores(models).values()
        return sum(each.correct for each in scores) / sum(each.total for each in scores)


SEEDS: Final = range(100, 120)


@dataclass(frozen=True)
class PredictionInterval:
    """Where one more number lies that is drawn as the n `values` were: mean +- t * deviation * sqrt(1 + 1/n),
    with Student's t for n - 1 degrees of freedom. Of normal numbers, a part `rate` lies outside of it."""

    values: Sequence[float]

    def at(self, rate: float) -> tuple[float, float]:
        count, mean = len(self.values), float(np.mean(self.values))
        spread = float(np.std(self.values, ddof=1)) * np.sqrt(1 + 1 / count)
        reach = float(student.ppf(1 - rate / 2, count - 1)) * spread
        return mean - reach, mean + reach
