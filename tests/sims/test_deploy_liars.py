"""``secagg serve`` with a client that lies, over TLS: it is named, remembered, and proven to have lied."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg import Identity
from secagg.errors import CorruptTotal
from secagg.evidence import Evidence
from secagg.ledger import ServerLedger, read_ledger
from secagg.net.certificates import make_certificate
from secagg.net.event_log import EventLog
from secagg.net.identity_and_registry_files import REGISTRY, write_certificate
from secagg.trust_levels import Trust
from sims.cli import main
from sims.config_problems import ConfigError
from sims.deploy.evidence_directory import EvidenceDirectory, EvidenceKeeper
from tests.attacks.attackers.liars import CountLiar
from tests.attacks.court import Court, one
from tests.secagg.net.rig import Diary
from tests.sims.deploy_site import Running, Site

MEMBERS = (1, 2, 3, 4, 5)
HONEST = MEMBERS[:-1]
LYING = Path(__file__).resolve().parent / "lying"
Start = Callable[..., Running]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Five clients, of whom four are enough for a session."""
    made = Site(tmp_path, MEMBERS)
    for name in ("serve.toml", *(f"join-{member}.toml" for member in MEMBERS)):
        made.change(name, "max_cohort = 3", "max_cohort = 5")
        made.change(name, "min_cohort = 3", "min_cohort = 4")
        made.change(name, "min_contributors = 3", "min_contributors = 4")
    made.change("serve.toml", "dropout = 0", "dropout = 0.2")
    made.change("serve.toml", 'totals = "totals"', 'totals = "totals"\nevidence = "evidence"')
    return made


