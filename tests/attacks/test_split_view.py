"""Different clients are told of different survivors: what thresholds and signatures each prevent."""

from __future__ import annotations

import pytest

from secagg import client_checks
from secagg import messages as m
from secagg.client import ClientMachine
from secagg.cohort_members import Cohort
from secagg.errors import BadSignature, FewContributors, OutOfOrder, PeerError, SmallThreshold, UnknownPeer
from secagg.events import ClientStep
from secagg.transitions import ClientState
from secagg.trust_levels import Trust
from tests.attacks.attackers.colluder import Colluder, set_up_with
from tests.attacks.attackers.shrunken_sum import (
    Evidence,
    cut_views,
    forged_signatures,
    own_signature,
    shrunken_by_second_lists,
    shrunken_sum,
    signatures_of_the_dead,
)
from tests.attacks.attackers.split_view import split_view
from tests.attacks.guards import allow, allow_move, assert_refused, forget_sets
from tests.attacks.rig import Rig

# n members of whom c collude.
SIZES = [(4, 0), (5, 0), (4, 1), (5, 1), (6, 1), (6, 2), (7, 2)]
EVEN = [(4, 0), (5, 1), (6, 2), (8, 2), (9, 3)]


def rig_of(n: int, c: int) -> tuple[Rig, list[Colluder]]:
    rig = Rig(n - c, Trust.MALICIOUS, corrupt=c, registered=c)
    return rig, [Colluder(rig, n - c + k) for k in range(c)]


# --- both sides of 2t = n + c ----------------------------------------------------------------------


@pytest.mark.parametrize(("n", "c"), EVEN)
def test_at_the_boundary_a_split_view_reads_the_vector(
    n: int, c: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    threshold = (n + c) // 2
    forget_sets(monkeypatch)
    monkeypatch.setattr(client_checks, "check_threshold", allow)
    rig, colluders = rig_of(n, c)
    cohort = set_up_with(rig, colluders, threshold=threshold)
    found = split_view(rig, cohort, colluders, told_alive=threshold - c)
    assert found is not None
    assert (found == rig.vectors[0]).all()


@pytest.mark.parametrize(("n", "c"), EVEN)
def test_a_threshold_at_the_boundary_is_refused(n: int, c: int) -> None:
    rig, colluders = rig_of(n, c)
    with pytest.raises(SmallThreshold):
        set_up_with(rig, colluders, threshold=(n + c) // 2)
    assert_refused(rig.machines[0])


@pytest.mark.parametrize(("n", "c"), SIZES)
def test_above_the_boundary_one_audience_lacks_signatures(n: int, c: int) -> None:
    threshold = Trust.MALICIOUS.least_threshold(n, corrupt=c)
    for told_alive in range(1, n - c):
        rig, colluders = rig_of(n, c)
        cohort = set_up_with(rig, colluders, threshold=threshold)
        with pytest.raises(FewContributors):
            split_view(rig, cohort, colluders, told_alive=told_alive)
        enough = told_alive + c >= threshold
        assert_refused(rig.machines[told_alive if enough else 0])


@pytest.mark.parametrize(("n", "c"), SIZES)
def test_above_the_boundary_shares_alone_keep_the_vector(
    n: int, c: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even without the consistency round, no split of the audience yields both kinds of share."""
    monkeypatch.setattr(client_checks, "check_confirmations", allow)
    threshold = Trust.MALICIOUS.least_threshold(n, corrupt=c)
    for told_alive in range(1, n - c):
        rig, colluders = rig_of(n, c)
        cohort = set_up_with(rig, colluders, threshold=threshold)
        assert split_view(rig, cohort, colluders, told_alive=told_alive) is None


# --- what the consistency round is for -------------------------------------------------------------


def shrinkable(clients: int = 5) -> tuple[Rig, Cohort]:
    """Clients who insist on as many contributors as the threshold, the smallest safe one."""
    threshold = (clients + 1) // 2
    rig = Rig(clients, Trust.MALICIOUS, min_contributors=threshold)
    return rig, rig.set_up(threshold=threshold)


EVIDENCE: list[tuple[Evidence, type[PeerError]]] = [
    (own_signature, FewContributors),
    (forged_signatures, BadSignature),
    (signatures_of_the_dead, UnknownPeer),
]


@pytest.mark.parametrize("clients", [5, 7, 9])
def test_every_cut_view_is_large_enough(clients: int) -> None:
    _, cohort = shrinkable(clients)
    for member, survivors in cut_views(cohort).items():
        assert member in survivors
        assert len(survivors) >= cohort.threshold > 2


@pytest.mark.parametrize("clients", [5, 7])
@pytest.mark.parametrize(("evidence", "_error"), EVIDENCE)
def test_unchecked_confirmations_shrink_a_sum_to_two(
    evidence: Evidence, _error: type[PeerError], clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A total over fewer clients than any of them was promised."""
    monkeypatch.setattr(client_checks, "check_confirmations", allow)
    rig, cohort = shrinkable(clients)
    found = shrunken_sum(rig, cohort, evidence)
    assert found is not None
    assert (found == rig.vectors[0] + rig.vectors[1]).all()


@pytest.mark.parametrize(("evidence", "error"), EVIDENCE)
def test_confirmations_are_counted_and_verified(evidence: Evidence, error: type[PeerError]) -> None:
    rig, cohort = shrinkable()
    with pytest.raises(error):
        shrunken_sum(rig, cohort, evidence)
    assert_refused(rig.machines[0])


def test_forged_confirmations_pass_where_signatures_are_not_verified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same with only the signatures unverified: their number and their signers are right."""
    monkeypatch.setattr(client_checks, "verify", allow)
    rig, cohort = shrinkable()
    found = shrunken_sum(rig, cohort, forged_signatures)
    assert found is not None
    assert (found == rig.vectors[0] + rig.vectors[1]).all()


def test_signing_a_second_list_shrinks_a_sum_to_two(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_sets(monkeypatch)
    signed = ClientState.SIGNED
    allow_move(monkeypatch, Trust.MALICIOUS, signed, m.Survivors, signed)
    rig, cohort = shrinkable()
    found = shrunken_by_second_lists(rig, cohort)
    assert found is not None
    assert (found == rig.vectors[0] + rig.vectors[1]).all()


def test_a_second_list_is_not_signed() -> None:
    rig, cohort = shrinkable()
    with pytest.raises(OutOfOrder):
        shrunken_by_second_lists(rig, cohort)
    (failed,) = (machine for machine in rig.machines.values() if machine.state is ClientState.FAILED)
    assert_refused(failed)


def test_without_a_consistency_round_a_sum_shrinks_to_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine takes the list of survivors for the request to unmask, as under `curious_server`."""
    original = ClientMachine._on_survivors

    def reveal_at_once(self: ClientMachine, message: m.Survivors, frame: bytes) -> ClientStep:
        original(self, message, frame)
        assert self._question is not None
        return self._reveal(self._question)

    monkeypatch.setattr(ClientMachine, "_on_survivors", reveal_at_once)
    rig, cohort = shrinkable()
    found = shrunken_sum(rig, cohort, None)
    assert found is not None
    assert (found == rig.vectors[0] + rig.vectors[1]).all()


def test_survivors_are_no_request_to_unmask() -> None:
    """All a list of survivors obtains is a signature: no share is out, and no total can be had."""
    rig, cohort = shrinkable()
    assert shrunken_sum(rig, cohort, None) is None
    assert all(machine.state is ClientState.SIGNED for machine in rig.machines.values())
