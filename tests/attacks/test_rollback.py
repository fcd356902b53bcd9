"""A machine's secrets are never stored. If they were, a host that is rolled back would use them twice.

The attack is that of an engine that keeps the state of its apps: it saves a client's machine, lets it reveal
its shares, goes back to what was saved, and asks again with the victim dropped.
"""

from __future__ import annotations

import pickle

import pytest

from secagg.errors import OutOfOrder, RepeatedQuery
from secagg.transitions import ClientState
from secagg.trust_levels import Trust
from tests.attacks.attackers.rolled_back_host import restarted, rolled_back
from tests.attacks.guards import BOTH, assert_refused
from tests.attacks.rig import Rig

VICTIM = 4
REST = range(4)


@pytest.mark.parametrize("trust", BOTH)
def test_a_host_that_is_rolled_back_reads_the_vector(trust: Trust) -> None:
    """The guard that the host removes: `OneTime.__reduce__`. Machines check themselves, and these are new."""
    rig = Rig(5, trust)
    found = rolled_back(rig, rig.set_up(threshold=3), VICTIM, keeps_memory=False)
    assert found is not None
    assert (found == rig.vectors[VICTIM]).all()


def test_a_ledger_that_is_not_rolled_back_does_not_help() -> None:
    """A client that trusts its server to be curious only does not compare sets of survivors."""
    rig = Rig(5, Trust.CURIOUS)
    found = rolled_back(rig, rig.set_up(threshold=3), VICTIM, keeps_memory=True)
    assert found is not None
    assert (found == rig.vectors[VICTIM]).all()


def test_a_ledger_that_is_not_rolled_back_remembers_the_survivors() -> None:
    """Under `malicious_server` the ledger has the set of the first request, and the second one is refused."""
    rig = Rig(5, Trust.MALICIOUS)
    with pytest.raises(RepeatedQuery):
        rolled_back(rig, rig.set_up(threshold=3), VICTIM, keeps_memory=True)
    assert_refused(rig.machines[0])


@pytest.mark.parametrize("trust", BOTH)
@pytest.mark.parametrize("moment", ["invited", "set up", "asked", "masked", "revealed"])
def test_a_machine_is_not_stored_at_any_moment(trust: Trust, moment: str) -> None:
    """The engine has nothing to go back to."""
    rig = Rig(5, trust)
    if moment == "invited":
        rig.advertise(rig.invitation())
    else:
        cohort = rig.set_up(threshold=3)
        everyone, query = cohort.ids, rig.query(cohort, 0, cohort.ids)
        if moment == "asked":
            rig.send(0, query)
        elif moment != "set up":
            rig.masked(query, everyone)
        if moment == "revealed":
            rig.send(0, rig.survivors(cohort, 0, everyone))
    with pytest.raises(TypeError, match="one-time secrets"):
        pickle.dumps(rig.machines[0])


@pytest.mark.parametrize("trust", BOTH)
def test_a_restarted_process_reveals_nothing_of_the_old_session(trust: Trust) -> None:
    """All that it has kept is its ledger. The same second request goes to a machine without a session."""
    rig = Rig(5, trust)
    cheated = restarted(rig, rig.set_up(threshold=3), VICTIM)
    for member in REST:
        with pytest.raises(OutOfOrder):
            cheated.reveal([member], REST)
        assert_refused(rig.machines[member])
    assert len(cheated.shares(VICTIM, alive=True)) == 5
    assert cheated.shares(VICTIM, alive=False) == {}
    assert cheated.vector(VICTIM) is None


@pytest.mark.parametrize("trust", BOTH)
def test_a_restarted_process_joins_the_next_session(trust: Trust) -> None:
    """It has other keys there, and nothing of the old session fits."""
    rig = Rig(5, trust)
    first = restarted(rig, rig.set_up(threshold=3), VICTIM)
    rig.restart(members=[VICTIM], seed=b"another process")
    cohort = rig.set_up(threshold=3, nonce=b"n" * 32)
    assert all(machine.state is ClientState.READY for machine in rig.machines.values())
    keys = [{advert.mask_keys for advert in each.adverts} for each in (first.cohort, cohort)]
    assert keys[0].isdisjoint(keys[1])
