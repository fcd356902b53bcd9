"""Rings: who draws them, how many colluders stand next to a client, and where they fall apart."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from secagg import client, client_checks, key_list_checks, query_context
from secagg import messages as m
from secagg.cohort_members import CohortView, ring_session_id
from secagg.errors import (
    BadRoster,
    CorruptTotal,
    FewContributors,
    LargeCohort,
    OutOfOrder,
    PeerError,
    SmallCohort,
    SmallThreshold,
)
from secagg.events import EnvelopeLost
from secagg.keys import mask_context
from secagg.message_records import encode_ids
from secagg.policy import Policy
from secagg.transitions import ClientState
from secagg.trust_levels import Trust
from tests.attacks.attackers import drawn_ring
from tests.attacks.attackers.cheated_sum import Vector
from tests.attacks.attackers.colluder import Colluder
from tests.attacks.attackers.drawn_ring import set_up_ring
from tests.attacks.attackers.ring_attacks import TwoRings, read_part, read_shares, surrounding
from tests.attacks.guards import allow, allow_move, assert_refused, forget_sets
from tests.attacks.rig import Rig

VICTIM = 0


def ring_of(
    honest: int, corrupt: int, trust: Trust = Trust.CURIOUS, *, security_bits: int = 40
) -> tuple[Rig, list[Colluder]]:
    """Honest clients with the lowest ids, and as many colluders as they tolerate."""
    changes = {"security_bits": security_bits}
    rig = Rig(honest, trust, corrupt=corrupt, registered=corrupt, policy_changes=changes)
    return rig, [Colluder(rig, honest + k) for k in range(corrupt)]


# --- whoever draws the ring can surround a client ---------------------------------------------------

# Ten clients are few. Where it is unlikely only by half that four colluders among them have a common
# neighbour, clients agree to four neighbours and a threshold of four.
HONEST, CORRUPT = range(6), range(6, 10)
ON_TEN: dict[str, Any] = {"neighbours": 4, "threshold": 4}
SURROUNDED = surrounding(VICTIM, CORRUPT, HONEST[1:])
SCATTERED = [0, 6, 1, 7, 2, 8, 3, 9, 4, 5]


def ten(trust: Trust) -> tuple[Rig, list[Colluder]]:
    return ring_of(len(HONEST), len(CORRUPT), trust, security_bits=1)


def test_a_curious_server_is_trusted_with_the_order() -> None:
    """What `curious_server` does not promise: a server that draws as it likes surrounds a client."""
    rig, colluders = ten(Trust.CURIOUS)
    found = read_shares(rig, VICTIM, colluders, SURROUNDED, **ON_TEN)
    assert found is not None
    assert (found == rig.vectors[VICTIM]).all()


def test_colluders_in_a_fair_order_read_nobody() -> None:
    for victim in HONEST:
        rig, colluders = ten(Trust.CURIOUS)
        assert read_shares(rig, victim, colluders, SCATTERED, **ON_TEN) is None


def test_a_client_of_a_malicious_server_refuses_any_ring() -> None:
    rig, colluders = ten(Trust.MALICIOUS)
    with pytest.raises(OutOfOrder):
        read_shares(rig, VICTIM, colluders, SURROUNDED, **ON_TEN)
    assert_refused(rig.machines[SURROUNDED[2]])


def test_a_malicious_server_that_may_draw_a_ring_surrounds_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two guards are off, the table of moves and the members that a client insists on knowing."""
    forget_sets(monkeypatch)
    allow_move(monkeypatch, Trust.MALICIOUS, ClientState.ADVERTISED, m.Neighbours, ClientState.SHARED)
    rig, colluders = ten(Trust.MALICIOUS)
    found = read_shares(rig, VICTIM, colluders, SURROUNDED, **ON_TEN)
    assert found is not None
    assert (found == rig.vectors[VICTIM]).all()


# --- thresholds within reach, rings that are too thin -----------------------------------------------

BETWEEN_TWO = surrounding(VICTIM, [5, 6], range(1, 5))


def seven() -> tuple[Rig, list[Colluder]]:
    """Chance does not come in: of two colluders, three are never next to anybody."""
    return ring_of(5, 2)


def test_a_threshold_that_colluders_reach_gives_their_neighbour_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_checks, "check_ring", allow)
    rig, colluders = seven()
    found = read_shares(rig, VICTIM, colluders, BETWEEN_TWO, neighbours=4, threshold=2)
    assert found is not None
    assert (found == rig.vectors[VICTIM]).all()


def test_a_threshold_that_colluders_reach_is_refused() -> None:
    rig, colluders = seven()
    with pytest.raises(SmallThreshold):
        read_shares(rig, VICTIM, colluders, BETWEEN_TWO, neighbours=4, threshold=2)
    assert_refused(rig.machines[VICTIM])


