"""Proofs: a court for every offence that evidence can prove, and what an examiner says of its evidence."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, Final

import pytest

from secagg.errors import Unproven
from secagg.evidence import Evidence, Offence, Statement
from secagg.evidence_examiner import examine
from secagg.trust_levels import Trust
from tests.attacks.attackers.bad_clients import (
    ForgingDealer,
    OutsideDealer,
    OverflowingDealer,
    ScatteringDealer,
)
from tests.attacks.attackers.liars import (
    CountLiar,
    DepositLiar,
    ShareLiar,
    WordLiar,
)
from tests.attacks.court import HYBRID, TABLE, Court, one

SIZE, CORRUPT, LIAR = 10, 2, 3
DROPPED: Final = [(LIAR, "mask")]
OTHER_DROPPED: Final = [(5, "mask")]

# The name of a case -> offence, liar, and who is away in the first sum.
CASES: Final[dict[str, tuple[Offence, Any, dict[str, Any]]]] = {
    "wrong share": (Offence.WRONG_SHARE, one(ShareLiar, dealers=[7]), {}),
    "wrong share of a drop-out": (
        Offence.WRONG_SHARE,
        one(ShareLiar, dealers=[5]),
        {"away": OTHER_DROPPED},
    ),
    "share outside the field that fits its tag": (Offence.WRONG_SHARE, one(OutsideDealer), {}),
    "false dealing": (Offence.FALSE_DEALING, one(ForgingDealer), {}),
    "false dealing of a drop-out": (Offence.FALSE_DEALING, one(ScatteringDealer), {"away": DROPPED}),
    "false dealing of a number beyond 32 bytes": (Offence.FALSE_DEALING, one(OverflowingDealer), {}),
    "false count": (Offence.FALSE_COUNT, one(CountLiar), {}),
    "false word": (Offence.FALSE_WORD, one(WordLiar, targets=[5]), {"away": OTHER_DROPPED}),
    "hybrid false word": (
        Offence.FALSE_WORD,
        one(WordLiar, targets=[5]),
        {"away": OTHER_DROPPED, "key_agreement": HYBRID},
    ),
    "false deposit": (
        Offence.FALSE_DEPOSIT,
        one(DepositLiar, targets=[7], in_tag=False),
        {"away": DROPPED, "key_agreement": HYBRID},
    ),
    "many disputes": (Offence.MANY_DISPUTES, one(WordLiar, first=CORRUPT + 1), {}),
}
every_case = pytest.mark.parametrize("case", CASES)
DEALINGS: Final = tuple(case for case, (offence, *_) in CASES.items() if offence is Offence.FALSE_DEALING)


@cache
def tried(case: str) -> Court:
    """A session in which the liar of a case was convicted."""
    _, liars, settings = CASES[case]
    court = Court(Trust.MALICIOUS, SIZE, CORRUPT, liars, **settings)
    if not court.convicted:
        court.ask_until_convicted()
    return court


def evidence_of(case: str) -> Evidence:
    (convicted,) = tried(case).convictions
    assert convicted.evidence is not None
    return convicted.evidence


def check(evidence: Evidence, case: str, *, corrupt: int = CORRUPT, **changes: Any) -> None:
    settings = {"registry": tried(case).server._registry, "table": TABLE, **changes}
    examine(evidence, corrupt=corrupt, **settings)


def refused(evidence: Evidence, case: str, **changes: Any) -> None:
    with pytest.raises(Unproven):
        check(evidence, case, **changes)


def framed_by(case: str, offence: Offence, accused: int, said: tuple[Statement, ...], *values: bytes) -> None:
    kept = evidence_of(case)
    refused(Evidence(offence, accused, kept.invitation, kept.key_list, said, values), case)


def resigned(case: str, said: Statement, **changes: Any) -> Statement:
    """A statement with these changes, signed by its signer: what a client says that signs anything."""
    changed = replace(said, **changes)
    signature = tried(case).clients[said.signer]._sign(changed.purpose, *changed.fields)
    return replace(changed, signature=signature)
