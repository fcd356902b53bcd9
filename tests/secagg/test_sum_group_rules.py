"""Groups: one private vector, one set of clients, as many sums as declared."""

from __future__ import annotations

import pytest

from secagg.bitmap import PositionSet
from secagg.client_budget import Budget
from secagg.client_memory import AnswerEntry, VolatileMemory
from secagg.errors import GroupChanged, GroupReopened, TooManySums
from secagg.sum_group_rules import GroupBook
from secagg.sum_spec import Count, Part, SumSpec, Table

PART = Part(name="x", size=1, bits=8, bound=Count(1))
TABLE = Table(
    {
        "first": SumSpec(parts=(PART,), group="g"),
        "later": SumSpec(parts=(PART,), times=2, group="g"),
        "alone": SumSpec(parts=(PART,)),
    }
)
ROSTER = PositionSet((0, 1, 3))


@pytest.fixture
def memory() -> VolatileMemory:
    return VolatileMemory()


@pytest.fixture
def book(memory: VolatileMemory) -> GroupBook:
    return GroupBook(TABLE, memory)


def answer(book: GroupBook, kind: str, round_number: int = 1, survivors: PositionSet = ROSTER) -> None:
    """A sum that went well."""
    book.check_new(kind, round_number)
    book.check_roster(kind, round_number, survivors)
    book.answer(kind, round_number)
    book.confirm(kind, round_number, survivors)


def remember(memory: VolatileMemory, round_number: int) -> None:
    entry = AnswerEntry(group="g", round_number=round_number, content=bytes([round_number]), charge=None)
    memory.remember_answer(entry, Budget())


def test_a_first_sum_may_be_over_anybody(book: GroupBook) -> None:
    assert not book.continues("first", 1)
    assert not book.missed_confirmation("first", 1)
    book.check_new("first", 1)
    book.check_roster("first", 1, PositionSet((5, 6)))


def test_a_later_sum_continues_its_group_in_its_round_only(book: GroupBook) -> None:
    answer(book, "first")
    assert book.continues("later", 1)
    assert not book.continues("later", 2)
    assert not book.continues("alone", 1)


@pytest.mark.parametrize("positions", [(0, 1), (0, 1, 2), (0, 1, 2, 3), (0, 1, 3, 4), ()])
def test_a_later_sum_is_over_the_confirmed_survivors_or_not_at_all(
    book: GroupBook, positions: tuple[int, ...]
) -> None:
    roster = PositionSet(positions)
    answer(book, "first")
    book.check_roster("later", 1, ROSTER)
    with pytest.raises(GroupChanged, match="not the last confirmed survivor set"):
        book.check_roster("later", 1, roster)
    book.check_roster("alone", 1, roster)
    book.check_roster("later", 2, roster)


def test_the_last_confirmed_set_counts(book: GroupBook) -> None:
    """The caller refuses survivors that differ within a group; should they, the smaller set stays."""
    answer(book, "first")
    book.answer("later", 1)
    book.confirm("later", 1, PositionSet((0, 1)))
    book.check_roster("later", 1, PositionSet((0, 1)))
    with pytest.raises(GroupChanged):
        book.check_roster("later", 1, ROSTER)


def test_an_answer_without_confirmation_leaves_us_in_the_dark(book: GroupBook) -> None:
    book.answer("first", 1)
    assert book.missed_confirmation("later", 1)
    assert not book.missed_confirmation("later", 2)
    book.confirm("first", 1, ROSTER)
    assert not book.missed_confirmation("later", 1)
    book.answer("later", 1)
    assert book.missed_confirmation("later", 1)


def test_each_kind_is_answered_as_often_as_declared(book: GroupBook) -> None:
    for kind in ("later", "first", "later"):
        answer(book, kind)
    for kind in ("first", "later"):
        with pytest.raises(TooManySums, match=f"kind '{kind}' was answered as often as declared"):
            book.check_new(kind, 1)
        book.check_new(kind, 2)
    answer(book, "alone")
    with pytest.raises(TooManySums):
        book.check_new("alone", 1)


def test_a_closed_group_stays_closed(book: GroupBook) -> None:
    answer(book, "first")
    book.close("first", 1)
    with pytest.raises(GroupReopened, match="group 'g' of round 1 was closed"):
        book.check_new("later", 1)
    assert not book.missed_confirmation("later", 1)
    book.check_new("later", 2)
    book.check_new("alone", 1)


def test_a_group_can_be_closed_before_it_began(book: GroupBook) -> None:
    book.close("first", 1)
    with pytest.raises(GroupReopened, match="was closed"):
        book.check_new("later", 1)
    book.check_new("first", 2)


def test_a_group_that_is_in_the_dark_and_closed_is_closed(book: GroupBook) -> None:
    book.answer("first", 1)
    book.close("first", 1)
    assert not book.missed_confirmation("first", 1)
    with pytest.raises(GroupReopened):
        book.check_new("first", 1)


@pytest.mark.parametrize("round_number", [0, 6, 7])
def test_a_group_of_an_earlier_session_is_over(
    book: GroupBook, memory: VolatileMemory, round_number: int
) -> None:
    """Rounds count up; what memory has seen of a group cannot be taken up again by another session."""
    remember(memory, 7)
    with pytest.raises(GroupReopened, match=f"group 'g' of round {round_number} is over"):
        book.check_new("first", round_number)
    book.check_new("first", 8)
    book.check_new("alone", round_number)


def test_rounds_under_other_terms_are_counted_from_the_beginning(memory: VolatileMemory) -> None:
    mine, other = (GroupBook(Table(TABLE.kinds, terms=terms), memory) for terms in (b"mine", b"other"))
    group = Table(TABLE.kinds, terms=b"mine").remembered_group("first")
    memory.remember_answer(AnswerEntry(group=group, round_number=7, content=b"c", charge=None), Budget())
    with pytest.raises(GroupReopened):
        mine.check_new("later", 7)
    other.check_new("later", 0)


def test_an_earlier_round_cannot_be_taken_up_again(book: GroupBook, memory: VolatileMemory) -> None:
    for round_number in (1, 2):
        answer(book, "first", round_number)
        remember(memory, round_number)
    with pytest.raises(GroupReopened, match="round 1 is over"):
        book.check_new("later", 1)
    book.check_new("later", 2)


def test_what_a_server_asks_its_own_book(book: GroupBook) -> None:
    assert not book.is_closed("first", 1)
    assert book.confirmed("first", 1) is None
    book.answer("first", 1)
    assert book.confirmed("later", 1) is None
    book.confirm("first", 1, ROSTER)
    assert book.confirmed("later", 1) == ROSTER
    assert book.confirmed("later", 2) is None
    assert not book.is_closed("later", 1)
    book.close("later", 1)
    assert book.is_closed("first", 1)
    assert not book.is_closed("first", 2)
