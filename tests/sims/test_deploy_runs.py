"""``secagg serve`` and ``secagg join`` as real processes over TLS."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg.ledger import read_ledger
from tests.sims.deploy_site import CLIENTS, Running, Site

Start = Callable[..., Running]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def start(site: Site) -> Iterator[Start]:
    """Starts commands, and sees to it that none is left."""
    running: list[Running] = []

    def begin(*arguments: str) -> Running:
        running.append(Running(site, *arguments))
        return running[-1]

    yield begin
    for process in running:
        process.end()


def serve(start: Start, site: Site) -> Running:
    """A server on a port of its own, which the clients' configurations name from now on."""
    server = start("serve", "serve.toml")
    address = server.wait_for("started")["address"]
    site.change("serve.toml", "127.0.0.1:0", address)
    for member in site.clients:
        site.change(f"join-{member}.toml", "127.0.0.1:7443", address)
    return server


def total(site: Site, name: str) -> dict[str, Any]:
    with np.load(site / "totals" / name) as archive:
        return {part: archive[part].tolist() for part in archive}


def rows(site: Site, ledger: str, entry: str) -> list[Mapping[str, Any]]:
    return [row.body for row in read_ledger(site / ledger).rows if row.body["entry"] == entry]


# Answers with what was broadcast, but fails the first time, in a text that nobody else may read.
ANSWER = """
calls = 0

def answer(asked):
    global calls
    calls += 1
    if calls == 1:
        raise ValueError("secret 271828")
    return {"x": [float(asked.payload)] * 3, "n": [1], "unused": None}
"""


def test_a_failed_input_costs_one_sum_and_the_next_is_exact(site: Site, start: Start) -> None:
    """Client 3 computes from the broadcast; the others read files. There is a total of an earlier round."""
    (site / "totals").mkdir()
    site.write("totals/00000006-00-mean.npz", b"")
    site.change("serve.toml", "[[ask]]", "[capacity]\nuploads = 1\n[[ask]]")
    site.write("model.txt", "1.5")
    site.write("answers.py", ANSWER)
    site.change("serve.toml", 'kind = "mean"', 'kind = "mean"\npayload = "model.txt"')
    site.change("serve.toml", "sessions = 1", "sessions = 1\nsums = 2")
    site.change("join-3.toml", 'values = "values-3.npz"', 'answer = "answers:answer"')

    server = serve(start, site)
    clients = [start("join", "--sessions", "1", f"join-{member}.toml") for member in CLIENTS]

    assert [client.wait() for client in clients] == [0, 0, 0]
    assert server.wait() == 0
    declined = next(entry for entry in clients[2].entries if entry["event"] == "declined")
    assert declined["reason"] == "ValueError was raised"
    assert "271828" not in json.dumps(clients[2].entries) + clients[2].stderr()
    (failed,) = [entry for entry in server.entries if entry["event"] == "no total"]
    assert failed["round"] == 7
    assert sorted(os.listdir(site / "totals")) == ["00000006-00-mean.npz", "00000008-01-mean.npz"]
    found = total(site, "00000008-01-mean.npz")
    assert found["x"] == pytest.approx([4.5, 2.5, -0.5], abs=1e-6)
    assert found["n"] == [31]
    assert (found["_kind"], found["_round"], found["_clients"], found["_invited"]) == ("mean", 8, 3, 3)
    assert (
        server.events().count("caution") == 2
    )  # one colluder could hold up all uploads, or end sums by a lie
    # The sum that failed is paid for by those who answered it, and by nobody else.
    assert [len(rows(site, f"client-{member}.ledger", "answer")) for member in CLIENTS] == [2, 2, 1]
    assert [row["entry"] for row in rows(site, "server.ledger", "released")] == ["released"]


# Waits until somebody has the pipe open for writing.
WAITING = """
import os
from pathlib import Path
from typing import Any

GATE = Path(__file__).with_name("gate")

def answer(asked):
    os.close(os.open(GATE, os.O_RDONLY))
    return {"x": [1.0, 2.0, 3.0], "n": [1]}
"""


def hold_back(site: Site) -> None:
    """Clients that take their time, until the gate is opened."""
    os.mkfifo(site / "gate")
    site.write("answers.py", WAITING)
    for member in CLIENTS:
        site.change(f"join-{member}.toml", f'values = "values-{member}.npz"', 'answer = "answers:answer"')


def test_sigterm_ends_a_session_and_everybody_is_told(site: Site, start: Start) -> None:
    hold_back(site)
    server = serve(start, site)
    clients = [start("join", f"join-{member}.toml") for member in CLIENTS]
    for client in clients:
        client.wait_for("asked")

    server.send(signal.SIGTERM)

    for client in clients:
        client.wait_for("session over")
        client.wait_for("dismissed", reason="closing")
    assert server.wait() == 0
    assert {"stopping", "aborted"} < set(server.events())
    assert server.stderr() == ""
    for client in clients:
        client.send(signal.SIGTERM)
    assert [client.wait() for client in clients] == [0, 0, 0]
    assert [client.stderr() for client in clients] == ["", "", ""]
    assert [client.events()[-1] for client in clients] == ["stopped"] * 3
    assert [row["entry"] for row in rows(site, "server.ledger", "aborted")] == ["aborted"]
    assert os.listdir(site / "totals") == []


