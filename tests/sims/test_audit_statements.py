"""What a run directory states beside its signed ledger: what was altered there does not look intact."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from secagg.ledger import Head
from sims.audit.audit_run import as_json, audit_run
from sims.cli import main
from sims.config_problems import ConfigError
from sims.coordination.run_writer import as_toml
from sims.records import RunDirectory
from sims.records.ledger_signature import SignedHead, write_head
from sims.runtime import Setting
from sims.scenario.loading_and_variants import Variant
from sims.scenario.settings import Settings, insecure_seed, insecure_server
from tests.sims.audit_run import make_run, noisy

SEEDED = {
    "rounds": 2,
    "insecure_seed": True,
    "data": {"kind": "digits"},
    "model": {"kind": "softmax"},
    "training": {"rate": 0.5, "steps": 1},
    "algorithm": {"name": "FedAvg"},
    "channel": {"kind": "secure"},
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "run", noisy(5, rounds=2), Setting(sums=2))


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


def change(path: Path, name: str, **facts: Any) -> None:
    content = json.loads((path / name).read_text())
    (path / name).write_text(json.dumps({**content, **facts}))


def edit_sums(path: Path, edit: Callable[[list[dict[str, Any]]], object]) -> None:
    rows = [json.loads(line) for line in (path / "sums.jsonl").read_text().splitlines()]
    edit(rows)
    (path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def seeded(path: Path) -> Path:
    """The same run, if it had been run under a seed that decides everything, its server's key included."""
    digest = Variant({}, Settings.model_validate(SEEDED)).digest
    (path / "scenario.toml").write_text(as_toml({"name": "run", **SEEDED}))
    own = json.loads((path / "ledger.head").read_text())
    key = insecure_server(0).public.hex()
    change(path, "run.json", digest=digest, insecure_seed=insecure_seed(0).hex(), server_key=key)
    (path / "ledger.head").unlink()
    head = Head(own["rows"], bytes.fromhex(own["hash"]))
    write_head(RunDirectory(path), SignedHead.make(head, run=digest, identity=insecure_server(0)))
    return path


# --- run.json and the scenario ---


def test_a_seed_that_is_hidden(run: Path) -> None:
    assert audit_run(seeded(run)).intact
    change(run, "run.json", insecure_seed=None)
    (problem,) = audit_run(run).integrity.problems
    assert (
        problem
        == "by the scenario, keys and noise follow from its insecure_seed, and run.json says otherwise"
    )


def test_a_signature_that_anybody_could_make(run: Path) -> None:
    everybodys = "the key that signed follows from insecure_seed: anyone with the seed can sign other records"
    assert everybodys not in audit_run(run).integrity.remarks
    assert everybodys in audit_run(seeded(run)).integrity.remarks


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        ({"trust": "malicious_server"}, "what was trusted: malicious_server and curious_server"),
        ({"key_agreement": "x25519+ml-kem-768"}, "the key agreement: x25519+ml-kem-768 and x25519"),
        ({"rounds": 1}, "the number of rounds: 1 and 2"),
        ({"algorithm": "RFA"}, "the algorithm: RFA and FedAvg"),
        ({"channel": "processes"}, "the channel: processes and secure"),
    ],
)
def test_a_run_that_is_told_in_two_ways(run: Path, facts: dict[str, Any], what: str) -> None:
    change(run, "run.json", **facts)
    assert audit_run(run).integrity.problems == (f"run.json and the scenario disagree on {what}",)


def test_a_scenario_that_was_altered_or_removed(run: Path) -> None:
    text = (run / "scenario.toml").read_text()
    (run / "scenario.toml").write_text(text.replace("rate = 0.5", "rate = 0.25"))
    (problem,) = audit_run(run).integrity.problems
    assert "is not the scenario of the run that was signed" in problem
    (run / "scenario.toml").write_text(text.replace("rate = 0.5", "rate = 'fast'"))
    assert "nothing proves what the settings of the run were" in audit_run(run).integrity.problems[0]
    (run / "scenario.toml").unlink()
    assert "nothing proves what the settings of the run were" in audit_run(run).integrity.problems[0]


def test_a_run_does_not_get_rid_of_its_ledger_by_calling_itself_plain(run: Path) -> None:
    change(run, "run.json", channel="plain")
    found = audit_run(run).integrity.problems
    assert "run.json says that the channel was plain, which keeps no ledger, but there is one" in found
    for name in ("ledger", "ledger-seal", "ledger.head"):
        (run / name).unlink()
    (problem,) = audit_run(run).integrity.problems
    assert problem.endswith("scenario.toml says secure")


