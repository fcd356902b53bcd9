"""`secagg join` in sums whose parts all have noise: real processes over TLS, and values that do not fit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg.ledger import read_ledger
from secagg.usable_values import Unusable
from tests.sims.deploy_site import CLIENTS, Running, Site

# The noise is a hundredth of a count, so that a total shows what is in it.
SUMS = """
[[sum]]
kind = "visits"
promise = {clients = 3, dropouts = 0, colluders = 1}

[[sum.part]]
name = "n"
size = 1
bits = 32
bound = {count = 10}
noise = {scale = 10000, variance = "10000"}
"""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Two clients with one visit; the third has 27, and a visit more than 10 does not count."""
    site = Site(tmp_path)
    site.write("sums.toml", SUMS)
    site.change("serve.toml", 'kind = "mean"', 'kind = "visits"')
    for member in CLIENTS:
        np.savez(site / f"values-{member}.npz", n=[27 if member == 3 else 1])
        site.change(f"join-{member}.toml", "unnoised_sums = 100", "unnoised_sums = 0\nmax_rho = 1e9")
    return site


@pytest.fixture
def running(site: Site) -> Iterator[list[Running]]:
    processes: list[Running] = []
    yield processes
    for process in processes:
        process.end()


def run(site: Site, running: list[Running]) -> tuple[Running, list[Running]]:
    """Start a server and its clients, and wait until all have ended."""
    server = Running(site, "serve", "serve.toml")
    running.append(server)
    address = server.wait_for("started")["address"]
    for member in CLIENTS:
        site.change(f"join-{member}.toml", "127.0.0.1:7443", address)
        running.append(Running(site, "join", "--sessions", "1", f"join-{member}.toml"))
    clients = running[1:]
    assert [client.wait() for client in clients] == [0, 0, 0]
    assert server.wait() == 0
    return server, clients


def total(site: Site) -> Mapping[str, Any]:
    with np.load(site / "totals" / "00000000-00-visits.npz") as archive:
        return {name: archive[name].tolist() for name in archive}


def lines(process: Running, event: str) -> list[dict[str, Any]]:
    return [entry for entry in process.entries if entry["event"] == event]


def paid(site: Site) -> list[tuple[int, int]]:
    spends = [read_ledger(site / f"client-{member}.ledger").spend for member in CLIENTS]
    assert len({spend.charge for spend in spends}) == 1
    return [(spend.noised, spend.unnoised) for spend in spends]


def test_a_count_beyond_its_limit_is_clipped_and_counted(site: Site, running: list[Running]) -> None:
    server, clients = run(site, running)

    found = total(site)
    assert found["n"] == pytest.approx([12], abs=0.5)
    assert found["_clients"] == 3
    assert paid(site) == [(1, 0)] * 3
    assert [len(lines(client, "clipped")) for client in clients] == [0, 0, 1]
    (clipped,) = lines(clients[2], "clipped")
    assert set(clipped) == {"time", "event", "sum", "kind", "parts"}
    assert clipped["parts"] == "n"
    assert not lines(clients[2], "declined") + lines(server, "clipped")


ANSWER = """
def answer(asked):
    raise ValueError("secret 271828")
"""


@pytest.mark.slow
@pytest.mark.parametrize("source", ["function", "file"])
def test_values_that_cannot_be_had_are_zeros(site: Site, running: list[Running], source: str) -> None:
    if source == "file":
        (site / "values-3.npz").unlink()
    else:
        site.write("failing_answers.py", ANSWER)
        site.change("join-3.toml", 'values = "values-3.npz"', 'answer = "failing_answers:answer"')

    _, clients = run(site, running)

    assert total(site)["n"] == pytest.approx([2], abs=0.5)
    assert total(site)["_clients"] == 3
    assert paid(site) == [(1, 0)] * 3
    (zeros,) = lines(clients[2], "zeros")
    assert zeros["reason"] == Unusable.FAILED
    assert ("ValueError" in zeros["detail"]) == (source == "function")
    assert "271828" not in json.dumps(clients[2].entries) + clients[2].stderr()
