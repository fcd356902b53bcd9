"""A server that SIGKILL ends between confirmation and release: sums go on, and no two totals over the same
values are so close that their difference shows a few clients."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from secagg.ledger import read_ledger
from tests.sims.deploy_site import Running, Site

FIVE = (1, 2, 3, 4, 5)
LEAST = 4  # clients in a total, and in the difference of two totals over the same values
KILLING = Path(__file__).resolve().parent / "killed_server"
Start = Callable[..., Running]
MOMENTS = [
    ("malicious_server", "confirmed"),
    ("malicious_server", "revealed"),
    ("malicious_server", "unmasked"),
    ("curious_server", "revealed"),
    ("curious_server", "unmasked"),
]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Five clients, of whom four are enough, and a server that asks again and again."""
    made = Site(tmp_path, FIVE)
    for name in ("serve.toml", *(f"join-{member}.toml" for member in FIVE)):
        made.change(name, "max_cohort = 3", "max_cohort = 5")
        made.change(name, "min_cohort = 3", "min_cohort = 4")
        made.change(name, "min_contributors = 3", f"min_contributors = {LEAST}")
    made.change("serve.toml", "dropout = 0", "dropout = 0.2")
    made.change("serve.toml", "sessions = 1", "sessions = 0")
    made.write("serve.toml", (made / "serve.toml").read_text() + "\n[deadlines]\njoin = 2.0\n")
    made.write("kill", b"")
    return made


@pytest.fixture
def start(site: Site) -> Iterator[Start]:
    running: list[Running] = []

    def begin(*arguments: str, dying: bool = False) -> Running:
        running.append(Running(site, *arguments, path=[KILLING] if dying else []))
        return running[-1]

    yield begin
    for process in running:
        process.end()


def trust(site: Site, level: str) -> None:
    for name in ("serve.toml", *(f"join-{member}.toml" for member in FIVE)):
        site.change(name, "malicious_server", level)


def serve_until_killed(site: Site, start: Start) -> list[Running]:
    """All five clients answer a server that dies. They go on."""
    server = start("serve", "serve.toml", dying=True)
    address = server.wait_for("started")["address"]
    site.change("serve.toml", "127.0.0.1:0", address)
    clients = []
    for member in FIVE:
        site.change(f"join-{member}.toml", "127.0.0.1:7443", address)
        clients.append(start("join", f"join-{member}.toml"))
    assert server.wait() == -signal.SIGKILL
    assert os.listdir(site / "totals") == []
    rows = [row.body["entry"] for row in read_ledger(site / "server.ledger").rows]
    assert "asked" in rows
    assert "released" not in rows
    return clients


def contributors(site: Site) -> list[frozenset[int]]:
    """Who is in each total; no two sets of clients have the same sum of ids to the power of two."""
    found = []
    for name in sorted(os.listdir(site / "totals")):
        with np.load(site / "totals" / name) as total:
            bits = int(total["n"][0])
        found.append(frozenset(member for member in FIVE if bits >> member & 1))
    return found


def check_no_close_pair(sets: list[frozenset[int]]) -> None:
    assert all(one == other or len(one ^ other) >= LEAST for one, other in combinations(sets, 2))


def write_values(site: Site, shift: float) -> None:
    for member in FIVE:
        np.savez(site / "next.npz", x=[shift, member, -1.0], n=[1 << member])
        (site / "next.npz").rename(site / f"values-{member}.npz")


@pytest.mark.slow  # waits for sessions
@pytest.mark.parametrize(("level", "moment"), MOMENTS)
def test_static_values_are_summed_over_the_same_clients_or_not_at_all(
    site: Site, start: Start, level: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clients know of a total that nobody has seen. One of them is gone when the server is back."""
    monkeypatch.setenv("SECAGG_TEST_KILL", moment)
    trust(site, level)
    write_values(site, 0.25)
    clients = serve_until_killed(site, start)
    clients[-1].send(signal.SIGKILL)
    assert clients[-1].wait() == -signal.SIGKILL

    server = start("serve", "serve.toml", dying=True)
    for _ in range(2):
        server.wait_for("no total")
    assert contributors(site) == []
    start("join", "join-5.toml")
    for _ in range(2):
        server.wait_for("stored", clients=5)
    assert set(contributors(site)) == {frozenset(FIVE)}
    check_no_close_pair(contributors(site))


# What a client trains depends on the model, which is broadcast.
TRAINING = """
def answer(asked):
    return {"x": [float(asked.payload), 1.0, 2.0], "n": [1 << %d]}
"""


@pytest.mark.slow
def test_training_goes_on_with_the_next_model(
    site: Site, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one client, the same model is not asked again, and the next one is."""
    monkeypatch.setenv("SECAGG_TEST_KILL", "unmasked")
    site.write("model.txt", "0.5")
    site.change("serve.toml", 'kind = "mean"', 'kind = "mean"\npayload = "model.txt"')
    for member in FIVE:
        site.write(f"training_{member}.py", TRAINING % member)
        site.change(
            f"join-{member}.toml", f'values = "values-{member}.npz"', f'answer = "training_{member}:answer"'
        )
    clients = serve_until_killed(site, start)
    clients[-1].send(signal.SIGKILL)

    server = start("serve", "serve.toml", dying=True)
    clients[0].wait_for("refused", error="RepeatedQuery")
    server.wait_for("no total")
    assert contributors(site) == []

    site.write("next.txt", "0.75")
    (site / "next.txt").rename(site / "model.txt")
    stored = server.wait_for("stored", clients=4)
    with np.load(site / stored["file"]) as total:
        assert total["x"] == pytest.approx([4 * 0.75, 4.0, 8.0], abs=1e-6)
    assert set(contributors(site)) == {frozenset(FIVE[:-1])}
