"""A program trains with other programs: `train_as_server` and `train_as_client`, over TLS."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fl.flat_model import flatten
from secagg.errors import Closed, LedgerError, StateError
from secagg.ledger import read_ledger
from sims.config_problems import ConfigError
from sims.deploy.run_terms import RunTerms
from sims.deploy.training import (
    ServedTraining,
    TrainedModels,
    default_policy,
    train_as_client,
    train_as_server,
    training_terms,
)
from sims.deploy.training_client import RunClient
from sims.deploy.training_server import TrainingServer
from tests.sims.deploy_site import Site

MALICIOUS = "malicious_server"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


def terms(**changes: Any) -> RunTerms:
    given: dict[str, Any] = {
        "clients": 3,
        "rounds": 3,
        "algorithm": {"name": "fedgeomed+"},
        "training": {"rate": 0.2, "epochs": 2, "batch": 16},
        "channel": {"trust": "curious_server", "corrupt": 1, "dropout": 0.2},
    }
    return training_terms(Net, **{**given, **changes})


def dataset(member: int) -> TensorDataset:
    rng = np.random.default_rng(member)
    x = rng.standard_normal((60, 4)).astype(np.float32)
    return TensorDataset(torch.from_numpy(x), torch.from_numpy((x[:, 0] + x[:, 1] > 0).astype(np.int64)))


class Programs:
    """A server and clients 1 to 3, whose files are in one directory."""

    def __init__(self, directory: Path) -> None:
        self.site = Site(directory)
        for member in self.site.clients:
            self.site.lose(f"client-{member}.ledger")
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.address = f"127.0.0.1:{taken.getsockname()[1]}"

    def serve(self, agreed: RunTerms, **changes: Any) -> ServedTraining:
        names = ("server.key", "server.pem", "authority.pem", "registry.secagg", "run")
        files = dict(zip(("key", "certificate", "authority", "registry", "run"), names, strict=True))
        given: dict[str, Any] = {"listen": self.address, "min_cohort": 3, "linger": 20.0, "rest": 0.01}
        own = {name: changes.pop(name, self.site / file) for name, file in files.items()}
        own |= changes.pop("files", {})
        return train_as_server(agreed, files=own, **{**given, **changes})

    def join(self, agreed: RunTerms, number: int, **changes: Any) -> TrainedModels:
        files = {
            "state": f"client-{number}.state",
            "key": f"client-{number}.key",
            "certificate": f"client-{number}.pem",
            "server_certificate": "server.pem",
            "authority": "authority.pem",
            "registry": "registry.secagg",
            "ledger": f"client-{number}.ledger",
        }
        own = {name: str(self.site / file) for name, file in files.items()} | changes.pop("files", {})
        given: dict[str, Any] = {"data": dataset(number), "member": number, "server": self.address}
        return train_as_client(agreed, files=own, **{**given, **changes})

    @contextlib.contextmanager
    def joined(self, agreed: RunTerms, *members: int) -> Iterator[list[Any]]:
        with ThreadPoolExecutor(len(members)) as pool:
            yield [pool.submit(self.join, agreed, member) for member in members]


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


@pytest.mark.parametrize("trust", ["curious_server", pytest.param(MALICIOUS, marks=pytest.mark.slow)])
def test_server_and_clients_end_with_the_same_model(programs: Programs, trust: str) -> None:
    agreed = terms(channel={"trust": trust, "corrupt": 1, "dropout": 0})
    with programs.serve(agreed) as run, programs.joined(agreed, 1, 2, 3) as clients:
        reports = list(run)
        models = [each.result() for each in clients]
    assert [each.number for each in reports] == [0, 1, 2]
    assert all(each.completed and each.clients == 3 for each in reports)
    final = flatten(run.model)
    assert not np.array_equal(final, flatten(agreed.module))
    for each in models:
        assert np.array_equal(flatten(each.common), final)
    own = [flatten(each.personal) for each in models]
    assert not np.array_equal(own[0], own[1])
    inputs, targets = dataset(9).tensors
    assert (run.model(inputs).argmax(1) == targets).float().mean() > 0.8
    assert read_ledger(programs.site / "client-1.ledger").rows
    assert list(programs.serve(agreed, linger=0.0)) == []  # it is over: clients that come late are told


def test_models_trained_in_double_precision_are_not_rounded(programs: Programs) -> None:
    agreed = terms(rounds=1, training={"rate": 0.2, "epochs": 1, "precision": "float64"})
    with programs.serve(agreed) as run, programs.joined(agreed, 1, 2, 3) as clients:
        assert len(list(run)) == 1
        models = [each.result() for each in clients]
    with np.load(programs.site / "run/model.npz") as archive:
        exact = archive["model"]
    assert not np.array_equal(exact, exact.astype(np.float32))
    for each in (run.model, models[0].common):
        assert np.array_equal(flatten(each), exact)


def test_a_client_runs_in_an_asyncio_program(programs: Programs) -> None:
    agreed = terms(rounds=1)

    async def take_part() -> TrainedModels:
        return await asyncio.to_thread(programs.join, agreed, 3)

    with programs.serve(agreed) as run, programs.joined(agreed, 1, 2):
        models = asyncio.run(take_part())
        assert len(list(run)) == 1
    assert np.array_equal(flatten(models.common), flatten(run.model))


def test_the_server_says_at_which_port_it_listens(programs: Programs) -> None:
    agreed = terms(rounds=1)
    with programs.serve(agreed, listen="127.0.0.1:0") as run:
        assert run.address.startswith("127.0.0.1:")
        programs.address = run.address
        with programs.joined(agreed, 1, 2, 3):
            assert [each.completed for each in run] == [True]


def test_the_log_is_standard_output(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a file of the call and as its keyword, for the server and for a client."""
    monkeypatch.chdir(programs.site.directory)
    with programs.serve(terms(), files={"log": "-"}), pytest.raises(ConfigError, match="rounds"):
        programs.join(terms(rounds=4), 1, files={"log": "-"})
    started = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [("member" in each) for each in started if each["event"] == "started"] == [False, True]
    programs.serve(terms(), log="-").close()
    assert '"started"' in capsys.readouterr().out
    programs.serve(terms()).close()
    assert capsys.readouterr().out == ""
    assert not Path("-").exists()


