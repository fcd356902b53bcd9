"""Run directories: files that are whole, signatures that tell, and what the disk refuses in words."""

from __future__ import annotations

import errno
import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from secagg.keys import Identity
from secagg.ledger import Row, ServerLedger, read_ledger
from sims.config_problems import ConfigError
from sims.coordination.run_writer import as_toml
from sims.records import RunDirectory, find_runs
from sims.records.checkpoint import PartState
from sims.records.ledger_signature import AlteredLedger, SignedHead, verify, write_head
from sims.records.run_directory import FORMAT, LinesFile, read_lines, replace_file
from sims.runtime.processes.supervisor import WorkerSlot
from sims.simulation import simulate
from sims.simulation.simulate import SimulationError, SimulationStopped
from tests.sims.small_runs import settings


def full(*_: Any) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# --- files ---


def test_a_file_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    replace_file(path, b"old")
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ConfigError, match="x cannot be written: No space left on device"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_a_line_that_was_written_in_part_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, write, parts = LinesFile.create(tmp_path / "x"), os.write, [True, False]
    file.add({"a": 1})

    def some(handle: int, data: bytes) -> int:
        return write(handle, data[:3]) if parts.pop(0) else full()

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", some)
        with pytest.raises(ConfigError, match="No space left"):
            file.add({"b": 2})
    file.add({"c": 3})
    file.close()
    assert read_lines(tmp_path / "x") == [{"a": 1}, {"c": 3}]
    assert file.count == 2


def test_lines_are_cut_to_what_was_known_and_a_torn_one_is_none(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b'{"a":1}\n{"b":2}\n{"c":')
    assert read_lines(path) == [{"a": 1}, {"b": 2}]
    LinesFile.resume(path, 1).close()
    assert path.read_bytes() == b'{"a":1}\n'
    with pytest.raises(ConfigError, match="has 1 lines of the 2 it should have"):
        LinesFile.resume(path, 2)
    path.write_bytes(b"[]\n")
    with pytest.raises(ConfigError, match="line 1 is damaged"):
        read_lines(path)
    assert read_lines(tmp_path / "none") == []


def test_tables_survive_as_toml() -> None:
    document = {
        "seed": 1,
        "name": 'a "quoted" name, \u00e4, \x7f and \n',
        "rate": 1e-05,
        "wide": float("inf"),
        "truth": True,
        "none": None,
        "list": [1, [2.5, "x"], {"key": 1}],
        "table": {"deeper": {"a b": 1}},
        "empty": {},
    }
    expected = {key: value for key, value in document.items() if value is not None}
    assert tomllib.loads(as_toml(document)) == expected


# --- directories ---


