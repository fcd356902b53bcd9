"""`secagg serve` with clients that compare the clients of successive sums."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from tests.sims.deploy_site import Running, Site

CLIENTS, APART = tuple(range(1, 9)), 3


@pytest.mark.slow  # nine processes
def test_single_sums_leave_out_clients_by_batches(tmp_path: Path) -> None:
    """One client is killed after the first session; the second one is without two more, and none refuses."""
    site = Site(tmp_path, CLIENTS)
    site.change("serve.toml", "max_cohort = 3", f"max_cohort = 8\nmin_difference = {APART}")
    site.change("serve.toml", "min_cohort = 3", "min_cohort = 7")
    site.change("serve.toml", "dropout = 0", "dropout = 0.2")
    site.change("serve.toml", "sessions = 1\npause = 0", "sessions = 2\npause = 3")
    site.change("serve.toml", "[[ask]]", "[deadlines]\njoin = 4\n[patience]\ngrace = 1\n[[ask]]")
    server = Running(site, "serve", "serve.toml")
    running = [server]
    try:
        address = server.wait_for("started")["address"]
        for member in CLIENTS:
            site.change(f"join-{member}.toml", "127.0.0.1:7443", address)
            site.change(f"join-{member}.toml", "max_cohort = 3", f"max_cohort = 8\nmin_difference = {APART}")
            running.append(Running(site, "join", f"join-{member}.toml"))
        assert server.wait_for("stored")["clients"] == 8
        running[-1].send(signal.SIGKILL)
        assert server.wait_for("stored")["clients"] == 8 - APART
        assert server.wait() == 0
    finally:
        for each in running:
            each.end()
    left = [entry["member"] for entry in server.entries if entry["event"] == "left"]
    assert set(left) <= {CLIENTS[-1]}  # which was killed; one that refuses leaves
    first, second = (np.load(path)["x"] for path in sorted((site / "totals").iterdir()))
    left_out = first - second
    assert left_out[1] == pytest.approx(0.5 * APART, abs=1e-3)  # each client has 0.5 there
