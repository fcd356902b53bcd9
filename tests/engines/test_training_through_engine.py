"""Training through an engine: the same model as in a simulation, whoever is late, killed or refused."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from secagg.ledger import read_ledger
from secagg.local_session import Stage
from sims.audit.audit_run import audit_run
from tests.engines.engine_site import EngineSite, Kill, StageKill
from tests.sims.test_training_hosts import ALGORITHMS as HOSTED
from tests.sims.test_training_hosts import MALICIOUS, SIMPLICIAL

ALGORITHMS = {name: HOSTED[name] for name in ("fedavg", "rfa", "fedgeomed+", "fedbc", "lp-proj-1", "fedalt")}
QUICK = {("rfa", "curious_server")}
CASES = [
    pytest.param(name, trust, marks=[] if (name, trust) in QUICK else pytest.mark.slow)
    for name in ALGORITHMS
    for trust in ("curious_server", MALICIOUS)
]
# When a client is killed by its own log, for engines whose server runs elsewhere. Which stage it then misses
# depends on the engine; `STAGE_KILLS` hit theirs.
STAGES = {
    "advertise": Kill(1, "connected"),
    "share": Kill(1, "notice"),
    "mask": Kill(1, "asked", 2),
    "reveal": Kill(1, "answered", 2),
    "after the total": Kill(1, "counted", 2),
}
# By the stage in which client 1 is killed: which opening of the stage that is, and the round. A round has two
# sums. While clients join, it is killed in the second session, for which it has come after the first began.
STAGE_KILLS = {
    Stage.ADVERTISE: (2, 1),
    Stage.SHARE: (1, 0),
    Stage.MASK: (3, 1),
    Stage.CONFIRM: (3, 1),
    Stage.REVEAL: (3, 1),
}
SET_UP = (Stage.ADVERTISE, Stage.SHARE)
QUICK_KILL = ("curious_server", Stage.REVEAL)
KILLS = [
    pytest.param(trust, stage, marks=[] if (trust, stage) == QUICK_KILL else pytest.mark.slow)
    for trust in ("curious_server", MALICIOUS)
    for stage in STAGE_KILLS
    if stage is not Stage.CONFIRM or trust == MALICIOUS
]


@pytest.mark.parametrize(("name", "trust"), CASES)
def test_the_model_is_that_of_the_simulation(tmp_path: Path, name: str, trust: str) -> None:
    site = EngineSite(tmp_path, algorithm=ALGORITHMS[name], trust=trust, rounds=2)
    assert len(site.train().facts("round")) == 2
    site.check_models()


@pytest.mark.slow
def test_private_sums_are_paid_for(tmp_path: Path) -> None:
    site = EngineSite(tmp_path, algorithm=SIMPLICIAL)
    assert len(site.train().facts("round")) == 3
    rows = [row.body for row in read_ledger(site / "client-0.ledger").rows]
    charges = [row["charge"] for row in rows if row["entry"] == "answer"]
    assert [each is not None for each in charges] == [True, False] * 3


@pytest.mark.parametrize(("trust", "stage"), KILLS)
def test_a_killed_client_drops_out_and_comes_back(tmp_path: Path, trust: str, stage: Stage) -> None:
    """It drops out in exactly this stage. Nothing fails: one round is over the others."""
    opening, hit = STAGE_KILLS[stage]
    site = EngineSite(tmp_path, clients=5, min_cohort=4, rounds=4, trust=trust)
    site.be_patient()  # the server notices at once that the killed process was replaced
    site.kill = StageKill(1, stage, opening)
    if stage is Stage.ADVERTISE:
        site.late = {1: "session"}
    log = site.train()
    assert site.stages_of_drop_outs(1) == [stage]
    assert log.members("left") == [1]
    assert log.facts("round failed") == log.facts("aborted") == log.facts("failed") == []
    without = {0, 1} if stage is Stage.ADVERTISE else {hit}
    clients = [facts["clients"] for facts in log.facts("round")]
    assert clients == [4 if number in without else 5 for number in range(4)]
    assert site.running[1].starts == 2
    check_never_rejoined(site / "client-1.ledger", least=1 if stage in SET_UP else 2)
    assert np.array_equal(site.model("final-1.npz"), site.model())
    assert audit_run(site / "run").integrity.problems == ()


def check_never_rejoined(ledger: Path, least: int = 2) -> None:
    """A restarted client has no secrets of its last session, so it answers and reveals only in new ones. It
    has joined at least `least` sessions."""
    rows = [row.body["session"] for row in read_ledger(ledger).rows if "session" in row.body]
    sessions = [session for session, _ in groupby(rows)]
    assert len(sessions) >= least
    assert len(set(sessions)) == len(sessions)


@pytest.mark.slow
def test_a_late_client_takes_part_in_the_next_session(tmp_path: Path) -> None:
    site = EngineSite(tmp_path, clients=5, min_cohort=4, rounds=6)
    site.late = {4: "round"}
    log = site.train()
    assert log.facts("round")[0]["clients"] == 4
    assert log.facts("round")[-1]["clients"] == 5


@pytest.mark.slow
def test_other_terms_are_refused_in_words_on_both_sides(tmp_path: Path) -> None:
    site = EngineSite(tmp_path, clients=4, min_cohort=3)
    other = (site / "train.toml").read_text().replace("rate = 0.1", "rate = 0.2")
    site.write("other.toml", other)
    site.change("join-2.toml", "train.toml", "other.toml")
    log = site.train()
    (reason,) = site.running[2].diary.reasons("ended")
    assert "training.rate: the server has 0.1, this client 0.2" in str(reason)
    assert any(facts.get("member") == 2 and facts.get("topic") == "terms" for facts in log.facts("notice"))
    assert all(facts["clients"] == 3 for facts in log.facts("round"))


@pytest.mark.slow  # the server waits for the client
def test_a_node_with_the_name_of_another_client_is_refused(tmp_path: Path) -> None:
    site = EngineSite(tmp_path, clients=4, min_cohort=3)
    site.engine.names = {"member-0", "member-1", "member-2", "member-9"}
    site.node_names[3] = "member-9"
    log = site.train()
    assert "connects through the node of client 9" in str(log.reasons("refused"))
    assert all(facts["clients"] == 3 for facts in log.facts("round"))
