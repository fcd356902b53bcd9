"""The bars of the page of benchmarks: each holds up to what is promised, and not beyond it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.cores import Rates
from benchmarks.page import page_text
from benchmarks.page_measurements import Survey
from benchmarks.peers import Row
from benchmarks.promised_limits import bars, verdict
from tests.benchmarks.reports import FLOWER, made_up_survey, without_flower

pytestmark = pytest.mark.slow  # measures real sums


def worse(field: str, **changes: Any) -> Callable[[], Survey]:
    """The survey with one report changed: the last one, if there are several."""

    def change() -> Survey:
        found: Any = made_up_survey()
        reports = getattr(found, field)
        if isinstance(reports, list):
            changed: Any = [*reports[:-1], replace(reports[-1], **changes)]
        else:
            changed = replace(reports, **changes)
        survey: Survey = replace(found, **{field: changed})
        return survey

    return change


def worse_beside_flower() -> Survey:
    found = made_up_survey()
    return replace(
        found, rows=[Row(replace(row.ours, server_unmask_cpu_s=12.9), FLOWER) for row in found.rows]
    )


def test_bars_that_just_hold() -> None:
    assert [bar for bar in bars(made_up_survey()) if not bar.holds] == []
    assert verdict(made_up_survey()) == "all 17 bars hold"
    assert "**does not hold**" not in page_text(made_up_survey(), "page")


def test_nothing_is_promised_of_a_flower_that_is_not_there() -> None:
    assert verdict(without_flower()) == "all 16 bars hold"


def test_beside_two_processes_stands_what_the_cores_allow() -> None:
    """It is no bar, and it moves none: whatever the cores do, two thirds are too many."""
    mask = 100 * 4 + 8  # with the hidden count
    found = replace(made_up_survey(), cores=Rates(one=17_000.0 * mask, two=20_000.0 * mask))

    index, bar = next((k, bar) for k, bar in enumerate(bars(found)) if "2 processes / 1" in bar.figure)
    beside = bars(found)[index + 1]

    assert (bar.sum, bar.bar) == (beside.sum, "at most 0.65")
    assert beside.figure == "its masks as bare AES and additions, 2 processes / 1"
    assert beside.measured == "0.850 ms / 1.00 ms = 0.850; ours is 0.765 of it"
    assert not beside.bar
    slower = [replace(each, server_unmask_wall_s=67.0) for each in found.two_processes]
    assert verdict(replace(found, two_processes=slower)).startswith("1 of 17 bars do not hold")


@pytest.mark.parametrize(
    ("change", "figure"),
    [
        (worse("by_dim", exact=False), "total equals"),
        (worse("by_dim", client_mask_cpu_s=1.41), "client mask / limit"),
        (worse("by_dim", server_unmask_cpu_s=1.61), "server unmask / limit"),
        (worse("by_dim", bytes_up=103), "bytes up / ideal"),
        (worse("narrow", exact=False), "total equals"),
        (worse("narrow", client_mask_cpu_s=1.71), "client mask / limit"),
        (worse("narrow", bytes_up=103), "bytes up / ideal"),
        (worse("crowd", exact=False), "total equals"),
        (worse("crowd", server_peak_bytes=86_001), "server peak"),
        (worse("by_clients", exact=False), "total equals"),
        (worse("by_clients", client_mask_cpu_s=3.01), "client mask"),
        (worse("by_clients", client_setup_cpu_s=6.01), "client set-up"),
        (worse("two_processes", exact=False), "total equals"),
        (worse("one_process", server_unmask_wall_s=99.0), "server unmask by the clock"),
        (worse("encoding", encode_noise_cpu_s=150.1), "client encode / rounding, transform and draw"),
        (worse("encoding", transform_cpu_s=25.1), "transform / log2(d) additions"),
        (worse_beside_flower, "server unmask, Flower / ours"),
    ],
)
def test_bar_that_does_not_hold(change: Callable[[], Survey], figure: str) -> None:
    found = change()

    (bar,) = [bar for bar in bars(found) if not bar.holds]
    assert bar.figure.startswith(figure)
    first, second = verdict(found).splitlines()
    assert first == "1 of 17 bars do not hold"
    assert bar.measured in second
    assert page_text(found, "page").count("**does not hold**") == 1
