"""The driver of rounds, and what a round knows of those before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.rounds import Outcome, Query, Round, RoundInfo, run_round
from protocols.serialisation import RecordError, pack, unpack
from secagg.errors import CohortChanged, MalformedMessage, SumFailed, TooFewClients
from secagg.sum_spec import Total


@dataclass(frozen=True)
class Step(Query):
    kind: ClassVar[str] = "step"
    number: int


# --- turns ---------------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), max_size=150))
def test_a_turn_knows_what_became_of_the_last_63_rounds(results: list[bool]) -> None:
    round_info = RoundInfo()
    for result in results:
        round_info = round_info.next(completed=result)
    assert round_info.number == len(results)
    for number, result in enumerate(results):
        assert round_info.completed(number) == (result or len(results) - number > 63)
    assert not round_info.completed(round_info.number)
    assert not round_info.completed(-1)
    assert unpack(RoundInfo, pack(round_info)) == round_info


@pytest.mark.parametrize(
    ("number", "history"), [(-1, 0), (0, 1), (1, 2), (5, -1), (62, 1 << 62), (99, 1 << 63)]
)
def test_a_turn_that_cannot_be(number: int, history: int) -> None:
    with pytest.raises(RecordError):
        RoundInfo(number, history)


# --- the driver ----------------------------------------------------------------------------------------

TOTAL = Total({"x": np.array([1.0])}, count=2, invited=2)


class Log:
    """Answers queries from a list, and notes what the round did."""

    def __init__(self, *answers: Total | BaseException) -> None:
        self._answers: Iterator[Total | BaseException] = iter(answers)
        self.asked: list[Query] = []
        self.seen: list[object] = []
        self.closed = False

    def ask(self, query: Query) -> Total:
        self.asked.append(query)
        answer = next(self._answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def stubborn(self, queries: int) -> Round[str]:
        """Goes on after failures."""
        try:
            for number in range(queries):
                try:
                    self.seen.append((yield Step(number)))
                except SumFailed as failure:
                    self.seen.append(failure)
            return Outcome("done", {"queries": queries})
        finally:
            self.closed = True

    def plain(self) -> Round[str]:
        try:
            self.seen.append((yield Step(7)))
            return Outcome("done")
        finally:
            self.closed = True


def test_a_round_gets_its_totals_and_returns() -> None:
    log = Log(TOTAL, TOTAL)
    assert run_round(log.stubborn(2), log.ask) == Outcome("done", {"queries": 2})
    assert log.seen == [TOTAL, TOTAL]
    assert [query.number for query in log.asked if isinstance(query, Step)] == [0, 1]


def test_a_round_may_ask_nothing() -> None:
    log = Log()
    assert run_round(log.stubborn(0), log.ask).state == "done"
    assert log.asked == []


@pytest.mark.parametrize("failure", [CohortChanged("left"), TooFewClients("few"), SumFailed("so")])
def test_failures_surface_at_the_yield(failure: SumFailed) -> None:
    log = Log(TOTAL, failure, TOTAL)
    assert run_round(log.stubborn(3), log.ask).state == "done"
    assert log.seen == [TOTAL, failure, TOTAL]


def test_a_failure_that_nobody_catches_ends_the_round() -> None:
    log, failure = Log(CohortChanged("left")), CohortChanged
    with pytest.raises(failure, match="left"):
        run_round(log.plain(), log.ask)
    assert log.closed


@pytest.mark.parametrize(
    "error", [RuntimeError("bug"), KeyboardInterrupt(), MalformedMessage("server", "odd")]
)
def test_other_exceptions_do_not_reach_the_round_which_is_closed(error: BaseException) -> None:
    log = Log(error)
    with pytest.raises(type(error)):
        run_round(log.stubborn(2), log.ask)
    assert log.seen == []
    assert log.closed


def test_a_round_that_asks_again_after_it_failed_is_asked_for_its_query() -> None:
    """A `throw` that ends at another yield is a query like any other."""
    log = Log(TooFewClients("few"), TooFewClients("few again"), TOTAL)
    assert run_round(log.stubborn(3), log.ask).facts == {"queries": 3}
    assert len(log.asked) == 3


def test_an_algorithms_own_failure_is_one_of_the_round() -> None:
    def steps() -> Round[str]:
        yield Step(7)
        raise TooFewClients("the total says nothing")

    with pytest.raises(TooFewClients, match="says nothing"):
        run_round(steps(), Log(TOTAL).ask)
