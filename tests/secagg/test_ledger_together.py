"""Ledgers in use: by machines, and by several processes at once."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import messages as m
from secagg.client import ClientMachine
from secagg.client_budget import Budget, Spend, sum_charge
from secagg.client_memory import Memory, VolatileMemory
from secagg.distributed_noise import NoiseAssumptions
from secagg.errors import (
    BudgetExceeded,
    DamagedLedger,
    ForeignLedger,
    LedgerError,
    ParameterError,
    PeerError,
    SecaggError,
    SessionLive,
)
from secagg.keys import Identity
from secagg.ledger import ClientLedger, read_ledger
from secagg.ledger.rollback_seal import seal_path
from secagg.noise.zcdp_cost import Adjacency, rho_of
from secagg.query_context import content_digest, query_digest
from secagg.sum_spec import Table
from secagg.trust_levels import Trust
from tests.attacks.guards import assert_refused
from tests.attacks.rig import KIND, Rig
from tests.secagg.ledgers import NOISY, SESSION, answer, reopened

FREE = Budget()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


# --- machines --------------------------------------------------------------------------------------

SPEC = replace(NOISY, promise=NoiseAssumptions(clients=10, dropouts=2, colluders=1))
VALUES = {"loss": np.array([1, 0, 0, 0], np.uint64), "update": np.zeros(5)}
EVERYONE = range(5)


class Play:
    """A session in which client 0 has a ledger, and an attacker's hand on every frame."""

    def __init__(self, ledger: ClientLedger, **policy: Any) -> None:
        limits = {"max_cohort": 10, **policy}
        self.rig = Rig(5, Trust.CURIOUS, table=Table({KIND: SPEC}), policy_changes=limits)
        self.rig.memories[0] = ledger
        self.rig.restart()
        self.cohort = self.rig.set_up(threshold=3, nonce=ledger.head.hash)
        self.machine = self.rig.machines[0]

    def query(self, sum_index: int) -> bytes:
        frame = self.rig.query(
            self.cohort, sum_index, EVERYONE, payload=bytes([sum_index]), round_number=sum_index
        )
        self.rig.send(0, frame)
        return frame

    def sum(self, sum_index: int) -> bytes:
        frame = self.query(sum_index)
        self.machine.answer(sum_index, VALUES)
        return frame

    def confirm(self, sum_index: int) -> list[m.Message]:
        return self.rig.send(0, self.rig.survivors(self.cohort, sum_index, EVERYONE))

    @property
    def cost(self) -> int:
        found = sum_charge(SPEC, roster=5, adjacency=self.rig.policy.adjacency)
        assert found is not None
        return found


def test_an_answer_is_charged_before_it_leaves(path: Path) -> None:
    with ClientLedger.create(path, member=0) as ledger:
        play = Play(ledger)
        frame = play.query(0)
        assert ledger.spend == Spend()
        play.machine.answer(0, VALUES)
        assert ledger.spend == Spend(charge=play.cost, noised=1)
        assert ledger.knows_query(content_digest(KIND, b"\0"))
        body = read_ledger(path).rows[-1].body
    assert (body["entry"], body["group"], body["round"], body["charge"]) == ("answer", KIND, 0, play.cost)
    told = body["sum"]
    assert (told["session"], told["query"]) == (play.cohort.session.hex(), query_digest(frame).hex())
    assert (told["cohort"], told["roster"], told["spec"]) == (5, 5, SPEC.digest.hex())


def test_who_was_in_the_sum_is_written_down_afterwards(path: Path) -> None:
    with ClientLedger.create(path, member=0) as ledger:
        play = Play(ledger)
        play.sum(0)
        play.confirm(0)
        body = read_ledger(path).rows[-1].body
    session = play.cohort.session.hex()
    assert body == {"entry": "confirmed", "session": session, "sum index": 0, "contributors": 5}


