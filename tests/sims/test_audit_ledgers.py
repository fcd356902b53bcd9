"""Ledgers of a deployment, without anything else: what they say, alone and against each other."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from secagg.ledger import ClientLedger, ServerLedger, read_ledger
from secagg.noise.rho_and_epsilon import epsilon
from secagg.noise.zcdp_cost import rho_of
from sims.audit.ledger_audit import DeploymentAudit, audit_ledgers
from sims.cli import main
from sims.config_problems import ConfigError
from tests.sims import ledger_run
from tests.sims.ledger_run import CHARGE, MEMBERS

POSITIONS = 60  # of each file, by default
SUMS = 4


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ledgers of a server and six clients, after four sums with noise in two sessions."""
    folder = tmp_path_factory.mktemp("ledgers")
    server, clients = (
        ledger_run.server_ledger(folder),
        {k: ledger_run.client_ledger(folder, k) for k in MEMBERS},
    )
    for ledger in clients.values():
        ledger.tag(b"")  # makes the key for tags, beside the ledger
    list(islice(ledger_run.rounds(server, clients, 0), SUMS))
    for each in (server, *clients.values()):
        each.close()
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "ledgers"))


def paths(folder: Path, *names: str) -> list[Path]:
    return [folder / name for name in names or ("server", *(f"client-{k}" for k in MEMBERS))]


def problems(folder: Path, *names: str) -> tuple[str, ...]:
    return audit_ledgers(paths(folder, *names)).all_problems


def rewrite(
    path: Path, change: Callable[[dict[str, Any]], Mapping[str, Any] | None], *, member: int | None = None
) -> None:
    """Write the ledger anew, with rows changed or, for None, left out: whoever owns a ledger can do this."""
    rows = [change(dict(row.body)) for row in read_ledger(path).rows[1:]]
    for each in path.parent.glob(f"{path.name}-*"):
        if "tag-key" not in each.name:
            each.unlink()
    path.unlink()
    made = ServerLedger.create(path) if member is None else ClientLedger.create(path, member=member)
    made.close()
    with ServerLedger.open(path) if member is None else ClientLedger.open(path, member=member) as ledger:
        for body in rows:
            if body is not None:
                ledger._file.append(partial(dict, body))


# --- what ledgers say ---


def test_a_servers_ledger_says_what_was_released_and_what_it_cost(original: Path) -> None:
    audit = audit_ledgers(paths(original, "server"))
    (server,) = audit.ledgers
    assert (audit.intact, server.owner, len(server.sums), len(server.sessions)) == (
        True,
        "the server",
        SUMS,
        2,
    )
    (kind,) = server.kinds
    assert (kind.kind, kind.asked, kind.released, kind.least_contributors) == ("histogram", SUMS, SUMS, 6)
    assert (kind.first_round, kind.last_round) == (0, SUMS - 1)
    rho = rho_of(SUMS * CHARGE)
    assert server.spent.rho == pytest.approx(rho)
    assert server.spent.epsilon == pytest.approx(epsilon([rho], delta=1e-5))
    ((low, high),) = [span for span in kind.sigmas if span is not None]
    spec = ledger_run.SPEC
    assert spec.promise is not None
    noise = spec.parts[0].noise
    assert noise is not None
    least = sum(spec.promise.components(6)) * 6 * float(noise.variance)
    assert low == high == pytest.approx(least**0.5 / noise.scale)


def test_a_clients_ledger_says_what_it_answered(original: Path) -> None:
    (client,) = audit_ledgers(paths(original, "client-3"), delta=1e-6).ledgers
    assert (client.owner, client.member, len(client.sums)) == ("client 3", 3, SUMS)
    assert client.spent.epsilon == pytest.approx(epsilon([rho_of(SUMS * CHARGE)], delta=1e-6))
    assert client.adjacency == "zero-out"
    assert {each.contributors for each in client.sums} == {6}


def test_all_ledgers_say_the_same(original: Path, capsys: pytest.CaptureFixture[str]) -> None:
    audit = audit_ledgers(paths(original))
    assert (audit.intact, audit.compared, len(audit.ledgers)) == (True, SUMS, 7)
    assert main(["audit", *map(str, paths(original)), "--all"]) == 0
    out = capsys.readouterr().out
    assert "4 sums are in several of them, and they say the same" in out
    assert main(["audit", *map(str, paths(original)), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["intact"]


def test_a_page_about_a_ledger(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder / "server")]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "server.html")
    text = (folder / "server.html").read_text()
    assert "histogram" in text
    assert "not authenticated" in text
    (folder / "server").write_bytes(b"x" * 100)
    assert main(["report", str(folder / "server"), "--output", str(folder / "page.html")]) == 0
    text = (folder / "page.html").read_text()
    assert "These records were altered" in text
    assert "histogram" not in text


# --- one byte ---


def side_files(folder: Path, name: str) -> list[Path]:
    return sorted(each for each in folder.iterdir() if each.name.startswith(name))


def named(found: DeploymentAudit, path: Path) -> bool:
    return any(f"{path} " in f"{each} " for each in found.all_problems)


def flips(path: Path, count: int) -> Iterator[tuple[int, bytes]]:
    whole, draw = path.read_bytes(), random.Random(path.name)
    for place in draw.sample(range(len(whole)), min(count, len(whole))):
        data = bytearray(whole)
        data[place] ^= draw.randrange(1, 256)
        yield place, bytes(data)


