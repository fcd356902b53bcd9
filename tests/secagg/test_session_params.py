"""The terms of a session: contradictions are refused when it is opened, not when clients are waiting."""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction
from typing import Any

import pytest

from secagg.errors import ParameterError
from secagg.graph_parameters import GraphChoice
from secagg.hybrid_keys import KeyAgreement
from secagg.messages import MAX_COHORT, MAX_SUMS
from secagg.session_params import SessionParams, check_bits, check_whole, largest_cohort
from secagg.trust_levels import MAX_COMPLETE, Trust

OTHERS = ("trust", "dropout", "graph", "key_agreement", "name_members")  # fields that are no whole numbers
COUNTS = [column.name for column in fields(SessionParams) if column.name not in OTHERS]


def terms(**changes: Any) -> SessionParams:
    settings: dict[str, Any] = {
        "trust": Trust.CURIOUS,
        "sums": 3,
        "corrupt": 2,
        "dropout": Fraction(1, 10),
        "min_cohort": 6,
        "max_cohort": 10,
        "min_contributors": 4,
    }
    return SessionParams(**{**settings, **changes})


def test_sensible_terms() -> None:
    assert terms().graph is GraphChoice.AUTO
    assert (terms().security_bits, terms().liveness_bits, terms().min_neighbours) == (40, 30, 2)
    assert terms(trust="malicious_server", graph="auto").trust is Trust.MALICIOUS
    assert terms(graph="ring", max_cohort=MAX_COHORT).max_cohort == MAX_COHORT
    assert terms(graph="auto", max_cohort=MAX_COHORT).graph is GraphChoice.AUTO
    assert terms(graph="complete", max_cohort=MAX_COMPLETE, sums=MAX_SUMS).sums == 64
    assert terms(security_bits=1, liveness_bits=1024).liveness_bits == 1024


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"trust": "server"}, "trust must be one of curious_server, malicious_server"),
        ({"key_agreement": "rsa"}, "key_agreement must be one of x25519, x25519\\+ml-kem-768"),
        ({"graph": "star"}, "graph must be one of auto, complete, ring"),
        ({"graph": "ring", "trust": Trust.MALICIOUS}, "a ring needs a curious_server"),
        ({"sums": 0}, "sums must be from 1 to 64"),
        ({"sums": MAX_SUMS + 1}, "sums must be from 1 to 64"),
        ({"corrupt": 3}, "corrupt \\+ 2 <= min_contributors <= min_cohort <= max_cohort <= 1024"),
        ({"min_contributors": 7}, "min_contributors <= min_cohort"),
        ({"min_contributors": 0}, "min_contributors <= min_cohort"),
        ({"min_cohort": 0}, "min_contributors <= min_cohort"),
        ({"max_cohort": 0}, "min_cohort <= max_cohort"),
        ({"min_cohort": 11}, "min_cohort <= max_cohort"),
        ({"max_cohort": MAX_COMPLETE + 1}, "max_cohort <= 1024 must hold"),
        ({"max_cohort": MAX_COHORT + 1, "graph": "ring"}, "max_cohort <= 1048576 must hold"),
        ({"max_cohort": MAX_COHORT + 1, "graph": "auto"}, "max_cohort <= 1048576 must hold"),
        (
            {"max_cohort": MAX_COMPLETE + 1, "graph": "auto", "trust": Trust.MALICIOUS},
            "max_cohort <= 1024 must hold",
        ),
        ({"security_bits": 0}, "security_bits must be from 1 to 1024"),
        ({"security_bits": 1025}, "security_bits must be from 1 to 1024"),
        ({"liveness_bits": 0}, "liveness_bits must be from 1 to 1024"),
        ({"liveness_bits": 1025}, "liveness_bits must be from 1 to 1024"),
        ({"dropout": 1}, "drop-out fraction"),
        ({"dropout": Fraction(-1, 10)}, "drop-out fraction"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ParameterError, match=why):
        terms(**{"graph": "complete", **changes}).check()


def test_sizes_that_are_left_out_are_the_widest_that_are_safe() -> None:
    alone = SessionParams(trust=Trust.CURIOUS, corrupt=3)
    assert (alone.min_contributors, alone.min_cohort, alone.max_cohort) == (5, 5, MAX_COHORT)
    alone.check()
    assert SessionParams(trust=Trust.MALICIOUS, corrupt=0).max_cohort == MAX_COMPLETE
    complete = SessionParams(trust=Trust.CURIOUS, corrupt=0, graph=GraphChoice.COMPLETE, min_contributors=4)
    assert (complete.min_cohort, complete.max_cohort) == (4, MAX_COMPLETE)


@pytest.mark.parametrize("value", [-1, 1.0, True, "3", None])
@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_whole_numbers(name: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=f"{name} must be a whole number of at least 0"):
        terms(**{name: value})


@pytest.mark.parametrize("value", [0, 1, "no", None])
def test_members_are_named_or_not(value: Any) -> None:
    with pytest.raises(ParameterError, match="name_members must be true or false"):
        terms(name_members=value)


def test_beyond_the_complete_graph_there_is_only_the_ring() -> None:
    assert largest_cohort(Trust.CURIOUS) == MAX_COHORT
    assert largest_cohort(Trust.MALICIOUS) == MAX_COMPLETE


def test_what_is_in_range_passes() -> None:
    for value in (0, 1, 1 << 70):
        check_whole("count", value)
    for value in (1, 40, 1024):
        check_bits("bits", value)


def test_a_key_agreement_may_be_given_by_its_name() -> None:
    assert terms().key_agreement is KeyAgreement.X25519
    assert terms(key_agreement="x25519+ml-kem-768").key_agreement is KeyAgreement.HYBRID
