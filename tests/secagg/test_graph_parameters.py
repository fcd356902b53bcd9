"""The finder: published rows, a brute-force search in rationals, and what it says where nothing works."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import comb, log2, perm
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import graph_parameters as found_in
from secagg.errors import ParameterError
from secagg.graph_parameters import (
    CHEAP_COMPLETE,
    MAX_NEIGHBOURS,
    Form,
    GraphChoice,
    GraphParameters,
    RingParameters,
    ServerClass,
    dropout_over,
    few_corrupt_neighbours,
    graph_parameters,
    least_connected,
    most_dropped,
    part_of,
    ring_parameters,
    stays_connected,
)
from secagg.trust_levels import MAX_COMPLETE, Trust

CURIOUS, SEMI, MALICIOUS = ServerClass
AUTO, COMPLETE, RING = GraphChoice
PATH = Path(__file__).resolve().parent.parent / "vectors" / "ring-parameters.json"
GROUPS: list[dict[str, Any]] = json.loads(PATH.read_text(encoding="ascii"))["groups"]


# --- vectors ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One row of the file in one of its forms."""

    form: Form
    sigma: int
    eta: int
    row: dict[str, Any]

    def __str__(self) -> str:
        parts = (self.row[key] for key in ("clients", "corrupt", "dropout", "server"))
        return "-".join(map(str, (self.form, self.eta, *parts, self.row.get("sums", 1))))

    @property
    def clients(self) -> int:
        return int(self.row["clients"])

    @property
    def corrupt(self) -> int:
        return part_of(self.clients, Fraction(self.row["corrupt"]))

    @property
    def dropped(self) -> int:
        return part_of(self.clients, dropout_over(self.row.get("sums", 1), Fraction(self.row["dropout"])))

    def find(self) -> RingParameters:
        return ring_parameters(
            self.clients,
            corrupt=self.corrupt,
            dropped=self.dropped,
            server=ServerClass(self.row["server"]),
            form=self.form,
            sigma=self.sigma,
            eta=self.eta,
        )


def rows() -> Iterator[Row]:
    for group in GROUPS:
        for form in group["forms"]:
            for row in group["rows"]:
                yield Row(Form(form), group["sigma"], group["eta"], row)


def feasible() -> list[Row]:
    return [row for row in rows() if row.row["neighbours"] is not None]


def marked(row: Row) -> Any:
    """A search through thousands of neighbours is quick, but not while coverage is being measured."""
    marks = [pytest.mark.slow] if row.row["neighbours"] > 5000 else []
    return pytest.param(row, marks=marks, id=str(row))


@pytest.mark.parametrize("row", [marked(row) for row in feasible()])
def test_row(row: Row) -> None:
    found = row.find()

    assert (found.neighbours, found.threshold) == (row.row["neighbours"], row.row["threshold"])
    for bound, bits in (
        (found.log2_corrupt, row.sigma + 1),
        (found.log2_disconnected, row.sigma + 1),
        (found.log2_unrecoverable, row.eta),
    ):
        assert bound is None or bound <= -bits


@pytest.mark.parametrize("row", [row for row in rows() if row.row["neighbours"] is None], ids=str)
def test_row_without_a_solution(row: Row) -> None:
    with pytest.raises(ParameterError, match="tolerate fewer of either"):
        row.find()


@pytest.mark.parametrize("row", [row for row in rows() if "log2" in row.row], ids=str)
def test_row_with_logarithms(row: Row) -> None:
    found = row.find()
    corrupt, disconnected, unrecoverable = row.row["log2"]

    assert found.log2_corrupt == pytest.approx(corrupt, abs=0.005)
    assert found.log2_disconnected == pytest.approx(disconnected, abs=0.05)
    assert found.log2_unrecoverable == pytest.approx(unrecoverable, abs=0.05)


def test_published_rows_that_differ_do_not_meet_their_bound() -> None:
    """All have four neighbours of ten clients, three of whom drop out, and need two of the four to stay."""
    published = [row for row in rows() if "published" in row.row]
    assert {(*row.row["published"], row.clients, row.dropped) for row in published} == {(4, 2, 10, 3)}

    lost = tail(10, 3, 4, 3)

    assert lost == Fraction(7, 210)
    assert 10 * lost > Fraction(1, 2**20)


