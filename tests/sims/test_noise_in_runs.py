"""The noise of simulated runs is tested with the runs' own specs and in their own sums, and audits say so."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocols.fedavg import FedAvg
from protocols.privacy_budget import PrivacyBudget
from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.noise.privacy_goal import Goal
from secagg.sum_spec import L2, Count, Part, SumSpec, Total
from sims.audit.audit_run import audit_run
from sims.cli import main
from sims.noise_audit.alarm_budget import ALARM, NoiseTest, alarms, confidence
from sims.noise_audit.own_noise import own_noise
from sims.noise_audit.unmasked_sums import UnmaskedSums, audited_spec
from sims.records import RunDirectory
from sims.records.manifest import FileStamp, Manifest
from sims.scenario.settings import insecure_server
from sims.simulation import simulate
from sims.simulation.canary_audit import NoiseAudit
from sims.simulation.noise_in_run import NoiseInRun
from tests.sims import noise_faults
from tests.sims.small_runs import PRIVATE, SECURE, settings

CLIENTS, DIM = 6, 200
PROMISE = NoiseAssumptions(clients=CLIENTS, dropouts=2, colluders=0, removable=True)
TESTED = settings(**{**PRIVATE, "audit": {"canaries": 3}, "insecure_seed": True})


def algorithm() -> FedAvg:
    privacy = PrivacyBudget(promise=PROMISE, goal=Goal(epsilon=8.0, delta=1e-5), rounds=4)
    return FedAvg(dim=DIM, clients=CLIENTS, clip=1.0, weighted=False, privacy=privacy)


def facts_of_specs(**more: Any) -> dict[str, Any]:
    given = settings(**{**PRIVATE, "audit": {"canaries": 5}, **more})
    return NoiseAudit(given).facts({"training": algorithm()})


# --- the run's own specs ---


def test_the_specs_of_a_run_are_tested_in_full_size_and_with_its_rosters() -> None:
    (row,) = facts_of_specs(cohort={"per_round": 5})["specs"]
    assert row["elements"] == 256  # 200, rotated
    assert [(case["clients"], case["dropped"]) for case in row["cases"]] == [(6, 0), (5, 0), (6, 2)]
    assert row["tests"] > 100
    assert row["alarms"] == []
    assert row["holds"]


@pytest.mark.parametrize("mistake", ["no noise above 64 elements", "no clipping and no check"])
def test_mistakes_that_small_vectors_do_not_show_are_found(mistake: str) -> None:
    with pytest.MonkeyPatch.context() as patched:
        noise_faults.ALL[mistake](patched, CLIENTS)
        (row,) = facts_of_specs()["specs"]
    assert row["alarms"]
    assert not row["holds"]


def test_large_vectors_take_fewer_clients_and_never_fewer_elements() -> None:
    promise = NoiseAssumptions(clients=300, dropouts=0, colluders=0)
    spec = audited_spec(size=1 << 16, promise=promise, multiplier=1.0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sims.noise_audit.own_noise._MOST_DRAWS", 1 << 20)
        found = own_noise("update", spec, rosters=(), canaries=10, delta=1e-5, kinds=1, seed=0)
    (case,) = found.conformances
    assert (case.elements, case.present, case.sums) == (1 << 16, 4, 2)
    assert found.runs == found.bound.epsilon_gaussian == 0
    assert found.alarms == ()


def test_canaries_go_through_the_spec_itself() -> None:
    """Of several parts, a canary is in all."""
    promise = NoiseAssumptions(clients=4, dropouts=1, colluders=0)
    (real,) = audited_spec(size=100, promise=promise, multiplier=0.5).parts
    (counts,) = audited_spec(size=5, promise=promise, multiplier=0.5, bound=Count(2, total=3)).parts
    parts = (real, Part(name="counts", size=5, bits=counts.bits, bound=counts.bound, noise=counts.noise))
    spec = SumSpec(parts=parts, promise=promise)
    found = own_noise("both", spec, rosters=(3,), canaries=300, delta=1e-5, kinds=1, seed=2)
    assert 0.4 * found.epsilon < found.bound.epsilon_gaussian <= found.epsilon
    assert found.alarms == ()
    assert {test.subject.split(":")[0] for each in found.conformances for test in each.tests} == {
        "part x",
        "part counts",
    }


# --- the run's own sums ---


def own_sums(totals: UnmaskedSums, *, sums: int, clients: int) -> NoiseInRun:
    """Compare sums with the inputs of their clients, as an observer sees both."""
    draw, observed = np.random.default_rng(1), NoiseInRun(totals.spec, kinds=1)
    (part,) = totals.spec.parts
    for number in range(sums):
        inputs = {member: {part.name: draw.normal(size=part.size)} for member in range(clients)}
        decoded, _ = totals.run(inputs.__getitem__, rotation=bytes([number]) * 32)
        observed.add(inputs, tuple(inputs), decoded)
    return observed


def test_the_noise_in_the_sums_of_a_run_is_compared_with_what_was_promised() -> None:
    promise = NoiseAssumptions(clients=CLIENTS, dropouts=0, colluders=0)
    spec = audited_spec(size=300, promise=promise, multiplier=1.0)
    result = own_sums(UnmaskedSums(spec, clients=CLIENTS), sums=8, clients=CLIENTS).result()
    assert (result.sums, result.skipped, result.alarms) == (8, 0, ())
    assert result.variance_ratio == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize(("wrapped", "alarm"), [(1, False), (2, True)])
def test_totals_that_wrap_around_are_no_alarm_unless_there_are_too_many(wrapped: int, alarm: bool) -> None:
    noise = Noise(scale=1000.0, variance=Fraction(1_000_000))
    promise = NoiseAssumptions(clients=2, dropouts=0, colluders=0)
    spec = SumSpec(parts=(Part(name="x", size=64, bits=14, bound=L2(1.0), noise=noise),), promise=promise)
    observed, draw = NoiseInRun(spec, kinds=1), np.random.default_rng(0)
    for number in range(6):
        total = draw.normal(size=64)
        total[0] -= 16.384 * (number < wrapped)
        zeros = {"x": np.zeros(64)}
        observed.add({0: zeros, 1: zeros}, (0, 1), Total({"x": total}, count=2, invited=2))
    result = observed.result()
    assert (result.sums, bool(result.alarms)) == (6, alarm)


@pytest.mark.parametrize(
    "mistake",
    ["noise times 0.95", "noise of the sum before", "opposite noise of the sum before",
     "second half repeats the first", "no noise of one client"],
)  # fmt: skip
def test_mistakes_show_in_the_sums_of_a_run(mistake: str) -> None:
    promise = NoiseAssumptions(clients=CLIENTS, dropouts=0, colluders=0)
    spec = audited_spec(size=2048, promise=promise, multiplier=1.0)
    with pytest.MonkeyPatch.context() as patched:
        noise_faults.ALL[mistake](patched, CLIENTS)
        observed = own_sums(UnmaskedSums(spec, clients=CLIENTS), sums=8, clients=CLIENTS)
    assert observed.result().alarms


def test_totals_of_unknown_inputs_or_that_may_wrap_around_are_not_tested() -> None:
    noise = Noise(scale=1000.0, variance=Fraction(1_000_000))
    promise = NoiseAssumptions(clients=2, dropouts=0, colluders=0)
    narrow = SumSpec(parts=(Part(name="x", size=4, bits=12, bound=L2(1.0), noise=noise),), promise=promise)
    observed = NoiseInRun(narrow, kinds=1)
    total = Total({"x": np.zeros(4)}, count=2, invited=2)
    observed.add({0: {"x": np.zeros(4)}}, (0, 1), total)
    observed.add({0: {"x": np.zeros(4)}, 1: {"x": np.zeros(4)}}, (0, 1), total)
    result = observed.result()
    assert (result.sums, result.skipped, result.variance_ratio) == (0, 2, None)


# --- runs and their audits ---


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    directory = RunDirectory(tmp_path_factory.mktemp("runs") / "tested")
    simulate(TESTED, directory=directory)
    return directory


def test_an_audit_says_what_was_tested_and_what_proves_nothing(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    (tested,) = run.read_json("canaries.json")["run"]
    assert 0 < tested["sums"] <= 5
    (canary,) = audit_run(run).canaries
    assert canary.holds
    assert canary.own.sums == tested["sums"]
    assert canary.spec.elements == 1024
    assert main(["audit", str(run.path)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"update: \d+ tests of noise and encoding, .* own spec, all passed", out)
    assert "which proves nothing" in out


def change(run: RunDirectory, tmp_path: Path, edit: Any) -> Path:
    """Return a copy of the run in which `edit` has changed the outcome of the tests, signed by its server."""
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    found = run.read_json("canaries.json")
    edit(found)
    data = json.dumps(found).encode()
    (copy / "canaries.json").write_bytes(data)
    manifest = Manifest.read(RunDirectory(copy))
    assert manifest is not None
    changed = replace(manifest, files={**manifest.files, "canaries.json": FileStamp.of(data)})
    (copy / "manifest.json").write_bytes(changed.signed(insecure_server(TESTED.seed)).encode())
    return copy


ALARMED = {"subject": "own sums", "name": "variance", "p": 1e-30, "measured": 0.5, "expected": 1.0}


@pytest.mark.parametrize("part", ["specs", "run"])
def test_an_alarm_ends_an_audit_in_status_1(
    run: RunDirectory, tmp_path: Path, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if somebody has left a better verdict beside it."""
    copy = change(run, tmp_path, lambda found: found[part][0]["alarms"].append(ALARMED))
    assert main(["audit", str(copy)]) == 1
    assert "NOT AS PROMISED: own sums, variance 0.5, expected 1: p = 1e-30" in capsys.readouterr().out


