"""Inconsistent models and inconsistent kinds of sums: masks are bound to the query and to its spec."""

from __future__ import annotations

from typing import Any

import pytest

from secagg import client_checks, query_context
from secagg.errors import BadSignature, CorruptTotal
from secagg.keys import mask_context
from secagg.sum_spec import Part, Residue, SumSpec, Table
from secagg.trust_levels import Trust
from tests.attacks.attackers.two_questions import TwoQuestions
from tests.attacks.guards import BOTH, allow, assert_refused
from tests.attacks.rig import KIND, PART, Rig

TARGET = 2


def unbind(monkeypatch: pytest.MonkeyPatch, *fields: str) -> None:
    """Leave `fields` out of what masks are derived from."""

    def loose(**bound: Any) -> bytes:
        return mask_context(**{**bound, **dict.fromkeys(fields, b"")})

    monkeypatch.setattr(query_context, "mask_context", loose)


def two_models(trust: Trust) -> tuple[Rig, TwoQuestions]:
    rig = Rig(5, trust)
    return rig, TwoQuestions(rig, TARGET, threshold=3)


@pytest.mark.parametrize("trust", BOTH)
def test_masks_that_ignore_the_query_give_the_target_away(
    trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under `malicious_server` too: the consistency round alone does not stop it."""
    unbind(monkeypatch, "query")
    rig, attack = two_models(trust)
    assert (attack.total() == rig.vectors[TARGET]).all()


@pytest.mark.parametrize("trust", BOTH)
def test_two_models_give_noise(trust: Trust) -> None:
    _, attack = two_models(trust)
    with pytest.raises(CorruptTotal):
        attack.total()


def test_the_target_does_not_unmask_for_those_who_saw_another_model() -> None:
    rig, attack = two_models(Trust.MALICIOUS)
    with pytest.raises(BadSignature) as caught:
        attack.confirm_to_target()
    assert caught.value.peer == 0
    assert_refused(rig.machines[TARGET])


def test_a_target_that_trusts_any_signature_unmasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_checks, "check_confirmations", allow)
    rig, attack = two_models(Trust.MALICIOUS)
    attack.confirm_to_target()
    assert rig.machines[TARGET].state.value == "ready"


# --- two kinds of one table ------------------------------------------------------------------------


def two_kinds(trust: Trust) -> tuple[Rig, TwoQuestions]:
    """The decoy is a kind of sum with the layout of the bait, to which clients answer zeros."""
    part = Part(name=PART, size=4, bits=32, bound=Residue())
    table = Table({KIND: SumSpec(parts=(part,)), "probe": SumSpec(parts=(part,), times=2)})
    rig = Rig(5, trust, table=table)
    return rig, TwoQuestions(rig, TARGET, threshold=3, bait=(KIND, b""), decoy=("probe", b""))


@pytest.mark.parametrize("trust", BOTH)
def test_masks_that_ignore_query_and_spec_give_the_target_away(
    trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two guards overlap: the kind is part of the query, and its spec is bound once more."""
    unbind(monkeypatch, "query", "spec")
    rig, attack = two_kinds(trust)
    assert (attack.total() == rig.vectors[TARGET]).all()


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize("unbound", [(), ("query",), ("spec",)])
def test_two_kinds_give_noise(
    trust: Trust, unbound: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either of the two guards is enough."""
    unbind(monkeypatch, *unbound)
    _, attack = two_kinds(trust)
    with pytest.raises(CorruptTotal):
        attack.total()


def test_the_target_does_not_unmask_for_those_who_were_asked_another_kind() -> None:
    rig, attack = two_kinds(Trust.MALICIOUS)
    with pytest.raises(BadSignature):
        attack.confirm_to_target()
    assert_refused(rig.machines[TARGET])