def test_file_has_every_kind_of_row() -> None:
    kinds = {(row.form, ServerClass(row.row["server"])) for row in feasible()}

    assert kinds == {(form, server) for form in Form for server in (CURIOUS, SEMI)}
    assert len(feasible()) < len(list(rows()))


# --- a brute-force search ---------------------------------------------------------------------------


def tail(population: int, marked: int, drawn: int, count: int) -> Fraction:
    ways = sum(
        comb(marked, x) * comb(population - marked, drawn - x) for x in range(max(0, count), drawn + 1)
    )
    return Fraction(ways, comb(population, drawn))


def gaps(clients: int, neighbours: int, missing: int) -> Fraction:
    pairs = Fraction(clients * (clients - neighbours - 1), 2)
    return pairs * perm(missing, neighbours) / perm(clients, neighbours)


@dataclass(frozen=True)
class Case:
    clients: int
    corrupt: int
    dropped: int
    server: ServerClass
    form: Form
    sigma: int
    eta: int

    def bounds(self, neighbours: int, threshold: int) -> tuple[Fraction, Fraction, Fraction]:
        """The probabilities, straight from the definitions."""
        n, k = self.clients, neighbours
        split = 2 * threshold - k if self.server is SEMI else threshold
        if self.form is Form.EXACT:
            corrupt = n * tail(n - 1, self.corrupt, k, split)
            survive = n * (1 - tail(n - 1, n - self.dropped - 1, k, threshold))
        else:
            corrupt = n * tail(n, self.corrupt, k, split)
            survive = n * (1 - tail(n, n - self.dropped, k, threshold))
        return corrupt, gaps(n, k, self.corrupt + self.dropped), survive

    def works(self, neighbours: int, threshold: int) -> bool:
        corrupt, disconnected, unrecoverable = self.bounds(neighbours, threshold)
        half = Fraction(1, 2 ** (self.sigma + 1))
        return corrupt <= half and disconnected < half and unrecoverable <= Fraction(1, 2**self.eta)

    def brute_force(self, least: int) -> tuple[int, int] | None:
        return next(
            (
                (k, t)
                for k in range(least + least % 2, self.clients, 2)
                for t in range(2, k + 1)
                if self.works(k, t)
            ),
            None,
        )

    def find(self, least: int) -> RingParameters:
        return ring_parameters(
            self.clients,
            corrupt=self.corrupt,
            dropped=self.dropped,
            server=self.server,
            form=self.form,
            sigma=self.sigma,
            eta=self.eta,
            min_neighbours=least,
        )


