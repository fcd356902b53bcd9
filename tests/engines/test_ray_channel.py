"""Clients in actors of Ray: what happens to those whose actor is killed, and what never leaves an actor."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="ray is not installed")

import ray
from ray import exceptions

from benchmarks.ray_rounds import WAYS, RaySetting, measure
from benchmarks.ray_tasks import RoundTask
from protocols.run import Run
from secagg.errors import ParameterError
from secagg.keys import KEY_BYTES, Identity, public_key
from secagg.local_session import Stage
from secagg.trust_levels import Trust
from sims.runtime import Setting, insecure_plain_sum
from sims.runtime.hosted_clients import ClientFactory, WorkersFailed
from sims.runtime.ray import RayChannel, RayPlace, actor_pool, cluster
from sims.runtime.ray.sources import digest_of
from sims.workers.process_lifetime_and_queries import ProcessId
from tests.engines.ray_channels import QUIET, SMALL, NotingActor, Wire, kill_host, noted_secrets, on_ray
from tests.sims.process_clients import CLIENTS, centres, learners, negated, worker_clients
from tests.sims.test_processes import FEDAVG, FEDPLUS, RFA3, USUAL, Lines, outcome, run_of
from tests.sims.test_worker_orphans import survivors

pytestmark = [*QUIET, pytest.mark.usefixtures("ray")]
SLOW = pytest.mark.slow
each_kind = pytest.mark.parametrize("secure", [False, True], ids=["plain", "secure"])


def opened(algorithm: Any, *, secure: bool, shared: Any = None, **more: Any) -> RayChannel:
    own = {key: more.pop(key) for key in ("told", "actors", "place") if key in more}
    factory = ClientFactory(worker_clients, shared or {}, centres())
    setting = Setting(**{"sums": 4, **more})
    return on_ray(algorithm, learners(), setting, secure=secure, clients=factory, **own)


@SLOW
@each_kind
def test_an_actor_is_killed_in_each_of_ten_rounds(secure: bool) -> None:
    told: list[str] = []
    stages = (Stage.MASK, Stage.REVEAL)
    channel: RayChannel

    def kill(slot: int) -> None:
        kill_host(channel, slot)

    kills = {(number, 0, stages[number % 2]): partial(kill, number % 3) for number in range(1, 11)}
    channel = opened(FEDAVG, secure=secure, actors=3, dropout=0.5, log=Lines(kills), told=told)
    run = run_of(FEDAVG, channel)
    reports = [run.round() for _ in range(12)]
    assert [each.completed for each in reports] == [True] * 12
    gone = [CLIENTS - each.clients for each in reports]
    # From the reveal on, they are in the sum.
    assert gone == [0, 0, 2, 0, 2, 0, 2, 0, 2, 0, 2, 0]
    assert sum("is lost" in line for line in told) == 10
    assert sum("is started again" in line for line in told) == 10
    assert {len(pids) for pids in channel.pids} == {4, 5}
    channel.close()
    assert survivors([ProcessId.of(pids[-1]) for pids in channel.pids]) == []


@SLOW
@each_kind
def test_actors_of_two_hundred_clients_are_killed_in_each_of_ten_rounds(secure: bool) -> None:
    """Each actor has half of the clients, which train on digits."""
    task, killed = RoundTask("digits", 200), range(1, 11)
    data = task.data(None)

    def kill(slot: int) -> None:
        kill_host(channel, slot)

    kills = {(number, 0, Stage.MASK): partial(kill, number % 2) for number in killed}
    setting = Setting(sums=4, dropout=0.5, log=Lines(kills))
    channel = on_ray(task.algorithm(), task.crowd(data), setting, secure=secure, clients=task.factory(data))
    run = Run(task.algorithm(), channel, task.algorithm().start(task.start()))
    reports = [run.round() for _ in range(12)]
    channel.close()
    assert [each.completed for each in reports] == [True] * 12
    assert [each.clients for each in reports] == [200, *([100] * len(killed)), 200]
    assert np.abs(run.model - task.start()).max() > 0.01


@SLOW
@pytest.mark.parametrize(
    ("index", "stage"), [(-1, Stage.ADVERTISE), (-1, Stage.SHARE), (0, Stage.CONFIRM)], ids=str
)
def test_an_actor_is_killed_where_only_sessions_have_a_stage(index: int, stage: Stage) -> None:
    log = Lines({(1, index, stage): lambda: kill_host(channel, 1)})
    more: dict[str, Any] = {"dropout": 0.34, "actors": 3, "each_round": True}
    channel = opened(FEDAVG, secure=True, trust=Trust.MALICIOUS, log=log, **more)
    run = run_of(FEDAVG, channel)
    clients = [run.round().clients for _ in range(3)]
    channel.close()
    assert not log.at  # it was killed
    assert clients == [CLIENTS, CLIENTS if stage is Stage.CONFIRM else CLIENTS - 2, CLIENTS]


@SLOW
def test_nothing_is_kept_for_an_actor_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node is gone, and there is no room for another one."""
    log = Lines({(1, 0, Stage.MASK): lambda: kill_host(channel, 1)})
    channel = opened(FEDAVG, secure=True, dropout=0.34, actors=3, log=log)
    run = run_of(FEDAVG, channel)
    for _ in range(2):
        run.round()
    monkeypatch.setattr(actor_pool.ActorPool, "_room", lambda *_all: 0)
    assert [run.round().clients for _ in range(3)] == [CLIENTS - 2] * 3
    pool = channel._pool
    assert pool is not None
    assert pool.slots[1].queued == []
    channel.close()


