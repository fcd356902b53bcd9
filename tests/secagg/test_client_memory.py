"""What a client remembers, in memory or in a ledger: nothing is forgotten, and nothing is spent twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from secagg.client_budget import Budget, Spend
from secagg.client_memory import NEVER, AnswerEntry, Memory, VolatileMemory
from secagg.errors import BudgetExceeded, ParameterError, SessionLive, TooManySums
from secagg.ledger import ClientLedger
from secagg.noise.zcdp_cost import Adjacency

FREE = Budget()


def answer(
    name: bytes,
    *,
    group: str = "update",
    round_number: int = 0,
    charge: int | None = None,
    adjacency: Adjacency = Adjacency.ZERO_OUT,
) -> AnswerEntry:
    return AnswerEntry(
        group=group, round_number=round_number, content=name * 32, charge=charge, adjacency=adjacency
    )


@pytest.fixture(params=["volatile", "ledger"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Memory]:
    if request.param == "volatile":
        yield VolatileMemory()
        return
    with ClientLedger.create(tmp_path / "ledger", member=0) as ledger:
        yield ledger


def fill(memory: Memory) -> None:
    memory.remember_registry(3, b"d" * 32)
    memory.remember_session(b"s" * 32)
    memory.remember_answer(answer(b"q", round_number=4, charge=70), FREE)
    memory.remember_answer(answer(b"r", round_number=2), FREE)
    memory.remember_answer(answer(b"t", group="loss", round_number=(1 << 63) - 1, charge=5), FREE)


def test_a_new_memory_knows_nothing(memory: Memory) -> None:
    assert not memory.knows_session(b"s" * 32)
    assert not memory.knows_query(b"q" * 32)
    assert memory.last_round("update") == NEVER == -1
    assert memory.spend == Spend(0, 0, 0)
    assert memory.registry == (NEVER, b"")


def test_what_was_remembered_is_known(memory: Memory) -> None:
    fill(memory)
    assert memory.knows_session(b"s" * 32)
    assert not memory.knows_session(b"q" * 32)
    assert all(memory.knows_query(bytes([char]) * 32) for char in b"qrt")
    assert not memory.knows_query(b"s" * 32)
    assert memory.spend == Spend(charge=75, noised=2, unnoised=1)


def test_rounds_and_versions_never_go_back(memory: Memory) -> None:
    fill(memory)
    memory.remember_registry(2, b"e" * 32)
    memory.remember_registry(3, b"f" * 32)
    assert memory.last_round("update") == 4
    assert memory.last_round("loss") == (1 << 63) - 1
    assert memory.last_round("other") == NEVER
    assert memory.registry == (3, b"d" * 32)
    memory.remember_registry(4, b"g" * 32)
    assert memory.registry == (4, b"g" * 32)


def test_one_live_session_per_identity(memory: Memory) -> None:
    memory.open_session()
    with pytest.raises(SessionLive, match="server: this identity already takes part in a session"):
        memory.open_session()
    memory.close_session()
    memory.open_session()


def test_who_was_in_a_sum_costs_nothing(memory: Memory) -> None:
    fill(memory)
    memory.note_confirmed(b"s" * 32, 0, 5)
    assert memory.spend == Spend(charge=75, noised=2, unnoised=1)


def test_what_the_budget_does_not_allow_is_not_remembered(memory: Memory) -> None:
    fill(memory)
    before = memory.spend
    with pytest.raises(TooManySums, match="server: 1 sums without noise were answered"):
        memory.remember_answer(answer(b"u", group="new"), Budget(unnoised_sums=1))
    with pytest.raises(BudgetExceeded):
        memory.remember_answer(answer(b"u", group="new", charge=30), Budget(charge=100))
    assert memory.spend == before
    assert not memory.knows_query(b"u" * 32)
    assert memory.last_round("new") == NEVER
    memory.remember_answer(answer(b"u", charge=25), Budget(unnoised_sums=1, charge=100))
    memory.remember_answer(answer(b"v"), Budget(unnoised_sums=2, charge=100))
    assert memory.spend == Spend(charge=100, noised=3, unnoised=2)


def test_a_charge_of_another_kind_is_not_added(memory: Memory) -> None:
    memory.remember_answer(answer(b"p", adjacency=Adjacency.REPLACE), FREE)  # without noise, it has none
    memory.remember_answer(answer(b"q", charge=70, adjacency=Adjacency.ADD_REMOVE), FREE)
    memory.remember_answer(answer(b"r", charge=30, adjacency=Adjacency.ZERO_OUT), FREE)
    with pytest.raises(ParameterError, match="2 sums were charged under add-remove adjacency"):
        memory.remember_answer(answer(b"s", charge=1, adjacency=Adjacency.REPLACE), FREE)
    memory.remember_answer(answer(b"t", adjacency=Adjacency.REPLACE), FREE)
    assert memory.spend == Spend(charge=100, noised=2, unnoised=2, adjacency=Adjacency.ADD_REMOVE)
    assert not memory.knows_query(b"s" * 32)


def test_its_owner_may_use_it(memory: Memory) -> None:
    memory.check_owner(0, b"")


def test_costs_are_known_by_group() -> None:
    memory, budget = VolatileMemory(), Budget()
    for number, (group, cost) in enumerate([("a", 3), ("b", 5), ("a", 4), ("b", None)]):
        content = str(number).encode()
        memory.remember_answer(
            AnswerEntry(group=group, round_number=number, content=content, charge=cost), budget
        )
    assert [memory.charge_of(each) for each in ("a", "b", "c")] == [7, 5, 0]
