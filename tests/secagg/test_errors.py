"""The tree of errors: whose fault, who, and what now."""

from __future__ import annotations

import pytest

from secagg import errors
from secagg.errors import (
    CorruptTotal,
    Dispute,
    Disputed,
    FalseDealing,
    FalseDeposit,
    FalseWord,
    InputError,
    Lie,
    LocalError,
    MalformedMessage,
    PeerError,
    PolicyError,
    SecaggError,
    SpecError,
    SumFailed,
    Unrecoverable,
    WrongShare,
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


def test_a_failed_sum_names_all_who_lied() -> None:
    lies = [FalseDealing(3, 1), WrongShare(5, 2)]
    error = Unrecoverable(lies)
    assert error.liars == tuple(lies)
    text = "client 3: its shares do not open what it published"
    assert str(error) == f"{text}; client 5: a share of client 2 that it cannot have accepted"
    assert CorruptTotal("why").liars == ()
    assert CorruptTotal("why", lies).liars == tuple(lies)
    assert str(CorruptTotal("why", lies)) == "why"


def test_a_lie_names_what_it_is_about() -> None:
    assert (FalseDealing(3, 1).peer, FalseDealing(3, 1).column) == (3, 1)
    assert (WrongShare(5, 2).peer, WrongShare(5, 2).dealer) == (5, 2)
    for kind, what in ((FalseWord, "mask"), (FalseDeposit, "deposit")):
        lie = kind(5, 2)
        assert (lie.peer, lie.other, str(lie)) == (5, 2, f"client 5: a false {what} for client 2")


def test_a_dispute_convicts_neither_of_the_two() -> None:
    dispute = Dispute(5, 2)
    assert (dispute.peer, dispute.other, str(dispute)) == (5, 2, "client 5: is in dispute with client 2")
    assert not isinstance(dispute, Lie)
    error = Disputed([(1, 2), (3, 4)], signed=True)
    assert error.pairs == ((1, 2), (3, 4))
    assert str(error) == "2 pairs of clients contradict each other"
