"""Killed at any moment, no ledger says less than what was released, and the run goes on from it."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from secagg.errors import DamagedLedger, NewerLedger
from secagg.ledger import read_ledger
from tests.sims.ledger_run import CHARGE, MEMBERS

ROOT = Path(__file__).resolve().parent.parent.parent
NAMES = ["server", *(f"client-{member}" for member in MEMBERS)]


def start(folder: Path, *sums: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.sims.ledger_run", str(folder), *sums],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def killed(folder: Path, rng: random.Random) -> list[int]:
    """Start a run, kill it somewhere; the rounds whose totals it had handed over."""
    with start(folder) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(rng.randrange(1, 6))]
        with suppress(subprocess.TimeoutExpired):  # a moment that has nothing to do with what it printed
            process.wait(rng.random() * 0.1)
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
    assert process.returncode == -signal.SIGKILL
    assert lines[0] == "ready\n"
    return [int(line.split()[1]) for line in lines[1:] if line.endswith("\n")]


def spends(folder: Path) -> dict[str, int]:
    """What every ledger that exists by now says was spent."""
    return {name: read_ledger(folder / name).spend.charge for name in NAMES if (folder / name).exists()}


def flip(path: Path, position: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def altered(ledger: Path, folder: Path, rng: random.Random) -> int | None:
    """What a copy with one altered bit says was spent; None if it is refused."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file in ledger.parent.glob(f"{ledger.name}*"):
        shutil.copy(file, folder)
    copy = folder / ledger.name
    flip(copy, rng.randrange(copy.stat().st_size), rng.randrange(8))
    try:
        return read_ledger(copy).spend.charge
    except (DamagedLedger, NewerLedger):
        return None


def check_kills(folder: Path, scratch: Path, kills: int) -> None:
    assert CHARGE > 0
    rng = random.Random(kills)
    released: list[int] = []
    before = dict.fromkeys(NAMES, 0)
    for _ in range(kills):
        released += killed(folder, rng)
        after = spends(folder)
        if released:
            assert set(after) == set(NAMES)
        for name, spent in after.items():
            assert spent >= len(released) * CHARGE
            assert spent >= before[name]
            assert altered(folder / name, scratch, rng) in (None, spent)
        before.update(after)
    assert len(set(released)) == len(released)  # nothing was asked twice
    with start(folder, "4") as process:
        assert process.stdout is not None
        rounds = [int(line.split()[1]) for line in process.stdout.readlines()[1:]]
    assert process.returncode == 0
    assert rounds == list(range(rounds[0], rounds[0] + 4))
    assert rounds[0] > max(released, default=-1)
    assert spends(folder) == {name: spent + 4 * CHARGE for name, spent in before.items()}
    for name in NAMES:
        for _ in range(20):
            assert altered(folder / name, scratch, rng) is None


@pytest.mark.slow  # starts several runs
def test_a_run_survives_being_killed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    check_kills(tmp_path / "run", tmp_path / "scratch", 8)


@pytest.mark.slow
def test_a_run_survives_being_killed_fifty_times(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    check_kills(tmp_path / "run", tmp_path / "scratch", 50)
