"""Rosters and key lists of which no two clients see the same."""

from __future__ import annotations

import pytest

from secagg import client_checks
from secagg import messages as m
from secagg.errors import BadSignature, WrongSession
from secagg.trust_levels import Trust
from tests.attacks.attackers.split_rosters import split_rosters
from tests.attacks.guards import allow, assert_refused
from tests.attacks.rig import Rig


def test_split_rosters_isolate_a_client_if_confirmations_are_not_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_checks, "check_confirmations", allow)
    rig = Rig(5, Trust.MALICIOUS)
    assert (split_rosters(rig) == rig.vectors[0]).all()


def test_split_rosters_isolate_a_client_of_a_curious_server() -> None:
    """What `curious_server` does not promise: a server that lies about rosters needs no colluder."""
    rig = Rig(5, Trust.CURIOUS)
    assert (split_rosters(rig) == rig.vectors[0]).all()


def test_clients_with_other_rosters_and_survivors_are_not_believed() -> None:
    rig = Rig(5, Trust.MALICIOUS)
    with pytest.raises(BadSignature) as caught:
        split_rosters(rig)
    assert caught.value.peer == 0
    assert_refused(rig.machines[1])


def test_a_client_refuses_shares_from_peers_who_saw_another_key_list() -> None:
    """The victim sees three peers, its peers see four: with other keys, nothing at all is common.

    Two key lists are two session ids, and the session id is in every mask, envelope and signature. With all
    of them unbound the cohort is the server's to compose: see the attacks by substitution.
    """
    rig = Rig(5, Trust.MALICIOUS)
    invitation = rig.invitation()
    adverts = rig.advertise(invitation)
    few = {k: adverts[k] for k in range(4)}
    lists = {0: rig.key_list(invitation, few, 3), 1: rig.key_list(invitation, adverts, 3)}
    narrow = rig.cohort(invitation, lists[0], few, 3)
    shares = {k: rig.share(k, lists[min(k, 1)], 5 if k else 4) for k in range(4)}
    with pytest.raises(BadSignature) as caught:
        rig.send(0, rig.delivery(narrow, rig.parcels(narrow, shares, 0)))
    assert caught.value.peer == 1
    assert_refused(rig.machines[0])


def test_a_query_of_another_key_list_is_of_another_session() -> None:
    rig = Rig(4, Trust.CURIOUS)
    rig.set_up(threshold=3)
    other = m.Query(bytes(32), 0, 0, "vector", b"\x0f", b"").encode()
    with pytest.raises(WrongSession):
        rig.send(0, other)
    assert_refused(rig.machines[0])
