"""In sums with noise, a server learns nothing from who declines, and nobody looks at values unpaid."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from secagg import usable_values as module
from secagg.client_budget import Budget
from secagg.client_memory import AnswerEntry
from secagg.distributed_noise import NoiseAssumptions
from secagg.errors import BudgetExceeded, GroupReopened, InputError, StateError
from secagg.events import Asked
from secagg.ledger import ClientLedger, read_ledger
from secagg.sum_spec import SumSpec
from secagg.transitions import ClientState
from secagg.trust_levels import Trust
from secagg.usable_values import UsableValues, usable_values
from tests.attacks.attackers.noise_attacks import LIMIT, noise_table
from tests.attacks.attackers.silence import SilenceReader, Source, reply, reply_without_rules
from tests.attacks.guards import BOTH, assert_refused
from tests.attacks.rig import PART, Rig

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = range(5)
PROMISE = NoiseAssumptions(clients=len(CLIENTS), dropouts=1, colluders=0)
WITHIN, BEYOND = [LIMIT] * 4, [LIMIT, LIMIT + 1, 0, 0]


def rig_of(trust: Trust = Trust.CURIOUS, **settings: Any) -> Rig:
    return Rig(len(CLIENTS), trust, sums=3, table=noise_table(PROMISE, **settings))


def constant(values: object) -> Source:
    return lambda: {PART: values}


def failing() -> Mapping[str, Any]:
    raise ZeroDivisionError


SOURCES: dict[int, Source] = {
    0: constant(WITHIN),
    1: constant(BEYOND),
    2: constant(WITHIN),
    3: failing,
    4: constant([1]),
}
TELLING = {1, 3, 4}


def unchanged(_: SumSpec, compute: Callable[[], Any]) -> UsableValues:
    return UsableValues(compute())


# --- who declines ----------------------------------------------------------------------------------


@pytest.mark.parametrize("trust", BOTH)
def test_clients_that_decline_show_whose_values_do_not_fit(trust: Trust) -> None:
    rig = rig_of(trust)
    reader = SilenceReader(rig, rig.set_up(threshold=4))
    for number in range(3):
        assert reader.suspects(SOURCES, reply_without_rules, sum_index=number) == TELLING
    # Whose code failed has paid nothing. The machine alone sees to it that the others have.
    assert [rig.memories[member].spend.noised for member in CLIENTS] == [3, 3, 3, 0, 3]


@pytest.mark.parametrize("trust", BOTH)
def test_values_that_are_not_made_usable_show_the_same(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "usable_values", unchanged)
    rig = rig_of(trust)
    assert SilenceReader(rig, rig.set_up(threshold=4)).suspects(SOURCES) == TELLING


@pytest.mark.parametrize("trust", BOTH)
def test_all_clients_answer_alike_and_pay_alike(trust: Trust) -> None:
    rig = rig_of(trust)
    reader = SilenceReader(rig, rig.set_up(threshold=4))
    for number in range(3):
        assert reader.suspects(SOURCES, sum_index=number) == set()
    assert len(reader.sizes) == 1
    assert {rig.memories[member].spend.noised for member in CLIENTS} == {3}


# --- what is paid, and when ------------------------------------------------------------------------


class Asking:
    """One client with a ledger on disk that was asked for sum 0."""

    def __init__(self, path: Path, trust: Trust = Trust.CURIOUS) -> None:
        self.path = path
        self.rig = rig_of(trust)
        self._identity = self.rig.identity(0).public if trust is Trust.MALICIOUS else b""
        self.rig.memories[0] = ClientLedger.create(path, member=0, identity=self._identity)
        self.rig.restart()
        self.cohort = self.rig.set_up(threshold=4)
        self.query = self.rig.query(self.cohort, 0, self.cohort.ids)
        self.client = self.rig.machines[0]
        (asked,) = self.client.receive(self.query).events
        assert isinstance(asked, Asked)
        self.asked = asked

    def reopen(self) -> ClientLedger:
        memory = self.rig.memories[0]
        assert isinstance(memory, ClientLedger)
        memory.close()
        return ClientLedger.open(self.path, member=0, identity=self._identity)


@pytest.mark.parametrize("trust", BOTH)
def test_the_ledger_on_disk_has_the_cost_when_values_are_computed(trust: Trust, tmp_path: Path) -> None:
    asking = Asking(tmp_path / "ledger", trust)
    seen: list[int] = []

    def source() -> Mapping[str, Any]:
        seen.append(read_ledger(asking.path).spend.noised)
        raise SystemExit

    reply(asking.client, asking.asked, source)

    assert seen == [1]
    with asking.reopen() as ledger:
        assert ledger.spend.noised == 1
        assert ledger.spend.rho > 0


@pytest.mark.parametrize("trust", BOTH)
def test_a_client_that_dies_in_its_own_code_has_paid_and_is_not_asked_again(
    trust: Trust, tmp_path: Path
) -> None:
    """Whatever ends the computation: the machine is gone, and only the ledger is left."""
    asking = Asking(tmp_path / "ledger", trust)
    asking.client.charge(0)
    with asking.reopen() as ledger:
        assert ledger.spend.noised == 1
        asking.rig.memories[0] = ledger
        asking.rig.restart(seed=b"again")
        cohort = asking.rig.set_up(threshold=4, nonce=b"n" * 32)
        with pytest.raises(GroupReopened):
            asking.rig.machines[0].receive(asking.rig.query(cohort, 0, cohort.ids))


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.attacks.attackers.silence import reply
from tests.attacks.test_silence import Asking

asking = Asking(Path(sys.argv[1]))
reply(asking.client, asking.asked, lambda: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_a_process_that_is_killed_in_its_own_code_has_paid(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], cwd=ROOT, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    with ClientLedger.open(path, member=0) as ledger:
        assert ledger.spend.noised == 1


# --- the machine's step ----------------------------------------------------------------------------


def test_an_answer_is_paid_for_once(tmp_path: Path) -> None:
    asking = Asking(tmp_path / "ledger")
    asking.client.charge(0)
    asking.client.charge(0)
    asking.client.answer(0, {PART: WITHIN})
    assert asking.client.state is ClientState.MASKED
    with asking.reopen() as ledger:
        assert ledger.spend.noised == 1


def test_the_next_sum_is_paid_for_too() -> None:
    rig = rig_of()
    cohort = rig.set_up(threshold=4)
    for number in range(2):
        payload = b"%d" % number
        rig.send(0, rig.query(cohort, number, cohort.ids, payload=payload, round_number=number))
        rig.machines[0].charge(number)
        assert rig.memories[0].spend.noised == number + 1


def test_values_that_do_not_fit_are_paid_for_and_may_be_replaced() -> None:
    rig = rig_of()
    cohort = rig.set_up(threshold=4)
    rig.send(0, rig.query(cohort, 0, cohort.ids))
    client = rig.machines[0]
    for _ in range(2):
        with pytest.raises(InputError):
            client.answer(0, {PART: BEYOND})
        assert rig.memories[0].spend.noised == 1
    assert client.state is ClientState.ASKED
    client.answer(0, usable_values(rig.table["vector"], constant(BEYOND)).values)
    assert rig.memories[0].spend.noised == 1


def test_a_sum_with_a_bare_part_is_paid_for_by_its_answer() -> None:
    """Which sums a static answer must be compared with is known only from its values."""
    rig = rig_of(bare=True)
    cohort = rig.set_up(threshold=4)
    rig.send(0, rig.query(cohort, 0, cohort.ids))
    client = rig.machines[0]
    with pytest.raises(StateError, match="sum 0 has a part without noise"):
        client.charge(0)
    with pytest.raises(InputError):
        client.answer(0, {PART: BEYOND, "bare": [1]})
    assert (client.state, rig.memories[0].spend.sums) == (ClientState.ASKED, 0)
    client.answer(0, {PART: WITHIN, "bare": [1]})
    assert rig.memories[0].spend.unnoised == 1


def test_nothing_is_paid_without_a_question() -> None:
    rig = rig_of()
    cohort = rig.set_up(threshold=4)
    rig.send(0, rig.query(cohort, 0, cohort.ids))
    with pytest.raises(StateError, match="sum 1 is not being asked"):
        rig.machines[0].charge(1)
    assert rig.memories[0].spend.sums == 0


def test_a_client_that_cannot_pay_leaves_before_it_looks_at_its_values() -> None:
    """Another process of this identity has spent the rest since the query was checked."""
    terms = {"max_rho": 100.0}
    rig = Rig(len(CLIENTS), Trust.CURIOUS, table=noise_table(PROMISE), policy_changes=terms)
    cohort = rig.set_up(threshold=4)
    rig.send(0, rig.query(cohort, 0, cohort.ids))
    spent = AnswerEntry(group="other", round_number=0, content=b"other", charge=64 << 40)
    rig.memories[0].remember_answer(spent, Budget())
    with pytest.raises(BudgetExceeded):
        rig.machines[0].charge(0)
    assert_refused(rig.machines[0])