def thin_ring(rig: Rig, colluders: list[Colluder]) -> Vector | None:
    """Two neighbours each: both of the victim's are colluders, and nobody else shares a mask with it."""
    ring = set_up_ring(rig, colluders, BETWEEN_TWO, neighbours=2, threshold=3)
    return read_part(rig, ring, colluders, [VICTIM], roster=BETWEEN_TWO, survivors=BETWEEN_TWO)


def test_a_ring_that_colluders_cut_gives_the_client_between_them_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An honest sum with nobody missing: without the colluders, the victim is alone."""
    monkeypatch.setattr(client_checks, "check_ring", allow)
    monkeypatch.setattr(client, "fewest_contributors", without_the_ring)
    rig, colluders = seven()
    found = thin_ring(rig, colluders)
    assert found is not None
    assert (found == rig.vectors[VICTIM]).all()


def test_a_ring_that_colluders_can_cut_is_refused() -> None:
    rig, colluders = seven()
    with pytest.raises(SmallCohort, match="can cut a ring"):
        thin_ring(rig, colluders)
    assert_refused(rig.machines[VICTIM])


def test_a_ring_that_colluders_can_cut_never_has_enough_contributors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Either guard is enough: on such a ring, more contributors are needed than there are clients."""
    monkeypatch.setattr(client_checks, "check_ring", allow)
    rig, colluders = seven()
    with pytest.raises(FewContributors):
        thin_ring(rig, colluders)
    assert_refused(rig.machines[VICTIM])


# (neighbours, threshold) that no bound is needed to refuse: what they would cost is written beside them.
SHAPES: list[tuple[int, int, type[PeerError]]] = [
    (0, 2, BadRoster),  # nobody to share a mask with
    (3, 3, BadRoster),  # not as many on one side as on the other: bounds on gaps do not hold
    (4, 1, SmallThreshold),  # a share is the secret
    (4, 6, SmallThreshold),  # more than there are shares
]


@pytest.mark.parametrize(("neighbours", "threshold", "error"), SHAPES)
def test_a_ring_without_shape_is_refused(neighbours: int, threshold: int, error: type[PeerError]) -> None:
    policy = ring_of(5, 0)[0].policy
    with pytest.raises(error):
        client_checks.check_ring(7, neighbours, threshold, policy)
    client_checks.check_ring(7, 4, 3, policy)


@pytest.mark.parametrize(("size", "error"), [(3, SmallCohort), (65, LargeCohort)])
def test_a_ring_of_another_size_is_refused(size: int, error: type[PeerError]) -> None:
    """A larger ring than there is would make any number of colluders look rare."""
    rig, _ = seven()
    client_checks.check_ring_size(4, rig.policy)
    client_checks.check_ring_size(64, rig.policy)
    with pytest.raises(error):
        client_checks.check_ring_size(size, rig.policy)


# --- rings that fall apart --------------------------------------------------------------------------


def without_the_ring(cohort: CohortView, policy: Policy) -> int:
    """The fewest contributors of a client that takes a ring for a complete graph."""
    return max(cohort.threshold, policy.min_contributors)


# Ten clients, four neighbours each. Without four of them the circle is in two parts: the victim with the
# colluder, and four others.
TEN = [0, 9, 1, 2, 3, 4, 5, 6, 7, 8]
CUT = [0, 9, 3, 4, 5, 6]


def cut_apart(rig: Rig, colluders: list[Colluder], roster: Collection[int]) -> Vector | None:
    ring = set_up_ring(rig, colluders, TEN, neighbours=4, threshold=2)
    return read_part(rig, ring, colluders, [VICTIM, 9], roster=roster, survivors=CUT)