def lost_reply() -> Exception:
    error: Exception = exceptions.ObjectReconstructionFailedError("88" * 14)
    return error


def out_of_memory() -> Exception:
    error: Exception = exceptions.OutOfMemoryError("Task was killed: the node runs low on memory.\nMore.")
    return error


class OneFails:
    """Ray, except that `get` raises an error in its `number`-th call."""

    def __init__(self, error: Exception, number: int) -> None:
        self.error, self.number = error, number

    def __getattr__(self, name: str) -> Any:
        return getattr(ray, name)

    def get(self, reference: Any) -> Any:
        self.number -= 1
        if self.number == 0:
            raise self.error
        return ray.get(reference)


@pytest.mark.parametrize("make", [lost_reply, out_of_memory])
def test_a_lost_reply_and_a_lack_of_memory_are_drop_outs(
    make: Callable[[], Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    failing = OneFails(make(), number=3)  # the first reply after those to the start of two actors
    monkeypatch.setattr(cluster, "import_ray", lambda: failing)
    channel = opened(FEDAVG, secure=False, dropout=0.5, told=told)
    run = run_of(FEDAVG, channel)
    reports = [run.round() for _ in range(2)]
    channel.close()
    assert [(each.completed, each.clients) for each in reports] == [(True, 3), (True, 6)]
    assert [re.sub(r".* is ", "is ", line) for line in told][1:] == ["is started again"]
    assert re.search(r"is lost: (its reply was lost|Task was killed)[^\n]*$", told[0])


def test_another_error_of_ray_ends_the_run_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = OneFails(exceptions.RaySystemError("\x1b[36mthe store\x1b[39m\n  is broken"), number=3)
    monkeypatch.setattr(cluster, "import_ray", lambda: failing)
    channel = opened(FEDAVG, secure=False)
    with pytest.raises(WorkersFailed, match=r"3 clients from 0 on failed: .*the store is broken") as raised:
        run_of(FEDAVG, channel).round()
    channel.close()
    assert "\x1b" not in str(raised.value)


def test_an_actor_with_another_secagg_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_pool, "source_digest", lambda: "another")
    channel = opened(FEDAVG, secure=False)
    with pytest.raises(WorkersFailed, match="the nodes have another secagg than this process"):
        run_of(FEDAVG, channel).round()
    channel.close()


def test_a_digest_of_sources_is_that_of_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("1")
    (tmp_path / "other.txt").write_text("1")
    first = digest_of({"p": tmp_path})
    (tmp_path / "other.txt").write_text("2")
    assert digest_of({"p": tmp_path}) == first
    (tmp_path / "one.py").write_text("2")
    second = digest_of({"p": tmp_path})
    (tmp_path / "one.py").rename(tmp_path / "two.py")
    assert len({first, second, digest_of({"p": tmp_path})}) == 3


class Holder:
    """Another job on the cluster."""

    def hold(self) -> None:
        pass


class Ending(list[str]):
    """Ends another job when something is told."""

    job: Any = None

    def append(self, text: str) -> None:
        super().append(text)
        ray.kill(self.job)


@SLOW
def test_a_run_that_waits_for_others_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_pool, "_INTERVAL", 0.1)
    monkeypatch.setattr(actor_pool, "_PATIENCE", 0.5)
    cpus, told = ray.cluster_resources()["CPU"], Ending()
    told.job = ray.remote(Holder).options(num_cpus=cpus).remote()
    ray.get(told.job.hold.remote())
    channel = opened(FEDAVG, secure=False, told=told)
    report = run_of(FEDAVG, channel).round()
    channel.close()
    assert report.clients == CLIENTS
    assert [line.partition(":")[0] for line in told] == ["the run waits for 2 of 2 actors"]


