"""An altered record of a run is noticed, whichever byte it is, and whoever signed it again."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from protocols.rfa import RFA
from secagg.keys import Identity
from secagg.ledger import ServerLedger, read_ledger
from secagg.local_session import Stage
from sims.audit.audit_run import audit_run
from sims.audit.integrity import examined, fingerprint
from sims.audit.run_files import Evidence
from sims.records import RunDirectory
from sims.records.ledger_signature import SignedHead, write_head
from sims.runtime import Setting
from tests.sims.audit_run import DIM, digest_of, identity, make_run, noisy

SAMPLES = 400  # positions of each file that are tried by default
FILES = ("ledger", "ledger-seal", "ledger.head")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "run", noisy(5, rounds=2), Setting(sums=2))


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


def problems(path: Path, key: bytes | None = None) -> tuple[str, ...]:
    return examined(Evidence.of(path, key), key).integrity.problems


def edit_lines(path: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    file = path / "sums.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    change(rows)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


# --- what is whole ----------------------------------------------------------------------------------


def test_records_that_nobody_touched(run: Path) -> None:
    found = audit_run(run, server_key=identity().public).integrity
    assert found.intact
    assert found.expected
    assert found.rows == len(read_ledger(run / "ledger").rows)
    assert found.key == identity().public.hex()
    assert found.fingerprint == fingerprint(identity().public)


def test_without_the_key_somebody_has_to_compare(run: Path) -> None:
    found = audit_run(run).integrity
    assert found.intact
    assert found.expected is None
    assert "it does not prove whose key it is" in found.remarks[0]


def test_to_audit_changes_nothing(run: Path) -> None:
    before = {file.name: file.read_bytes() for file in run.iterdir()}
    audit_run(run)
    assert {file.name: file.read_bytes() for file in run.iterdir()} == before


# --- one byte ---------------------------------------------------------------------------------------


def flip_and_look(run: Path, name: str, places: range) -> list[int]:
    """Positions at which a flipped byte is not noticed."""
    file = run / name
    whole = bytearray(file.read_bytes())
    unnoticed = []
    for place in places:
        old = whole[place]
        whole[place] ^= (1, 0x20, 0xFF)[place % 3]
        file.write_bytes(whole)
        unnoticed += [] if problems(run) else [place]
        whole[place] = old
    file.write_bytes(whole)
    return unnoticed


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_byte_is_noticed(run: Path, name: str) -> None:
    size = (run / name).stat().st_size
    step = max(size // SAMPLES, 1) | 1
    assert flip_and_look(run, name, range(0, size, step)) == []
    assert problems(run) == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_every_flipped_byte_is_noticed(run: Path, name: str) -> None:
    assert flip_and_look(run, name, range((run / name).stat().st_size)) == []


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_was_cut_or_removed(run: Path, name: str) -> None:
    data = (run / name).read_bytes()
    (run / name).write_bytes(data[: len(data) // 2])
    assert problems(run)
    (run / name).unlink()
    assert problems(run)


# --- rows -------------------------------------------------------------------------------------------


def rewritten(run: Path, signer: Identity) -> Path:
    """The run with a ledger of the same sums but one contributor less, by somebody who knows how."""
    rows = [dict(row.body) for row in read_ledger(run / "ledger").rows]
    for name in FILES:
        (run / name).unlink()
    with ServerLedger.create(run / "ledger", identity=identity().public) as ledger:
        for body in rows[1:]:
            if body["entry"] == "released":
                body["contributors"] -= 1
            ledger._file.append(partial(dict, body))
        write_head(RunDirectory(run), SignedHead.make(ledger.head, run=digest_of(run), identity=signer))
    edit_lines(run, lambda lines: [row.update(count=row["count"] - 1) for row in lines if row.get("count")])
    facts = {**json.loads((run / "run.json").read_text()), "server_key": signer.public.hex()}
    (run / "run.json").write_text(json.dumps(facts))
    return run


def test_a_ledger_that_was_written_anew_needs_the_key(run: Path) -> None:
    other = Identity.from_secret(b"other".ljust(32, b"."))
    forged = rewritten(run, other)
    (found,) = problems(forged, identity().public)
    assert found.startswith("the ledger was signed by the key")
    assert problems(forged) == ()  # which is why the fingerprint is to be compared
    assert fingerprint(other.public) != fingerprint(identity().public)


def test_an_old_signature_does_not_fit_a_new_ledger(run: Path) -> None:
    head = (run / "ledger.head").read_bytes()
    rewritten(run, identity())
    (run / "ledger.head").write_bytes(head)
    assert "the first 6 rows of the ledger are not those that were signed" in problems(run)[0]


def test_a_signature_of_another_run(run: Path) -> None:
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**facts, "digest": "another"}))
    assert "the head, the key or the run was altered" in problems(run)[0]


def test_rows_that_nobody_signed(run: Path) -> None:
    with ServerLedger.open(run / "ledger", identity=identity().public) as ledger:
        ledger._file.append(lambda: {"entry": "failed", "session": "", "why": "SumFailed"})
    assert problems(run) == ("the last 1 row of the ledger came after the last signature",)
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**facts, "status": "interrupted"}))
    found = audit_run(run).integrity
    assert found.intact
    assert "the last 1 row of the ledger came after the last signature" in found.remarks


def test_a_row_that_sqlite_was_made_to_lose(run: Path) -> None:
    with sqlite3.connect(run / "ledger") as ledger:
        ledger.execute("DELETE FROM entries WHERE number = 3")
    assert "damaged, or was altered" in problems(run)[0]


def test_a_charge_that_is_too_low(run: Path) -> None:
    """Whoever has the key can sign it, but the arithmetic is public."""
    rows = [dict(row.body) for row in read_ledger(run / "ledger").rows]
    for name in FILES:
        (run / name).unlink()
    with ServerLedger.create(run / "ledger", identity=identity().public) as ledger:
        for body in rows[1:]:
            if "charge" in body:
                body["charge"] -= 1
            ledger._file.append(partial(dict, body))
        write_head(RunDirectory(run), SignedHead.make(ledger.head, run=digest_of(run), identity=identity()))
    assert "the ledger charges" in audit_run(run).integrity.problems[0]


# --- sums.jsonl -------------------------------------------------------------------------------------


def test_a_sum_that_the_ledger_does_not_know(run: Path) -> None:
    edit_lines(run, lambda rows: rows.append({**rows[-1], "sum": 9}))
    assert problems(run) == ("a sum of update in round 2 is in sums.jsonl, but not in the ledger",)


def test_a_sum_that_the_log_does_not_know(run: Path) -> None:
    edit_lines(run, lambda rows: rows.pop())
    assert problems(run) == ("a sum of update in round 2 is in the ledger, but not in sums.jsonl",)


def test_a_sum_of_a_round_that_was_cut_off(run: Path) -> None:
    edit_lines(run, lambda rows: rows.pop())
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**facts, "status": "running"}))
    found = audit_run(run)
    assert found.intact
    assert "1 sum of rounds that were cut off is in the ledger alone" in " ".join(found.integrity.remarks)
    assert len(found.releases) == 2


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"count": 4}, "how many contributed: 5 and 4"),
        ({"count": None}, "how many contributed: 5 and nothing was released"),
        ({"invited": 6}, "how many were asked: 5 and 6"),
        ({"kind": "other"}, "the kind: update and other"),
        ({"round": 3}, "the round: 1 and 3"),
    ],
)
def test_a_sum_that_is_told_in_two_ways(run: Path, change: dict[str, Any], what: str) -> None:
    edit_lines(run, lambda rows: rows[-1].update(change))
    assert problems(run) == (f"a sum of update in round 2: ledger and sums.jsonl disagree on {what}",)


def test_a_digit_of_the_log(run: Path) -> None:
    text = (run / "sums.jsonl").read_text()
    (run / "sums.jsonl").write_text(text.replace('"count":5', '"count":4', 1))
    assert problems(run)


def test_sums_that_nobody_was_asked_for_are_in_no_ledger(tmp_path: Path) -> None:
    """A group that lost somebody in the midst of revealing is given up before anybody is asked."""
    setting = Setting(sums=3, dropout=0.4, dropouts=lambda *place: place == (2, Stage.REVEAL, 0, 1))
    path = make_run(tmp_path / "run", RFA(dim=DIM, clients=6, weighted=False), setting, rounds=2)
    found = audit_run(path)
    assert found.intact
    assert [release.round for release in found.releases] == [1, 1, 2, 2, 2]


def test_a_plain_channel_has_nothing_to_vouch_for_it(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", RFA(dim=DIM, clients=6, weighted=False), plain=True)
    assert audit_run(path).intact
    assert audit_run(path, server_key=identity().public).integrity.problems == (
        "there is no ledger that the server's key could have signed",
    )
