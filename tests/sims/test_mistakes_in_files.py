"""Mistakes of operators who train, in what their files and policies say together: exit status 2 and a
sentence that names what is wrong, with `--check` as well. Nothing is lost, and nothing is left behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sims.cli import main
from tests.sims.mistaken_site import MistakenSite
from tests.sims.test_operator_mistakes import (
    JOINS,
    SERVE,
    Mistake,
    Table,
    both,
    changed,
    check_refusal,
    deploy,
)

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


OF_SERVERS: Table = {
    "no hand-over": (deploy('hand_over = "no.handover"'), "deploy.hand_over"),
}


@pytest.mark.parametrize("case", OF_SERVERS)
def test_a_mistake_of_a_server(
    site: MistakenSite, original: MistakenSite, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mistake, mentioned = OF_SERVERS[case]
    mistake(site)
    check_refusal(site, original, ["serve", SERVE], mentioned, capsys)


@pytest.mark.parametrize(
    ("clients", "metrics"),
    [("127.0.0.1:0", "127.0.0.1:0"), ("127.0.0.2:7443", "127.0.0.1:7443"), ("0.0.0.0:7443", "0.0.0.0:7444")],
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
    "no hand-over": (client('hand_over = "no.handover"'), "client.hand_over"),
}


@pytest.mark.parametrize("case", OF_CLIENTS)
def test_a_mistake_of_a_client(
    site: MistakenSite, original: MistakenSite, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mistake, mentioned = OF_CLIENTS[case]
    mistake(site)
    check_refusal(site, original, ["join", JOINS], mentioned, capsys)
