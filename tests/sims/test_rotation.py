"""Rotation in a deployment: keys, certificates and registries change while server and clients run."""

from __future__ import annotations

import http.client
import itertools
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg.identity_registry import Registry
from secagg.ledger import ClientLedger, ServerLedger, read_ledger
from secagg.net.identity_and_registry_files import read_certificate, read_key, write_registry
from sims.cli import main
from tests.sims.deploy_site import Running, Site

CLIENTS = (1, 2, 3, 4)
VALUES = """
def answer(asked):
    return {{"x": [0.0, 0.0, 0.0], "n": [{bit}]}}
"""


class Hosts(Site):
    """A deployment in which the server, the authority and every client have a directory of their own."""

    def __init__(self, directory: Path, *, sessions: int, trust: str = "malicious_server") -> None:
        super().__init__(directory, CLIENTS)
        self.homes = {name: directory / f"at-{name}" for name in ("server", "authority", *map(str, CLIENTS))}
        for home in self.homes.values():
            home.mkdir()
        self._write_settings(sessions, trust)
        self._hand_out("authority", "authority.key", "authority.pem", "registry.secagg", "registry.pem")
        common = ("authority.pem", "registry.secagg", "sums.toml")
        self._hand_out("server", *common, "registry.pem", "server.key", "server.pem", "serve.toml")
        server = self.identities["server"].public
        ServerLedger.create(self.homes["server"] / "server.ledger", identity=server).close()
        for member in CLIENTS:
            own = (f"client-{member}.key", f"client-{member}.pem", f"join-{member}.toml", "server.pem")
            self._hand_out(str(member), *common, *own)
            home, key = self.homes[str(member)], self.identities[f"client-{member}"].public
            (home / f"values_of_{member}.py").write_text(VALUES.format(bit=1 << member))
            ClientLedger.create(home / f"client-{member}.ledger", member=member, identity=key).close()

    def _write_settings(self, sessions: int, trust: str) -> None:
        for old, new in {
            "sessions = 1": f"sessions = {sessions}", "pause = 0": "pause = 0.5", "malicious_server": trust,
            "dropout = 0": "dropout = 0.2", "max_cohort = 3": "max_cohort = 9", '"off"': '"127.0.0.1:0"',
            'kind = "mean"': 'kind = "mean"\npayload = "question"',
        }.items():  # fmt: skip
            self.change("serve.toml", old, new)
        self.change("serve.toml", "[[ask]]", "[deadlines]\njoin = 30\n[[ask]]")
        for member in CLIENTS:
            name = f"join-{member}.toml"
            self.change(name, f'values = "values-{member}.npz"', f'answer = "values_of_{member}:answer"')
            self.change(name, "max_cohort = 3", "max_cohort = 9")
            self.change(name, "malicious_server", trust)

    def _hand_out(self, name: str, *files: str) -> None:
        for file in files:
            shutil.copy(self / file, self.homes[name] / file)

    def give(self, giver: str, taker: str, *files: str) -> None:
        """Copy files from one host to another; the last one arrives last."""
        for file in files:
            draft = self.homes[taker] / f".{file}"
            shutil.copy(self.homes[giver] / file, draft)
            draft.replace(self.homes[taker] / file)

    def keygen(self, name: str, home: str, *options: str) -> None:
        assert main(["keygen", name, "--directory", str(self.homes[home]), "--renew", *options]) == 0

    def enrol(self, *options: str, **_: Any) -> Any:  # type: ignore[override]
        if not hasattr(self, "homes"):
            return super().enrol()
        home = self.homes["authority"]
        where = ["--authority", str(home / "authority.key"), "--registry", str(home / "registry.secagg")]
        assert main(["enrol", *where, *options]) == 0
        self.give("authority", "server", "registry.pem", "registry.secagg")
        return None

    def rotate(self, member: int) -> None:
        """Give a client a new key, and have the authority enrol it."""
        name = f"client-{member}"
        self.keygen(name, str(member), "--member", str(member))
        self.give(str(member), "authority", f"{name}.pem", f"{name}.handover")
        self.enrol("--member", f"{member}={self.homes['authority'] / f'{name}.pem'}")

    # --- processes ---

    @contextmanager
    def running(self, members: Sequence[int] = CLIENTS) -> Iterator[tuple[Running, dict[int, Running]]]:
        processes: list[Running] = []
        over = threading.Event()
        thread = threading.Thread(target=self._ask_anew, args=(over,))
        thread.start()
        try:
            server = self._start(processes, "serve", "server", "serve.toml")
            port = server.wait_for("started")["address"].rpartition(":")[2]
            clients = {}
            for member in members:
                path = self.homes[str(member)] / f"join-{member}.toml"
                path.write_text(path.read_text().replace("127.0.0.1:7443", f"127.0.0.1:{port}"))
                clients[member] = self._start(processes, "join", str(member), path.name)
            yield server, clients
        finally:
            over.set()
            thread.join()
            for process in processes:
                process.end()

    def _ask_anew(self, over: threading.Event) -> None:
        """Let no two questions be equal: clients answer equal ones only with the same clients."""
        for number in itertools.count():
            draft = self.homes["server"] / "question.new"
            draft.write_bytes(number.to_bytes(8, "big"))
            draft.replace(self.homes["server"] / "question")
            if over.wait(0.05):
                return

    def _start(self, processes: list[Running], command: str, name: str, config: str) -> Running:
        processes.append(Running(self, command, str(self.homes[name] / config)))
        return processes[-1]

    def contributors(self) -> list[set[int]]:
        """Who is in each total, in order."""
        found = []
        for path in sorted((self.homes["server"] / "totals").glob("*.npz")):
            with np.load(path) as archive:
                found.append({member for member in CLIENTS if int(archive["n"][0]) >> member & 1})
        return found