def test_a_run_that_is_stopped_goes_on(programs: Programs) -> None:
    agreed = terms()
    with programs.joined(agreed, 1, 2, 3) as clients:
        with programs.serve(agreed) as first:
            assert next(iter(first)).number == 0
            with pytest.raises(StateError):
                _ = first.model
        with programs.serve(agreed) as second:
            numbers = [each.number for each in second]
        assert numbers == sorted(numbers)
        assert 0 not in numbers
        models = [each.result() for each in clients]
    assert np.array_equal(flatten(models[0].common), flatten(second.model))


@pytest.mark.parametrize("is_set", [True, False])
def test_a_client_that_no_server_answers_is_stopped(programs: Programs, is_set: bool) -> None:
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        if is_set:
            stop.set()
        client = pool.submit(programs.join, terms(), 1, stop=stop)
        if not is_set:
            assert not wait([client], timeout=1).done
            stop.set()
        with pytest.raises(Closed):
            client.result(10)


def test_a_client_that_is_stopped_while_it_trains_goes_on(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed, stop, ended, answer = terms(), threading.Event(), threading.Event(), RunClient._answer

    def answer_and_stop(self: RunClient, asked: Any) -> Any:
        values = answer(self, asked)
        if "client-1" in str(self.section.state) and not stop.is_set():
            stop.set()
            time.sleep(1)  # the event loop ends before this thread does
            ended.set()
        return values

    monkeypatch.setattr(RunClient, "_answer", answer_and_stop)
    with programs.serve(agreed) as run, programs.joined(agreed, 2, 3):
        with pytest.raises(Closed):
            programs.join(agreed, 1, stop=stop)
        assert ended.is_set()  # nothing writes the state any more
        before = len(read_ledger(programs.site / "client-1.ledger").rows)
        models = programs.join(agreed, 1)
        assert list(run)[-1].completed
    assert before < len(read_ledger(programs.site / "client-1.ledger").rows)
    assert np.array_equal(flatten(models.common), flatten(run.model))


def test_other_terms_are_refused_by_the_client(programs: Programs) -> None:
    agreed = terms()
    with programs.serve(agreed), pytest.raises(ConfigError, match="rounds"):
        programs.join(terms(rounds=4), 1)


def test_a_lost_ledger_is_not_replaced(programs: Programs) -> None:
    agreed = terms(rounds=1)
    with programs.serve(agreed) as run, programs.joined(agreed, 1, 2, 3):
        list(run)
    (programs.site / "client-1.ledger").unlink()
    with pytest.raises(LedgerError):
        programs.join(agreed, 1)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"data": None}, "data"),
        ({"data": "patients.csv"}, "data"),
        ({"data": TensorDataset(torch.zeros(4, 9), torch.zeros(4, dtype=torch.int64))}, "data"),
        ({"member": 7}, "client.member"),
        ({"server": "nowhere"}, "client.server"),
        ({"files": {"key": "no-such.key"}}, "client.key"),
        ({"files": {"ky": "client-1.key"}}, "client.ky"),
        ({"policy": {"corrupt": 2}}, "policy"),
    ],
)
def test_a_mistake_of_a_client_is_named(programs: Programs, changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        programs.join(terms(), 1, **changes)
    assert not (programs.site / "client-1.ledger").exists()


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"min_cohort": 2}, "min_cohort"),
        ({"listen": "nowhere"}, "deploy.listen"),
        ({"key": "no-such.key"}, "deploy.key"),
        ({"rounds": 3}, "deploy.rounds"),
        ({"clients": 4}, "deploy.clients"),
    ],
)
def test_a_mistake_of_a_server_is_named(programs: Programs, changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        programs.serve(terms(), **changes)
    assert not (programs.site / "run").exists()


def test_an_address_in_use_is_named(programs: Programs) -> None:
    with programs.serve(terms()), pytest.raises(ConfigError, match=r"deploy\.listen"):
        programs.serve(terms(), run=programs.site / "other")


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": {"name": "fedavgg"}},
        {"algorithm": {"name": "local"}},
        {"training": {"rate": 0.1, "rat": 1}},
        {"channel": {"trust": "nobody"}},
        {"rounds": 0},
    ],
)
def test_terms_that_allow_no_run_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        terms(**changes)