@SLOW
def test_answers_of_a_killed_actor_are_not_forgotten() -> None:
    """A client whose actor was killed after it had answered has spent what that answer cost."""
    log = Lines({(1, 0, Stage.REVEAL): lambda: kill_host(channel, 0)})
    channel = opened(FEDAVG, secure=True, log=log, actors=3, dropout=0.4)
    run = run_of(FEDAVG, channel)
    for expected in (1, 2, 3):
        run.round()
        assert {spend.unnoised for spend in channel.spends().values()} == {expected}
    channel.close()
    assert {spend.unnoised for spend in channel.spends().values()} == {3}


@SLOW
def test_kept_states_continue_in_another_channel() -> None:
    channel = opened(FEDPLUS, secure=True, **USUAL)
    first = run_of(FEDPLUS, channel)
    for _ in range(4):
        first.round()
    whole = channel.save(), first.model.tobytes()
    channel.close()

    channel = opened(FEDPLUS, secure=True, **USUAL)
    run = run_of(FEDPLUS, channel)
    for _ in range(2):
        run.round()
    saved, server = channel.save(), run.save()
    channel.close()
    later = opened(FEDPLUS, secure=True, **USUAL)
    later.restore(saved, sessions=channel.sessions)
    resumed = type(run).resume(FEDPLUS, later, server, interrupted=False)
    for _ in range(2):
        resumed.round()
    memories = {member: each.model.tobytes() for member, each in later.memories().items()}
    later.close()
    assert resumed.model.tobytes() == whole[1]
    assert {member: each.model.tobytes() for member, each in channel_memories(whole[0]).items()} == memories


def channel_memories(saved: dict[int, bytes]) -> dict[int, Any]:
    channel = insecure_plain_sum(FEDPLUS, learners(), Setting(sums=4))
    channel.restore(saved, sessions=1)
    return channel.memories()


@SLOW
def test_no_secret_of_a_client_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that Ray carries is searched for all that the clients' machines draw: signing keys, X25519
    keys, mask secrets and the coefficients of shares. An actor is replaced, too, with its clients' states."""
    wire = Wire(ray, NotingActor, str(tmp_path))
    monkeypatch.setattr(cluster, "import_ray", lambda: wire)
    more = {**USUAL, "insecure_seed": None, "actors": 3}
    log = Lines({(1, 0, Stage.MASK): lambda: kill_host(channel, 0)})
    channel = opened(RFA3, secure=True, trust=Trust.MALICIOUS, log=log, **more)
    run = run_of(RFA3, channel)
    assert [run.round().clients for _ in range(3)] == [CLIENTS, CLIENTS - 2, CLIENTS]
    channel.close()

    secrets, everything = noted_secrets(tmp_path), b"".join(wire.sent)
    assert len(secrets) >= 2 * CLIENTS * 10  # two sessions of four sums: a channel key, and two for each sum
    keys = [each for each in secrets if len(each) == KEY_BYTES]
    # What belongs to these secrets is in it.
    assert any(public_key(key) in everything for key in keys)
    assert any(Identity.from_secret(key).public in everything for key in keys)
    assert not any(secret in everything for secret in secrets)


