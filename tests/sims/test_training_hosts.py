"""`secagg serve` and `secagg join` train: the same model as `simulate`, whatever the algorithm."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from safetensors.numpy import load_file

from fl.flat_model import parameter_slices
from secagg.events import SumReleased
from secagg.ledger import read_ledger
from secagg.net.event_log import EventLog
from sims.audit.audit_run import audit_run
from sims.config_problems import ConfigError
from sims.deploy.client_setup import load_client_setup
from sims.deploy.client_state_file import StateFile
from sims.deploy.config import state_key_path
from sims.deploy.process_control import single_error
from sims.deploy.run_terms import run_terms
from sims.deploy.training_server import TrainingServer, load_deployment, open_server_run, serve_training
from sims.records import RunDirectory
from sims.records.run_directory import FAILED, FINISHED, INTERRUPTED
from tests.secagg.net.rig import Diary
from tests.sims.training_site import TrainingSite

MALICIOUS = "malicious_server"
ALGORITHMS = {
    "fedavg": 'name = "fedavg"\nclip = 5.0',
    "rfa": 'name = "rfa"',
    "fedgeomed+": 'name = "fedgeomed+"',
    "fedbc": 'name = "fedbc"\nclip = 10.0\nlambda_max = 1.0\nlambda_min = 0.2',
    "scaffold": 'name = "scaffold"\nclip = 10.0',
    "fedpi": 'name = "fedpi"\neta = 0.1\nclip = 50.0\nmemory = 2',
    "lp-proj-1": 'name = "lp-proj-1"\nsubspace = 20',
    "fedalt": 'name = "fedalt"\nclip = 10.0\npersonal_part = "0:320"',
}
REFUSED = {("fedpi", MALICIOUS)}  # a malicious server could single out one client
QUICK = {("fedgeomed+", "curious_server"), ("scaffold", MALICIOUS)}
CASES = [
    pytest.param(name, trust, marks=[] if (name, trust) in QUICK else pytest.mark.slow)
    for name in ALGORITHMS
    for trust in ("curious_server", MALICIOUS)
    if (name, trust) not in REFUSED
]


@pytest.mark.parametrize(("name", "trust"), CASES)
def test_the_model_is_that_of_the_simulation(tmp_path: Path, name: str, trust: str) -> None:
    site = TrainingSite(tmp_path, algorithm=ALGORITHMS[name], trust=trust)
    assert len(site.train().facts("round")) == 3
    site.check_models()


@pytest.mark.slow
def test_a_histogram_with_noise_trains_the_tail(tmp_path: Path) -> None:
    site = TrainingSite(tmp_path, algorithm=SIMPLICIAL)
    assert len(site.train().facts("round")) == 3
    rows = [row.body for row in read_ledger(site / "client-0.ledger").rows]
    charges = [row["charge"] for row in rows if row["entry"] == "answer"]
    assert [each is not None for each in charges] == [True, False] * 3


SIMPLICIAL = (
    'name = "simplicial"\nclip = 10.0\nloss_bound = 5.0\n\n'
    "[privacy]\nepsilon = 40.0\ndelta = 1e-5\ndropouts = 1\nratio = 1.0"
)
PRIVATE = (
    'name = "fedavg"\nclip = 1.0\nweighted = false\n\n[privacy]\nepsilon = 8.0\ndelta = 1e-5\ndropouts = 1'
)


def test_with_noise_every_client_pays_and_the_audit_holds(tmp_path: Path) -> None:
    site = TrainingSite(tmp_path, algorithm=PRIVATE, trust=MALICIOUS, unnoised=0)
    log = site.train()
    assert len(log.facts("round")) == 3
    spends = []
    for member in site.clients:
        rows = read_ledger(site / f"client-{member}.ledger").rows
        spends.append([row.body["charge"] for row in rows if row.body["entry"] == "answer"])
    assert all(len(each) == 3 and all(each) for each in spends)
    audited = audit_run(site / "run")
    assert audited.integrity.problems == ()


def test_the_run_directory_is_that_of_a_finished_run(tmp_path: Path) -> None:
    site = TrainingSite(tmp_path)
    site.train()
    directory = RunDirectory(site / "run")
    assert directory.status == FINISHED
    terms = run_terms(site / "train.toml", tmp_path)
    named = load_file(site / "run/model.safetensors")
    names = [slot.name for slot in parameter_slices(terms.module)]
    assert named.keys() == set(names)
    flat = np.concatenate([named[name].ravel() for name in names])
    assert np.allclose(flat, site.model())
    with pytest.raises(ConfigError):
        load_deployment(tmp_path / "join-0.toml")


@pytest.mark.slow
def test_a_client_that_missed_the_end_is_told_later(tmp_path: Path) -> None:
    site = TrainingSite(tmp_path)
    site.train()
    (site / "final-2.npz").unlink()
    site.hand_out()
    assert np.array_equal(site.model("final-2.npz"), site.model())


def test_a_finished_run_is_not_handed_out_as_one_with_other_settings(tmp_path: Path) -> None:
    site = TrainingSite(tmp_path, rounds=1)
    site.train()
    site.change("train.toml", "rate = 0.1", "rate = 0.2")
    with pytest.raises(ConfigError):
        serve_training(site / "train.toml")


# --- terms ---


@pytest.mark.parametrize("algorithm", [ALGORITHMS["fedpi"], 'name = "local"'])
def test_what_cannot_be_trained_is_refused_by_both_sides(tmp_path: Path, algorithm: str) -> None:
    site = TrainingSite(tmp_path, algorithm=algorithm, trust=MALICIOUS)
    with pytest.raises(ConfigError):
        load_deployment(site / "train.toml")
    with pytest.raises(ConfigError):
        load_client_setup(site / "join-0.toml")


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("clip = 5.0", "clip = 6.0", "algorithm.algorithm.clip"),
        pytest.param("rounds = 3", "rounds = 4", "rounds", marks=pytest.mark.slow),
        ('kind = "softmax"', 'kind = "mlp"\nhidden = [4]', "model.kind"),
        pytest.param("rate = 0.1", "rate = 0.2", "training.rate", marks=pytest.mark.slow),
    ],
)
def test_other_terms_are_told_on_both_sides_before_anything_is_trained(
    tmp_path: Path, old: str, new: str, key: str
) -> None:
    site = TrainingSite(tmp_path)
    site.write("other.toml", (site / "train.toml").read_text().replace(old, new))
    site.scenarios[1] = "other.toml"
    terms = run_terms(site / "train.toml", tmp_path)
    differences = run_terms(site / "other.toml", tmp_path).differences(terms.text)
    assert [each for each in differences if each.startswith(f"{key}:")]
    assert terms.table.digest != run_terms(site / "other.toml", tmp_path).table.digest

    log = site.train(until=lambda _log: bool(site.diaries[1].facts("ended")))
    assert [each["member"] for each in log.facts("notice") if each["topic"] == "terms"] == [1]
    assert not log.facts("round")
    assert not (site / "state-1").exists()


def test_a_server_that_trains_says_what_it_waits_for_and_why_clients_refuse(tmp_path: Path) -> None:
    site = TrainingSite(tmp_path)
    site.allow_few_sums()

    def refused(log: Diary) -> list[object]:
        return [(each["member"], each["reason"]) for each in log.facts("notice")]

    log = site.train(until=lambda log: len(refused(log)) >= 4)
    assert set(refused(log)) == {(member, "TooManySums") for member in site.clients}
    assert {each["needed"] for each in log.facts("waiting")} == {4}
    assert not log.facts("round")


# --- memory ---


def test_the_state_of_a_client_is_encrypted_and_of_one_run(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state", 3, b"terms")
    assert file.load() is None
    file.save(b"a personal model")
    assert file.load() == b"a personal model"
    assert b"personal" not in (tmp_path / "state").read_bytes()
    assert state_key_path(tmp_path / "state").stat().st_mode & 0o077 == 0
    for other in (StateFile(tmp_path / "state", 4, b"terms"), StateFile(tmp_path / "state", 3, b"others")):
        with pytest.raises(ConfigError):
            other.load()
    state_key_path(tmp_path / "state").write_bytes(bytes(32))
    with pytest.raises(ConfigError):
        file.load()
    saved = (tmp_path / "state").read_bytes()
    for damaged in (b"something else", *(saved[:length] for length in range(len(saved)))):
        (tmp_path / "state").write_bytes(damaged)
        with pytest.raises(ConfigError):
            file.load()
    state_key_path(tmp_path / "state").write_bytes(b"short")
    with pytest.raises(ConfigError):
        file.save(b"x")


def test_a_run_that_is_stopped_says_so_and_goes_on(tmp_path: Path) -> None:
    site = TrainingSite(tmp_path, rounds=4)
    site.train(lambda log: bool(log.facts("round")))
    assert RunDirectory(site / "run").status == INTERRUPTED
    site.train()
    assert RunDirectory(site / "run").status == FINISHED


def test_a_run_that_fails_says_why_unless_it_is_finished(tmp_path: Path) -> None:
    site = TrainingSite(tmp_path, rounds=4)

    def run_out_of_room() -> None:
        with open_server_run(*load_deployment(site / "train.toml"), EventLog(Diary())) as server:
            if isinstance(server, TrainingServer) and server._writer.saved is not None:
                server._writer.resumed()
            raise ConfigError("the disk is full")

    def fail_in_the_run() -> tuple[Any, Any]:
        with pytest.raises(ConfigError):
            run_out_of_room()
        facts = RunDirectory(site / "run").facts() if (site / "run/run.json").exists() else {}
        return facts.get("status"), facts.get("why")

    assert fail_in_the_run() == (None, None)  # nothing is left of a run that has not begun
    site.train(lambda log: bool(log.facts("round")))
    assert fail_in_the_run() == (FAILED, "the disk is full")
    site.train()
    assert fail_in_the_run() == (FINISHED, None)


def test_rounds_that_fail_one_after_the_other_are_held_at_longer_intervals(tmp_path: Path) -> None:
    site = TrainingSite(tmp_path)
    with open_server_run(*load_deployment(site / "train.toml"), EventLog(Diary())) as server:
        assert isinstance(server, TrainingServer)
        rests = [server._rest(completed=False) for _ in range(9)]
        assert rests == sorted(rests)
        assert rests[:3] == [0.01, 0.02, 0.04]
        assert rests[-1] == rests[-2]
        assert server._rest(completed=True) == 0
        assert server._rest(completed=False) == 0.01


def test_two_clients_with_one_state_file_do_not_overwrite_each_other(tmp_path: Path) -> None:
    """Both began when there was no file yet."""
    first, second = (StateFile(tmp_path / "state", member, b"terms") for member in (3, 4))
    assert (first.load(), second.load()) == (None, None)
    first.save(b"one")
    with pytest.raises(
        ConfigError, match=r"is of another client or run, .* name a file that no other client"
    ):
        second.save(b"two")
    first.save(b"three")
    assert first.load() == b"three"


def test_the_server_is_told_why_a_client_ended(tmp_path: Path) -> None:
    """Only the name of the error: its text is for the client's owner."""
    site, log = TrainingSite(tmp_path, clients=3, rounds=1), Diary()
    site.change("join-1.toml", '"state-1"', '"state-0"')
    site.diaries = {member: Diary() for member in site.clients}
    with pytest.raises(BaseExceptionGroup) as caught:
        trio.run(site._train, log, None)
    assert isinstance(single_error(caught.value), ConfigError)
    assert log.reasons("notice") == ["ConfigError"]


