"""A client's policy: contradictions are refused when it is written, not when it is needed."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from secagg.client_budget import Budget
from secagg.errors import ParameterError
from secagg.hybrid_keys import KeyAgreement
from secagg.messages import MAX_COHORT, MAX_SUMS
from secagg.noise.zcdp_cost import Adjacency
from secagg.policy import Policy
from secagg.trust_levels import MAX_COMPLETE, Trust

OTHERS = ("trust", "max_rho", "adjacency", "key_agreement")  # fields that are no whole numbers


def policy(**changes: Any) -> Policy:
    fields: dict[str, Any] = {
        "trust": Trust.CURIOUS,
        "corrupt": 2,
        "min_cohort": 6,
        "max_cohort": 10,
        "min_contributors": 4,
        "max_sums": 3,
        "unnoised_sums": 9,
    }
    return Policy(**{**fields, **changes})


def test_a_sensible_policy() -> None:
    assert policy().max_query_bytes == 1 << 28
    assert policy(corrupt=0, min_contributors=2, min_cohort=2, max_cohort=2).max_cohort == 2
    assert policy(max_cohort=MAX_COHORT, max_sums=MAX_SUMS, unnoised_sums=0, max_query_bytes=0).max_sums == 64
    assert policy(trust=Trust.MALICIOUS, max_cohort=MAX_COMPLETE).security_bits == 40


def test_nearly_everything_must_be_decided() -> None:
    with pytest.raises(TypeError, match="7 required keyword-only arguments"):
        Policy()  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"trust": "server"}, "trust must be one of curious_server, malicious_server"),
        ({"min_contributors": 3}, "at least corrupt \\+ 2, or a total may show one honest client's input"),
        ({"min_contributors": 7}, "and at most min_cohort"),
        ({"max_cohort": 5}, "max_cohort must be from min_cohort to 1048576 under curious_server"),
        ({"max_cohort": MAX_COHORT + 1}, "max_cohort must be from min_cohort to 1048576"),
        (
            {"trust": Trust.MALICIOUS, "max_cohort": MAX_COMPLETE + 1},
            "max_cohort must be from min_cohort to 1024 under malicious_server",
        ),
        ({"max_sums": 0}, "max_sums must be from 1 to 64"),
        ({"max_sums": MAX_SUMS + 1}, "max_sums must be from 1 to 64"),
        ({"security_bits": 0}, "security_bits must be from 1 to 1024"),
        ({"security_bits": 1025}, "security_bits must be from 1 to 1024"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ParameterError, match=why):
        policy(**changes)


@pytest.mark.parametrize("value", [-1, 1.0, True, "3", None])
@pytest.mark.parametrize("name", [column.name for column in fields(Policy) if column.name not in OTHERS])
def test_nearly_everything_is_a_whole_number(name: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=f"{name} must be a whole number of at least 0"):
        policy(**{name: value})


def test_a_trust_level_may_be_given_by_its_name() -> None:
    assert policy(trust="malicious_server").trust is Trust.MALICIOUS


def test_a_key_agreement_may_be_given_by_its_name() -> None:
    assert policy().key_agreement is KeyAgreement.X25519
    assert policy(key_agreement="x25519+ml-kem-768").key_agreement is KeyAgreement.HYBRID
    with pytest.raises(ParameterError, match=r"key_agreement must be one of x25519, x25519\+ml-kem-768"):
        policy(key_agreement="ml-kem-768")


# --- privacy ----------------------------------------------------------------------------------------


def test_a_budget_for_a_lifetime() -> None:
    assert policy().budget == Budget(unnoised_sums=9, charge=None)
    assert policy(max_rho=0).budget == Budget(unnoised_sums=9, charge=0)
    assert policy(max_rho=0.75, unnoised_sums=0).budget == Budget(unnoised_sums=0, charge=3 << 38)
    assert policy(max_rho=np.float64(0.75)).budget == Budget(unnoised_sums=9, charge=3 << 38)


@pytest.mark.parametrize("value", [-1, -1e-9, float("nan"), float("inf"), True, "1"])
def test_a_privacy_budget_is_a_number(value: Any) -> None:
    with pytest.raises(ParameterError, match="max_rho must be a number of at least 0, or None for no limit"):
        policy(max_rho=value)


def test_an_adjacency_may_be_given_by_its_name() -> None:
    assert policy().adjacency is Adjacency.ZERO_OUT
    assert policy(adjacency="replace").adjacency is Adjacency.REPLACE
    with pytest.raises(ParameterError, match="adjacency must be one of zero-out, add-remove, replace"):
        policy(adjacency="nobody")