def unnoticed(folder: Path, name: str, count: int) -> list[tuple[str, int]]:
    found = []
    for path in side_files(folder, name):
        whole = path.read_bytes()
        for place, data in flips(path, count):
            path.write_bytes(data)
            if not named(audit_ledgers([folder / name]), path):
                found.append((path.name, place))
        path.write_bytes(whole)
    return found


@pytest.mark.parametrize("name", ["server", "client-2"])
def test_a_flipped_byte_is_noticed_and_its_file_named(folder: Path, name: str) -> None:
    assert len(side_files(folder, name)) == (2 if name == "server" else 3)
    assert unnoticed(folder, name, POSITIONS) == []
    assert problems(folder) == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["server", "client-2"])
def test_thousands_of_flipped_bytes_are_noticed(folder: Path, name: str) -> None:
    assert unnoticed(folder, name, 2000) == []


@pytest.mark.parametrize("name", ["server", "client-2"])
def test_a_file_that_is_longer_shorter_or_gone(folder: Path, name: str) -> None:
    for path in side_files(folder, name):
        whole = path.read_bytes()
        for data in (whole + b"\0", whole[:-1], whole[: len(whole) // 2], b""):
            path.write_bytes(data)
            assert named(audit_ledgers([folder / name]), path), (path.name, len(data))
            assert main(["audit", str(folder / name)]) == 1
        path.unlink()
        if path.name == name:
            assert main(["audit", str(folder / name)]) == 2
        elif path.name.endswith("-seal"):
            assert named(audit_ledgers([folder / name]), path)
        path.write_bytes(whole)


# --- ledgers that contradict each other ---


def test_a_sum_that_the_server_conceals(folder: Path) -> None:
    last = [row.body for row in read_ledger(folder / "server").rows if row.body["entry"] == "asked"][-1]
    concealed = (last["session"], last["sum index"])
    rewrite(
        folder / "server",
        lambda body: None if (body.get("session"), body.get("sum index")) == concealed else body,
    )
    assert problems(folder, "server") == ()  # the owner can do this, as long as no other ledger is there
    found = problems(folder, "server", "client-1")
    assert len(found) == 1
    assert "client 1 answered sum" in found[0]
    assert main(["audit", *map(str, paths(folder, "server", "client-1"))]) == 1


@pytest.mark.parametrize(
    ("entry", "key", "value", "what"),
    [
        ("released", "contributors", 5, "how many contributed is 5 and 6"),
        ("asked", "roster", 5, "how many were asked is 5 and 6"),
        ("asked", "kind", "other", "its kind is other and histogram"),
        ("asked", "query", "00" * 32, "its query is"),
        ("asked", "spec", "00" * 32, "its specification is"),
        ("asked", "round", 77, "its round is 77"),
        ("session", "cohort", 9, "the size of the cohort is 9 and 6"),
    ],
)
def test_what_a_server_tells_differently(folder: Path, entry: str, key: str, value: Any, what: str) -> None:
    rewrite(folder / "server", lambda body: {**body, key: value} if body["entry"] == entry else body)
    assert any(what in each for each in problems(folder, "server", "client-1"))


def test_a_cost_that_does_not_follow_from_the_noise(folder: Path) -> None:
    def cheaper(body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "charge": body["charge"] - 1} if body["entry"] == "asked" else body

    rewrite(folder / "server", cheaper)
    assert any("its noise costs" in each for each in problems(folder, "server"))


def test_a_client_that_forgets_an_answer(folder: Path) -> None:
    answers = [row.body for row in read_ledger(folder / "client-1").rows if row.body["entry"] == "answer"]
    left_out = answers[-1]["content"]

    def forget(body: dict[str, Any]) -> dict[str, Any] | None:
        return None if body.get("content") == left_out else body

    rewrite(folder / "client-1", forget, member=1)
    assert problems(folder, "client-1") == ()
    (found,) = problems(folder, "server", "client-1")
    assert "which is not in" in found


def test_clients_that_were_told_different_things(folder: Path) -> None:
    def other(body: dict[str, Any]) -> dict[str, Any]:
        if body["entry"] == "answer":
            return {**body, "sum": {**body["sum"], "query": "11" * 32}}
        return body

    rewrite(folder / "client-1", other, member=1)
    assert problems(folder, "client-2", "client-3") == ()
    assert any("its query is" in each for each in problems(folder, "client-1", "client-2"))


# --- what cannot be audited ---


def test_what_is_no_ledger_is_told_in_a_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, why in (
        ([folder / "nowhere"], "does not exist"),
        ([folder, folder / "server"], "is a directory, and others are files"),
        ([folder / "server", folder / "server"], "several ledgers are of the server"),
        ([folder / "client-1", "--server-key", "ab" * 32], "--server-key is for a server's ledger"),
    ):
        assert main(["audit", *map(str, arguments)]) == 2
        assert why in capsys.readouterr().err
    (folder / "text").write_text("no ledger")
    assert main(["audit", str(folder / "text")]) == 1
    assert main(["audit", str(folder / "server"), "--server-key", "ab" * 32]) == 1
    assert "belongs to no key" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="does not exist"):
        audit_ledgers([folder / "nowhere"])


def test_rows_that_no_ledger_has_are_no_traceback(folder: Path) -> None:
    rewrite(folder / "server", lambda body: {**body, "parts": 7} if body["entry"] == "asked" else body)
    (found,) = problems(folder, "server")
    assert "has rows that no ledger has" in found
