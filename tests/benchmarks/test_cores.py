"""What two processes of bare AES reach: blocks are counted in one period, by whoever works."""

import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from threading import Thread

import pytest

from benchmarks import cores
from benchmarks.cores import BLOCK, Cores, Rates, labour

pytestmark = pytest.mark.slow  # measures real sums


def test_blocks_are_counted_within_the_period_alone() -> None:
    """In a thread of this process: a tenth of a second of run-up, of which nothing is to be seen."""
    here, there = Pipe()
    worker = Thread(target=labour, args=(there,))
    worker.start()
    assert here.recv() is None
    now = time.monotonic()
    for begin, end in ((now, now), (now + 0.1, now + 0.1), (now, now + 0.2)):
        here.send((begin, end))
    empty, run_up, counted = (here.recv() for _ in range(3))
    here.close()
    worker.join()
    assert (empty, run_up) == (0, 0)
    assert counted > 0


def test_processes_end_with_the_context() -> None:
    with Cores() as pair:
        pair.sample()
        found = pair.rates()
        assert all(process.is_alive() for process in pair._processes)
    assert not any(process.is_alive() for process in pair._processes)
    assert found.one > 0
    assert found.two > 0


def test_the_best_of_each_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    answers = iter([100.0, 150.0, 80.0, 160.0, 90.0, 120.0])

    def rate(_: Cores, pipes: list[Connection]) -> float:
        asked.append(len(pipes))
        return next(answers)

    monkeypatch.setattr(Cores, "_rate", rate)
    with Cores() as pair:
        for _ in range(3):
            pair.sample()
        found = pair.rates()

    assert asked == [1, 2] * 3
    assert found == Rates(100.0, 160.0)
    assert found.ratio == 0.625


def test_blocks_of_all_processes_make_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake:
        def __init__(self, blocks: int) -> None:
            self.told: list[tuple[float, float]] = []
            self._blocks = blocks

        def send(self, period: tuple[float, float]) -> None:
            self.told.append(period)

        def recv(self) -> int:
            return self._blocks

    pipes = [Fake(3), Fake(4)]
    monkeypatch.setattr(cores, "_PERIOD", 0.5)
    with Cores() as pair:
        assert pair._rate(pipes) == 7 * BLOCK / 0.5  # type: ignore[arg-type]  # as much of a pipe as is used
    assert pipes[0].told == pipes[1].told
    ((begin, end),) = pipes[0].told
    assert end - begin == pytest.approx(0.5)
