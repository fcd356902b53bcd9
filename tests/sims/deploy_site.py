"""A deployment for tests: an authority, a server and three clients, with all their files in one directory."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from secagg.identity_registry import Registry
from secagg.keys import Identity
from secagg.ledger import ClientLedger, ServerLedger
from secagg.net.certificates import make_certificate
from secagg.net.identity_and_registry_files import write_certificate, write_key, write_registry

CLIENTS = (1, 2, 3)
ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0  # seconds without a line of the log after which a test has hung
LONGEST = 300.0  # seconds after which it has hung although there are new lines

SUMS = """
[[sum]]
kind = "mean"

[[sum.part]]
name = "x"
size = 3
bits = 32
bound = {linf = 10.0}

[[sum.part]]
name = "n"
size = 1
bits = 32
bound = {count = 1000}
"""

SERVE = """
[server]
listen = "127.0.0.1:0"
key = "server.key"
certificate = "server.pem"
authority = "authority.pem"
registry = "registry.secagg"
table = "sums.toml"
ledger = "server.ledger"
totals = "totals"

[session]
trust = "malicious_server"
corrupt = 1
dropout = 0
min_cohort = 3
max_cohort = 3
min_contributors = 3
sessions = 1
pause = 0

[metrics]
listen = "off"

[[ask]]
kind = "mean"
"""

JOIN = """
[client]
member = 1
server = "127.0.0.1:7443"
key = "client-1.key"
certificate = "client-1.pem"
server_certificate = "server.pem"
authority = "authority.pem"
registry = "registry.secagg"
table = "sums.toml"
ledger = "client-1.ledger"

[policy]
trust = "malicious_server"
corrupt = 1
min_cohort = 3
max_cohort = 3
min_contributors = 3
max_sums = 2
unnoised_sums = 100

[input]
values = "values-1.npz"
"""


class Site:
    """Everything in order; a test changes one thing."""

    def __init__(self, directory: Path, clients: tuple[int, ...] = CLIENTS) -> None:
        self.directory = directory
        self.clients = clients
        # All certificates of an identity are equal bytes only if they were made in the same second.
        self.made_at = int(time.time())
        self.identities = {
            name: Identity.generate() for name in ("authority", "server", *names(self.clients))
        }
        for name in self.identities:
            self.write_identity(name)
        self.enrol()
        self.write("sums.toml", SUMS)
        self.write("serve.toml", SERVE)
        for member in self.clients:
            self.write(f"join-{member}.toml", self.join_toml(member))
            np.savez(self / f"values-{member}.npz", x=[member, 0.5, -1.0], n=[10 * member])
        self.make_ledgers()

    def __truediv__(self, name: str) -> Path:
        return self.directory / name

    def write(self, name: str, text: str | bytes) -> None:
        (self / name).write_bytes(text.encode() if isinstance(text, str) else text)

    def change(self, name: str, old: str, new: str) -> None:
        text = (self / name).read_text()
        assert text.count(old) >= 1, old
        self.write(name, text.replace(old, new))

    def join_toml(self, member: int) -> str:
        return JOIN.replace("-1.", f"-{member}.").replace("member = 1", f"member = {member}")

    # --- identities ---

    def certificate(self, name: str, *, now: int | None = None, days: int = 10) -> bytes:
        moment = self.made_at if now is None else now
        return make_certificate(self.identities[name], now=moment, days=days)

    def write_identity(self, name: str) -> None:
        for ending in ("key", "pem"):
            (self / f"{name}.{ending}").unlink(missing_ok=True)
        write_key(self / f"{name}.key", self.identities[name])
        write_certificate(self / f"{name}.pem", self.certificate(name))

    def replace_identity(self, name: str) -> None:
        """Somebody else under the same name."""
        self.identities[name] = Identity.generate()
        self.write_identity(name)

    def enrol(
        self,
        members: Mapping[int, str] | None = None,
        *,
        version: int = 1,
        expires: int = 0,
        authority: str = "authority",
    ) -> Registry:
        chosen = members or dict(zip(self.clients, names(self.clients), strict=True))
        keys = {member: self.identities[name].public for member, name in chosen.items()}
        registry = Registry(version, keys, expires)
        certificates = {member: self.certificate(name) for member, name in chosen.items()}
        write_registry(self / "registry.secagg", registry, self.identities[authority], certificates)
        return registry

    # --- ledgers ---

    def make_ledgers(self) -> None:
        ServerLedger.create(self / "server.ledger", identity=self.identities["server"].public).close()
        for member, name in zip(self.clients, names(self.clients), strict=True):
            public = self.identities[name].public
            ClientLedger.create(self / f"{name}.ledger", member=member, identity=public).close()

    def lose(self, ledger: str) -> None:
        for left in self.directory.glob(f"{ledger}*"):
            left.unlink()


def names(members: Sequence[int]) -> list[str]:
    return [f"client-{member}" for member in members]


class Running:
    """A command in a process of its own, and the lines of its log."""

    def __init__(self, site: Site, *arguments: str, path: Sequence[Path] = ()) -> None:
        """`path` is searched for modules first."""
        script = "import sys; from sims.cli import main; sys.exit(main())"
        self._process = subprocess.Popen(
            [sys.executable, "-c", script, *arguments],
            cwd=site.directory,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*path, ROOT)))},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.entries: list[dict[str, Any]] = []
        self._news: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._news.put(json.loads(line))
        self._news.put(None)

    def wait_for(self, event: str, **facts: object) -> dict[str, Any]:
        """The next such entry that was not waited for yet."""
        end = time.monotonic() + LONGEST
        while True:
            assert time.monotonic() < end, f"no {event!r}: {self.entries[-20:]}"
            try:
                entry = self._news.get(timeout=PATIENCE)
            except queue.Empty:
                raise AssertionError(f"no {event!r}: {self.entries}") from None
            assert entry is not None, f"it ended without {event!r}: {self.entries}, {self.stderr()}"
            self.entries.append(entry)
            if entry["event"] == event and facts.items() <= entry.items():
                return entry

    def says(self, event: str, fact: str) -> bool:
        """Whether such an entry with this fact comes before the process ends."""
        while (entry := self._next()) is not None:
            self.entries.append(entry)
            if entry["event"] == event and fact in entry:
                return True
        self._news.put(None)  # for `wait`
        return False

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        """Its exit status, when all of its log is in `entries`."""
        end = time.monotonic() + LONGEST
        while (entry := self._next()) is not None:
            self.entries.append(entry)
            assert time.monotonic() < end, f"it goes on: {self.entries[-20:]}"
        return self._process.wait(PATIENCE)

    def _next(self) -> dict[str, Any] | None:
        try:
            return self._news.get(timeout=PATIENCE)
        except queue.Empty:
            raise AssertionError(f"it is silent: {self.entries[-20:]}") from None

    def stderr(self) -> str:
        assert self._process.stderr is not None
        return self._process.stderr.read()

    def events(self) -> list[str]:
        return [entry["event"] for entry in self.entries]

    def end(self) -> None:
        """Whatever became of the test, no process outlives it."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()
