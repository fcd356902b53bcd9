"""Clients for channels of processes under test, and a program that runs one and waits to be killed."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TextIO

import numpy as np

from fl.errors import DataError
from protocols.algorithm import AnyAlgorithm
from protocols.learner import Steering
from protocols.quadratic_learner import QuadraticLearner
from protocols.rfa import RFA
from protocols.run import Run
from protocols.serialisation import Vector
from sims.runtime import Setting
from sims.runtime.processes import ClientFactory, ProcessesChannel, WorkerClients, processes_sum

DIM, CLIENTS, WORKERS = 4, 6, 2


@dataclass
class Counting(QuadraticLearner):
    """What it trains depends on how often it has, as with a real learner's order of samples."""

    calls: int = 0

    def train(self, start: Vector, steering: Steering = Steering(), **options: Any) -> Vector:  # noqa: B008
        self.calls += 1
        return super().train(start, steering, **options) + self.calls / 64


@dataclass
class Failing(Counting):
    """Makes a mistake in its second training."""

    how: str = ""

    def train(self, start: Vector, steering: Steering = Steering(), **options: Any) -> Vector:  # noqa: B008
        if self.calls >= 1:
            raise DataError("its data is gone") if self.how == "data" else ZeroDivisionError("a secret")
        return super().train(start, steering, **options)


def centres(clients: int = CLIENTS) -> dict[int, Vector]:
    rng = np.random.default_rng(3)
    return {k: rng.normal(size=DIM) for k in range(clients)}


def learners(clients: int = CLIENTS) -> dict[int, Counting]:
    return {k: Counting(centre, samples=1 + k) for k, centre in centres(clients).items()}


def worker_clients(shared: Mapping[str, Any], owned: Mapping[int, Vector]) -> WorkerClients:
    """`shared` may say which client fails, and how; and how much some tamper."""
    if shared.get("start") in owned:
        raise ZeroDivisionError("a secret")
    made: dict[int, Counting] = {}
    for k, centre in owned.items():
        failing = shared.get("fails") == k
        more = {"how": shared["how"]} if failing else {}
        made[k] = (Failing if failing else Counting)(centre, samples=1 + k, **more)
    return WorkerClients(made, {k: negated for k in shared.get("tamper", ()) if k in owned})


def negated(_kind: str, residues: Any, _fields: Any) -> Any:
    return [np.negative(each) for each in residues]


def channel_of(
    algorithm: AnyAlgorithm,
    workers: int = WORKERS,
    told: list[str] | None = None,
    shared: Any = None,
    **more: Any,
) -> ProcessesChannel:
    clients = ClientFactory(worker_clients, shared or {}, centres(), preload=("protocols.catalogue",))
    return processes_sum(
        algorithm,
        learners(),
        Setting(**{"sums": 4, **more}),
        clients=clients,
        workers=workers,
        on_worker_event=([] if told is None else told).append,
    )


def main() -> None:
    """Say who works for this process, and do rounds until SIGINT, which ends it after the round."""
    stopped: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _frame: stopped.append(number))
    algorithm = RFA(dim=DIM, clients=CLIENTS, nu=0.1, steps=3)
    channel = channel_of(algorithm)
    run = Run(algorithm, channel, algorithm.start(np.zeros(DIM)))
    report = run.round()
    _say(sys.stdout, *(pid for (pid,) in channel.pids), channel.fork_server_pid)
    while not stopped:
        report = run.round()
        _say(sys.stderr, report.number)
    _say(sys.stdout, "stopped", report.completed, report.clients, *(len(pids) for pids in channel.pids))
    channel.close()


def _say(where: TextIO, *words: object) -> None:
    where.write(" ".join(map(str, words)) + "\n")
    where.flush()
