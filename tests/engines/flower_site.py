"""A deployment that trains on Flower: clients are nodes of a SuperLink, or sit behind stock SuperNodes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final

from sims.records.run_directory import FINISHED
from sims.records.run_file_names import RUN, SUMS
from tests.engines.flower_rig import BIN, SuperLink, free_port
from tests.sims.training_site import TrainingSite

PATIENCE: Final = """
[deploy.patience]
silence = {silence}
grace = 2.0

[deploy.deadlines]
join = 60.0
{deadlines}
"""
DEADLINES: Final = "share = {0}\nmask = {0}\nconfirm = {0}\nreveal = {0}"
LOG: Final = "server.jsonl"


class FlowerSite(TrainingSite):
    """A training site whose server is a ServerApp of `link`, and whose clients are nodes `NAME-1`, ..."""

    def __init__(
        self,
        link: SuperLink,
        *,
        clients: int = 5,
        min_cohort: int | None = None,
        silence: float = 30.0,
        deadline: float | None = None,
        name: str = "member",
        **settings: Any,
    ) -> None:
        self.link = link
        self.name = name
        super().__init__(link.directory, clients=clients, **settings)
        text = (self / "train.toml").read_text()
        text = text.replace('listen = "127.0.0.1:0"', f'listen = "engine"\nlog = "{LOG}"')
        text = text.replace(f"min_cohort = {clients}", f"min_cohort = {min_cohort or clients}")
        text = text.replace("linger = 20.0", "linger = 120.0")
        deadlines = "" if deadline is None else DEADLINES.format(deadline)
        self.write("train.toml", text + PATIENCE.format(silence=silence, deadlines=deadlines))
        for member in self.clients:
            more = f"\n[patience]\nsilence = {silence}\n"
            self.write(f"join-{member}.toml", (self / f"join-{member}.toml").read_text() + more)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def register(self) -> None:
        for member in self.clients:
            self.link.new_key(f"{self.name}-{member}")
            self.link.register(f"{self.name}-{member}")

    def start_node(self, member: int, key: Path | None = None) -> subprocess.Popen[bytes]:
        """Start a client that is a node. Its log is appended to node-MEMBER.log."""
        own = self / f"{self.name}-{member}.node.key"
        process = self.processes[member] = self.link.start(
            f"node-{member}",
            *(sys.executable, "-m", "secagg", "join", f"join-{member}.toml"),
            *("--flower", self.link.address, "--root-certificates", "flower-ca.pem"),
            *("--auth-supernode-private-key", str(key or own)),
        )
        return process

    def start_relayed(self, member: int) -> None:
        """Start a client, and a stock SuperNode that takes letters to it."""
        socket, home = self / f"{member}.sock", self / f"home-{member}"
        home.mkdir()
        self.processes[member] = self.link.start(
            f"node-{member}",
            *(sys.executable, "-m", "secagg", "join", f"join-{member}.toml", "--relay", str(socket)),
        )
        self.link.start(
            f"supernode-{member}",
            *(str(BIN / "flower-supernode"), "--superlink", self.link.address),
            *("--root-certificates", "flower-ca.pem", "--host", "127.0.0.1"),
            *("--port", str(free_port())),
            *("--auth-supernode-private-key", str(self / f"{self.name}-{member}.node.key")),
            *("--node-config", f'secagg-socket="{socket}"'),
            FLWR_HOME=str(home),
        )

    def submit(self) -> None:
        self.link.run_app({"scenario": str(self / "train.toml")})

    def kill(self, member: int) -> None:
        self.processes[member].send_signal(signal.SIGKILL)
        self.processes[member].wait()

    # --- what happened ---

    def log_of(self, member: int) -> list[Mapping[str, Any]]:
        return _entries(self / f"node-{member}.log")

    @property
    def log(self) -> list[Mapping[str, Any]]:
        return _entries(self / LOG)

    def wait_for(
        self, member: int, event: str, times: int = 1, seconds: float = 240.0, **facts: object
    ) -> None:
        """Wait until the log of a client has an event with these facts, so many times."""
        end = time.monotonic() + seconds
        while sum(_is(each, event, facts) for each in self.log_of(member)) < times:
            assert time.monotonic() < end, f"no {event!r}: {self.log_of(member)[-5:]}, {self.log[-5:]}"
            time.sleep(0.01)

    def wait_for_server(self, event: str, seconds: float = 240.0, **facts: object) -> None:
        """Wait until the server's log has an event with these facts."""
        end = time.monotonic() + seconds
        while not any(_is(each, event, facts) for each in self.log):
            assert time.monotonic() < end, f"no {event!r}: {self.log[-5:]}"
            time.sleep(0.1)

    def wait_for_refusal(self, node: str, seconds: float = 120.0) -> None:
        """Wait until the server has refused a connection through a node."""
        self.wait_for_server("refused", seconds, host=node)

    def wait_for_end(self, seconds: float = 600.0) -> None:
        """Wait until the run has finished, and all clients have ended."""
        end = time.monotonic() + seconds
        facts = self / "run" / RUN
        while not facts.exists() or json.loads(facts.read_text())["status"] != FINISHED:
            assert time.monotonic() < end, f"{self.log[-5:]}"
            time.sleep(0.2)
        for process in self.processes.values():
            process.wait(max(1.0, end - time.monotonic()))

    @property
    def seconds_per_stage(self) -> float:
        """The median over all sums of the seconds that each of their stages took."""
        records = [json.loads(line) for line in (self / "run" / SUMS).read_text().splitlines()]
        sums = [each for each in records if each["entry"] == "sum" and each["count"] is not None]
        return float(median(each["seconds"] / len(each["frames_up"]) for each in sums))


def _is(entry: Mapping[str, Any], event: str, facts: Mapping[str, object]) -> bool:
    return entry["event"] == event and facts.items() <= entry.items()


def _entries(path: Path) -> list[Mapping[str, Any]]:
    """Return the whole lines of a log that are entries, and not other output."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines if line.startswith("{")]
