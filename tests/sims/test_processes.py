"""Sums among real processes: the same numbers as elsewhere, whoever drops out or is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from protocols.algorithm import AnyAlgorithm
from protocols.fedavg import FedAvg
from protocols.fedplus import FedPlus
from protocols.local_only_training import LocalTraining
from protocols.rfa import RFA
from protocols.run import Run
from protocols.simplicial import SimplicialFL
from secagg.client_memory import AnswerEntry
from secagg.errors import ParameterError
from secagg.hybrid_keys import KeyAgreement
from secagg.local_session import Stage
from secagg.trust_levels import Trust
from sims.records.sum_records import SessionRecord, StageRecord, SumRecord
from sims.runtime import DropoutLaw, SessionChannel, Setting, insecure_plain_sum, secure_sum
from sims.runtime.processes import ProcessesChannel, WorkersFailed
from sims.runtime.processes.supervisor import WorkerSlot
from sims.workers.process_lifetime_and_queries import ProcessId
from tests.sims.process_clients import CLIENTS, DIM, channel_of, learners, negated
from tests.sims.test_worker_orphans import ROOT, is_running, survivors

SLOW = pytest.mark.slow
SEED = b"processes"
FEDAVG = FedAvg(dim=DIM, clients=CLIENTS, clip=10.0)
RFA3 = RFA(dim=DIM, clients=CLIENTS, nu=0.1, steps=3)
FEDPLUS = FedPlus(dim=DIM, clients=CLIENTS, steps=3, psi="norm", tolerance=0.0)
SIMPLICIAL = SimplicialFL(dim=DIM, clients=CLIENTS, theta=0.5, clip=10.0, loss_bound=50.0)
LAW = DropoutLaw(seed=b"1", training=0.15, between=0.1, group=0.03, reveal=0.05)
USUAL: dict[str, Any] = {"insecure_seed": SEED, "dropout": 0.34, "sums": 4}


@contextmanager
def opened(algorithm: AnyAlgorithm, **more: Any) -> Iterator[ProcessesChannel]:
    channel = channel_of(algorithm, **more)
    try:
        yield channel
    finally:
        channel.close()


def run_of(algorithm: AnyAlgorithm, channel: SessionChannel) -> Run[Any]:
    return Run(algorithm, channel, algorithm.start(np.zeros(DIM)))


def outcome(algorithm: AnyAlgorithm, channel: SessionChannel, rounds: int) -> tuple[Any, ...]:
    """Everything that must not depend on what carries the sums."""
    run = run_of(algorithm, channel)
    reports = [run.round() for _ in range(rounds)]
    told = [(each.clients, dict(each.sums), str(each.failure)) for each in reports]
    return (
        run.model.tobytes(),
        told,
        [(each.round, each.kind, each.count) for each in channel.asked],
        channel.save(),
        channel.spends(),
    )


@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param(FEDAVG, marks=SLOW),
        RFA3,
        pytest.param(FEDPLUS, marks=SLOW),
        pytest.param(SIMPLICIAL, marks=SLOW),
    ],
    ids=["fedavg", "rfa", "fedplus", "simplicial"],
)
def test_numbers_are_those_of_the_other_channels_whoever_drops_out(algorithm: AnyAlgorithm) -> None:
    more: dict[str, Any] = {**USUAL, "dropout_law": LAW, "each_round": True}
    logs = Lines(), Lines(), Lines()
    plain = outcome(algorithm, insecure_plain_sum(algorithm, learners(), Setting(**more, log=logs[0])), 6)
    secure = outcome(algorithm, secure_sum(algorithm, learners(), Setting(**more, log=logs[1])), 6)
    with opened(algorithm, **more, log=logs[2]) as channel:
        assert outcome(algorithm, channel, 6) == secure
    assert secure[:3] == plain[:3]
    assert logs[0].counts() == logs[1].counts() == logs[2].counts()
    assert {clients for clients, _, _ in secure[1]} > {CLIENTS}  # somebody dropped out


class Lines:
    """A log of sessions and sums, without what takes time; `at` a stage, something is done."""

    def __init__(self, at: Mapping[tuple[int, int, Stage], Callable[[], None]] | None = None) -> None:
        self.lines: list[SessionRecord | SumRecord | StageRecord] = []
        self.at = dict(at or {})

    def counts(self) -> list[Any]:
        """Of every sum: how many were asked, came and stayed, and why it failed."""
        names = ("kind", "invited", "masked", "revealed", "count", "failure")
        return [[getattr(each, name) for name in names] for each in self.lines if isinstance(each, SumRecord)]

    def on_session(self, record: SessionRecord) -> None:
        self.lines.append(record)

    def on_sum(self, record: SumRecord) -> None:
        self.lines.append(replace(record, seconds=0.0))

    def on_stage(self, record: StageRecord) -> None:
        self.lines.append(record)
        act = self.at.pop((record.round, record.index, record.stage), None)
        if act is not None:
            act()


@pytest.mark.parametrize("trust", [pytest.param(Trust.CURIOUS, marks=SLOW), Trust.MALICIOUS], ids=str)
def test_the_log_has_the_same_sessions_sums_bytes_and_frames_as_that_of_machines_in_one_process(
    trust: Trust,
) -> None:
    logs = Lines(), Lines()
    more: dict[str, Any] = {**USUAL, "trust": trust}
    outcome(RFA3, secure_sum(RFA3, learners(), Setting(**more, log=logs[0])), 2)
    with opened(RFA3, **more, log=logs[1]) as channel:
        outcome(RFA3, channel, 2)
    assert logs[1].lines == logs[0].lines


@SLOW
def test_the_log_has_what_a_session_took_that_could_not_be_set_up() -> None:
    log = Lines()
    with opened(
        FEDAVG, log=log, dropouts=lambda member, stage, _number, _sum: member and stage is Stage.SHARE
    ) as channel:
        report = run_of(FEDAVG, channel).round()
    assert "dealt shares" in str(report.failure)
    (line,) = (each for each in log.lines if isinstance(each, SessionRecord))
    assert line.failure == str(report.failure)
    assert line.frames_up == {"advertise": CLIENTS, "share": 1}


def test_whoever_drops_out_at_a_stage_is_back_in_the_next_round() -> None:
    stages = list(Stage)

    def dropouts(member: int, stage: Stage, number: int, _sum: int) -> bool:
        return member == 1 + number % 2 and number < len(stages) and stage is stages[number]

    more: dict[str, Any] = {"trust": Trust.MALICIOUS, "key_agreement": KeyAgreement.HYBRID}
    with opened(FEDAVG, **more, dropouts=dropouts, dropout=0.2) as channel:
        run = run_of(FEDAVG, channel)
        reports = [run.round() for _ in range(len(stages) + 1)]
    assert all(each.completed for each in reports)
    # From confirming on, who goes is in the sum.
    assert [each.clients for each in reports] == [CLIENTS - 1] * 4 + [CLIENTS] * 3


@pytest.mark.parametrize("stage", [Stage.MASK, pytest.param(Stage.REVEAL, marks=SLOW)], ids=str)
def test_a_worker_that_is_killed_is_a_drop_out_and_is_back_in_the_next_round(stage: Stage) -> None:
    told: list[str] = []
    pids: list[int] = []

    def kill() -> None:
        pids.append(channel.pids[1][-1])
        os.kill(pids[0], signal.SIGKILL)

    log = Lines({(1, 1, stage): kill})
    more: dict[str, Any] = {"told": told, "log": log, "dropout": 0.5, "workers": 3}
    with opened(FEDPLUS, **more) as channel:
        run = run_of(FEDPLUS, channel)
        first = run.round()
        memory = channel.memories()[2].model
        second, third, fourth = run.round(), run.round(), run.round()
        assert len(channel.pids[1]) == 2
        assert not ProcessId.of(pids[0]).exists()
        assert [each.completed for each in (first, second, third, fourth)] == [True] * 4
        assert [first.clients, third.clients, fourth.clients] == [CLIENTS] * 3
        assert second.clients == CLIENTS  # of its last sum that was released: the group closed after it
        assert second.sums != first.sums or stage is Stage.REVEAL
        assert not np.array_equal(channel.memories()[2].model, memory)
        assert {spend.unnoised for spend in channel.spends().values()} != {0}
    assert ["is started again" in line for line in told] == [False, True], told
    assert "killed by SIGKILL" in told[0]


@SLOW
def test_a_round_for_which_too_many_are_killed_is_given_up_and_the_next_goes_on() -> None:
    log = Lines({(1, 0, Stage.MASK): lambda: os.kill(channel.pids[0][-1], signal.SIGKILL)})
    with opened(RFA3, log=log) as channel:
        run = run_of(RFA3, channel)
        reports = [run.round() for _ in range(3)]
    assert [each.completed for each in reports] == [True, False, True]
    assert "only 3 clients sent inputs" in str(reports[1].failure)
    assert reports[2].clients == CLIENTS


@SLOW
def test_answers_of_a_killed_worker_are_not_forgotten() -> None:
    """A client that was killed after it had answered has spent what that answer cost."""
    log = Lines({(1, 0, Stage.REVEAL): lambda: os.kill(channel.pids[0][-1], signal.SIGKILL)})
    with opened(FEDAVG, log=log, workers=3, dropout=0.4) as channel:
        run = run_of(FEDAVG, channel)
        for expected in (1, 2, 3):
            run.round()
            assert {spend.unnoised for spend in channel.spends().values()} == {expected}


@SLOW
@pytest.mark.parametrize("trust", list(Trust), ids=str)
def test_kills_at_any_moment_stop_nothing(trust: Trust) -> None:
    chance, over = random.Random(str(trust)), threading.Event()

    def kill() -> None:
        while not over.wait(chance.uniform(0.02, 0.4)):
            with suppress(ProcessLookupError):
                os.kill(chance.choice(channel.pids)[-1], signal.SIGKILL)

    with opened(RFA3, workers=3, dropout=0.2, trust=trust, dropout_law=LAW) as channel:
        run = run_of(RFA3, channel)
        assert run.round().completed
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            completed = sum(run.round().completed for _ in range(20))
        finally:
            over.set()
            killer.join()
        assert completed
        run.round()  # in which somebody may be missing who was killed last
        pool = [ProcessId.of(pids[-1]) for pids in channel.pids]
    assert survivors(pool) == []


@contextmanager
def program() -> Iterator[tuple[subprocess.Popen[str], list[ProcessId]]]:
    """Rounds in a process of their own, in the midst of one, and the processes that work for it."""
    code = "from tests.sims.process_clients import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            pool = [ProcessId.of(int(pid)) for pid in process.stdout.readline().split()]
            assert len(pool) == 3
            process.stderr.readline()
            assert all(is_running(one) for one in pool)
            yield process, pool
        finally:
            process.kill()


def test_killing_the_parent_leaves_no_process() -> None:
    with program() as (process, pool):
        process.kill()
        assert survivors(pool) == []


@SLOW
def test_an_interruption_reaches_no_worker() -> None:
    with program() as (process, pool):
        os.killpg(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=60)
        assert said.split() == ["stopped", "True", str(CLIENTS), "1", "1"]
        assert survivors(pool) == []


@SLOW
def test_an_exception_that_comes_again_is_told_with_its_place() -> None:
    told: list[str] = []
    more: dict[str, Any] = {"workers": 0, "dropout": 0.4, "told": told, "shared": {"fails": 0, "how": "bug"}}
    with opened(FEDAVG, **more) as channel:
        run = run_of(FEDAVG, channel)
        reports = [run.round() for _ in range(3)]
        with pytest.raises(
            WorkersFailed, match=r"has ended twice .*ZeroDivisionError at process_clients\.py"
        ):
            run.round()
    assert [each.clients for each in reports] == [CLIENTS, CLIENTS - 1, CLIENTS - 1]
    assert "secret" not in " ".join(told)


def test_a_worker_that_cannot_start_is_told_at_once() -> None:
    said = r"did not start: ZeroDivisionError at process_clients\.py"
    with opened(FEDAVG, shared={"start": 4}) as channel, pytest.raises(WorkersFailed, match=said):
        run_of(FEDAVG, channel).round()


@SLOW
def test_what_a_client_s_own_work_says_is_an_error_of_the_simulation() -> None:
    with opened(FEDAVG, shared={"fails": 3, "how": "data"}) as channel:
        run = run_of(FEDAVG, channel)
        run.round()
        with pytest.raises(WorkersFailed, match="its data is gone"):
            run.round()


@SLOW
def test_a_run_goes_on_from_what_was_saved_in_other_processes() -> None:
    with opened(FEDPLUS, **USUAL, workers=3) as channel:
        run = run_of(FEDPLUS, channel)
        for _ in range(2):
            run.round()
        saved, server = channel.save(), run.save()
        for _ in range(2):
            run.round()
    with opened(FEDPLUS, **USUAL, workers=1) as again:
        again.restore(saved, sessions=channel.sessions)
        resumed = Run.resume(FEDPLUS, again, server, interrupted=False)
        for _ in range(2):
            resumed.round()
        assert resumed.model.tobytes() == run.model.tobytes()
        assert np.array_equal(again.memories()[5].model, channel.memories()[5].model)


@SLOW
def test_a_closed_channel_leaves_nothing_and_begins_anew_with_the_next_round() -> None:
    with opened(FEDPLUS, **USUAL) as channel:
        run = run_of(FEDPLUS, channel)
        run.round()
        pool = [ProcessId.of(pid) for (pid,) in channel.pids]
        channel.close()
        channel.close()
        assert survivors(pool) == []
        run.round()
    undisturbed = outcome(FEDPLUS, secure_sum(FEDPLUS, learners(), Setting(**USUAL)), 2)
    assert run.model.tobytes() == undisturbed[0]


@SLOW
def test_local_training_needs_no_sum() -> None:
    algorithm = LocalTraining(dim=DIM, clients=CLIENTS)
    with opened(algorithm) as channel:
        run = run_of(algorithm, channel)
        assert run.round().completed
        memories = channel.memories()
    plain = insecure_plain_sum(algorithm, learners(), Setting())
    run_of(algorithm, plain).round()
    assert all(np.array_equal(memories[k].model, plain.memories()[k].model) for k in range(CLIENTS))


def test_some_are_drawn_and_some_tamper_as_elsewhere() -> None:
    def draw(number: int) -> list[int]:
        return [(number + k) % CLIENTS for k in range(4)]

    algorithm = FedAvg(dim=DIM, clients=4, clip=10.0)
    more: dict[str, Any] = {**USUAL, "sample_cohort": draw, "tamper": {2: negated}}
    with opened(algorithm, shared={"tamper": (2,)}, **more) as channel:
        found = outcome(algorithm, channel, 4)
    assert found == outcome(algorithm, secure_sum(algorithm, learners(), Setting(**more)), 4)


def test_what_cannot_work_is_said_before_anything_is_started() -> None:
    with pytest.raises(ParameterError, match="cannot be repeated"):
        channel_of(FEDAVG, insecure_replay=True)


def test_answers_of_workers_that_are_killed_in_a_row_are_paid_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slot keeps what its clients answered until a worker lives to the end of a round."""
    channel = channel_of(FEDAVG, **USUAL)
    slot = WorkerSlot(tuple(learners()))
    monkeypatch.setattr(channel, "_running", lambda: SimpleNamespace(slots=[slot]))
    for number in range(2):
        entry = AnswerEntry(group="update", round_number=number, content=bytes([number]), charge=None)
        slot.answered.setdefault(0, []).append(entry)
        channel._take_answered(0)
    assert channel.spends()[0].unnoised == 2
    assert channel.spends()[1].unnoised == 0