@pytest.fixture
def start(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setenv("SECAGG_TEST_LIE", "count")
    running: list[Running] = []

    def begin(*arguments: str, lying: bool = False) -> Running:
        running.append(Running(site, *arguments, path=[LYING] if lying else []))
        return running[-1]

    yield begin
    for process in running:
        process.end()


def write_values(site: Site, number: int) -> None:
    """New values of everybody: the server has seen no total of them."""
    for member in MEMBERS:
        np.savez(site / "next.npz", x=[member, 1.5 * number, -1.0], n=[10 * member + number])
        (site / "next.npz").rename(site / f"values-{member}.npz")


def entry(running: Running, event: str) -> dict[str, Any]:
    (found,) = [each for each in running.entries if each["event"] == event]
    return found


@pytest.mark.slow
def test_the_next_session_is_without_the_liar_and_exact(
    site: Site, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of three servers holds one session; the third one has forgiven the liar, which lies again."""
    server = start("serve", "serve.toml")
    address = server.wait_for("started")["address"]
    site.change("serve.toml", "127.0.0.1:0", address)
    for member in MEMBERS:
        site.change(f"join-{member}.toml", "127.0.0.1:7443", address)
        start("join", f"join-{member}.toml", lying=member == 5)
    assert server.wait() == 0
    file = check_conviction(site, server)

    examined = ["--registry", "registry.secagg", "--authority", "authority.pem", "--table", "sums.toml"]
    paths = [str(site / each) if each.endswith(("secagg", "pem", "toml")) else each for each in examined]
    assert main(["evidence", str(file), *paths, "--corrupt", "1"]) == 0
    assert main(["serve", "--check", str(site / "serve.toml")]) == 0
    assert main(["serve", "--forgive", "4", str(site / "serve.toml")]) == 2
    out, err = capsys.readouterr()
    assert "client 5 lied (false count)" in out
    assert "are barred: 5. secagg serve --forgive ID" in out
    assert "client 4 is not barred" in err

    write_values(site, 1)
    server = start("serve", "serve.toml")
    server.wait_for("stored", clients=4)
    assert server.wait() == 0
    (name,) = os.listdir(site / "totals")
    with np.load(site / "totals" / name) as total:
        assert total["n"].tolist() == [sum(10 * member + 1 for member in HONEST)]
        assert total["x"] == pytest.approx([sum(HONEST), 1.5 * 4, -4.0], abs=1e-6)
    assert not {"convicted", "excluded"} & set(server.events())
    assert {each["barred"] for each in server.entries if each["event"] == "waiting"} == {1}

    assert main(["serve", "--forgive", "5", str(site / "serve.toml")]) == 0
    write_values(site, 2)
    server = start("serve", "serve.toml")
    assert server.wait_for("convicted")["member"] == 5
    assert server.wait() == 0
    assert len(os.listdir(site / "evidence")) == 2


def check_conviction(site: Site, server: Running) -> Path:
    """What log, ledger and directory say of the liar. Returns the file of evidence."""
    assert entry(server, "no total")
    convicted, excluded, kept = (entry(server, each) for each in ("convicted", "excluded", "evidence"))
    assert (convicted["member"], convicted["offence"]) == (5, "FalseCount")
    assert (excluded["member"], excluded["error"]) == (5, "FalseCount")
    file = site / str(kept["file"])
    evidence = Evidence.decode(file.read_bytes())
    assert convicted["evidence"] == evidence.sha256
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    rows = [row.body for row in read_ledger(site / "server.ledger").rows]
    (barred,) = [row for row in rows if row["entry"] == "barred"]
    assert (barred["peer"], barred["why"], barred["evidence"]) == (5, "FalseCount", evidence.sha256)
    written = json.dumps([server.entries, rows])
    for secret in (*evidence.values, *(each.signature for each in evidence.statements)):
        assert secret.hex() not in written
    return file


# --- the directory -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def court() -> Court:
    """Ten clients, of whom the third counted as five and was convicted."""
    court = Court(Trust.MALICIOUS, 10, 1, one(CountLiar))
    with pytest.raises(CorruptTotal):
        court.ask()
    return court


@pytest.fixture
def evidence(court: Court) -> Evidence:
    (event,) = court.convictions
    assert event.evidence is not None
    return event.evidence


def test_evidence_is_for_its_owner_alone_and_never_overwritten(evidence: Evidence, tmp_path: Path) -> None:
    kept = EvidenceDirectory(tmp_path / "kept")
    kept.prepare()
    path = kept.store(evidence)
    assert Evidence.decode(path.read_bytes()) == evidence
    assert path.name == f"client-3-{evidence.sha256[:16]}.evidence"
    with pytest.raises(ConfigError, match="exists already"):
        kept.store(evidence)
    kept.prepare()  # it is there, and in order


@pytest.mark.parametrize(("directory", "event"), [("kept", "evidence"), ("nowhere/kept", "evidence lost")])
def test_evidence_that_cannot_be_kept_does_not_stop_the_server(
    directory: str, event: str, court: Court, tmp_path: Path
) -> None:
    (tmp_path / "kept").mkdir(mode=0o700)
    diary = Diary()
    keeper = EvidenceKeeper(tmp_path / directory, EventLog(diary))
    for happened in court.session.events:
        keeper.keep(happened)
    assert [text for text, _ in diary] == [event]
    assert diary.members(event) == [3]


def test_directories_that_are_of_no_use(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "file").write_bytes(b"")
    for name, why in (
        ("open", r"open to other users \(mode 0755\); run chmod 700"),
        ("file", "is not a directory"),
        ("nowhere/new", "nothing can be made in"),
    ):
        with pytest.raises(ConfigError, match=why):
            EvidenceDirectory(tmp_path / name).check()
    with pytest.raises(ConfigError, match="cannot be a directory"):
        EvidenceDirectory(tmp_path / "nowhere" / "new").prepare()
    EvidenceDirectory(tmp_path / "new").check()
    assert not (tmp_path / "new").exists()


def test_a_server_looks_at_its_directory_before_it_listens(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "evidence").mkdir(mode=0o750)
    assert main(["serve", str(site / "serve.toml")]) == 2
    assert "server.evidence" in capsys.readouterr().err


# --- the examiner --------------------------------------------------------------------------------------

TABLE = """
[[sum]]
kind = "sum"

[[sum.part]]
name = "x"
size = 5
bits = 32
bound = {count = 4096}
"""


@pytest.fixture
def examine(court: Court, evidence: Evidence, tmp_path: Path) -> Callable[..., int]:
    """Runs the command on evidence in a directory with everything that it needs; a test changes one thing."""
    authority = Identity.generate()
    registry = court.server._registry
    assert registry is not None
    REGISTRY.create(tmp_path / "registry.secagg", registry.sign(authority), mode=0o644)
    write_certificate(tmp_path / "authority.pem", make_certificate(authority, now=0))
    (tmp_path / "sums.toml").write_text(TABLE)

    def run(data: bytes = evidence.encode(), **options: str) -> int:
        (tmp_path / "evidence").write_bytes(data)
        given = {"registry": "registry.secagg", "authority": "authority.pem", "table": "sums.toml"} | options
        named = [f"--{name}={tmp_path / file}" for name, file in given.items()]
        return main(["evidence", str(tmp_path / "evidence"), *named, "--corrupt", "1"])

    return run


def test_a_lie_is_proven(examine: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert examine() == 0
    assert capsys.readouterr().out == "proven: client 3 lied (false count)\n"


def test_evidence_against_somebody_else_is_none(
    examine: Callable[..., int], evidence: Evidence, capsys: pytest.CaptureFixture[str]
) -> None:
    forged = Evidence(evidence.offence, 4, *vars_of(evidence))
    assert examine(forged.encode()) == 1
    out = capsys.readouterr().out
    assert out.startswith("unproven: this does not prove a false count of client 4: ")
    assert out.count("\n") == 1


def vars_of(evidence: Evidence) -> tuple[Any, ...]:
    return evidence.invitation, evidence.key_list, evidence.statements, evidence.values


def test_evidence_of_another_table_is_none(examine: Callable[..., int], tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text(TABLE.replace("4096", "4095"))
    assert examine(table="other.toml") == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"registry": "none"}, "does not exist"),
        ({"authority": "none"}, "does not exist"),
        ({"table": "none"}, "does not exist"),
        ({"data": b"no evidence"}, "this is not evidence of a lie, or it is damaged"),
    ],
)
def test_files_that_cannot_be_used(
    examine: Callable[..., int], options: dict[str, Any], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert examine(**options) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("secagg evidence: ")
    assert why in err


# --- few clients ---------------------------------------------------------------------------------------


def test_cautions_say_how_many_are_left(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    from secagg import errors, events

    with ServerLedger.open(site / "server.ledger", identity=site.identities["server"].public) as ledger:
        for member in (2, 3):
            ledger.note(events.Convicted(member, errors.FalseCount(member, "why")))
        ledger.note(events.Convicted(99, errors.FalseCount(99, "is no member any more")))
    assert main(["serve", "--check", str(site / "serve.toml")]) == 0
    assert "are barred: 2, 3; 3 others are left, but a session needs 4." in capsys.readouterr().out