@SLOW
@each_kind
def test_what_all_actors_need_is_sent_once(secure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = []
    for actors in (2, 3):
        wire = Wire(ray)
        monkeypatch.setattr(cluster, "import_ray", lambda wire=wire: wire)
        channel = opened(RFA3, secure=secure, actors=actors, **USUAL)
        assert run_of(RFA3, channel).round().completed
        sums = len(channel.asked)
        channel.close()
        shared.append(len(wire.shared))
    assert shared[0] == shared[1] >= sums
    assert secure or shared[0] == sums


@SLOW
def test_measured_rounds_have_one_model_and_bars() -> None:
    report = measure(RaySetting(task=RoundTask("digits", 20), turns=1, rounds=1), lambda *_: None)
    assert report.seconds.keys() == report.first.keys() == set(WAYS)
    assert report.bars.keys() == {"ray plain / plain", "ray secure / processes"}
    assert report.difference < 1e-6


@SLOW
@each_kind
def test_attackers_tamper_as_in_one_process(secure: bool) -> None:
    channel = opened(FEDAVG, secure=secure, shared={"tamper": [1]}, tamper={1: negated}, **USUAL)
    found = outcome(FEDAVG, channel, 2)
    channel.close()
    expected = outcome(
        FEDAVG, insecure_plain_sum(FEDAVG, learners(), Setting(**USUAL, tamper={1: negated})), 2
    )
    assert found[:3] == expected[:3]
    assert found[0] != outcome(FEDAVG, insecure_plain_sum(FEDAVG, learners(), Setting(**USUAL)), 2)[0]


@SLOW
@each_kind
def test_an_error_of_a_client_ends_the_run_with_its_place(secure: bool) -> None:
    for how, said in (("data", "its data is gone"), ("bug", r"ZeroDivisionError at process_clients\.py")):
        channel = opened(FEDAVG, secure=secure, shared={"fails": 0, "how": how})
        run = run_of(FEDAVG, channel)
        run.round()
        with pytest.raises(WorkersFailed, match=said) as raised:
            run.round()
        channel.close()
        assert "secret" not in str(raised.value)


def test_an_actor_that_cannot_make_its_clients_is_told_at_once() -> None:
    channel = opened(FEDAVG, secure=False, shared={"start": 4})
    with pytest.raises(WorkersFailed, match=r"did not start: ZeroDivisionError at process_clients\.py"):
        run_of(FEDAVG, channel).round()
    channel.close()


def test_a_cluster_without_room_is_refused() -> None:
    channel = opened(FEDAVG, secure=False, place=RayPlace(num_cpus=1000))
    with pytest.raises(ParameterError, match=r"room for 0 actors of num_cpus = 1000 .* need 2: use fewer"):
        run_of(FEDAVG, channel).round()
    channel.close()


def test_rounds_cannot_be_repeated_and_clients_must_fit() -> None:
    with pytest.raises(ParameterError, match="a round cannot be repeated"):
        opened(FEDAVG, secure=False, insecure_replay=True)
    with pytest.raises(ParameterError, match="differ from the learners"):
        on_ray(FEDAVG, learners(), Setting(), secure=False, clients=ClientFactory(worker_clients, {}, {}))


def test_facts_name_the_cluster() -> None:
    channel = opened(FEDAVG, secure=False, place=SMALL, actors=0)
    facts = channel.cluster
    channel.close()
    assert facts["nodes"] == 1
    assert facts["actors"] == CLIENTS  # there is room for more
    assert facts["cpus"] >= 1
    assert facts["ray"].count(".") == 2


@SLOW
def test_a_cluster_that_is_not_there_is_told() -> None:
    """In a process of its own, because this one is connected."""
    code = (
        "from sims.config_problems import ConfigError\n"
        "from sims.runtime.ray.cluster import connect\n"
        "try:\n    connect('127.0.0.1:1')\nexcept ConfigError as error:\n    print(error)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    )
    assert "the Ray cluster 127.0.0.1:1 cannot be reached" in said.stdout
