"""Both kinds of share for one peer open its input: every way to ask for the second kind."""

from __future__ import annotations

import numpy as np
import pytest

from secagg import client_checks
from secagg import messages as m
from secagg.errors import OutOfOrder, RepeatedSession, RepeatedSum, SecretReused
from secagg.shamir import SHARE_BYTES
from secagg.transitions import ClientState
from secagg.trust_levels import Trust
from tests.attacks.attackers.cheated_sum import CheatedSum
from tests.attacks.attackers.repeated_keys import repeated_key_list
from tests.attacks.attackers.repeated_session import repeated_session
from tests.attacks.attackers.repeated_sum import repeated_index, two_inputs_under_one_mask
from tests.attacks.attackers.second_request import second_request
from tests.attacks.guards import (
    BOTH,
    allow,
    allow_move,
    assert_refused,
    forget_sets,
    keep_question,
    keep_secrets,
)
from tests.attacks.rig import Rig, residue_table

VICTIM = 4
REST = range(4)
EVERYONE = range(5)

# --- a second request to unmask --------------------------------------------------------------------


@pytest.mark.parametrize("trust", BOTH)
def test_an_answered_second_request_reads_the_vector(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three guards are off: the machine stays in its sum, the vault keeps its shares, sets are forgotten."""
    forget_sets(monkeypatch)
    keep_question(monkeypatch)
    keep_secrets(monkeypatch)
    rig = Rig(5, trust)
    found = second_request(rig, rig.set_up(threshold=3), VICTIM, REST)
    assert found is not None
    assert (found == rig.vectors[VICTIM]).all()


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize("second", [REST, EVERYONE], ids=["another set", "the same set"])
def test_a_second_request_is_out_of_order(trust: Trust, second: range) -> None:
    rig = Rig(5, trust)
    with pytest.raises(OutOfOrder):
        second_request(rig, rig.set_up(threshold=3), VICTIM, second)
    assert_refused(rig.machines[0])


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize("second", [REST, EVERYONE], ids=["another set", "the same set"])
def test_the_vault_alone_refuses_a_second_request(
    trust: Trust, second: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_sets(monkeypatch)
    keep_question(monkeypatch)
    rig = Rig(5, trust)
    with pytest.raises(SecretReused):
        second_request(rig, rig.set_up(threshold=3), VICTIM, second)
    assert_refused(rig.machines[0])


@pytest.mark.parametrize("trust", BOTH)
def test_a_second_request_for_the_same_set_would_yield_nothing_new(
    trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refusing it is defence in depth: the shares are the same, and of one kind."""
    keep_question(monkeypatch)
    keep_secrets(monkeypatch)
    rig = Rig(5, trust)
    assert second_request(rig, rig.set_up(threshold=3), VICTIM, EVERYONE) is None


def test_confirmations_are_a_request_only_once() -> None:
    rig = Rig(5, Trust.MALICIOUS)
    cohort = rig.set_up(threshold=3)
    cheated = CheatedSum(rig, cohort, rig.query(cohort, 0, EVERYONE))
    cheated.ask(EVERYONE)
    cheated.reveal(EVERYONE, EVERYONE)
    with pytest.raises(OutOfOrder):
        cheated.confirm([0], EVERYONE)
    assert_refused(rig.machines[0])


@pytest.mark.parametrize("trust", BOTH)
def test_one_request_obtains_one_share_per_peer(trust: Trust) -> None:
    """A request is one set of survivors: alive and dead are complements, never lists that overlap."""
    rig = Rig(5, trust)
    cohort = rig.set_up(threshold=3)
    cheated = CheatedSum(rig, cohort, rig.query(cohort, 0, EVERYONE))
    cheated.ask(EVERYONE)
    cheated.reveal(REST, REST)
    for dealer in EVERYONE:
        kinds = [len(cheated.shares(dealer, alive=alive)) for alive in (True, False)]
        assert kinds == ([0, 4] if dealer == VICTIM else [4, 0])
    for reveals in cheated._reveals.values():
        assert all(len(reveal.shares) == 5 * SHARE_BYTES for _, reveal in reveals)


# --- secrets that serve twice ----------------------------------------------------------------------


@pytest.mark.parametrize("trust", BOTH)
def test_a_second_key_list_reads_the_vector(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dealt twice, the same secrets are in two sessions; each session alone keeps every rule.

    Where adverts are signed, a second guard is off: their signatures are bound to the invitation, and by
    the second list the client's context is that of a session.
    """
    allow_move(monkeypatch, trust, ClientState.SHARED, m.KeyList, ClientState.SHARED)
    monkeypatch.setattr(client_checks, "check_advert_signature", allow)
    rig = Rig(7, trust)
    found = repeated_key_list(rig, stay=4, threshold=4, second_threshold=2)
    assert found is not None
    assert (found == rig.vectors[0]).all()


@pytest.mark.parametrize("trust", BOTH)
def test_a_second_key_list_is_out_of_order(trust: Trust) -> None:
    rig = Rig(7, trust)
    with pytest.raises(OutOfOrder):
        repeated_key_list(rig, stay=4, threshold=4, second_threshold=2)
    assert_refused(rig.machines[0])


@pytest.mark.parametrize("trust", BOTH)
def test_a_repeated_session_reads_the_vector(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_checks, "check_new_session", allow)
    rig = Rig(5, trust)
    found = repeated_session(rig, VICTIM, threshold=3)
    assert found is not None
    assert (found == rig.vectors[VICTIM]).all()


@pytest.mark.parametrize("trust", BOTH)
def test_a_repeated_session_is_refused(trust: Trust) -> None:
    rig = Rig(5, trust)
    with pytest.raises(RepeatedSession):
        repeated_session(rig, VICTIM, threshold=3)
    assert_refused(rig.machines[0])


# --- a sum index that repeats or goes back ---------------------------------------------------------


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize(
    ("rule", "rewind"), [("check_sum_index", False), ("check_closed_sum", True)], ids=["again", "back"]
)
def test_a_repeated_sum_index_reads_the_vector(
    trust: Trust, rule: str, rewind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two guards are off: the rule that indices only grow, and the vault that gives a secret once."""
    monkeypatch.setattr(client_checks, rule, allow)
    keep_secrets(monkeypatch)
    rig = Rig(5, trust)
    found = repeated_index(rig, rig.set_up(threshold=3), VICTIM, rewind=rewind)
    assert found is not None
    assert (found == rig.vectors[VICTIM]).all()


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize("rewind", [False, True])
def test_a_sum_index_neither_repeats_nor_goes_back(trust: Trust, rewind: bool) -> None:
    rig = Rig(5, trust)
    with pytest.raises(RepeatedSum):
        repeated_index(rig, rig.set_up(threshold=3), VICTIM, rewind=rewind)
    assert_refused(rig.machines[0])


@pytest.mark.parametrize("trust", BOTH)
def test_the_vault_alone_refuses_a_repeated_sum(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_checks, "check_sum_index", allow)
    rig = Rig(5, trust)
    with pytest.raises(SecretReused):
        repeated_index(rig, rig.set_up(threshold=3), VICTIM, rewind=False)
    assert_refused(rig.machines[0])


@pytest.mark.parametrize("trust", BOTH)
def test_two_inputs_under_one_mask_reveal_their_difference(
    trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three guards are off: growing indices, the vault, and the memory of answered queries.

    The third belongs here because masks are bound to the query's bytes: only the very same query brings
    the same mask.
    """
    monkeypatch.setattr(client_checks, "check_sum_index", allow)
    monkeypatch.setattr(client_checks, "check_query_is_new", allow)
    keep_secrets(monkeypatch)
    rig = Rig(5, trust, table=residue_table(times=2))
    later = np.arange(4, dtype=np.uint32)
    found = two_inputs_under_one_mask(rig, rig.set_up(threshold=3), VICTIM, {VICTIM: later})
    assert (found == later - rig.vectors[VICTIM]).all()


@pytest.mark.parametrize("trust", BOTH)
def test_one_query_is_answered_once(trust: Trust) -> None:
    rig = Rig(5, trust, table=residue_table(times=2))
    later = np.arange(4, dtype=np.uint32)
    with pytest.raises(RepeatedSum):
        two_inputs_under_one_mask(rig, rig.set_up(threshold=3), VICTIM, {VICTIM: later})
    assert_refused(rig.machines[VICTIM])
