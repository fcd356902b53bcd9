"""A training server that was cut off knows from its ledger what clients have answered and paid for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from secagg.differencing_rules import SetLog
from secagg.events import SumReleased
from secagg.ledger import ServerLedger, read_ledger
from sims.audit.audit_run import audit_run
from sims.deploy.training_server import TrainingServer
from sims.records.run_file_names import METRICS
from tests.sims.test_training_batches import APART, Batches, confirmed_sets
from tests.sims.test_training_hosts import PRIVATE
from tests.sims.training_site import SCENARIO, TrainingSite

MALICIOUS = "malicious_server"


class CutOff(Exception):
    pass


def cut_off(patch: pytest.MonkeyPatch, site: TrainingSite, at: type, times: int = 1) -> None:
    """Train until the server is cut off by an event, of which it has recorded the row in its ledger."""
    seen = [0]

    def happened(_self: TrainingServer, event: object) -> None:
        seen[0] += isinstance(event, at)
        if seen[0] >= times:
            raise CutOff

    with patch.context() as within:
        within.setattr(TrainingServer, "_on_event", happened)
        with pytest.raises(BaseExceptionGroup):
            site.train()


class Missing(TrainingSite):
    """After a restart, the last client does not come back."""

    scenario_text = SCENARIO.replace("min_cohort = {clients}", "min_cohort = 4").replace(
        "linger = 20.0", "linger = 0.5"
    )


def without_history(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SetLog, "copy", lambda _self, *, all_clients: SetLog(all_clients=all_clients))


@pytest.mark.parametrize("remembers", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_after_a_restart_no_client_refuses_the_model_that_it_confirmed(
    tmp_path: Path, remembers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends when clients have confirmed a sum; then the same model is asked, of one client less."""
    site = Missing(tmp_path, clients=8, trust=MALICIOUS, rounds=2)
    cut_off(monkeypatch, site, SumReleased)
    site.clients = site.clients[:-1]
    if not remembers:
        without_history(monkeypatch)
        site.train(until=lambda _log: any(each.facts("refused") for each in site.diaries.values()))
        return
    log = site.train()
    assert len(log.facts("round")) == 2
    released = [row.body for row in read_ledger(site / "run/ledger").rows if row.body["entry"] == "released"]
    assert [body["contributors"] for body in released if body["kind"] == "update"] == [8, 5, 7]
    assert not [each for diary in site.diaries.values() for each in diary.facts("refused")]
    assert audit_run(site / "run").integrity.problems == ()


class Stay(Batches):
    """Nobody goes, but after a restart the last client does not come back."""

    scenario_text = Batches.scenario_text.replace("linger = 20.0", "linger = 0.5")
    moves = ()


@pytest.mark.slow
def test_batches_are_kept_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Stay(tmp_path, clients=8, rounds=4)
    cut_off(monkeypatch, site, SumReleased, times=4)  # in the evaluation of the second round
    site.clients = site.clients[:-1]
    log = site.train()
    assert not [each for diary in site.diaries.values() for each in diary.facts("refused")]
    assert {each["clients"] for each in log.facts("round")} == {8 - APART}
    assert {len(each) for each in confirmed_sets(site / "run/ledger")} == {8, 8 - APART}


@pytest.mark.slow
def test_a_lost_round_with_noise_counts_and_is_paid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = TrainingSite(tmp_path, algorithm=PRIVATE, trust="curious_server", rounds=3, unnoised=0)
    cut_off(monkeypatch, site, SumReleased)
    log = site.train()
    assert len(log.facts("round")) == 2
    lines = [json.loads(line) for line in (site / "run" / METRICS).read_text().splitlines()]
    assert [line["completed"] for line in lines] == [True, False, True, True]
    assert [line.get("lost", False) for line in lines] == [False, True, False, False]
    asked = [row.body for row in read_ledger(site / "run/ledger").rows if row.body["entry"] == "asked"]
    assert [body["round"] for body in asked] == [0, 1, 2]
    with ServerLedger.open(site / "run/ledger") as ledger:
        assert lines[-1]["rho"] == pytest.approx(3 * lines[1]["rho"])
        assert ledger.spend.noised == 3
    assert audit_run(site / "run").integrity.problems == ()
