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
from typing import Self

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
import numpy as np
from protocols.fedavg import FedAvg
from protocols.run import Run
from sims.runtime import Setting
from sims.runtime.hosted_clients import ClientFactory
from sims.runtime.ray import RayPlace, ray_sum, sum_channel
from sims.runtime.ray.actor_pool import ActorPool
from sims.runtime.ray.cluster import connect
from tests.sims.process_clients import Counting, worker_clients

def say(*words):
    print(*words, flush=True)

class Waiting(ActorPool):
    "Waits for a line before it takes the replies to its second call, which nodes have computed then."
    calls = 0

    def call(self, commands, apart=()):
        self.calls += 1
        begun = self.begin(commands, apart)
        if self.calls == 2 and sys.argv[3] == "waiting":
            self._ray.wait(list(begun.values()), num_returns=len(begun), fetch_local=False)
            say("computed")
            sys.stdin.readline()
        return self.replies(begun)

address, secure, dim = sys.argv[1], sys.argv[2] == "secure", int(sys.argv[4])
sum_channel.ActorPool = Waiting
algorithm = FedAvg(dim=dim, clients=6, clip=10.0)
centres = {member: np.full(dim, float(member)) for member in range(6)}
learners = {member: Counting(centre, samples=1) for member, centre in centres.items()}
cluster = connect(address)
while cluster.facts()["nodes"] < 2:
    time.sleep(0.2)
channel = ray_sum(
    algorithm, learners, Setting(dropout=0.5, insecure_seed=b"cluster"), secure=secure, actors=2,
    clients=ClientFactory(worker_clients, {}, centres), place=RayPlace(address=address),
    on_worker_event=lambda text: say("event", text),
)
say("cluster", channel.cluster["nodes"], channel.cluster["actors"], channel.cluster["address"] == address)
run = Run(algorithm, channel, algorithm.start(np.zeros(dim)))
while sys.stdin.readline():
    report = run.round()
    say("round", report.completed, report.clients)
channel.close()
say("closed")
"""


class Program:
    """A run of `PROGRAM`, which does a round for each line that it gets."""

    def __init__(self, *words: str) -> None:
        self.events: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words],
            env={**os.environ, **QUIET},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def next_line(self) -> str:
        assert self.process.stdout is not None
        while (line := self.process.stdout.readline()).startswith("event"):
            self.events.append(line)
        return line.strip()

    def go(self) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self.next_line()

    def end(self) -> str:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None
        return self.next_line()


@pytest.mark.parametrize("kind", ["plain", "secure"])
def test_a_killed_node_is_a_drop_out_of_its_clients_which_come_back(
    cluster: tuple[str, Node, str], kind: str
) -> None:
    where, second, home = cluster
    with Program(where, kind, "-", "4") as program:
        assert program.next_line() == "cluster 2 2 True"
        assert program.go() == "round True 6"
        second.kill()
        assert program.go() == "round True 3"  # half of them were there
        assert re.search("is lost", "".join(program.events))
        # There is no room for them as long as a node is missing.
        assert program.go() == "round True 3"
        assert "the cluster has no room for it" in "".join(program.events)
        again = Node(f"--address={where}", home=home)
        try:
            outcomes = [program.go()]
            until = time.monotonic() + 120
            while outcomes[-1] != "round True 6" and time.monotonic() < until:
                time.sleep(1)
                outcomes.append(program.go())
            assert outcomes[-1] == "round True 6"
            assert program.end() == "closed"
        finally:
            again.kill()


def test_a_large_reply_that_is_lost_with_its_node_is_a_drop_out(cluster: tuple[str, Node, str]) -> None:
    """It is more than 100 kB, which Ray leaves in the memory of the node until they are asked for."""
    where, second, _ = cluster
    with Program(where, "plain", "waiting", "60000") as program:
        assert program.next_line() == "cluster 2 2 True"
        assert program.go() == "round True 6"
        assert program.go() == "computed"
        second.kill()
        assert program.go() == "round True 3"
        assert "is lost: its reply was lost with its node" in "".join(program.events)
        assert program.end() == "closed"