@pytest.mark.parametrize("roster", [TEN, CUT], ids=["few survivors", "small roster"])
def test_a_ring_cut_apart_shows_the_sum_of_a_part(roster: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Six contributors are more than a threshold, and more than c + 2: only the ring needs eight."""
    monkeypatch.setattr(client, "fewest_contributors", without_the_ring)
    rig, colluders = ring_of(9, 1)
    found = cut_apart(rig, colluders, roster)
    assert found is not None
    assert (found == rig.vectors[VICTIM]).all()


@pytest.mark.parametrize("roster", [TEN, CUT], ids=["few survivors", "small roster"])
def test_a_ring_cut_apart_is_refused(roster: list[int]) -> None:
    rig, colluders = ring_of(9, 1)
    with pytest.raises(FewContributors, match="needs 8"):
        cut_apart(rig, colluders, roster)
    assert_refused(rig.machines[VICTIM])


# Twenty clients, four neighbours each. Any sixteen are likely to hold together, but not if all neighbours of
# one are missing: then its own share, and that of a colluder who only seems to be missing, are a threshold.
TWENTY = [0, 19, *range(1, 19)]
LEFT = [member for member in TWENTY if member not in (17, 18, 19, 1)]


def isolated(rig: Rig, colluders: list[Colluder], roster: Collection[int]) -> Vector | None:
    ring = set_up_ring(rig, colluders, TWENTY, neighbours=4, threshold=2)
    assert set(ring.around(VICTIM)) & set(LEFT) == {VICTIM}
    return read_part(rig, ring, colluders, [VICTIM], roster=roster, survivors=LEFT)


@pytest.mark.parametrize("roster", [TWENTY, LEFT], ids=["few survivors", "small roster"])
def test_a_client_without_neighbours_gives_itself_away(
    roster: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a roster without its neighbours it has no words to send: the form of a masked input overlaps."""
    monkeypatch.setattr(client_checks, "check_around", allow)
    context, index, data, _, signature = m.MaskedInput.SCHEMA
    words = m.Blob(range(1 << 10))
    monkeypatch.setattr(m.MaskedInput, "SCHEMA", (context, index, data, words, signature))
    rig, colluders = ring_of(19, 1, security_bits=1)
    found = isolated(rig, colluders, roster)
    assert found is not None
    assert (found == rig.vectors[VICTIM]).all()


def test_a_client_without_neighbours_in_its_roster_cannot_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defence in depth: a masked input has at least one word."""
    monkeypatch.setattr(client_checks, "check_around", allow)
    rig, colluders = ring_of(19, 1, security_bits=1)
    with pytest.raises(ValueError, match="words is outside its range"):
        isolated(rig, colluders, LEFT)


@pytest.mark.parametrize("roster", [TWENTY, LEFT], ids=["few survivors", "small roster"])
def test_a_client_without_neighbours_refuses(roster: list[int]) -> None:
    rig, colluders = ring_of(19, 1, security_bits=1)
    with pytest.raises(FewContributors, match="1 around this client"):
        isolated(rig, colluders, roster)
    assert_refused(rig.machines[VICTIM])


# --- two rings --------------------------------------------------------------------------------------

TARGET = 3
TOLD: dict[str, dict[str, Any]] = {
    "keys": {"ring": bytes(32)},
    "size": {"size": 8},
    "ids": {"members": encode_ids([*range(6), 99])},  # client 6 is no neighbour of the target
}


def two_rings(**told: Any) -> tuple[Rig, TwoRings]:
    """Both sizes fit into one byte of a roster, so that even the queries are the same."""
    rig = Rig(7, Trust.CURIOUS)
    return rig, TwoRings(rig, TARGET, neighbours=4, threshold=3, **told)


def unbind_session(patch: pytest.MonkeyPatch) -> None:
    """A session id that does not depend on the ring."""

    def loose(invitation: bytes, **ring: Any) -> bytes:
        return ring_session_id(invitation, **{**ring, "size": 0, "ring": b"", "members": b""})

    patch.setattr(key_list_checks, "ring_session_id", loose)
    patch.setattr(drawn_ring, "ring_session_id", loose)


def unbind_masks(patch: pytest.MonkeyPatch) -> None:
    """Masks that do not depend on the digest of the ring, but through the session id."""
    patch.setattr(query_context, "mask_context", lambda **bound: mask_context(**{**bound, "cohort": b""}))


@pytest.mark.parametrize("told", TOLD.values(), ids=TOLD)
def test_a_total_over_two_rings_if_nothing_binds_them(
    told: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    unbind_session(monkeypatch)
    unbind_masks(monkeypatch)
    rig, attack = two_rings(**told)
    found = attack.total()
    assert found is not None
    assert (found == sum(rig.vectors.values())).all()


@pytest.mark.parametrize("told", TOLD.values(), ids=TOLD)
def test_no_total_over_two_rings(told: dict[str, Any]) -> None:
    """Their sessions differ: no envelope opens between the target and the others, and no mask cancels."""
    rig, attack = two_rings(**told)
    assert attack.total() is None
    for member in rig.machines:
        lost = [event.peer for event in rig.events[member] if isinstance(event, EnvelopeLost)]
        assert (TARGET in lost) == (member in {1, 2, 4, 5})


def test_masks_alone_are_bound_to_the_keys_of_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards overlap: with one session id for both rings, envelopes open and masks do not cancel."""
    unbind_session(monkeypatch)
    _, attack = two_rings(**TOLD["keys"])
    with pytest.raises(CorruptTotal):
        attack.total()
