"""A training client and the notices of its server: terms that are no terms, and a run that has not ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import trio

from protocols.query_encoding import LARGEST
from protocols.rounds import RoundInfo
from protocols.serialisation import pack
from secagg.errors import InputError, MalformedMessage
from secagg.events import Asked
from secagg.net.event_log import EventLog
from secagg.net.events import NoticeReceived
from secagg.net.notices import Notice, Topic
from sims.config_problems import ConfigError
from sims.coordination.client_runtime import RunOutcome
from sims.deploy import finished_run
from sims.deploy.client_setup import ClientSetup, load_client_setup
from sims.deploy.join import JoinRunner, told
from sims.deploy.run_terms import run_terms
from tests.secagg.net.rig import Diary
from tests.sims.training_site import TrainingSite

ROUNDS = 3


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> TrainingSite:
    return TrainingSite(tmp_path_factory.mktemp("site"), rounds=ROUNDS)


@contextmanager
def joining(site: TrainingSite) -> Iterator[tuple[ClientSetup, Callable[[Topic, bytes], None], JoinRunner]]:
    """Yield the set-up of client 1, a function that passes it a notice of its server, and its runner."""
    plan = load_client_setup(site / "join-1.toml")
    with plan.open_ledger() as ledger:
        runner = JoinRunner(plan, ledger, EventLog(Diary()), sessions=0)
        yield plan, lambda topic, body: runner._on_event(NoticeReceived(Notice(topic, body))), runner


def outcome_of(plan: ClientSetup, *, rounds: int = ROUNDS, length: int = 0, value: float = 0.0) -> bytes:
    assert plan.training is not None
    model = np.full(length or plan.training.terms.algorithm.dim, value)
    return pack(RunOutcome(RoundInfo(rounds), model))


def test_the_outcome_of_a_run_with_other_terms_is_not_kept(site: TrainingSite) -> None:
    site.write("other.toml", (site / "train.toml").read_text().replace("rate = 0.1", "rate = 0.2"))
    others = run_terms(site / "other.toml", site.directory).text
    with joining(site) as (plan, tell, runner):
        tell(Topic.TERMS, others)
        tell(Topic.RUN_ENDED, outcome_of(plan))
        with pytest.raises(ConfigError):
            trio.run(runner.run)
    assert not (site / "final-1.npz").exists()
    assert not (site / "state-1").exists()


@pytest.mark.parametrize(
    "false",
    [{"rounds": ROUNDS - 1}, {"length": 1}, {"value": 2 * LARGEST}],
    ids=["too early", "another length", "huge numbers"],
)
def test_what_cannot_be_the_outcome_of_the_run_is_refused(site: TrainingSite, false: dict[str, Any]) -> None:
    with joining(site) as (plan, tell, _):
        assert plan.training is not None
        tell(Topic.TERMS, plan.training.terms.text)
        with pytest.raises(MalformedMessage):
            tell(Topic.RUN_ENDED, outcome_of(plan, **false))
        with pytest.raises(MalformedMessage):
            tell(Topic.RUN_ENDED, b"no outcome")


def test_an_outcome_without_terms_is_ignored_and_one_with_them_is_written(tmp_path: Path) -> None:
    site = TrainingSite(tmp_path, rounds=ROUNDS)
    with joining(site) as (plan, tell, runner):
        assert plan.training is not None
        tell(Topic.RUN_ENDED, outcome_of(plan, value=1.0))
        tell(Topic.TERMS, plan.training.terms.text)
        tell(Topic.RUN_ENDED, outcome_of(plan, value=2.0))
        trio.run(runner.run)
    assert np.all(site.model("final-1.npz") == 2.0)


NO_TERMS = {
    "deep": b"[" * 100_000,
    "deep values": json.dumps({"rounds": [[[]]]}).encode(),
    "no mapping": b"[]",
    "no text": b"\xff",
    "huge": b'{"a": "' + b"x" * (1 << 21) + b'"}',
}


@pytest.mark.parametrize("name", NO_TERMS)
def test_terms_that_cannot_be_read_differ_and_nothing_is_trained(site: TrainingSite, name: str) -> None:
    with joining(site) as (_, tell, runner):
        tell(Topic.TERMS, NO_TERMS[name])
        with pytest.raises(ConfigError, match="the terms differ: those of the server cannot be read"):
            trio.run(runner.run)
    assert not (site / "state-1").exists()


def test_a_server_whose_terms_cannot_be_read_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def garbled(topic: Topic, body: bytes) -> Notice:
        return Notice(topic, b"no terms" if topic is Topic.TERMS else body)

    monkeypatch.setattr(finished_run, "Notice", garbled)
    site = TrainingSite(tmp_path)

    log = site.train(until=lambda log: len(log.facts("notice")) >= len(site.clients))

    assert {(each["member"], each["topic"]) for each in log.facts("notice")} == {
        (member, "terms") for member in site.clients
    }
    assert all("cannot be read" in str(each["reason"]) for each in log.facts("notice"))
    assert not log.facts("round")


def test_names_of_terms_reach_no_terminal_as_they_are(site: TrainingSite) -> None:
    terms = run_terms(site / "train.toml", site.directory)
    names = ["\x1b[2J", "\ud800", "\n", "long" * 1000]
    differences = terms.differences(json.dumps(terms.document | dict.fromkeys(names, "x")).encode())
    assert len(differences) == len(names)
    message = told(differences)
    assert message.isprintable()
    assert message.encode()
    assert len(message) < 1000


@pytest.mark.parametrize("error", [ValueError("a secret"), SystemExit("a secret"), MemoryError()])
def test_training_that_fails_is_no_answer_and_quotes_nothing(
    site: TrainingSite, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    plan = load_client_setup(site / "join-1.toml")
    assert plan.training is not None

    def fail(_asked: Asked) -> None:
        raise error

    monkeypatch.setattr(plan.training.runtime, "answer", fail)
    (kind, spec), *_ = plan.table.items()
    with pytest.raises(InputError) as raised:
        plan.answer(Asked(0, 0, kind, b"", spec, 4))
    assert "secret" not in str(raised.value)
    assert type(error).__name__ in str(raised.value)


def test_a_query_that_no_honest_server_sends_is_not_taken_for_failed_training(site: TrainingSite) -> None:
    plan = load_client_setup(site / "join-1.toml")
    (kind, spec), *_ = plan.table.items()
    with pytest.raises(MalformedMessage):
        plan.answer(Asked(0, 0, kind, b"no query", spec, 4))


class Declining:
    """A client of `secagg.net` that computes its answers at once."""

    def __init__(self) -> None:
        self.declined: list[int] = []

    async def answer_with(self, _asked: Asked, compute: Callable[[], object]) -> bool:
        await trio.lowlevel.checkpoint()
        compute()
        return True

    async def decline(self, asked: Asked) -> None:
        await trio.lowlevel.checkpoint()
        self.declined.append(asked.round)


def test_rounds_far_beyond_those_of_the_terms_are_not_trained(
    site: TrainingSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few more are: a server that was killed repeats the rounds that it lost, under new numbers."""
    client, diary, trained = Declining(), Diary(), list[int]()
    plan = load_client_setup(site / "join-1.toml")
    assert plan.training is not None

    def train(asked: Asked) -> dict[str, Any]:
        trained.append(asked.round)
        return {}

    monkeypatch.setattr(plan.training.runtime, "answer", train)
    (kind, spec), *_ = plan.table.items()
    rounds = [0, ROUNDS - 1, ROUNDS + 10, ROUNDS + 100, 1_000_000]
    with plan.open_ledger() as ledger:
        runner = JoinRunner(plan, ledger, EventLog(diary), sessions=0)
        for number in rounds:
            trio.run(runner._answer, cast(Any, client), Asked(0, number, kind, b"", spec, 4))

    assert trained == rounds[:3]
    assert client.declined == rounds[3:]
    assert [each["error"] for each in diary.facts("refused")] == ["MalformedMessage"] * 2
    assert f"in a run of {ROUNDS} rounds" in str(diary.facts("refused")[0]["reason"])