def test_a_budget_lasts_longer_than_a_session(path: Path) -> None:
    with ClientLedger.create(path, member=0) as ledger:
        play = Play(ledger)
        limit = rho_of(2 * play.cost)
        play.sum(0)
        play.machine.leave()
    with reopened(path, member=0) as ledger:
        play = Play(ledger, max_rho=limit)
        play.sum(1)
        play.confirm(1)
        with pytest.raises(BudgetExceeded, match="that this client ever spends"):
            play.query(2)
        assert_refused(play.machine)
        assert ledger.spend == Spend(charge=2 * play.cost, noised=2)


def test_what_was_spent_elsewhere_since_the_query_counts(path: Path) -> None:
    """The budget allowed the sum when it was asked, and allows it no longer when it is to be answered."""
    with ClientLedger.create(path, member=0) as ledger, reopened(path, member=0) as other:
        play = Play(ledger, max_rho=1.0)
        play.query(0)
        other.remember_answer(answer(7, charge=1 << 40), FREE)
        with pytest.raises(BudgetExceeded):
            play.machine.answer(0, VALUES)
        assert_refused(play.machine)
        assert ledger.spend == Spend(charge=1 << 40, noised=1)


def test_a_machine_without_its_ledger_stays_silent(path: Path) -> None:
    ledger = ClientLedger.create(path, member=0)
    play = Play(ledger)
    play.query(0)
    ledger.close()
    with pytest.raises(LedgerError, match="was closed"):
        play.machine.answer(0, VALUES)
    assert_refused(play.machine)


def test_a_note_that_cannot_be_written_fails_no_sum(path: Path) -> None:
    with ClientLedger.create(path, member=0) as ledger, reopened(path, member=0) as other:
        play = Play(ledger)
        play.sum(0)
        ledger._file._live.execute("PRAGMA busy_timeout = 0")
        other._file._live.execute("BEGIN IMMEDIATE")
        (reveal,) = play.confirm(0)
        assert isinstance(reveal, m.Reveal)
        other._file._live.execute("ROLLBACK")
        assert read_ledger(path).rows[-1].body["entry"] == "answer"


def machine(memory: Memory, *, member: int = 0, trust: Trust = Trust.CURIOUS, **policy: Any) -> ClientMachine:
    """A client of a rig of five, with this memory."""
    rig = Rig(5, trust, table=Table({KIND: SPEC}), policy_changes={"max_cohort": 10, **policy})
    rig.memories[member] = memory
    return rig.new_client(member, seed=b"seed")


def test_a_machine_does_not_charge_the_ledger_of_somebody_else(path: Path) -> None:
    with ClientLedger.create(path, member=0) as ledger:
        before = ledger.head
        with pytest.raises(ForeignLedger, match="belongs to client 0, not to client 1"):
            machine(ledger, member=1)
        with pytest.raises(ForeignLedger, match="belongs to client 0, not to client 0 with key"):
            machine(ledger, trust=Trust.MALICIOUS)
        assert ledger.head == before
        machine(ledger)


def test_a_signing_machine_needs_the_ledger_of_its_identity(path: Path, tmp_path: Path) -> None:
    own, other = Rig(5, Trust.MALICIOUS).identity(0).public, Identity.generate().public
    with ClientLedger.create(path, member=0, identity=own) as ledger:
        machine(ledger, trust=Trust.MALICIOUS)
        assert ledger.registry[0] >= 0
        machine(ledger)  # where nothing is signed, the same client spends the same budget
    with ClientLedger.create(tmp_path / "other", member=0, identity=other) as ledger:
        with pytest.raises(ForeignLedger, match=f"belongs to client 0 with key {other.hex()[:16]}"):
            machine(ledger, trust=Trust.MALICIOUS)
        assert ledger.head.rows == 1