def test_only_one_process_writes_to_a_run(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    with run.locked(), pytest.raises(ConfigError, match="is in use: another process"), run.locked():
        pass
    with run.locked():
        pass


def test_a_directory_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    run = RunDirectory(tmp_path)
    with pytest.raises(ConfigError, match=r"holds something else than a run, such as thesis\.tex"):
        run.make()
    with pytest.raises(ConfigError, match="is not the directory of a run"):
        run.facts()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made: Not a directory"):
        RunDirectory(tmp_path / "file" / "run").make()


def test_runs_are_found_alone_or_in_a_sweep(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no run in"):
        find_runs(tmp_path)
    with pytest.raises(ConfigError, match="is no directory"):
        find_runs(tmp_path / "nowhere")
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        RunDirectory(tmp_path / name).write_json("run.json", {"format": FORMAT, "status": "running"})
    assert find_runs(tmp_path) == [RunDirectory(tmp_path / "a"), RunDirectory(tmp_path / "b")]
    assert find_runs(tmp_path / "a") == [RunDirectory(tmp_path / "a")]
    (tmp_path / "a" / "run.json").write_text('{"format": 1}')
    with pytest.raises(ConfigError, match="is of another version"):
        RunDirectory(tmp_path / "a").facts()
    (tmp_path / "a" / "run.json").write_text("{")
    with pytest.raises(ConfigError, match="is damaged"):
        RunDirectory(tmp_path / "a").facts()


# --- signatures ---


class Signed:
    """A ledger of some rows, of which the first few are signed, by one after another."""

    def __init__(self, tmp_path: Path, *, rows: int, signers: dict[int, Identity]) -> None:
        self.run = RunDirectory(tmp_path)
        with ServerLedger.create(tmp_path / "ledger") as ledger:
            for number in range(1, rows + 1):
                if number > 1:
                    ledger._append("failed", why=f"{number}")
                if number in signers:
                    head = SignedHead.make(ledger.head, run="digest", identity=signers[number])
                    write_head(self.run, head)
        self.rows = read_ledger(tmp_path / "ledger").rows


def test_signatures_cover_the_rows_that_they_are_of(tmp_path: Path) -> None:
    one, two = Identity.generate(), Identity.generate()
    signed = Signed(tmp_path, rows=6, signers={2: one, 3: one, 5: two})
    found = verify(signed.run, signed.rows, digest="digest", key=two.public)
    assert (found.keys, found.unsigned) == ((one.public, two.public), 1)
    heads = json.loads((tmp_path / "ledger.head").read_text())
    assert (heads["rows"], [each["rows"] for each in heads["earlier"]]) == (5, [3])


def test_an_altered_ledger_or_head_is_told(tmp_path: Path) -> None:
    signed = Signed(tmp_path, rows=4, signers={4: Identity.generate()})
    other = Row(2, {**signed.rows[2].body, "why": "another"})
    for rows, why in (
        (signed.rows[:3], "4 were signed: rows were removed"),
        ((*signed.rows[:2], other, signed.rows[3]), "not those that were signed"),
        ((signed.rows[0], signed.rows[2], signed.rows[1], signed.rows[3]), "not those that were signed"),
    ):
        with pytest.raises(AlteredLedger, match=why):
            verify(signed.run, rows, digest="digest")
    with pytest.raises(AlteredLedger, match="is not that of key"):
        verify(signed.run, signed.rows, digest="another run")
    with pytest.raises(AlteredLedger, match="and not by"):
        verify(signed.run, signed.rows, digest="digest", key=Identity.generate().public)
    head = signed.run.read_json("ledger.head")
    for change, why in (
        ({"key": Identity.generate().public.hex()}, "is not that of key"),
        ({"rows": 3}, "is not that of key"),
        ({"signature": "00"}, "damaged"),
        ({"earlier": 3}, "damaged"),
    ):
        signed.run.write_json("ledger.head", {**head, **change})
        with pytest.raises(AlteredLedger, match=why):
            verify(signed.run, signed.rows, digest="digest")


# --- the disk, in the midst of a run ---


@pytest.mark.parametrize("writes", [1, 14, 15, 17])
def test_a_full_disk_ends_a_run_that_goes_on_when_there_is_room(
    writes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, run, write, left = settings(rounds=3), RunDirectory(tmp_path / "r"), os.write, [writes]

    def until_full(handle: int, data: bytes) -> int:
        left[0] -= 1
        return write(handle, data) if left[0] >= 0 else full()

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", until_full)
        with pytest.raises(SimulationError, match="cannot be written: No space left on device"):
            simulate(given, directory=run)
    assert run.exists == (writes > 1)  # where there is nothing to go on from, nothing is left
    result = simulate(given, directory=run, resume=run.exists)
    assert result["completed"] == 3
    assert [line["round"] for line in run.read_lines("metrics.jsonl")] == [0, 1, 2, 3]


def test_a_run_that_another_process_has_is_not_touched(tmp_path: Path) -> None:
    given, run = settings(), RunDirectory(tmp_path / "r")
    with pytest.raises(SimulationStopped):
        simulate(given, directory=run, stop=lambda: True)
    before = (run / "checkpoint").read_bytes()
    with run.locked(), pytest.raises(SimulationError, match="is in use"):
        simulate(given, directory=run, resume=True)
    assert (run / "checkpoint").read_bytes() == before
    assert run.status == "interrupted"


def test_what_shows_a_checkpoint_or_a_desk_shows_no_clients_state() -> None:
    state = {0: b"a personal model"}
    shown = repr(PartState(server=b"a model", clients=state, sessions=1)) + repr(
        WorkerSlot((0,), saved=state)
    )
    assert "model" not in shown
