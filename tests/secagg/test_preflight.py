"""Preflight: quorum, bits, margin and bytes, and every problem at once."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.errors import Disputed, ParameterError, TooFewClients
from secagg.graph_parameters import GraphChoice
from secagg.hybrid_keys import KeyAgreement
from secagg.input_encoding import Encoding
from secagg.local_session import LocalSession, Stage, local_machines
from secagg.preflight import Preflight, preflight
from secagg.session_params import SessionParams
from secagg.sum_spec import L2, Count, LInf, Part, Residue, SumSpec, Table
from secagg.trust_levels import Trust
from tests.attacks.attackers.liars import WordLiar
from tests.attacks.court import Court
from tests.secagg.flat_params import with_params

UPDATE = SumSpec(
    parts=(
        Part(name="update", size=1000, bits=20, bound=L2(4.0)),
        Part(name="weight", size=1, bits=33, bound=LInf(100.0)),
        Part(name="examples", size=1, bits=24, bound=Count(1000)),
        Part(name="check", size=3, bits=7, bound=Residue()),
    )
)
LOSSES = SumSpec(parts=(Part(name="histogram", size=10, bits=8, bound=Count(1)),))
TABLE = Table({"train": UPDATE, "losses": LOSSES})


def fly(table: Table = TABLE, **changes: Any) -> Preflight:
    settings: dict[str, Any] = {
        "clients": 50,
        "trust": Trust.MALICIOUS,
        "corrupt": 5,
        "dropout": 0.2,
        "sums": 3,
    }
    return preflight(table, **with_params({**settings, **changes}))


def test_a_session_that_can_work() -> None:
    report = fly()
    assert report.ok
    assert report.problems == ()
    assert (report.clients, report.trust) == (50, Trust.MALICIOUS)
    assert (report.threshold, report.quorum, report.margin) == (28, 28, 22)


def test_a_curious_server_takes_a_majority() -> None:
    report = fly(trust=Trust.CURIOUS)
    assert (report.threshold, report.quorum, report.margin) == (26, 26, 24)


def test_a_large_cohort_under_a_curious_server_meets_on_a_ring() -> None:
    report = fly(Table({"train": UPDATE}), clients=5000, trust=Trust.CURIOUS, corrupt=500, dropout=0.1)
    assert report.ok
    assert (report.graph, report.neighbours, report.threshold) == (GraphChoice.RING, 58, 31)
    # A ring holds together with 3174, but more than 516 drop-outs may leave someone without a threshold.
    assert (report.quorum, report.margin) == (3174, 516)


def test_a_graph_may_be_asked_for() -> None:
    report = fly(clients=200, trust=Trust.CURIOUS, graph="complete")
    assert (report.graph, report.neighbours, report.threshold) == (GraphChoice.COMPLETE, 199, 101)
    report = fly(clients=50, trust=Trust.CURIOUS, dropout=0.1, graph="ring")
    assert (report.graph, report.neighbours, report.threshold) == (GraphChoice.RING, 12, 6)


def test_a_ring_under_a_malicious_server_is_a_problem() -> None:
    report = fly(graph="ring")
    assert report.problems == ("a ring needs a curious_server: a malicious one could surround a client",)


def test_under_a_malicious_server_large_cohorts_have_no_graph() -> None:
    report = fly(clients=5000)
    assert (report.graph, report.threshold) == (None, None)
    assert not report.ok


def test_each_part_is_reported_with_its_bits_and_resolution() -> None:
    rows = {(row.kind, row.part): row for row in fly().parts}
    names = {"train": ["update", "weight", "examples", "check"], "losses": ["histogram"]}
    assert [*rows] == [(kind, name) for kind in names for name in names[kind]]
    assert [row.bits for row in rows.values()] == [20, 33, 24, 7, 8]
    assert [row.bits_needed for row in rows.values()] == [7, 7, 16, 1, 6]
    step = 1 / Encoding(UPDATE, cohort=50).scale(UPDATE.parts[0])
    assert rows["train", "update"].resolution == step == pytest.approx(4.0 / (((1 << 19) - 1) // 50))
    assert rows["train", "examples"].resolution is None  # whole numbers are exact
    assert rows["train", "check"].resolution is None


@pytest.mark.parametrize("trust", list(Trust))
def test_the_bytes_are_those_of_a_real_session(trust: Trust) -> None:
    """Payloads; a frame adds a header of at most 64 bytes, and the reveal a bitmap."""
    clients = 5
    report = fly(clients=clients, trust=trust, corrupt=0, dropout=0)
    server, machines = local_machines(
        table=TABLE, params=SessionParams(trust=trust, corrupt=0, dropout=0, sums=3), members=range(clients)
    )
    vector: dict[str, list[float] | list[int]] = {
        "update": [0.0] * 1000,
        "weight": [1.0],
        "examples": [1],
        "check": [1, 2, 3],
    }
    session = LocalSession(server, machines, lambda _member, _asked: vector)
    session.open()
    session.ask("train")
    up = session.bytes_up
    set_up = up[Stage.ADVERTISE] + up[Stage.SHARE]
    assert 0 <= set_up - clients * report.setup_bytes_up <= 2 * 64 * clients
    one_sum = up[Stage.MASK] + up[Stage.CONFIRM] + up[Stage.REVEAL]
    assert 0 <= one_sum - clients * report.sum_bytes_up["train"] <= 3 * 64 * clients


def test_every_problem_is_reported_at_once() -> None:
    narrow = SumSpec(
        parts=(
            Part(name="update", size=10, bits=6, bound=L2(1.0)),
            Part(name="examples", size=1, bits=64, bound=Count((1 << 64) - 1)),
        )
    )
    report = fly(Table({"train": narrow, "losses": LOSSES}), corrupt=30, sums=65)
    assert not report.ok
    assert report.threshold is None
    assert (report.quorum, report.margin) == (41, 9)
    found = "\n".join(report.problems)
    assert "50 clients with 30 colluders under malicious_server need 41 survivors" in found
    assert "part 'update' has 6 bits, but 50 clients need 7" in found
    assert "part 'examples' needs 70 bits for 50 clients, and 64 is the most" in found
    assert "a session has from 1 to 64 sums, not 65" in found
    resolutions = {row.part: row.resolution for row in report.parts}
    assert resolutions == {"update": None, "examples": None, "histogram": None}


def test_one_problem_is_reported_once() -> None:
    assert len(fly(Table({"losses": LOSSES}), dropout=0.5).problems) == 1


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sums": 0}, "from 1 to 64 sums, not 0"),
        ({"clients": 2000}, "from 2 to 1024 clients, not 2000"),
        ({"clients": 1, "corrupt": 0}, "from 2 to 1024 clients, not 1"),
        ({"clients": 5, "corrupt": 5}, "leave no client to protect"),
        (
            {"clients": 6, "corrupt": 5, "dropout": 0},
            "fewer than 7 clients may show one honest input to 5 colluders",
        ),
        ({"dropout": 0.5}, "a drop-out of 0.5 leaves 25"),
        ({"dropout": 1.5}, "at least 0 and below 1"),
    ],
)
def test_what_cannot_work_is_a_problem_and_not_an_exception(changes: dict[str, Any], why: str) -> None:
    report = fly(Table({"check": SumSpec(parts=UPDATE.parts[3:])}), **changes)
    assert not report.ok
    assert any(why in problem for problem in report.problems)
    assert report.margin >= 0
    assert report.liars >= 0


@pytest.mark.parametrize("clients", [0, -3])
def test_there_is_nothing_to_report_about_nobody(clients: int) -> None:
    with pytest.raises(ParameterError, match="at least"):
        fly(clients=clients)


@pytest.mark.parametrize("trust", list(Trust))
@pytest.mark.parametrize(("clients", "corrupt", "dropout"), [(2, 0, 0), (5, 1, 0.2), (9, 2, 0.3)])
def test_whatever_passes_runs(clients: int, corrupt: int, dropout: float, trust: Trust) -> None:
    """With as many drop-outs as were asked for, and one that deals no shares counted among them."""
    table = Table({"losses": LOSSES})
    report = fly(table, clients=clients, corrupt=corrupt, dropout=dropout, trust=trust, sums=1)
    assert report.ok
    gone = range(min(int(clients * dropout + 1e-9), report.margin))
    server, machines = local_machines(
        table=table,
        params=SessionParams(trust=trust, corrupt=corrupt, dropout=dropout, sums=1),
        members=range(clients),
    )
    session = LocalSession(
        server,
        machines,
        lambda _member, _asked: {"histogram": [1] * 10},
        absent=lambda member, stage, _: member in gone and stage is Stage.MASK,
    )
    session.open()
    total = session.ask("losses")
    assert total["histogram"].tolist() == [clients - len(gone)] * 10


@pytest.mark.parametrize("trust", list(Trust))
def test_a_trust_level_and_its_name_mean_the_same(trust: Trust) -> None:
    table = Table({"sum": SumSpec(parts=(Part(name="x", size=1, bits=32, bound=LInf(1.0)),))})
    named = preflight(table, **with_params({"clients": 100, "trust": str(trust), "corrupt": 40}))
    assert named == preflight(table, 100, SessionParams(trust=trust, corrupt=40))


def test_counts_are_whole() -> None:
    table = Table({"sum": SumSpec(parts=(Part(name="x", size=1, bits=32, bound=LInf(1.0)),))})
    with pytest.raises(ParameterError, match="clients must be a whole number"):
        preflight(table, 10.5, SessionParams(trust=Trust.CURIOUS, corrupt=0, dropout=0, sums=1))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("trust", "agreement", "setup", "each"),
    [
        (Trust.CURIOUS, KeyAgreement.X25519, 26_300, 9_807),
        (Trust.MALICIOUS, KeyAgreement.X25519, 26_493, 10_039),
        (Trust.CURIOUS, KeyAgreement.HYBRID, 154_249, 9_807),
        (Trust.MALICIOUS, KeyAgreement.HYBRID, 154_505, 10_039),
    ],
)
def test_bytes_are_those_of_the_protocols_worked_example(
    trust: Trust, agreement: KeyAgreement, setup: int, each: int
) -> None:
    table = Table({"update": SumSpec(parts=(Part(name="x", size=1000, bits=32, bound=LInf(1.0)),))})
    params = SessionParams(trust=trust, corrupt=10, dropout=0.1, sums=3, key_agreement=agreement)
    found = preflight(table, 100, params)
    assert (found.setup_bytes_up, found.sum_bytes_up["update"]) == (setup, each)


# --- liars ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "liars"),
    [
        ({}, 6),  # 22 may go: 10 as drop-outs, and two for each liar
        ({"dropout": 0}, 11),
        ({"dropout": 0.4}, 1),
        ({"corrupt": 12}, 4),
        ({"clients": 20, "dropout": 0}, 3),
        ({"min_contributors": 36}, 2),  # 14 may go
        ({"clients": 5000, "trust": Trust.CURIOUS, "corrupt": 500, "dropout": 0.1}, 8),  # on a ring
    ],
)
def test_each_liar_may_cost_an_honest_client_too(changes: dict[str, Any], liars: int) -> None:
    report = fly(Table({"train": UPDATE}), **changes)
    assert report.ok
    assert report.liars == liars
    assert bool(report.cautions) is (liars < changes.get("corrupt", 5))


def test_a_caution_is_no_problem_and_says_how_many_liars_are_too_many() -> None:
    report = fly(clients=20, corrupt=5, dropout=0)
    assert (report.ok, report.threshold, report.liars) == (True, 13, 3)
    (caution,) = report.cautions
    assert caution.startswith("if 4 of the 5 clients that may collude lie about masks, too few may be left")


def test_a_session_that_cannot_be_is_not_cautioned_too() -> None:
    report = fly(clients=6, corrupt=5)
    assert (report.ok, report.liars, report.cautions) == (False, 0, ())


@pytest.mark.parametrize("trust", list(Trust))
@pytest.mark.parametrize("least", [7, 16])
@pytest.mark.parametrize("beyond", [0, 1])
def test_as_many_liars_as_promised_leave_a_session_that_works(beyond: int, least: int, trust: Trust) -> None:
    """Each lies about one other honest client. One liar more may be the end of it."""
    settings: dict[str, Any] = {"dropout": 0, "min_contributors": least}
    report = fly(clients=20, corrupt=5, trust=trust, **settings)
    count = report.liars + beyond
    assert 0 < count < 10
    court = Court(
        trust, 20, 5, {k: (WordLiar, {"targets": [k + 10]}) for k in range(1, count + 1)}, **settings
    )
    with pytest.raises(Disputed):
        court.ask()
    assert court.excluded.keys() == {*range(1, count + 1), *range(11, count + 11)}
    if beyond:
        with pytest.raises(TooFewClients):
            court.ask()
    else:
        court.ask_all()


# --- noise ---------------------------------------------------------------------------------------------


def noisy_table(*, bits: int = 24) -> Table:
    noise = Noise(scale=1000.0, variance=Fraction(10**6))
    vector = Part(name="update", size=100, bits=bits, bound=L2(1.0), noise=noise)
    promise = NoiseAssumptions(clients=20, dropouts=3, colluders=1, removable=True)
    return Table(
        {"step": SumSpec(parts=(vector, Part(name="w", size=1, bits=8, bound=Count(1))), promise=promise)}
    )


def test_noise_limits_the_margin_and_fixes_the_resolution() -> None:
    table = noisy_table()
    report = preflight(table, 20, SessionParams(trust=Trust.MALICIOUS, corrupt=1, dropout=0.1, sums=2))
    assert report.ok
    assert report.margin == 3
    assert [row.resolution for row in report.parts] == [0.001, None]


@pytest.mark.parametrize("agreement", list(KeyAgreement))
def test_bytes_with_noise_are_those_of_a_session(agreement: KeyAgreement) -> None:
    table = noisy_table()
    params = SessionParams(trust=Trust.MALICIOUS, corrupt=1, dropout=0.1, sums=2, key_agreement=agreement)
    report = preflight(table, 20, params)
    server, clients = local_machines(table=table, params=params, members=range(20))
    session = LocalSession(server, clients, lambda *_: {"update": np.zeros(100), "w": [1]})
    session.open()
    assert sum(session.bytes_up.values()) == 20 * report.setup_bytes_up
    session.ask("step")
    assert sum(session.bytes_up.values()) == 20 * (report.setup_bytes_up + report.sum_bytes_up["step"])


@pytest.mark.parametrize("clients", [4, 21])
def test_noise_is_planned_for_so_many_clients(clients: int) -> None:
    report = preflight(
        noisy_table(), clients, SessionParams(trust=Trust.CURIOUS, corrupt=1, dropout=0, sums=1)
    )
    assert "kind 'step': its noise is planned for 5 to 20 clients" in report.problems


def test_noise_needs_its_bits() -> None:
    report = preflight(
        noisy_table(bits=10), 20, SessionParams(trust=Trust.CURIOUS, corrupt=1, dropout=0, sums=1)
    )
    assert any("part 'update' has 10 bits, but 20 clients need 13" in text for text in report.problems)
    assert report.parts[0].resolution is None


def test_noise_is_planned_for_so_many_colluders_and_drop_outs() -> None:
    report = preflight(
        noisy_table(), 20, SessionParams(trust=Trust.MALICIOUS, corrupt=4, dropout=0.2, sums=1)
    )
    assert report.problems == (
        "kind 'step': its noise is planned for 1 colluders, but 4 clients may be corrupt",
        "kind 'step': its noise is planned for 3 drop-outs, but 0.2 of all are 4",
    )
