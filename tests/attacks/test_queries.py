"""The same question again, or nearly, without the victim: in this session, a later or a parallel one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secagg import client_checks
from secagg.client_budget import Budget
from secagg.client_memory import VolatileMemory
from secagg.errors import (
    GroupChanged,
    GroupReopened,
    PeerError,
    RepeatedQuery,
    RepeatedSum,
    SessionLive,
    TooManySums,
)
from secagg.ledger import ClientLedger
from secagg.sum_group_rules import GroupBook
from secagg.trust_levels import Trust
from tests.attacks.attackers.cheated_sum import Vector
from tests.attacks.attackers.differencing import (
    asked_later,
    difference,
    left_out,
    parallel_session,
    total_over,
)
from tests.attacks.attackers.surplus_sums import two_thresholds
from tests.attacks.guards import BOTH, allow, assert_refused, forget_sets
from tests.attacks.rig import Rig, residue_table

VICTIM = 4
EVERYONE = range(5)

# --- later in the session --------------------------------------------------------------------------

AGAIN: dict[str, Any] = {"payload": b"model", "round_number": 1}


@pytest.mark.parametrize("trust", BOTH)
def test_a_repeated_query_reads_the_vector(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    """The round is a new one, so only the memory of the question itself stands in the way."""
    forget_sets(monkeypatch)
    monkeypatch.setattr(client_checks, "check_query_is_new", allow)
    rig = Rig(5, trust)
    found = left_out(rig, rig.set_up(threshold=3), VICTIM, {"payload": b"model"}, AGAIN)
    assert (found == rig.vectors[VICTIM]).all()


@pytest.mark.parametrize("trust", BOTH)
def test_a_repeated_query_is_refused(trust: Trust) -> None:
    rig = Rig(5, trust)
    with pytest.raises(RepeatedQuery):
        left_out(rig, rig.set_up(threshold=3), VICTIM, {"payload": b"model"}, AGAIN)
    assert_refused(rig.machines[0])


@pytest.mark.parametrize("trust", BOTH)
def test_the_same_bytes_again_are_refused(trust: Trust) -> None:
    """The very same frame repeats the index of its sum, before anything else is looked at."""
    rig = Rig(5, trust)
    cohort = rig.set_up(threshold=3)
    frame = rig.query(cohort, 0, EVERYONE)
    total_over(rig, cohort, frame, EVERYONE)
    with pytest.raises(RepeatedSum):
        rig.send(0, frame)
    assert_refused(rig.machines[0])


CHANGED: dict[str, Any] = {"payload": b"modem"}


@pytest.mark.parametrize("trust", BOTH)
def test_a_query_changed_by_one_byte_reads_the_vector(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the group can know that the private vector is the same: its memory of the roster is off."""
    monkeypatch.setattr(GroupBook, "check_roster", allow)
    rig = Rig(5, trust, table=residue_table(times=2))
    found = left_out(rig, rig.set_up(threshold=3), VICTIM, {"payload": b"model"}, CHANGED)
    assert (found == rig.vectors[VICTIM]).all()


@pytest.mark.parametrize("trust", BOTH)
def test_a_query_changed_by_one_byte_is_refused(trust: Trust) -> None:
    rig = Rig(5, trust, table=residue_table(times=2))
    with pytest.raises(GroupChanged):
        left_out(rig, rig.set_up(threshold=3), VICTIM, {"payload": b"model"}, CHANGED)
    assert_refused(rig.machines[0])


# --- in a later session ----------------------------------------------------------------------------


def first_total(rig: Rig) -> Vector | None:
    cohort = rig.set_up(threshold=3)
    return total_over(rig, cohort, rig.query(cohort, 0, EVERYONE, payload=b"model"), EVERYONE)