@pytest.mark.slow
@pytest.mark.parametrize("trust", ["malicious_server", "curious_server"])
def test_only_the_rotating_party_misses_a_session(tmp_path: Path, trust: str) -> None:
    hosts = Hosts(tmp_path, sessions=20, trust=trust)
    old_server = read_certificate(hosts.homes["1"] / "server.pem")
    with hosts.running() as (server, _):

        def hold(sessions: int) -> None:
            for _ in range(sessions):
                server.wait_for("stored")

        hold(3)
        hosts.rotate(3)
        server.wait_for("renewed", registry=2)
        hold(4)
        hosts.keygen("server", "server", "--server")
        server.wait_for("renewed", new_key=True)
        hold(4)
        hosts.enrol("--expires", "2099-01-01")
        server.wait_for("renewed", registry=3)
        assert server.wait() == 0, server.stderr()
    found = hosts.contributors()
    assert len(found) == 20, [
        each for each in server.entries if each["event"] in ("left", "no total", "failed")
    ]
    assert all({1, 2, 4} <= each for each in found)
    assert all(3 in each for each in (found[0], found[1], found[-1], found[-2]))
    for member in CLIENTS:
        home = hosts.homes[str(member)]
        reading = read_ledger(home / f"client-{member}.ledger")
        assert reading.spend.unnoised == sum(member in each for each in found)
        assert (home / "registry.secagg").read_bytes() == (
            tmp_path / "at-authority/registry.secagg"
        ).read_bytes()
        assert read_certificate(home / "server.pem") == read_certificate(tmp_path / "at-server/server.pem")
        assert read_certificate(home / "server.old.pem") == old_server
    if trust == "malicious_server":
        owner = read_ledger(hosts.homes["3"] / "client-3.ledger").owner
        assert owner.identity == read_key(hosts.homes["3"] / "client-3.key").public
    owner = read_ledger(hosts.homes["server"] / "server.ledger").owner
    assert owner.identity == read_key(hosts.homes["server"] / "server.key").public


def health(address: str) -> int:
    """The status with which a server answers a question about its health."""
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("trust", ["malicious_server", "curious_server"])
def test_an_expired_registry_ends_nobody_and_its_successor_is_enough(tmp_path: Path, trust: str) -> None:
    hosts = Hosts(tmp_path, sessions=0, trust=trust)
    members = {k: hosts.identities[f"client-{k}"].public for k in CLIENTS}
    certificates = {k: hosts.certificate(f"client-{k}") for k in CLIENTS}
    with hosts.running() as (server, clients):
        server.wait_for("stored")
        address = server.entries[0]["metrics"]
        assert health(address) == 200
        short = Registry(2, members, int(time.time()) + 8)
        path = hosts.homes["authority"] / "registry.secagg"
        write_registry(path, short, hosts.identities["authority"], certificates)
        hosts.give("authority", "server", "registry.pem", "registry.secagg")
        server.wait_for("renewed", registry=2)
        server.wait_for("expired", registry=2)
        for client in clients.values():
            client.wait_for("expired", registry=2)
        assert health(address) == 503
        before = len(hosts.contributors())
        hosts.enrol("--expires", "2099-01-01")
        server.wait_for("renewed", registry=3)
        for _ in range(2):
            server.wait_for("stored")
        assert health(address) == 200
    found = hosts.contributors()
    assert len(found) >= before + 2
    assert all(each == set(CLIENTS) for each in found)
    assert not any("disconnected" in client.events() for client in clients.values())
