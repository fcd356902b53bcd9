"""The tree of errors: whose fault, who, and what now."""

from __future__ import annotations

import pytest

from secagg import errors
from secagg.errors import (
    CorruptDealer,
    InputError,
    LocalError,
    MalformedMessage,
    PeerError,
    PolicyError,
    SecaggError,
    SpecError,
    SumFailed,
    Unrecoverable,
    WrongTrust,
)

CLASSES = [
    value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)
]


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_every_error_is_ours_theirs_or_nobodys(error: type[Exception]) -> None:
    faults = [LocalError, PeerError, SumFailed]
    assert issubclass(error, SecaggError)
    if error is not SecaggError:
        assert sum(issubclass(error, fault) for fault in faults) == 1
    assert error.__doc__


def test_a_peers_error_names_the_peer() -> None:
    error = MalformedMessage(12, "why")
    assert (error.peer, error.why, str(error)) == (12, "why", "client 12: why")
    assert str(MalformedMessage(0, "why")) == "client 0: why"
    assert str(WrongTrust("server", "why")) == "server: why"
    assert isinstance(WrongTrust("server", "why"), PolicyError)


def test_a_spec_error_says_how_many_bits_would_do() -> None:
    assert SpecError("why").bits_needed is None
    assert SpecError("why", bits_needed=9).bits_needed == 9
    assert str(InputError("why")) == "why"


def test_an_unrecoverable_sum_names_all_its_dealers() -> None:
    dealers = [CorruptDealer(3, "one", proven=True), CorruptDealer(5, "two", proven=False)]
    error = Unrecoverable(dealers)
    assert error.dealers == tuple(dealers)
    assert str(error) == "client 3: one; client 5: two"
    assert [dealer.proven for dealer in error.dealers] == [True, False]