def test_sigkill_of_the_server_loses_its_session_and_the_next_completes(site: Site, start: Start) -> None:
    hold_back(site)
    server = serve(start, site)
    clients = [start("join", "--sessions", "1", f"join-{member}.toml") for member in CLIENTS]
    for client in clients:
        client.wait_for("asked")

    server.send(signal.SIGKILL)
    assert server.wait() == -signal.SIGKILL
    again = start("serve", "serve.toml")
    for client in clients:
        client.wait_for("session lost")
    gate = os.open(site / "gate", os.O_RDWR)  # never waits, and nobody else does from now on

    assert [client.wait() for client in clients] == [0, 0, 0]
    os.close(gate)
    assert again.wait() == 0
    assert os.listdir(site / "totals") == ["00000001-00-mean.npz"]
    assert total(site, "00000001-00-mean.npz")["n"] == [3]

    asked, released = rows(site, "server.ledger", "asked"), rows(site, "server.ledger", "released")
    assert [row["round"] for row in asked] == [0, 1]
    assert [row["session"] for row in released] == [asked[1]["session"]]
    for member in CLIENTS:
        (answer,) = rows(site, f"client-{member}.ledger", "answer")
        assert answer["round"] == 1
        (confirmed,) = rows(site, f"client-{member}.ledger", "confirmed")
        assert confirmed["session"] == asked[1]["session"]


HYBRID = 'trust = "malicious_server"\nkey_agreement = "x25519+ml-kem-768"'


@pytest.mark.slow
def test_hybrid_keys(site: Site, start: Start) -> None:
    """Two sums of one session; the deposits of pair secrets are a stage of their own."""
    site.change("serve.toml", "sessions = 1", "sessions = 1\nsums = 2")
    for name in ("serve.toml", *(f"join-{member}.toml" for member in CLIENTS)):
        site.change(name, 'trust = "malicious_server"', HYBRID)

    server = serve(start, site)
    clients = [start("join", "--sessions", "1", f"join-{member}.toml") for member in CLIENTS]

    assert [client.wait() for client in clients] == [0, 0, 0]
    assert server.wait() == 0
    assert {entry.get("key_agreement") for entry in server.entries[:1] + clients[0].entries[:1]} == {
        "x25519+ml-kem-768"
    }
    for number in range(2):
        assert total(site, f"0000000{number}-0{number}-mean.npz")["n"] == [60]


def test_both_sides_say_that_their_key_agreements_differ(site: Site, start: Start) -> None:
    site.change("join-3.toml", 'trust = "malicious_server"', HYBRID)
    server = serve(start, site)
    clients = [start("join", f"join-{member}.toml") for member in CLIENTS]

    refused = clients[2].wait_for("refused", error="WrongKeyAgreement")
    assert "needs x25519+ml-kem-768" in refused["reason"]
    server.wait_for("waiting", needed=3, barred=0)
    server.wait_for("notice", member=3, topic="refusal", reason="WrongKeyAgreement")
    left = server.wait_for("left", member=3)
    assert "refused the invitation" in left["reason"]
    assert "key agreement" in left["reason"]
    server.wait_for("failed", reason="only 2 clients came; 3 are needed")


@pytest.mark.slow
def test_curious_server(site: Site, start: Start) -> None:
    """Nothing is signed within the session; TLS still knows everybody."""
    site.change("serve.toml", "malicious_server", "curious_server")
    for member in CLIENTS:
        site.change(f"join-{member}.toml", "malicious_server", "curious_server")

    server = serve(start, site)
    clients = [start("join", "--sessions", "1", f"join-{member}.toml") for member in CLIENTS]

    assert [client.wait() for client in clients] == [0, 0, 0]
    assert server.wait() == 0
    assert total(site, "00000000-00-mean.npz")["n"] == [60]


@pytest.mark.slow
def test_a_session_that_nobody_wants_is_followed_by_the_next(site: Site, start: Start) -> None:
    """Client 3 has another table until its operator puts it right; the server goes on for ever."""
    site.change("serve.toml", "sessions = 1\npause = 0", "pause = 0.5")
    site.change("serve.toml", "[[ask]]", "[deadlines]\njoin = 1\n[[ask]]")
    site.write("other.toml", (site / "sums.toml").read_text().replace("linf = 10.0", "linf = 20.0"))
    site.change("join-3.toml", "sums.toml", "other.toml")
    server = serve(start, site)
    clients = [start("join", "--sessions", "1", f"join-{member}.toml") for member in CLIENTS]
    clients[2].wait_for("refused", error="WrongTable")
    server.wait_for("failed", reason="only 2 clients came; 3 are needed")

    clients[2].send(signal.SIGTERM)
    assert clients[2].wait() == 0
    site.change("join-3.toml", "other.toml", "sums.toml")
    clients[2] = start("join", "--sessions", "1", "join-3.toml")

    assert [client.wait() for client in clients] == [0, 0, 0]
    server.wait_for("waiting")
    server.send(signal.SIGTERM)
    assert server.wait() == 0
    assert "00000000-00-mean.npz" in os.listdir(site / "totals")