def test_a_sum_of_the_training_that_is_put_into_another_budget(run: Path) -> None:
    sums = json.loads((run / "run.json").read_text())["sums"]
    edit_sums(run, lambda rows: rows[-1].update(part="tail"))
    assert audit_run(run).integrity.problems[0].endswith("on whether it is of the training: True and False")
    edit_sums(run, lambda rows: [row.update(part="tail") for row in rows])
    change(run, "run.json", sums=[{**row, "extra": True} for row in sums])
    told = "run.json says that sums of update were asked beside the training; the scenario disagrees"
    assert told in audit_run(run).integrity.problems


# --- spend.json, sums.jsonl, ledger.head ---


@pytest.mark.parametrize(
    ("factor", "why"),
    [(0.5, "those who were in the sums have spent"), (2.0, "and all that was asked costs")],
)
def test_clients_that_have_spent_what_they_cannot_have(run: Path, factor: float, why: str) -> None:
    clients = json.loads((run / "spend.json").read_text())["clients"]
    told = {which: {**own, "rho": own["rho"] * factor} for which, own in clients.items()}
    change(run, "spend.json", clients=told)
    (problem,) = audit_run(run).integrity.problems
    assert why in problem


def test_a_line_that_is_there_twice(run: Path) -> None:
    edit_sums(run, lambda rows: rows.append({**rows[-1], "masked": 3}))
    assert audit_run(run).integrity.problems == (
        "a sum of update in round 2 is in sums.jsonl more than once",
    )


def test_a_total_that_nobody_was_asked_for(run: Path) -> None:
    edit_sums(run, lambda rows: rows.append({**rows[-1], "sum": None}))
    audit = audit_run(run)
    (problem,) = audit.integrity.problems
    assert problem == "a sum of update in round 2 was released by sums.jsonl, but was never asked"
    assert len(audit.releases) == 2


@pytest.mark.parametrize("rows", [-1, 1 << 70])
def test_a_head_of_so_many_rows_as_there_cannot_be(run: Path, rows: int) -> None:
    change(run, "ledger.head", rows=rows)
    assert "holds no signed head of a ledger" in audit_run(run).integrity.problems[0]


def test_what_no_run_writes_is_an_error_and_no_traceback(run: Path) -> None:
    edit_sums(run, lambda rows: rows[-1].update(refusals=7))
    with pytest.raises(ConfigError, match="holds something that no run writes"):
        audit_run(run)


# --- how the command ends, and what it shows ---


def test_bytes_that_contradict_the_protocol_end_in_status_1(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(run)]) == 0
    edit_sums(run, lambda rows: rows[-1]["bytes_up"].update(mask=rows[-1]["bytes_up"]["mask"] + 1))
    audit = audit_run(run)
    assert audit.intact
    assert (as_json(audit)["sound"], audit.sound) == (False, False)
    capsys.readouterr()
    assert main(["audit", str(run)]) == 1
    assert "WRONG: 1 count of bytes contradict the protocol" in capsys.readouterr().out


@pytest.mark.parametrize(("bound", "holds"), [(9.0, True), (0.5, False)])
def test_a_canary_that_refutes_the_noise_ends_in_status_1(run: Path, bound: float, *, holds: bool) -> None:
    """Also if somebody has put a better verdict beside it."""
    row = {
        "kind": "update",
        "runs_per_arm": 10,
        "epsilon": 1.0,
        "epsilon_gaussian": bound,
        "epsilon_clopper_pearson": 0.1,
        "delta": 1e-5,
        "confidence": 0.99,
        "holds": holds,
    }
    (run / "canaries.json").write_text(
        json.dumps({"specs": [{**row, "epsilon_gaussian": 0.5, "holds": True}]})
    )
    assert main(["audit", str(run)]) == 0
    (run / "canaries.json").write_text(json.dumps({"specs": [row]}))
    assert main(["audit", str(run)]) == 1


def test_a_name_cannot_write_over_what_was_found(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(run, "run.json", label="fine\x1b[8m\nIntegrity\n  all holds\u202e", trust="malicious_server")
    for more in ([], ["--compare"]):
        main(["audit", str(run), *more])
        out = capsys.readouterr().out
        assert "fine\\x1b[8m\\nIntegrity\\n  all holds\\u202e" in out
        assert not {"\x1b", "\u202e"} & set(out)
