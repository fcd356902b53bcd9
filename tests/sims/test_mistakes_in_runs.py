"""Mistakes of operators while a training run goes on: the disk gets full, a second server starts. What ends
with exit status 2 goes on when the operator has corrected it and starts it again."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from secagg.ledger import ClientLedger, read_ledger
from sims.audit.audit_run import audit_run
from sims.cli import main
from tests.sims.deploy_site import Running
from tests.sims.mistaken_site import MistakenSite
from tests.sims.small_disk import SmallDisk, small_disk

pytestmark = pytest.mark.slow  # processes
ROUNDS = 6


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as made:
        yield made


class Deployment:
    """A server and three clients in processes of their own."""

    def __init__(self, directory: Path, *, clients: int = 3) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        self.site = MistakenSite(
            directory, clients=clients, algorithm='name = "fedgeomed+"', rounds=ROUNDS, port=port
        )
        self.site.change("train.toml", "linger = 20.0", "linger = 300.0")
        self.running: list[Running] = []

    def start(self, *arguments: str) -> Running:
        self.running.append(Running(self.site, *arguments))
        return self.running[-1]

    def serve(self) -> Running:
        return self.start("serve", "train.toml")

    def join(self, member: int) -> Running:
        return self.start("join", f"join-{member}.toml")

    def check_ended(self, *processes: Running) -> None:
        """All have ended with the run, of which nothing is lost and no round was released twice."""
        for process in processes:
            assert process.wait() == 0, process.stderr()
        site = self.site
        run = next(path for path in (site / "disk/run", site / "run") if path.exists())
        assert audit_run(run).integrity.problems == ()
        rows = [row.body for row in read_ledger(run / "ledger").rows]
        asked = [row["round"] for row in rows if row["entry"] == "asked"]
        assert asked == sorted(asked)
        with np.load(run / "model.npz") as archive:
            model = archive["model"]
        for member in site.clients:
            path = site / f"client-{member}.ledger"
            if path.exists():
                ClientLedger.open(
                    path, member=member, identity=site.identities[f"client-{member}"].public
                ).close()
            path = next(
                each
                for each in (site / f"disk/final-{member}.npz", site / f"final-{member}.npz")
                if each.exists()
            )
            with np.load(path) as archive:
                assert np.array_equal(archive["model"], model)


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path)
    yield made
    for each in made.running:
        each.end()


def gave_up(process: Running, mentioned: str) -> None:
    """It ended by itself, with a sentence on standard error and in its log."""
    assert process.wait() == 2
    said = process.stderr()
    assert mentioned in said
    assert "Traceback" not in said
    assert "gave up" in process.events()


# --- the disk ---


def test_the_disk_of_a_run_gets_full(disk: SmallDisk, deployment: Deployment) -> None:
    deployment.site.change("train.toml", 'run = "run"', 'run = "disk/run"')
    server = deployment.serve()
    clients = [deployment.join(member) for member in deployment.site.clients]
    server.wait_for("round")
    disk.fill()
    waits = server.says("waiting", "reason")  # otherwise it has noticed it only in the midst of a round
    if not waits:
        gave_up(server, "disk/run")
        disk.fill()  # also what the server has left
    assert main(["serve", "--check", str(deployment.site / "train.toml")]) == 2
    disk.free()
    if not waits:
        server = deployment.serve()
        server.wait_for("resumed")
    deployment.check_ended(server, *clients)


FILES_OF_CLIENTS = {"state": '"state-0"', "ledger": '"client-0.ledger"'}


@pytest.mark.parametrize("key", FILES_OF_CLIENTS)
def test_the_disk_of_a_client_gets_full(disk: SmallDisk, deployment: Deployment, key: str) -> None:
    name = FILES_OF_CLIENTS[key]
    deployment.site.change(
        "join-0.toml", f"{key} = {name}", f"{key} = {name.replace(chr(34), chr(34) + 'disk/', 1)}"
    )
    if key == "ledger":
        assert main(["join", "--new-ledger", str(deployment.site / "join-0.toml")]) == 0
    server = deployment.serve()
    clients = [deployment.join(member) for member in deployment.site.clients]
    server.wait_for("round")
    disk.fill()
    gave_up(clients[0], f"disk/{name.strip(chr(34))}")
    assert main(["join", "--check", str(deployment.site / "join-0.toml")]) == 2
    disk.free()
    deployment.check_ended(server, *clients[1:], deployment.join(0))


def test_the_directory_of_a_state_becomes_read_only(disk: SmallDisk, deployment: Deployment) -> None:
    deployment.site.change("join-0.toml", 'state = "', 'state = "disk/')
    server = deployment.serve()
    clients = [deployment.join(member) for member in deployment.site.clients]
    server.wait_for("round")
    disk.allow_writing(False)
    gave_up(clients[0], "disk/state-0")
    assert main(["join", "--check", str(deployment.site / "join-0.toml")]) == 2
    disk.allow_writing(True)
    deployment.check_ended(server, *clients[1:], deployment.join(0))


def test_there_is_no_room_for_the_final_model(disk: SmallDisk, deployment: Deployment) -> None:
    deployment.site.change("join-0.toml", 'model = "', 'model = "disk/')
    server = deployment.serve()
    clients = [deployment.join(member) for member in deployment.site.clients]
    server.wait_for("round")
    disk.fill()
    gave_up(clients[0], "disk/final-0.npz")
    disk.free()
    deployment.check_ended(server, *clients[1:], deployment.join(0))


@pytest.mark.parametrize(
    "arguments", [["keygen", "--directory", "disk", "new"], ["enrol", "--member", "9=server.pem"]]
)
def test_keys_and_registries_need_room(
    disk: SmallDisk,
    deployment: Deployment,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    site = deployment.site
    monkeypatch.chdir(site.directory)
    if arguments[0] == "enrol":
        for name in ("registry.secagg", "registry.pem"):
            (disk.path / name).write_bytes((site / name).read_bytes())
        arguments = [*arguments, "--registry", "disk/registry.secagg"]
    disk.fill()
    before = site.files()
    assert main(arguments) == 2
    assert "disk/" in capsys.readouterr().err
    assert site.files() == before
    disk.free()
    assert main(arguments) == 0


# --- processes ---


def test_a_second_server_leaves_the_first_alone(deployment: Deployment) -> None:
    server = deployment.serve()
    clients = [deployment.join(member) for member in deployment.site.clients[1:]]
    server.wait_for("started")
    second = deployment.serve()
    assert second.wait() == 2
    assert "run" in second.stderr()
    deployment.site.change("train.toml", 'run = "run"', 'run = "other"')
    third = deployment.serve()
    assert third.wait() == 2
    assert "deploy.listen" in third.stderr()
    assert not (deployment.site / "other").exists()
    deployment.check_ended(server, *clients, deployment.join(0))


def test_sigterm_loses_nothing(deployment: Deployment) -> None:
    server = deployment.serve()
    clients = [deployment.join(member) for member in deployment.site.clients]
    server.wait_for("round")
    server.send(signal.SIGTERM)
    assert server.wait() == 0
    clients[0].send(signal.SIGTERM)
    assert clients[0].wait() == 0
    deployment.check_ended(deployment.serve(), *clients[1:], deployment.join(0))


def test_a_client_runs_once(deployment: Deployment) -> None:
    """A second process of a client takes the place of the first, which ends and says why."""
    server = deployment.serve()
    first = deployment.join(0)
    first.wait_for("connected")
    second = deployment.join(0)
    gave_up(first, "")
    clients = [deployment.join(member) for member in deployment.site.clients[1:]]
    deployment.check_ended(server, second, *clients)


def test_two_clients_with_one_state_file(deployment: Deployment) -> None:
    """One of them ends, and the server is told. Nothing is lost: with a file of its own, it goes on."""
    site = deployment.site
    site.change("join-1.toml", '"state-1"', '"state-0"')
    server = deployment.serve()
    clients = [deployment.join(member) for member in site.clients]
    told = server.wait_for("notice", topic="refusal")
    loser = told["member"]
    assert (loser in (0, 1), told["reason"]) == (True, "ConfigError")
    gave_up(clients[loser], "state-0")
    site.change(f"join-{loser}.toml", '"state-0"', f'"own-{loser}"')
    kept = [client for member, client in enumerate(clients) if member != loser]
    deployment.check_ended(server, *kept, deployment.join(loser))


TERMS = {
    "another algorithm": ('"fedgeomed+"', '"rfa"', "algorithm"),
    "a longer model": ("hidden = 4", "hidden = 5", "model."),
    "more rounds": (f"rounds = {ROUNDS}", "rounds = 99", "rounds"),
}


@pytest.mark.parametrize("case", TERMS)
def test_other_terms_than_the_servers(deployment: Deployment, case: str) -> None:
    old, new, mentioned = TERMS[case]
    site = deployment.site
    site.write("other.toml", (site / "train.toml").read_text().replace(old, new))
    site.change("join-0.toml", '"train.toml"', '"other.toml"')
    server = deployment.serve()
    client = deployment.join(0)
    gave_up(client, mentioned)
    assert mentioned in server.wait_for("notice", topic="terms", member=0)["reason"]
    site.change("join-0.toml", '"other.toml"', '"train.toml"')
    deployment.check_ended(server, *(deployment.join(member) for member in site.clients))


def test_a_stricter_policy_is_told_on_both_sides(tmp_path: Path) -> None:
    """Client 0 wants four clients in a session, and the server begins with three."""
    deployment = Deployment(tmp_path, clients=4)
    site = deployment.site
    site.change("train.toml", "min_cohort = 4", "min_cohort = 3")
    site.change("join-0.toml", "min_cohort = 3", "min_cohort = 4")
    try:
        server = deployment.serve()
        clients = [deployment.join(member) for member in site.clients[:-1]]
        clients[0].wait_for("refused")
        server.wait_for("notice", topic="refusal", member=0)
        deployment.check_ended(server, *clients, deployment.join(3))
    finally:
        for each in deployment.running:
            each.end()