# --- differencing ------------------------------------------------------------------------------------

FIVE = (1, 2, 3, 4, 5)


@pytest.fixture
def five(tmp_path: Path) -> Site:
    """Five clients whose values never change, and a server that asks for them again and again. A total needs
    four of them: while their values are being changed, one client after another, there is none over three."""
    site = Site(tmp_path, FIVE)
    trust, sizes = 'trust = "malicious_server"', "max_cohort = 3"
    for name in ("serve.toml", *(f"join-{member}.toml" for member in FIVE)):
        site.change(name, trust, 'trust = "curious_server"')
        site.change(name, sizes, "max_cohort = 5")
        site.change(name, "min_cohort = 3", "min_cohort = 4")
        site.change(name, "min_contributors = 3", "min_contributors = 4")
    site.change("serve.toml", "dropout = 0", "dropout = 0.2")
    site.change("serve.toml", "sessions = 1", "sessions = 0")
    site.write("serve.toml", (site / "serve.toml").read_text() + "\n[deadlines]\njoin = 1.0\nshare = 2.0\n")
    return site


@pytest.fixture
def start_five(five: Site) -> Iterator[Start]:
    running: list[Running] = []

    def begin(*arguments: str) -> Running:
        running.append(Running(five, *arguments))
        return running[-1]

    yield begin
    for process in running:
        process.end()


@pytest.mark.slow  # waits for sessions
@pytest.mark.parametrize("sessions", [2, 20])
def test_unchanged_values_are_not_summed_without_a_killed_client(
    five: Site, start_five: Start, sessions: int
) -> None:
    """The difference of two totals would be its vector. Everybody is told; when it is back, sums go on."""
    server = serve(start_five, five)
    server.wait_for("caution")
    clients = [start_five("join", f"join-{member}.toml") for member in FIVE]
    server.wait_for("stored", clients=5)

    clients[-1].send(signal.SIGKILL)
    clients[0].wait_for("declined")
    for _ in range(sessions):
        server.wait_for("no total")
    before = os.listdir(five / "totals")
    assert {total(five, name)["_clients"] for name in before} == {5}

    start_five("join", "join-5.toml")
    server.wait_for("stored", clients=5)
    assert {total(five, name)["_clients"] for name in os.listdir(five / "totals")} == {5}


@pytest.mark.slow  # waits for sessions
def test_changed_values_are_summed_without_the_killed_client(five: Site, start_five: Start) -> None:
    server = serve(start_five, five)
    clients = [start_five("join", f"join-{member}.toml") for member in FIVE]
    server.wait_for("stored", clients=5)
    clients[-1].send(signal.SIGKILL)
    clients[0].wait_for("declined")
    for member in FIVE:
        np.savez(five / "next.npz", x=[member, 0.25, -2.0], n=[10 * member + 1])
        (five / "next.npz").rename(five / f"values-{member}.npz")
    server.wait_for("stored", clients=4)


# --- rings -------------------------------------------------------------------------------------------

SIX = (1, 2, 3, 4, 5, 6)


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False])
def test_static_values_are_summed_on_a_ring_that_names_its_members(tmp_path: Path, named: bool) -> None:
    """Clients compare who is in a sum; on a ring they know it only if they are told."""
    site = Site(tmp_path, SIX)
    for name in ("serve.toml", *(f"join-{member}.toml" for member in SIX)):
        site.change(name, "malicious_server", "curious_server")
        site.change(name, "corrupt = 1", "corrupt = 0")
        site.change(name, "max_cohort = 3", "max_cohort = 6")
        site.change(name, "min_cohort = 3", "min_cohort = 6")
    site.change(
        "serve.toml", "sessions = 1", f'sessions = 2\ngraph = "ring"\nname_members = {str(named).lower()}'
    )
    running: list[Running] = []

    def start(*arguments: str) -> Running:
        running.append(Running(site, *arguments))
        return running[-1]

    try:
        server = serve(start, site)
        clients = [start("join", f"join-{member}.toml") for member in SIX]
        if named:
            for _ in range(2):
                server.wait_for("stored", clients=6)
            assert server.wait() == 0
            assert [total(site, name)["n"] for name in sorted(os.listdir(site / "totals"))] == [[210]] * 2
        else:
            clients[0].wait_for("refused", error="HiddenMembers")
            server.wait_for("failed")
            assert os.listdir(site / "totals") == []
    finally:
        for process in running:
            process.end()