def test_a_failed_verdict_ends_an_audit_in_status_1(run: RunDirectory, tmp_path: Path) -> None:
    copy = change(run, tmp_path, lambda found: found["run"][0].update(holds=False))
    assert main(["audit", str(copy)]) == 1


def test_files_that_no_run_writes_are_refused(run: RunDirectory, tmp_path: Path) -> None:
    copy = change(run, tmp_path, lambda found: found["specs"][0].update(cases=[{}]))
    assert main(["audit", str(copy)]) == 2


def test_without_canaries_an_audit_says_that_noise_was_not_tested(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = change(run, tmp_path, lambda found: found.clear())
    assert audit_run(copy).untested == ("update",)
    assert main(["audit", str(copy)]) == 0
    assert "update: its noise was not tested" in capsys.readouterr().out


def test_a_run_without_noise_above_64_elements_fails_its_audit(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "faulty")
    with pytest.MonkeyPatch.context() as patched:
        noise_faults.ALL["no noise above 64 elements"](patched, 5)
        simulate(
            settings(**{**PRIVATE, "audit": {"canaries": 3}, "insecure_seed": False}), directory=directory
        )
    found = directory.read_json("canaries.json")
    assert found["specs"][0]["alarms"]
    assert found["run"][0]["alarms"]
    assert main(["audit", str(directory.path)]) == 1


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ({"channel": {**SECURE, "kind": "processes"}}, "other processes"),
        ({"attack": {"level": "message", "kind": "random", "fraction": 0.3}}, "after encoding"),
    ],
)
def test_sums_whose_inputs_are_unknown_are_said_not_to_be_tested(tables: dict[str, Any], why: str) -> None:
    given = settings(**{**PRIVATE, "audit": {"canaries": 1}, **tables})
    audit = NoiseAudit(given)
    assert audit.on_total("training", algorithm()) is None
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(NoiseAudit, "_spec_facts", lambda *_: {})
        (row,) = audit.facts({"training": algorithm()})["run"]
    assert row["sums"] == 0
    assert why in row["why_not"]


# --- the alarm budget ---


def test_tests_bounds_and_kinds_share_the_false_alarm_rate() -> None:
    tests = [NoiseTest("noise", "variance", p) for p in (0.9 * ALARM / 8, 1.1 * ALARM / 8, 0.5, 1.0)]
    assert alarms(tests) == (tests[0],)
    assert alarms(tests, kinds=2) == ()
    assert alarms([]) == ()
    assert 1 - confidence(2, kinds=3) == pytest.approx(ALARM / 12)
