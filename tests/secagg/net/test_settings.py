"""What an operator sets is checked when it is set, not when it is first needed."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest

from secagg.errors import ParameterError
from secagg.net.settings import DAY, Capacity, Deadlines, Patience
from secagg.transitions import COLLECTED, ServerState


@pytest.mark.parametrize("settings", [Deadlines, Patience])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, DAY + 1, True, "60", None])
def test_seconds_are_a_number_above_0_and_at_most_a_day(settings: Any, value: object) -> None:
    for column in fields(settings):
        with pytest.raises(ParameterError, match=column.name):
            settings(**{column.name: value})


@pytest.mark.parametrize("settings", [Deadlines, Patience])
@pytest.mark.parametrize("value", [1, 0.001, DAY])
def test_any_other_number_of_seconds_will_do(settings: Any, value: float) -> None:
    for column in fields(settings):
        assert getattr(settings(**{column.name: value}), column.name) == value


def test_every_stage_has_its_deadline() -> None:
    deadlines = Deadlines(join=1, share=2, mask=3, confirm=4, reveal=5)
    assert [deadlines.of(state) for state in COLLECTED] == [1, 2, 2, 3, 4, 5]
    assert list(COLLECTED) == [
        ServerState.INVITING,
        ServerState.SHARING,
        ServerState.DEPOSITING,
        ServerState.MASKING,
        ServerState.CONFIRMING,
        ServerState.UNMASKING,
    ]


@pytest.mark.parametrize(
    "wrong", [{"uploads": 0}, {"strangers": 0}, {"uploads": -1}, {"slowest": 0}, {"slowest": math.nan}]
)
def test_a_server_takes_on_something(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match="at least 1"):
        Capacity(**wrong)


def test_the_least_that_a_server_takes_on() -> None:
    assert Capacity(uploads=1, strangers=1, slowest=0.5) == Capacity(uploads=1, strangers=1, slowest=0.5)