def test_a_policy_keeps_the_adjacency_of_what_was_spent(path: Path) -> None:
    with ClientLedger.create(path, member=0) as ledger:
        ledger.remember_answer(answer(1, charge=None, adjacency=Adjacency.REPLACE), FREE)
        machine(ledger, adjacency="replace")
        ledger.remember_answer(answer(2), FREE)
        machine(ledger, adjacency="add-remove")
        with pytest.raises(ParameterError, match="1 sums were charged under zero-out adjacency"):
            machine(ledger, adjacency="replace")


# --- several at once -------------------------------------------------------------------------------

# (which of two ledgers, query, charge); few queries, so that some of them are repeated
TURNS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 12), st.none() | st.integers(0, 40)), max_size=25
)


def attempt(memory: Memory, number: int, charge: int | None) -> str:
    """The outcome of an answer that is asked for if the question is new."""
    if memory.knows_query(number.to_bytes(32, "big")):
        return "known"
    try:
        memory.remember_answer(answer(number, charge=charge), Budget(unnoised_sums=3, charge=100))
    except PeerError as error:
        return str(error)
    return "answered"


@settings(max_examples=50)
@given(turns=TURNS)
def test_two_ledgers_of_one_file_are_one_memory(turns: list[tuple[int, int, int | None]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, model = Path(folder) / "ledger", VolatileMemory()
        with ClientLedger.create(path, member=5) as one, reopened(path) as two:
            for which, number, charge in turns:
                expected = attempt(model, number, charge)
                assert attempt((one, two)[which], number, charge) == expected
                assert one.spend == two.spend == model.spend
            assert one.head == two.head
        assert read_ledger(path).spend == model.spend


SPENDER = """
import sys
from secagg.client_budget import Budget
from secagg.errors import BudgetExceeded
from secagg.ledger import ClientLedger
from secagg.client_memory import AnswerEntry

path, name = sys.argv[1:]
with ClientLedger.open(path, member=5) as ledger:
    print("open", flush=True)
    sys.stdin.readline()
    try:
        for number in range(1000):
            content = (name + str(number)).encode().ljust(32)
            entry = AnswerEntry(group=name, round_number=number, content=content, charge=10)
            ledger.remember_answer(entry, Budget(charge=390))
    except BudgetExceeded:
        print(number, flush=True)
"""


def test_processes_cannot_overspend_together(path: Path) -> None:
    ClientLedger.create(path, member=5).close()
    spenders = [
        subprocess.Popen(
            [sys.executable, "-c", SPENDER, path, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "abc"
    ]
    for spender in spenders:
        assert spender.stdout is not None
        assert spender.stdout.readline() == "open\n"
    for spender in spenders:  # they all begin at once
        assert spender.stdin is not None
        spender.stdin.write("\n")
        spender.stdin.flush()
    sums = [int(spender.communicate(timeout=60)[0]) for spender in spenders]
    reading = read_ledger(path)
    assert sum(sums) == 39
    assert reading.spend == Spend(charge=390, noised=39)
    so_far = [row.body["charge so far"] for row in reading.rows[1:]]
    assert so_far == [10 * k for k in range(1, 40)]


HOLDER = """
import sys
from secagg.ledger import ClientLedger

ledger = ClientLedger.open(sys.argv[1], member=5)
ledger.open_session()
print("live", flush=True)
sys.stdin.readline()
"""


def test_a_session_is_live_until_its_process_ends(path: Path) -> None:
    with ClientLedger.create(path, member=5) as ledger:
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "live\n"
            with pytest.raises(SessionLive):
                ledger.open_session()
            ledger.remember_session(SESSION)  # the ledger itself is not locked
            holder.kill()
        ledger.open_session()


def test_an_auditor_reads_while_others_write(path: Path) -> None:
    with ClientLedger.create(path, member=5) as ledger, reopened(path) as other:
        ledger.open_session()
        ledger.remember_answer(answer(1), FREE)
        other._file._live.execute("BEGIN IMMEDIATE")
        assert read_ledger(path).spend == Spend(charge=5, noised=1)
        other._file._live.execute("ROLLBACK")
        ledger.remember_answer(answer(2), FREE)
        assert read_ledger(path).spend == Spend(charge=10, noised=2)


def test_a_long_read_delays_nobodys_entry_for_good(path: Path) -> None:
    """The log cannot be emptied while somebody reads an older state; the entry is safe in it."""
    said: list[str] = []
    with ClientLedger.create(path, member=5) as ledger, reopened(path) as reader:
        reader._file._live.execute("BEGIN")
        assert reader._file._live.execute("SELECT rows FROM head").fetchone() == (1,)
        ledger._file._live.set_trace_callback(said.append)
        ledger.remember_answer(answer(1), FREE)
        ledger._file._live.set_trace_callback(None)
        emptying = said.index("PRAGMA wal_checkpoint(TRUNCATE)")
        assert said[emptying - 1] == "PRAGMA busy_timeout = 200"
        assert said[emptying + 1] == "PRAGMA busy_timeout = 20000"
        assert ledger.spend == Spend(charge=5, noised=1)
        assert reader._file._live.execute("SELECT rows FROM head").fetchone() == (1,)
        reader._file._live.execute("COMMIT")
        assert reader.spend == Spend(charge=5, noised=1)
    assert read_ledger(path).spend == Spend(charge=5, noised=1)


def test_a_log_that_could_not_be_emptied_is_vouched_for_by_the_seal(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its log the file lacks an entry that somebody acted on. The seal is on disk, and says so."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
    copies = tmp_path / "copies"
    copies.mkdir()
    with ClientLedger.create(path, member=5) as ledger, reopened(path) as reader:
        ledger.remember_answer(answer(1), FREE)
        seal = seal_path(path).stat().st_ino
        assert seal not in synced
        reader._file._live.execute("BEGIN")
        assert reader._file._live.execute("SELECT rows FROM head").fetchone() == (2,)
        ledger.remember_answer(answer(2), FREE)
        assert seal in synced
        subprocess.run(["/bin/cp", path, seal_path(path), copies], check=True)
        reader._file._live.execute("COMMIT")
    with pytest.raises(DamagedLedger, match="ledger has 2 rows, but had 3 when it was sealed"):
        reopened(copies / "ledger")


# --- threads ---------------------------------------------------------------------------------------


def together(count: int, work: Callable[[int], object]) -> list[object]:
    """What came of `work(k)` in `count` threads that begin at once; the name of an error, if it was one."""
    barrier = Barrier(count)

    def begin(number: int) -> object:
        barrier.wait()
        try:
            return work(number)
        except SecaggError as error:
            return type(error).__name__

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


def test_threads_share_a_ledger(path: Path) -> None:
    with ClientLedger.create(path, member=5) as ledger:

        def work(number: int) -> list[int]:
            seen = []
            for step in range(8):
                ledger.remember_answer(answer(100 * number + step), FREE)
                seen.append(ledger.spend.noised)
            return seen

        for seen in together(4, work):
            assert isinstance(seen, list)
            assert seen == sorted(set(seen))
        assert ledger.spend == Spend(charge=5 * 32, noised=32)
    assert read_ledger(path).spend == Spend(charge=5 * 32, noised=32)


def test_one_thread_at_a_time_is_in_a_session(path: Path) -> None:
    with ClientLedger.create(path, member=5) as ledger:
        outcomes = together(8, lambda _: ledger.open_session())
    assert sorted(map(str, outcomes)) == ["None"] + ["SessionLive"] * 7


def test_a_mistake_in_the_program_is_not_called_damage(path: Path) -> None:
    with ClientLedger.create(path, member=5) as ledger:
        ledger._file._live.execute("BEGIN")  # as if two threads were in one transaction
        with pytest.raises(LedgerError, match="cannot start a transaction within a transaction") as caught:
            ledger.remember_session(SESSION)
        assert not isinstance(caught.value, DamagedLedger)
        ledger._file._live.execute("ROLLBACK")