# (payload and round of the second query, the rules that must both be off, the error that comes first)
LATER: list[tuple[bytes, int, list[str], type[PeerError]]] = [
    (b"model", 1, ["query"], RepeatedQuery),
    (b"model", 0, ["query", "group"], GroupReopened),
    (b"modem", 0, ["group"], GroupReopened),
]


def take_away(rules: list[str], patch: pytest.MonkeyPatch) -> None:
    if "query" in rules:
        forget_sets(patch)
        patch.setattr(client_checks, "check_query_is_new", allow)
    if "group" in rules:
        patch.setattr(GroupBook, "check_new", allow)


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize(("payload", "round_number", "rules", "_error"), LATER)
def test_a_later_session_reads_the_vector(
    trust: Trust,
    payload: bytes,
    round_number: int,
    rules: list[str],
    _error: type[PeerError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take_away(rules, monkeypatch)
    rig = Rig(5, trust)
    first = first_total(rig)
    second = asked_later(rig, VICTIM, threshold=3, payload=payload, round_number=round_number)
    assert (difference(first, second) == rig.vectors[VICTIM]).all()


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize(("payload", "round_number", "_rules", "error"), LATER)
def test_a_later_session_is_refused(
    trust: Trust, payload: bytes, round_number: int, _rules: list[str], error: type[PeerError]
) -> None:
    rig = Rig(5, trust)
    first_total(rig)
    with pytest.raises(error):
        asked_later(rig, VICTIM, threshold=3, payload=payload, round_number=round_number)
    assert_refused(rig.machines[0])


# --- in a later run, whose terms the clients' owners have changed -----------------------------------


def asked_in_another_run(rig: Rig) -> Vector | None:
    rig.table = replace(rig.table, terms=b"another run")
    return asked_later(rig, VICTIM, threshold=3, payload=b"model", round_number=0)


@pytest.mark.parametrize("trust", BOTH)
def test_the_same_model_in_another_run_reads_the_vector(
    trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A curious server could compute it, too, if it gets the same updates over nearly the same clients."""
    if trust is Trust.MALICIOUS:
        forget_sets(monkeypatch)
    rig = Rig(5, trust)
    found = difference(first_total(rig), asked_in_another_run(rig))
    assert (found == rig.vectors[VICTIM]).all()


def test_the_same_model_in_another_run_is_refused_over_nearly_the_same_clients() -> None:
    rig = Rig(5, Trust.MALICIOUS)
    first_total(rig)
    with pytest.raises(RepeatedQuery):
        asked_in_another_run(rig)
    assert_refused(rig.machines[0])


# --- after a restart of the clients ----------------------------------------------------------------


@pytest.mark.parametrize(("payload", "round_number", "_rules", "error"), LATER)
def test_memory_on_disk_outlives_a_restart(
    payload: bytes, round_number: int, _rules: list[str], error: type[PeerError], tmp_path: Path
) -> None:
    rig = Rig(5, Trust.CURIOUS)
    files = {k: ClientLedger.create(tmp_path / str(k), member=k) for k in EVERYONE}
    rig.memories.update(files)
    rig.restart()
    first_total(rig)
    for member, file in files.items():
        file.close()
        rig.memories[member] = files[member] = ClientLedger.open(tmp_path / str(member), member=member)
    with pytest.raises(error):
        asked_later(rig, VICTIM, threshold=3, payload=payload, round_number=round_number)
    assert_refused(rig.machines[0])
    for file in files.values():
        file.close()


def test_clients_that_forget_at_a_restart_give_the_vector_away() -> None:
    """The guard is the memory: identities that start with an empty one are new to every question."""
    rig = Rig(5, Trust.CURIOUS)
    first = first_total(rig)
    rig.memories.update({k: VolatileMemory() for k in EVERYONE})
    second = asked_later(rig, VICTIM, threshold=3, payload=b"model", round_number=0)
    assert (difference(first, second) == rig.vectors[VICTIM]).all()


# --- in a parallel session -------------------------------------------------------------------------


@pytest.mark.parametrize("trust", BOTH)
def test_a_parallel_session_reads_the_vector(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sessions ask before either is answered, so that the memory of questions comes too late."""
    forget_sets(monkeypatch)
    monkeypatch.setattr(VolatileMemory, "open_session", allow)
    rig = Rig(5, trust)
    found = parallel_session(rig, VICTIM, threshold=3)
    assert (found == rig.vectors[VICTIM]).all()


@pytest.mark.parametrize("trust", BOTH)
def test_an_identity_has_one_live_session(trust: Trust) -> None:
    """The machine that was invited second fails; the session that was there first is not disturbed."""
    rig = Rig(5, trust)
    cohort = rig.set_up(threshold=3)
    second = rig.new_client(0, seed=b"parallel")
    with pytest.raises(SessionLive):
        second.receive(rig.invitation(nonce=b"parallel".ljust(32)))
    assert_refused(second)
    total = total_over(rig, cohort, rig.query(cohort, 0, EVERYONE), EVERYONE)
    assert total is not None
    with pytest.raises(SessionLive):  # a machine that failed did not end the other's session either
        rig.new_client(0, seed=b"third").receive(rig.invitation(nonce=b"third".ljust(32)))


def test_a_parallel_session_is_refused() -> None:
    rig = Rig(5, Trust.CURIOUS)
    with pytest.raises(SessionLive):
        parallel_session(rig, VICTIM, threshold=3)


# --- more sums than agreed -------------------------------------------------------------------------


@pytest.mark.parametrize("trust", BOTH)
def test_a_surplus_sum_reads_the_vector(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind of sum that is declared once is asked twice in a round."""
    monkeypatch.setattr(GroupBook, "check_new", allow)
    rig = Rig(5, trust)
    found = two_thresholds(rig, rig.set_up(threshold=3), 2, rounds=(0, 0))
    assert (found == rig.vectors[2]).all()


@pytest.mark.parametrize("trust", BOTH)
def test_a_surplus_sum_is_refused(trust: Trust) -> None:
    rig = Rig(5, trust)
    with pytest.raises(TooManySums):
        two_thresholds(rig, rig.set_up(threshold=3), 2, rounds=(0, 0))
    assert_refused(rig.machines[0])


@pytest.mark.parametrize("trust", BOTH)
def test_a_sum_beyond_the_budget_reads_the_vector(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy allows one sum without noise; the second comes in another round, as declared."""
    monkeypatch.setattr(Budget, "check", allow)
    rig = Rig(5, trust, policy_changes={"unnoised_sums": 1})
    found = two_thresholds(rig, rig.set_up(threshold=3), 2, rounds=(0, 1))
    assert (found == rig.vectors[2]).all()


@pytest.mark.parametrize("trust", BOTH)
def test_a_sum_beyond_the_budget_is_refused(trust: Trust) -> None:
    rig = Rig(5, trust, policy_changes={"unnoised_sums": 1})
    with pytest.raises(TooManySums):
        two_thresholds(rig, rig.set_up(threshold=3), 2, rounds=(0, 1))
    assert_refused(rig.machines[0])


@pytest.mark.parametrize("trust", BOTH)
def test_a_longer_session_reads_the_vector(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy allows sessions of one sum; this one has room for a second."""
    monkeypatch.setattr(client_checks, "check_session_sums", allow)
    rig = Rig(5, trust, sums=2, policy_changes={"max_sums": 1})
    found = two_thresholds(rig, rig.set_up(threshold=3), 2, rounds=(0, 1))
    assert (found == rig.vectors[2]).all()


@pytest.mark.parametrize("trust", BOTH)
def test_a_longer_session_is_refused(trust: Trust) -> None:
    rig = Rig(5, trust, sums=2, policy_changes={"max_sums": 1})
    with pytest.raises(TooManySums):
        rig.set_up(threshold=3)
    assert_refused(rig.machines[0])
