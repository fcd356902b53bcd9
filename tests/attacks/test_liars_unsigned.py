"""Liars that do not sign what they say: the server excludes them at once. If it accepted their messages, it
could convict them of the lie, but prove nothing to anybody else, or every other client would refuse."""

from __future__ import annotations

from typing import Any, Final

import pytest

from secagg import admission_and_attendance, errors, signed_answers
from secagg.evidence_examiner import examine
from secagg.keys import verify
from secagg.trust_levels import Trust
from tests.attacks.attackers.liars import (
    UnsignedClient,
    UnsignedConfirmation,
    UnsignedCount,
    UnsignedDealing,
    UnsignedDeposit,
    UnsignedShares,
    UnsignedWords,
)
from tests.attacks.court import HYBRID, TABLE, Court, one

SIZE, CORRUPT, LIAR = 10, 2, 3
DROPPED: Final = {"away": [(LIAR, "mask")], "key_agreement": HYBRID}

# The liar, how it lies, other settings, and what it would be convicted of.
LIES: Final[dict[str, tuple[type[UnsignedClient], dict[str, Any], dict[str, Any], type[errors.Lie]]]] = {
    "count": (UnsignedCount, {}, {}, errors.FalseCount),
    "words": (UnsignedWords, {"first": CORRUPT + 1}, {}, errors.ManyDisputes),
    "shares": (UnsignedShares, {"dealers": [7]}, {}, errors.WrongShare),
    "dealing": (UnsignedDealing, {}, {}, errors.FalseDealing),
    "deposit": (UnsignedDeposit, {"targets": [7], "in_tag": False}, DROPPED, errors.FalseDeposit),
}
every_lie = pytest.mark.parametrize("lie", LIES)


def tried(lie: str) -> Court:
    kind, how, settings, _ = LIES[lie]
    return Court(Trust.MALICIOUS, SIZE, CORRUPT, one(kind, **how), **settings)


def believe(patch: pytest.MonkeyPatch, purpose: str) -> None:
    """A server that does not verify the signatures for one purpose."""

    def lenient(key: bytes, signature: bytes, why: str, *fields: bytes, peer: errors.Peer) -> None:
        if why != purpose:
            verify(key, signature, why, *fields, peer=peer)

    patch.setattr(signed_answers, "verify", lenient)
    patch.setattr(admission_and_attendance, "verify", lenient)


@every_lie
def test_a_liar_that_does_not_sign_is_excluded_before_its_lie_counts(lie: str) -> None:
    court = tried(lie)
    court.ask()
    assert court.excluded == {LIAR: errors.BadSignature}
    assert court.convicted == {}
    court.ask_all()


@every_lie
def test_without_the_check_of_a_signature_there_is_no_proof(
    lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, *_, offence = LIES[lie]
    believe(monkeypatch, kind.purpose)
    court = tried(lie)
    court.ask_until_convicted()
    assert court.convicted == {LIAR: offence}
    (conviction,) = court.convictions
    registry = court.server._registry
    assert conviction.evidence is not None
    assert registry is not None
    with pytest.raises(errors.Unproven):
        examine(conviction.evidence, registry=registry, table=TABLE, corrupt=CORRUPT)


# --- signatures for everybody ------------------------------------------------------------------------


def test_a_confirmation_without_a_signature_costs_its_sender_its_place() -> None:
    court = Court(Trust.MALICIOUS, SIZE, CORRUPT, one(UnsignedConfirmation))
    court.ask()
    assert LIAR in court.session.contributors  # its input was added before
    assert court.excluded == {LIAR: errors.BadSignature}
    court.ask_all()


def test_without_its_check_a_confirmation_without_a_signature_ends_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All others are shown it, and refuse."""
    believe(monkeypatch, "survivors")
    court = Court(Trust.MALICIOUS, SIZE, CORRUPT, one(UnsignedConfirmation))
    with pytest.raises(errors.TooFewClients):
        court.ask()
    assert {type(error) for error in court.session.refusals.values()} == {errors.BadSignature}
    assert len(court.session.refusals) == SIZE
