"""Connections to Ray that cannot be made, and a local Ray under SIGTERM, each in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

pytest.importorskip("ray", reason="ray is not installed")

from sims.runtime.ray.reachability import why_unreachable
from sims.workers.process_lifetime_and_queries import ProcessId
from tests.engines.test_ray_cluster import QUIET, Node, free_port, wait_for
from tests.sims.test_worker_orphans import ROOT, survivors

pytestmark = pytest.mark.slow

CONNECT = """
import sys
{before}
from sims.config_problems import ConfigError
from sims.runtime.ray.cluster import connect, disconnect
try:
    disconnect(connect(sys.argv[1]))
    print("connected")
except ConfigError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def head() -> Iterator[str]:
    """The address of a cluster of one node."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as home:
        node = Node("--head", f"--port={port}", "--include-dashboard=false", home=home)
        try:
            wait_for(port)
            yield f"127.0.0.1:{port}"
        finally:
            node.kill()


def connected(address: str, *, before: str = "", **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CONNECT.format(before=before), address],
        env={**os.environ, **QUIET, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.strip()


def test_a_cluster_says_who_may_use_it(head: str) -> None:
    assert connected(head) == "connected"
    for environment in ({"RAY_AUTH_TOKEN": "ab" * 32}, {"RAY_AUTH_MODE": "disabled"}):
        said = connected(head, **environment)
        assert said.startswith(f"the Ray cluster {head} cannot be reached: it wants a token")
        assert "RAY_AUTH_TOKEN" in said


def test_another_version_of_ray_is_told_with_both_versions(head: str) -> None:
    said = connected(head, before="import ray; new, ray.__version__ = ray.__version__, '2.1.0'; print(new)")
    new, _, said = said.partition("\n")
    assert f"Ray: {new}" in said
    assert "Ray: 2.1.0" in said
    assert said.endswith("install the same Ray and Python here and on its nodes")
    assert "\n" not in said


@pytest.mark.parametrize("auto", [False, True])
def test_a_port_of_something_else_is_told_in_time(auto: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        said = why_unreachable("auto" if auto else address, answered=3)
    assert said is not None
    assert said.startswith("no Ray answers there")


SERVES = """
import os, signal, sys, time
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append("SIGTERM"))
from sims.runtime.ray.cluster import connect, disconnect, import_ray
cluster = connect("local")
ray = import_ray()

class Counter:
    count = 0
    def add(self):
        self.count += 1
        return self.count, os.getpid()

counter = ray.remote(Counter).options(num_cpus=0, max_restarts=0).remote()
children = [int(each) for each in open(f"/proc/self/task/{os.getpid()}/children").read().split()]
print(ray.get(counter.add.remote())[1], *children, flush=True)
sys.stdin.readline()
until = time.monotonic() + 5
while time.monotonic() < until:
    assert len(ray.nodes()) == 1
    last = ray.get(counter.add.remote())[0]
    assert ray.get(ray.remote(lambda number: -number).remote(last)) == -last
    time.sleep(0.1)
print(*told, cluster.facts()["nodes"], flush=True)
disconnect(cluster)
"""


def test_a_local_ray_outlives_a_sigterm_to_the_whole_group_and_ends_with_its_process() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVES],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        try:
            assert program.stdout is not None
            started = [ProcessId.of(int(word)) for word in program.stdout.readline().split()]
            assert len(started) >= 3  # an actor, and at least the two of a local Ray
            os.killpg(program.pid, signal.SIGTERM)
            said, _ = program.communicate("go\n", timeout=120)
            assert said == "SIGTERM 1\n"
            assert program.returncode == 0
            assert survivors(started) == []
        finally:
            program.kill()
