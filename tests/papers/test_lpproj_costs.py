"""What rounds cost in numbers, bits and bytes: by the paper's rule, and as they are sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from papers.lpproj_costs import (
    Cost,
    built,
    by_the_papers_rule,
    cost_of,
    first_round,
    read,
    value_within,
    written,
)
from sims.sweep import Record, read_records

RESULTS = Path(__file__).parents[2] / "papers" / "results"
LP_1: dict[str, Any] = {"name": "lp-proj-1", "subspace": 42}


def record(algorithm: dict[str, Any], *, dim: int = 610, clients: int = 100, asked: int = 10) -> Record:
    result = {"dim": dim, "samples": {str(k): 100 for k in range(clients)}}
    settings = {"algorithm": algorithm, "cohort": {"per_round": asked}}
    return Record("", {}, settings, result)


@pytest.mark.parametrize(
    ("algorithm", "dim", "training", "drawn", "rounds", "published"),
    [
        ({"name": "fedavg", "clip": 1.0}, 610, 10, 10, 49, 597_800),
        ({"name": "fedavg", "clip": 1.0}, 94_862, 25, 25, 94, 445_851_400),
        (LP_1, 610, 100, 10, 1, 4_620),
        (LP_1, 610, 100, 10, 71, 328_020),
        ({**LP_1, "subspace": 80}, 94_862, 248, 25, 8, 174_720),
        ({**LP_1, "subspace": 80}, 94_862, 248, 25, 9, 196_560),
        ({"name": "lg-fedavg", "clip": 1.0, "shared_part": "-6262:"}, 94_862, 248, 25, 135, 230_786_010),
    ],
)
def test_published_totals_are_whole_rounds_by_the_papers_rule(
    algorithm: dict[str, Any], dim: int, training: int, drawn: int, rounds: int, published: int
) -> None:
    found = built(algorithm, dim=dim, clients=training)
    assert rounds * by_the_papers_rule(found, training=training, writing=drawn) == published


def test_compressed_baselines_are_counted_as_in_the_authors_program() -> None:
    sketch = built({"name": "sketch", "clip": 1.0}, dim=610, clients=10)
    assert by_the_papers_rule(sketch, training=10, writing=10) == 10 * (40 * 7 + 4 * 10 + 2 * 10 + 4 * 10)
    levels = built({"name": "quantised", "reach": 1.0, "bucket": 5}, dim=610, clients=10)
    each = (610 + 32 * 122 + 3 * 610) / 32
    assert by_the_papers_rule(levels, training=10, writing=10) == pytest.approx(2 * 10 * each)


def test_what_is_sent_follows_from_the_sums() -> None:
    """Ten steps either way of ten clients: from 0 to 100, which is seven bits."""
    cost = cost_of(record(LP_1), drawn=10)
    assert (cost.numbers, cost.elements, cost.payload) == (10 * 84, 10 * 42, 10 * 42 * 7)
    assert cost.counted == 20 * 42
    assert cost.bytes_up > cost.payload / 8
    assert cost.bytes_down > 10 * 42 * 8
    everybody = cost_of(record(LP_1, asked=100), drawn=10)
    assert everybody.payload == 100 * 42 * 10  # from 0 to 1000
    assert everybody.counted == 110 * 42
    assert (cost.lasts, everybody.lasts) == (1, 64)


def test_who_works_alone_sends_nothing() -> None:
    cost = cost_of(record({"name": "local"}), drawn=10)
    assert (cost.numbers, cost.payload, cost.sent(100)) == (0, 0, 0)


def test_every_vector_of_a_query_is_read() -> None:
    asked, exact = built({"name": "sketch", "clip": 1.0}, dim=610, clients=10).sums()
    assert (read(asked, 610), read(exact, 610)) == (610, 40)
    assert (written(asked), written(exact)) == (280, 40)


def test_sessions_are_paid_by_all_their_rounds() -> None:
    cost = Cost(1, 1, 1, 1, bytes_up=10, bytes_down=0, set_up=100, lasts=4)
    assert [cost.sent(rounds) for rounds in (1, 4, 5)] == [35, 140, 175]


def test_targets_and_budgets() -> None:
    rounds, values = [0, 1, 2, 3], [0.9, 0.1, 0.6, 0.5]
    assert first_round(rounds, values, 0.6) == 2
    assert first_round(rounds, values, 0.7) is None
    assert value_within(rounds, values, each=10, budget=29) == (2, 0.6)
    assert value_within(rounds, values, each=10, budget=9) is None


def test_real_machines_send_as_many_bytes() -> None:
    found = {
        each.cell["method"]: each
        for each in read_records(RESULTS / "lpproj-secure.jsonl")
        if each.cell["channel.kind"] == "secure"
    }
    assert found.keys() == {"lp-proj-1", "lp-proj-2"}
    for each in found.values():
        sent = sum(each.result["bytes_up"].values())
        assert cost_of(each, drawn=10).sent(each.settings["rounds"]) == pytest.approx(sent, rel=0.01)