@st.composite
def cases(pick: st.DrawFn) -> Case:
    """With few bits, so that small rings have a chance."""
    clients = pick(st.integers(3, 26))
    corrupt = pick(st.integers(0, clients // 2))
    return Case(
        clients,
        corrupt,
        pick(st.integers(0, clients - max(1, corrupt))),
        pick(st.sampled_from([CURIOUS, SEMI])),
        pick(st.sampled_from(Form)),
        pick(st.sampled_from([1, 2, 5, 40])),
        pick(st.sampled_from([1, 3, 30])),
    )


@given(cases(), st.data())
@settings(deadline=None, max_examples=300)
def test_brute_force_finds_the_same(case: Case, data: st.DataObject) -> None:
    least = data.draw(st.integers(2, case.clients - 1))
    expected = case.brute_force(least)
    if expected is None:
        with pytest.raises(ParameterError):
            case.find(least)
        return

    found = case.find(least)

    assert (found.neighbours, found.threshold) == expected
    logarithms = (found.log2_corrupt, found.log2_disconnected, found.log2_unrecoverable)
    for bound, logarithm in zip(case.bounds(*expected), logarithms, strict=True):
        if bound == 0:
            assert logarithm is None
        else:
            assert logarithm == pytest.approx(log2(bound.numerator) - log2(bound.denominator), abs=1e-9)


def test_more_neighbours_may_be_worse() -> None:
    case = Case(301, 77, 62, SEMI, Form.EXACT, 1, 1)

    assert [case.find(least).neighbours for least in (2, 94, 96, 98)] == [94, 94, 98, 98]
    assert not any(case.works(96, threshold) for threshold in range(2, 97))


def test_drop_out_that_ties_with_its_bound_is_within_it() -> None:
    # Two drop out and may both be among a client's four neighbours: n P = 12 / (n - 1), which is 2^-20 here.
    clients = 12 * 2**20 + 1
    within, beyond = (
        ring_parameters(clients, corrupt=2, dropped=2, form=Form.GOOGLE, eta=eta) for eta in (20, 21)
    )

    assert (within.neighbours, within.threshold) == (4, 3)
    assert within.log2_unrecoverable == pytest.approx(-20)
    assert (beyond.neighbours, beyond.threshold) == (6, 3)


# --- what clients check -----------------------------------------------------------------------------


@given(st.integers(3, 60), st.data())
@settings(deadline=None)
def test_halves_of_the_check_are_the_definitions(clients: int, data: st.DataObject) -> None:
    neighbours = 2 * data.draw(st.integers(1, (clients - 1) // 2))
    threshold = data.draw(st.integers(2, neighbours + 1))
    corrupt = data.draw(st.integers(0, clients - 1))
    dropped = data.draw(st.integers(0, clients))
    sigma = data.draw(st.sampled_from([1, 2, 5, 20, 40]))
    limit = Fraction(1, 2 ** (sigma + 1))

    few = clients * tail(clients - 1, corrupt, neighbours, threshold) <= limit
    # If nobody is left, there is nothing to connect, and nothing to vouch for either.
    whole = gaps(clients, neighbours, min(clients, corrupt + dropped)) < limit

    assert few_corrupt_neighbours(clients, neighbours, threshold, corrupt=corrupt, sigma=sigma) is few
    assert stays_connected(clients, neighbours, corrupt=corrupt, dropped=dropped, sigma=sigma) is whole


CHECKED = [row for row in feasible() if row.form is Form.EXACT and row.row["server"] == CURIOUS]


@pytest.mark.parametrize("row", CHECKED, ids=str)
def test_clients_accept_what_the_finder_finds_and_no_lower_threshold(row: Row) -> None:
    found = row.find()
    corrupt, sigma = row.corrupt, row.sigma

    assert few_corrupt_neighbours(
        row.clients, found.neighbours, found.threshold, corrupt=corrupt, sigma=sigma
    )
    assert stays_connected(row.clients, found.neighbours, corrupt=corrupt, dropped=row.dropped, sigma=sigma)
    lower = found.threshold - 1
    assert lower < 2 or not few_corrupt_neighbours(
        row.clients, found.neighbours, lower, corrupt=corrupt, sigma=sigma
    )


@pytest.mark.parametrize(("clients", "neighbours", "missing", "sigma"), [(25, 22, 23, 1), (49, 46, 47, 2)])
def test_gaps_that_tie_with_their_bound_are_not_below_it(
    clients: int, neighbours: int, missing: int, sigma: int
) -> None:
    assert gaps(clients, neighbours, missing) == Fraction(1, 2 ** (sigma + 1))

    assert not stays_connected(clients, neighbours, corrupt=missing, dropped=0, sigma=sigma)
    assert stays_connected(clients, neighbours, corrupt=missing, dropped=0, sigma=sigma - 1)


@given(st.integers(3, 200), st.data())
@settings(deadline=None)
def test_integers_and_floats_agree_on_gaps(clients: int, data: st.DataObject) -> None:
    neighbours = 2 * data.draw(st.integers(1, (clients - 1) // 2))
    corrupt = data.draw(st.integers(0, clients - 1))
    sigma = data.draw(st.integers(1, 60))
    by_floats = stays_connected(clients, neighbours, corrupt=corrupt, dropped=0, sigma=sigma)
    with pytest.MonkeyPatch.context() as patch:
        # Floats that could be off by their own size leave every decision to the integers.
        patch.setattr(found_in, "ROUNDING", 1.0)
        assert stays_connected(clients, neighbours, corrupt=corrupt, dropped=0, sigma=sigma) is by_floats


@given(st.integers(3, 300), st.data())
@settings(deadline=None)
def test_least_connected_is_the_least(clients: int, data: st.DataObject) -> None:
    neighbours = 2 * data.draw(st.integers(1, (clients - 1) // 2))
    corrupt = data.draw(st.integers(0, clients - 1))
    sigma = data.draw(st.sampled_from([1, 5, 40]))

    def holds(survivors: int) -> bool:
        dropped = clients - survivors
        return stays_connected(clients, neighbours, corrupt=corrupt, dropped=dropped, sigma=sigma)

    least = least_connected(clients, neighbours, corrupt=corrupt, sigma=sigma)

    assert corrupt < least <= clients + 1
    assert all(holds(survivors) for survivors in range(least, clients + 1))
    assert least == corrupt + 1 or not holds(least - 1)


@given(st.integers(3, 200), st.data())
@settings(deadline=None)
def test_most_dropped_is_the_most(clients: int, data: st.DataObject) -> None:
    neighbours = 2 * data.draw(st.integers(1, (clients - 1) // 2))
    threshold = data.draw(st.integers(2, neighbours + 1))
    eta = data.draw(st.sampled_from([1, 5, 30]))
    most = most_dropped(clients, neighbours, threshold, eta=eta)

    def recovers(dropped: int) -> bool:
        spare = neighbours - threshold + 1
        return clients * tail(clients - 1, dropped, neighbours, spare) <= Fraction(1, 2**eta)

    assert -1 <= most < clients
    assert most == -1 or recovers(most)
    assert most == clients - 1 or not recovers(most + 1)


def test_strictest_policy() -> None:
    found = ring_parameters(10**4, corrupt=100, dropped=100, sigma=1024, eta=1024)

    assert stays_connected(10**4, found.neighbours, corrupt=100, dropped=100, sigma=1024)
    for threshold, few in ((found.threshold, True), (found.threshold - 1, False)):
        assert few_corrupt_neighbours(10**4, found.neighbours, threshold, corrupt=100, sigma=1024) is few


# --- counts -----------------------------------------------------------------------------------------


def test_dropout_adds_up_exactly() -> None:
    assert dropout_over(1, Fraction(1, 3)) == Fraction(1, 3)
    assert dropout_over(5, Fraction(1, 10)) == Fraction(40951, 100000)
    assert dropout_over(64, Fraction(0)) == 0


def test_part_is_rounded_down_exactly() -> None:
    # In binary, 0.29 * 100 is less than 29.
    assert part_of(100, Fraction("0.29")) == 29
    assert part_of(10, Fraction(1, 3)) == 3


# --- which graph ------------------------------------------------------------------------------------


def choose(clients: int, server: ServerClass, graph: GraphChoice = AUTO, **more: Any) -> GraphParameters:
    wanted: dict[str, Any] = {"corrupt": clients // 20, "dropped": clients // 10} | more
    return graph_parameters(clients, server=server, graph=graph, **wanted)


@pytest.mark.parametrize(
    ("clients", "server", "graph"),
    [
        (2, CURIOUS, COMPLETE),
        (CHEAP_COMPLETE, CURIOUS, COMPLETE),
        (CHEAP_COMPLETE, SEMI, COMPLETE),
        (CHEAP_COMPLETE + 1, CURIOUS, RING),
        (CHEAP_COMPLETE + 1, SEMI, RING),
        (CHEAP_COMPLETE + 1, MALICIOUS, COMPLETE),
        (MAX_COMPLETE, MALICIOUS, COMPLETE),
        (MAX_COMPLETE + 1, CURIOUS, RING),
    ],
)
def test_automatic_choice(clients: int, server: ServerClass, graph: GraphChoice) -> None:
    assert choose(clients, server).graph is graph


@pytest.mark.parametrize(
    ("clients", "more"),
    [
        (200, {"corrupt": 66, "dropped": 66}),  # no ring at all
        (201, {"corrupt": 67, "dropped": 66}),  # one with 200 neighbours
        (500, {"min_neighbours": 498}),
    ],
)
def test_ring_that_saves_nothing_is_not_chosen(clients: int, more: dict[str, Any]) -> None:
    assert choose(clients, SEMI, **more).graph is COMPLETE


def test_ring_of_all_the_others_where_a_ring_is_asked_for() -> None:
    found = choose(201, SEMI, RING, corrupt=67, dropped=66)

    assert found == GraphParameters(200, 134, None, None, None, graph=RING)


def test_ring_has_the_least_neighbours_wanted() -> None:
    found = choose(1000, CURIOUS, min_neighbours=101)

    assert (found.graph, found.neighbours) == (RING, 102)
    assert found.log2_corrupt is not None
    assert found.log2_corrupt > -45  # the threshold is the least for so many


@pytest.mark.parametrize(
    ("server", "trust"), [(CURIOUS, Trust.CURIOUS), (SEMI, Trust.MALICIOUS), (MALICIOUS, Trust.MALICIOUS)]
)
def test_complete_graph_has_the_threshold_of_the_machines(server: ServerClass, trust: Trust) -> None:
    threshold = trust.choose_threshold(600, corrupt=30, dropout=Fraction(1, 10))

    assert choose(600, server, COMPLETE) == GraphParameters(599, threshold, None, None, None, graph=COMPLETE)


def test_server_classes_go_by_the_names_of_trust() -> None:
    assert {str(trust) for trust in Trust} < {str(server) for server in ServerClass}
    assert GraphChoice.parse("ring") is RING


# --- where there is nothing to find -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("clients", "more", "sentence"),
    [
        (2, {}, "a ring takes from 3 to 1000000000 clients, not 2"),
        (10**9 + 1, {}, "a ring takes from 3 to 1000000000 clients, not 1000000001"),
        (50, {"corrupt": -1}, "must not be negative"),
        (50, {"dropped": -1}, "must not be negative"),
        (
            50,
            {"corrupt": 20, "dropped": 29},
            "20 corrupt and 29 dropped of 50 clients leave no two honest ones",
        ),
        (50, {"sigma": 0}, "sigma and eta must be from 1 to 1024"),
        (50, {"eta": 1025}, "sigma and eta must be from 1 to 1024"),
        (50, {"min_neighbours": 0}, "each has from 2 to 49 neighbours, not 0"),
        (50, {"min_neighbours": 50}, "each has from 2 to 49 neighbours, not 50"),
        (
            50,
            {"corrupt": 24, "dropped": 24},
            "no ring of 50 clients with up to 49 neighbours withstands 24 corrupt",
        ),
        (50, {"server": MALICIOUS}, "can surround a client: take the complete graph"),
    ],
)
def test_no_ring(clients: int, more: dict[str, Any], sentence: str) -> None:
    wanted: dict[str, Any] = {"corrupt": 0, "dropped": 0, "server": CURIOUS, "graph": RING}
    with pytest.raises(ParameterError, match=sentence):
        graph_parameters(clients, **wanted | more)


def test_search_ends_at_the_cap() -> None:
    with pytest.raises(ParameterError, match=f"with up to {MAX_NEIGHBOURS} neighbours"):
        ring_parameters(10**9, corrupt=5 * 10**8 - 1, dropped=5 * 10**8 - 1)


def test_search_ends_where_gaps_alone_need_too_many_neighbours() -> None:
    with pytest.raises(ParameterError, match="no ring of 100 clients"):
        ring_parameters(100, corrupt=0, dropped=98)


@pytest.mark.parametrize(
    ("clients", "more", "sentence"),
    [
        (1, {}, "takes from 2 to 1024 clients, not 1"),
        (1025, {}, "takes from 2 to 1024 clients, not 1025"),
        (50, {"corrupt": -1}, "must not be negative"),
        (50, {"dropped": -1}, "must not be negative"),
        (
            50,
            {"corrupt": 40, "dropped": 25},
            "need 46 survivors under semi_malicious_server, but 25 dropped leave 25",
        ),
    ],
)
def test_no_complete_graph(clients: int, more: dict[str, int], sentence: str) -> None:
    with pytest.raises(ParameterError, match=sentence):
        choose(clients, SEMI, COMPLETE, **more)


def test_unknown_graph() -> None:
    with pytest.raises(ParameterError, match="graph must be one of auto, complete, ring"):
        GraphChoice.parse("star")
