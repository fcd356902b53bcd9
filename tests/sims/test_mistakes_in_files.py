"""Mistakes of operators who train, in what their files and policies say together: exit status 2 and a
sentence that names what is wrong, with `--check` as well. Nothing is lost, and nothing is left behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sims.cli import main
from sims.deploy.model_files import write_model
from sims.deploy.run_terms import run_terms
from tests.sims.mistaken_site import MistakenSite
from tests.sims.test_operator_mistakes import (
    JOINS,
    SERVE,
    Mistake,
    Table,
    both,
    changed,
    check_refusal,
    copied,
    deploy,
    directory,
    filled,
    lost,
    refused,
)
from tests.sims.training_site import TrainingSite

NO_METRICS = 'metrics = { listen = "off" }'


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])  # which gets the directories of modules


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MistakenSite]:
    """Everything in order, after the first of two rounds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.path", [*sys.path])
        place = tmp_path_factory.mktemp("original")
        site = MistakenSite(place, clients=3, algorithm='name = "fedgeomed+"', rounds=2)
        site.train(until=lambda log: bool(log.facts("round")))
        site.write_all(0)
        yield site


@pytest.fixture
def site(original: MistakenSite, tmp_path: Path) -> MistakenSite:
    return original.copied(tmp_path)


def client(line: str) -> Mistake:
    """With a further key in the table [client]."""
    return changed(JOINS, "[client]", f"[client]\n{line}")


def addresses(clients: str, metrics: str) -> Mistake:
    own = f'metrics = {{ listen = "{metrics}" }}'
    return both(changed(SERVE, "127.0.0.1:0", clients), changed(SERVE, NO_METRICS, own))


def code(file: str, old: str, new: str) -> Mistake:
    """`old` becomes `new`, with the name of the file of the operator's own code in place of CODE."""

    def act(site: TrainingSite) -> None:
        assert isinstance(site, MistakenSite)
        site.change(file, old, new.replace("CODE", f"{site.module}.py"))

    return act


OF_SERVERS: Table = {
    "a finished run.json of no run": (
        filled("run/run.json", b'{"format": 2, "status": "finished"}'),
        "run/run.json",
    ),
    "a running run.json of no run": (
        filled("run/run.json", b'{"format": 2, "status": "running"}'),
        "run/run.json",
    ),
    "a run.json of no status": (filled("run/run.json", b'{"format": 2, "digest": "00"}'), "run/run.json"),
    "a directory as model": (
        both(lost("run/model.npz"), directory("run/model.npz")),
        "run/model.npz",
    ),
    "a run where nothing can be made": (changed(SERVE, 'run = "run"', 'run = "/proc/r9"'), "deploy.run"),
    "a log in a new run directory": (
        both(directory("new"), changed(SERVE, 'run = "run"', 'run = "new"'), deploy('log = "new/serve.log"')),
        "deploy.log",
    ),
    "a log in the run directory": (deploy('log = "./run/serve.log"'), "deploy.log"),
    "a log in place of code": (code(SERVE, "rest = 0.01", 'rest = 0.01\nlog = "CODE"'), "deploy.log"),
    "metrics at the clients' address": (addresses("127.0.0.1:7443", "127.0.0.1:7443"), "deploy.metrics"),
    "metrics at one of all addresses": (addresses("0.0.0.0:7443", "127.0.0.1:7443"), "deploy.metrics"),
    "metrics at a name of all": (addresses("0.0.0.0:7443", "localhost:7443"), "deploy.metrics"),
    "metrics at a name": (addresses("127.0.0.1:7443", "localhost:7443"), "deploy.metrics"),
    "no hand-over": (deploy('hand_over = "no.handover"'), "deploy.hand_over"),
}


@pytest.mark.parametrize("case", OF_SERVERS)
def test_a_mistake_of_a_server(
    site: MistakenSite, original: MistakenSite, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mistake, mentioned = OF_SERVERS[case]
    mistake(site)
    check_refusal(site, original, ["serve", SERVE], mentioned, capsys)


def test_records_that_cannot_be_written(
    site: MistakenSite, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The superuser, who may run this test, can write to files of any mode."""
    access = os.access

    def no_sums(path: Any, mode: int, **more: Any) -> bool:
        return Path(path).name != "sums.jsonl" and access(path, mode, **more)

    monkeypatch.setattr(os, "access", no_sums)
    assert "run/sums.jsonl" in refused(["serve", "--check", str(site / SERVE)], capsys)


@pytest.mark.parametrize(
    ("clients", "metrics"),
    [
        ("127.0.0.1:0", "127.0.0.1:0"),
        ("127.0.0.2:7443", "127.0.0.1:7443"),
        ("0.0.0.0:7443", "0.0.0.0:7444"),
        ("0.0.0.0:7443", "[::1]:7443"),
    ],
)
def test_addresses_that_do_not_overlap(site: MistakenSite, clients: str, metrics: str) -> None:
    addresses(clients, metrics)(site)
    assert main(["serve", "--check", str(site / SERVE)]) == 0


def test_a_hand_over_beside_the_key_may_come_later(site: MistakenSite) -> None:
    deploy('hand_over = "server.handover"')(site)
    client('hand_over = "client-0.handover"')(site)
    assert main(["serve", "--check", str(site / SERVE)]) == 0
    assert main(["join", "--check", str(site / JOINS)]) == 0


OF_CLIENTS: Table = {
    "several tables [deploy]": (changed(SERVE, "[deploy]", "[[deploy]]"), "write [deploy], once"),
    "fewer sums than a session has": (changed(JOINS, "max_sums = 64", "max_sums = 1"), "policy.max_sums"),
    "queries that are too long": (
        changed(JOINS, "[input]", "max_query_bytes = 200\n\n[input]"),
        "policy.max_query_bytes",
    ),
    "no hand-over": (client('hand_over = "no.handover"'), "client.hand_over"),
    "a log in place of code": (code(JOINS, "[client]", '[client]\nlog = "CODE"'), "client.log"),
    "a model in place of code": (code(JOINS, '"final-0.npz"', '"CODE"'), "input.model"),
    "a model in place of notes": (filled("final-0.npz", b"my notes\n"), "final-0.npz"),
    "a model in place of a named one": (copied("client-0.pem", "final-0.safetensors"), "final-0.safetensors"),
    "a directory as named model": (directory("final-0.safetensors"), "final-0.safetensors"),
    "a device as model": (changed(JOINS, '"final-0.npz"', '"/dev/null"'), "input.model"),
}


@pytest.mark.parametrize("case", OF_CLIENTS)
def test_a_mistake_of_a_client(
    site: MistakenSite, original: MistakenSite, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mistake, mentioned = OF_CLIENTS[case]
    mistake(site)
    check_refusal(site, original, ["join", JOINS], mentioned, capsys)


def test_models_of_an_earlier_run_are_replaced(site: MistakenSite) -> None:
    terms = run_terms(site / SERVE, site.directory)
    write_model(site / "final-0.npz", np.zeros(terms.algorithm.dim), terms)
    (site / "personal-0.npz").touch()  # nothing is lost with an empty file
    assert main(["join", "--check", str(site / JOINS)]) == 0
