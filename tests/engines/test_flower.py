"""Training on a real SuperLink with TLS and node authentication, with clients as processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from secagg.keys import Identity
from secagg.ledger import ClientLedger, read_ledger
from sims.audit.audit_run import audit_run
from tests.engines.flower_rig import SuperLink, superlink
from tests.engines.flower_site import FlowerSite
from tests.engines.test_training_through_engine import ALGORITHMS, check_never_rejoined
from tests.sims.test_training_hosts import MALICIOUS, SIMPLICIAL

pytestmark = pytest.mark.slow
RecordProperty: TypeAlias = Callable[[str, object], None]
MOST = 2.0  # seconds that a stage may take with nodes that are our own processes
# Seconds. A node that is killed while it sends makes a look for replies take ten seconds, once. Until then,
# no stage may end, and no other connection may count as silent. A stage ends before the killed node has left.
DEADLINE, SILENCE = 14.0, 18.0
# Events of the log of a client after which it is killed, and the stages that it can miss first. It trains for
# a tenth of a second after "asked". "answered" and "counted" are written when a frame is in the queue: it may
# still be sent.
MOMENTS = {
    "asked": {"masking", "confirming"},
    "answered": {"masking", "confirming"},
    "counted": {"unmasking", "masking"},
}


@pytest.fixture
def link(tmp_path: Path) -> Iterator[SuperLink]:
    with superlink(tmp_path) as opened:
        yield opened


def trained(site: FlowerSite) -> None:
    """Train to the end with clients that are nodes."""
    site.register()
    for member in site.clients:
        site.start_node(member)
    site.submit()
    site.wait_for_end()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_model_is_that_of_the_simulation(link: SuperLink, name: str) -> None:
    trust = MALICIOUS if name in ("rfa", "fedgeomed+", "fedalt") else "curious_server"
    site = FlowerSite(link, algorithm=ALGORITHMS[name], trust=trust, rounds=2)
    trained(site)
    site.check_models()
    assert all(process.returncode == 0 for process in site.processes.values())


def test_private_sums_are_paid_for(link: SuperLink) -> None:
    site = FlowerSite(link, algorithm=SIMPLICIAL, rounds=2)
    trained(site)
    rows = [row.body for row in read_ledger(site / "client-0.ledger").rows]
    charges = [row["charge"] for row in rows if row["entry"] == "answer"]
    assert [each is not None for each in charges] == [True, False] * 2


def test_ten_rounds_with_a_killed_and_restarted_node(
    link: SuperLink, record_property: RecordProperty
) -> None:
    site = FlowerSite(link, algorithm=ALGORITHMS["rfa"], rounds=10, min_cohort=4, silence=20.0)
    site.register()
    for member in site.clients:
        site.start_node(member)
    site.submit()
    site.wait_for(2, "counted", 8)
    site.kill(2)
    site.start_node(2)
    site.wait_for_end()
    record_property("seconds per stage", site.seconds_per_stage)
    assert site.seconds_per_stage <= MOST
    check_never_rejoined(site / "client-2.ledger")
    assert np.array_equal(site.model("final-2.npz"), site.model())
    assert audit_run(site / "run").integrity.problems == ()


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_node_misses_a_stage_and_comes_back(link: SuperLink, moment: str) -> None:
    """The other nodes lose nothing. test_training_through_engine.py has every stage exactly."""
    site = killable(link)
    for member in site.clients:
        site.start_node(member)
    site.submit()
    site.wait_for(3, "session", clients=5)
    before = sum(each["event"] == moment for each in site.log_of(3))
    site.wait_for(3, moment, before + 1)
    restart(site)
    site.wait_for_end()
    missing = [each for each in site.log if each["event"] == "missing"]
    assert missing[0]["stage"] in MOMENTS[moment]
    assert {each["members"] for each in missing} == {"3"}
    check_others_went_on(site)
    check_never_rejoined(site / "client-3.ledger")


def test_a_node_that_is_killed_before_it_joins_is_a_drop_out(link: SuperLink) -> None:
    """It connects during a session, and is invited to the next one when it is gone already."""
    site = killable(link)
    for member in (0, 1, 2, 4):
        site.start_node(member)
    site.submit()
    site.wait_for_server("session", clients=4)
    site.start_node(3)
    site.wait_for(3, "connected")
    restart(site)
    site.wait_for_end()
    events = [each["event"] for each in site.log if each["event"] != "round" or each["clients"] != 4]
    assert "missing" not in events  # there is no such thing while clients join
    left = events.index("left")
    assert events[:left].count("session") == 1
    check_others_went_on(site)


def killable(link: SuperLink) -> FlowerSite:
    """Return a deployment in which node 3 can be killed: the SuperLink takes it back after 20 seconds, while
    the run goes on."""
    site = FlowerSite(link, trust=MALICIOUS, rounds=10, min_cohort=4, silence=SILENCE, deadline=DEADLINE)
    site.register()
    return site


def restart(site: FlowerSite) -> None:
    site.kill(3)
    site.start_node(3)


def check_others_went_on(site: FlowerSite) -> None:
    """Only node 3 was missing or has left a session, no sum or round has failed, some rounds after that are
    over the others, and the last one is over all clients."""
    events = [each["event"] for each in site.log]
    assert {each["member"] for each in site.log if each["event"] == "left"} <= {
        3
    }  # the session may end before
    assert not {"aborted", "failed", "round failed"} & set(events)
    gone = min(events.index(each) for each in ("missing", "left") if each in events)
    clients = [each["clients"] for each in site.log[gone:] if each["event"] == "round"]
    assert 4 in clients
    assert set(clients) <= {4, 5}
    assert clients[-1] == 5
    assert np.array_equal(site.model("final-3.npz"), site.model())
    assert audit_run(site / "run").integrity.problems == ()


def test_a_late_node_takes_part_in_the_next_session(link: SuperLink) -> None:
    site = FlowerSite(link, rounds=6, min_cohort=4)
    site.register()
    for member in (0, 1, 2, 3):
        site.start_node(member)
    site.submit()
    site.wait_for(0, "counted")
    site.start_node(4)
    site.wait_for_end()
    clients = [each["clients"] for each in site.log if each["event"] == "round"]
    assert clients[0] == 4
    assert clients[-1] == 5


def test_an_unregistered_node_ends_with_words(link: SuperLink) -> None:
    site = FlowerSite(link, rounds=1)
    unregistered = site.start_node(0, link.new_key("stranger"))
    assert unregistered.wait(150) == 2  # until then, an earlier process of it could still count as online
    assert "register it with flwr supernode register" in (site / "node-0.log").read_text()


def test_foreign_keys_are_refused(link: SuperLink) -> None:
    """Node 3 is registered, but its client has a key that only a registry of its own lists. Node 4 is
    registered, and has the key of client 0. The server refuses both, and trains with the others."""
    site = FlowerSite(link, rounds=1, min_cohort=3)
    site.register()
    _enrol_by_itself(site, 3)
    site.change("join-4.toml", "member = 4", "member = 0")
    for ending in ("key", "pem"):
        site.change("join-4.toml", f"client-4.{ending}", f"client-0.{ending}")
    site.lose("client-4.ledger")
    ClientLedger.create(
        site / "client-4.ledger", member=0, identity=site.identities["client-0"].public
    ).close()
    for member in (3, 4):
        site.start_node(member)
    site.submit()
    site.wait_for_refusal("member-3")
    site.wait_for_refusal("member-4")
    for member in (3, 4):
        site.kill(member)
    for member in (0, 1, 2):
        site.start_node(member)
    site.wait_for_end()
    assert [each["clients"] for each in site.log if each["event"] == "round"] == [3]
    assert "connects through the node of client 4" in str(site.log)


def _enrol_by_itself(site: FlowerSite, member: int) -> None:
    """Give a client another key, and a registry of an authority of its own that lists this key."""
    files = {name: (site / name).read_bytes() for name in ("registry.secagg", "registry.pem")}
    site.identities["impostor"] = Identity.generate()
    site.write_identity("impostor")
    site.replace_identity(f"client-{member}")
    site.enrol(authority="impostor")
    for name, content in files.items():
        (site / name).rename(site / name.replace("registry", "own"))
        site.write(name, content)
    site.change(f"join-{member}.toml", "registry.secagg", "own.secagg")
    site.change(f"join-{member}.toml", "authority.pem", "impostor.pem")
    site.lose(f"client-{member}.ledger")
    public = site.identities[f"client-{member}"].public
    ClientLedger.create(site / f"client-{member}.ledger", member=member, identity=public).close()


def test_stock_supernodes_take_letters_to_clients(link: SuperLink, record_property: RecordProperty) -> None:
    """The fallback: slow, because Flower starts a process for every message, and without internal API."""
    site = FlowerSite(link, algorithm=ALGORITHMS["rfa"], rounds=1, silence=120.0)
    site.register()
    for member in site.clients:
        site.start_relayed(member)
    site.submit()
    site.wait_for_end(900)
    record_property("seconds per stage", site.seconds_per_stage)
    site.check_models()