def test_a_client_that_is_started_again_goes_on_with_its_state(tmp_path: Path) -> None:
    """Its second process begins before the first has saved anything, and takes its place."""
    first, second = (StateFile(tmp_path / "state", 3, b"terms") for _ in range(2))
    first.save(b"one")
    second.save(b"two")
    assert first.load() == b"two"


@pytest.mark.parametrize("seed", [3, 4])
def test_a_second_run_needs_another_seed(tmp_path: Path, seed: int) -> None:
    """Clients never answer a round of a run again; a run with another seed is another run."""
    site = TrainingSite(tmp_path, rounds=1)
    site.train()
    site.scenario_text = site.scenario_text.replace("seed = 3", f"seed = {seed}")
    for member in site.clients:
        (site / f"state-{member}").unlink()
    shutil.rmtree(site / "run")
    log = site.train(lambda log: bool(log.facts("round failed") or log.facts("round")))
    assert bool(log.facts("round failed")) == (seed == 3)
    assert bool(site.diaries[0].facts("refused")) == (seed == 3)


@pytest.mark.slow
@pytest.mark.parametrize("trust", ["curious_server", MALICIOUS])
def test_a_run_that_is_cut_off_goes_on_and_repeats_no_round(
    tmp_path: Path, trust: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is cut off between a release and its checkpoint, and in the midst of a round."""
    site = TrainingSite(tmp_path, algorithm=ALGORITHMS["fedgeomed+"], trust=trust, rounds=4)
    with monkeypatch.context() as patch:
        patch.setattr(TrainingServer, "_keep", _cut_off_in(2, TrainingServer._keep))
        with pytest.raises(BaseExceptionGroup):
            site.train()
    with monkeypatch.context() as patch:
        patch.setattr(TrainingServer, "_on_event", _cut_off_at_release(TrainingServer._on_event))
        with pytest.raises(BaseExceptionGroup):
            site.train()
    log = site.train()
    assert log.facts("resumed")
    asked = [row.body for row in read_ledger(site / "run/ledger").rows if row.body["entry"] == "asked"]
    trained = [body["round"] for body in asked if body["kind"] != "scores"]
    assert trained == sorted(trained)
    assert len(set(trained)) == 6  # four that the run has, and two that were cut off
    assert audit_run(site / "run").integrity.problems == ()


class CutOff(Exception):
    pass


def _cut_off_in(number: int, keep: Any) -> Any:
    def kept(self: TrainingServer, *args: Any) -> None:
        if self._done == number:
            raise CutOff
        keep(self, *args)

    return kept


def _cut_off_at_release(on_event: Any) -> Any:
    def happened(self: TrainingServer, event: object) -> None:
        if isinstance(event, SumReleased):
            raise CutOff
        on_event(self, event)

    return happened


class LateSite(TrainingSite):
    """After a restart of the server, client 3 comes when a round could not be held without it."""

    async def _join_all(self, log: Diary) -> None:
        self.log = log
        await super()._join_all(log)

    async def _join(self, member: int, diary: Diary) -> None:
        if member == 3 and self.log.facts("resumed"):
            await self.log.has("round failed")
        await super()._join(member, diary)


@pytest.mark.slow
def test_a_round_that_clients_would_refuse_waits_for_the_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is cut off when all four clients have confirmed. Three of them refuse the same model, and
    the server asks nobody until the fourth is back. No round is lost."""
    site = LateSite(tmp_path, algorithm=ALGORITHMS["fedavg"], trust=MALICIOUS, rounds=2)
    with monkeypatch.context() as patch:
        patch.setattr(TrainingServer, "_on_event", _cut_off_at_release(TrainingServer._on_event))
        with pytest.raises(BaseExceptionGroup):
            site.train()
    site.scenario_text = site.scenario_text.replace("min_cohort = {clients}", "min_cohort = 3")
    log = site.train()
    assert log.facts("round failed")
    assert [each["round"] for each in log.facts("round")] == [1, 2]
    assert all("accuracy" in each for each in log.facts("round"))
    assert audit_run(site / "run").integrity.problems == ()