def test_a_module_is_made_from_the_seed() -> None:
    assert terms().digest == terms().digest
    assert np.array_equal(terms().initial, terms().initial)
    assert not np.array_equal(terms(seed=1).initial, terms().initial)
    wrong: list[Any] = [Net(), lambda: 3, lambda: 1 / 0]
    for make in wrong:
        with pytest.raises(ConfigError):
            training_terms(make, clients=3, rounds=1, algorithm={"name": "rfa"}, training={"rate": 0.1})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: nn.LazyLinear(2), "no size yet"),
        (lambda: nn.Linear(4, 2, dtype=torch.complex64), "complex numbers"),
        (lambda: Net().bfloat16(), "bfloat16"),
    ],
)
def test_a_module_that_cannot_be_trained_is_refused(make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        training_terms(make, clients=3, rounds=1, algorithm={"name": "rfa"}, training={"rate": 0.1})


def test_the_default_policy_covers_one_run() -> None:
    agreed = terms(
        algorithm={"name": "fedavg", "clip": 1.0, "weighted": False},
        privacy={"epsilon": 8.0, "delta": 1e-5},
    )
    policy = default_policy(agreed)
    assert policy["unnoised_sums"] == 0
    assert policy["max_rho"] == agreed.algorithm.max_rho
    assert default_policy(terms())["unnoised_sums"] >= 3


def test_closing_waits_for_the_thread_of_the_algorithm(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It uses the ledger and the run directory, which the next server may open."""
    train, begun, ended = TrainingServer._train, threading.Event(), threading.Event()

    def slow(self: TrainingServer, server: Any, call: Any) -> bytes:
        begun.set()
        try:
            return train(self, server, call)
        finally:
            time.sleep(0.3)
            ended.set()

    monkeypatch.setattr(TrainingServer, "_train", slow)
    with programs.serve(terms()):
        assert begun.wait(30)
    assert ended.is_set()


def test_closing_ends_the_iteration(programs: Programs) -> None:
    with programs.serve(terms()) as run, ThreadPoolExecutor(1) as pool:
        rest = pool.submit(list, run)
        run.close()
        assert rest.result() == []
