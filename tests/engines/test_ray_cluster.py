"""Two nodes of Ray on this machine as a cluster, one of which is killed: its clients come back."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

pytest.importorskip("ray", reason="ray is not installed")

from tests.sims.test_worker_orphans import ROOT

pytestmark = pytest.mark.slow
# The cluster has a token of its own, and ignores one that a user of this machine may have.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "PYTHONPATH": str(ROOT),
}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Node:
    """A node that `ray start` runs in the foreground, with its processes in a group of their own."""

    def __init__(self, *options: str, home: str) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1"]
        command += ["--disable-usage-stats", "--object-store-memory=100000000", *options]
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **QUIET, "RAY_TMPDIR": home},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def kill(self) -> None:
        """Kill all processes of the node at once, as if it had lost power."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def cluster() -> Iterator[tuple[str, Node, str]]:
    """The address of a cluster of two nodes, the second of these, and the directory of their files."""
    port = free_port()
    # Paths of sockets must be short.
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as home:
        head = Node("--head", f"--port={port}", "--include-dashboard=false", home=home)
        where = f"127.0.0.1:{port}"
        second = None
        try:
            wait_for(port)
            second = Node(f"--address={where}", home=home)
            yield where, second, home
        finally:
            for node in (second, head):
                if node is not None:
                    node.kill()


def wait_for(port: int) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise TimeoutError("the head of the cluster did not start")


PROGRAM = """
import sys, time
from sims.runtime import Setting
from sims.runtime.hosted_clients import ClientFactory
from sims.runtime.ray import RayPlace, ray_sum
from sims.runtime.ray.cluster import connect
from tests.sims.process_clients import centres, learners, worker_clients
from tests.sims.test_processes import FEDAVG, run_of

def say(*words):
    print(*words, flush=True)

address, secure = sys.argv[1], sys.argv[2] == "secure"
cluster = connect(address)
while cluster.facts()["nodes"] < 2:
    time.sleep(0.2)
channel = ray_sum(
    FEDAVG, learners(), Setting(dropout=0.5, insecure_seed=b"cluster"), secure=secure, actors=2,
    clients=ClientFactory(worker_clients, {}, centres()), place=RayPlace(address=address),
    on_worker_event=lambda text: say("event", text),
)
say("cluster", channel.cluster["nodes"], channel.cluster["actors"], channel.cluster["address"] == address)
run = run_of(FEDAVG, channel)
for line in sys.stdin:
    report = run.round()
    say("round", report.completed, report.clients)
channel.close()
say("closed")
"""


@pytest.mark.parametrize("kind", ["plain", "secure"])
def test_a_killed_node_is_a_drop_out_of_its_clients_which_come_back(
    cluster: tuple[str, Node, str], kind: str
) -> None:
    where, second, home = cluster
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, where, kind],
        env={**os.environ, **QUIET},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        try:
            assert program.stdin is not None
            assert program.stdout is not None

            def next_line(*, skip: str = "event") -> str:
                assert program.stdout is not None
                while (line := program.stdout.readline()).startswith(skip):
                    events.append(line)
                return line.strip()

            def go() -> str:
                assert program.stdin is not None
                program.stdin.write("go\n")
                program.stdin.flush()
                return next_line()

            events: list[str] = []
            assert next_line() == "cluster 2 2 True"
            assert go() == "round True 6"
            second.kill()
            assert go() == "round True 3"  # half of them were there
            assert re.search("is lost", "".join(events))
            # There is no room for them as long as a node is missing.
            assert go() == "round True 3"
            assert "the cluster has no room for it" in "".join(events)
            again = Node(f"--address={where}", home=home)
            try:
                outcomes = [go()]
                until = time.monotonic() + 120
                while outcomes[-1] != "round True 6" and time.monotonic() < until:
                    time.sleep(1)
                    outcomes.append(go())
                assert outcomes[-1] == "round True 6"
                program.stdin.close()
                assert next_line() == "closed"
            finally:
                again.kill()
        finally:
            program.kill()
