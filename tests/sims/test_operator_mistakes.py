"""Mistakes of operators who train: exit status 2 and a sentence that names what is wrong. Nothing is lost."""

from __future__ import annotations

import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from sims.cli import main
from sims.config_problems import ConfigError
from sims.deploy.training import train_as_client, train_as_server
from sims.deploy.training_server import TrainingServer
from sims.records import RunDirectory
from sims.records.run_directory import FINISHED
from tests.sims.mistaken_site import MistakenSite
from tests.sims.own_code import write_module
from tests.sims.training_site import TrainingSite

Mistake = Callable[[TrainingSite], object]
Table = dict[str, tuple[Mistake, str]]
SERVE, JOINS = "train.toml", "join-0.toml"
LONG = "x" * 260  # more characters than the name of a file may have


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])  # which gets the directories of modules


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MistakenSite]:
    """Everything in order, after the first of two rounds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.path", [*sys.path])
        site = MistakenSite(
            tmp_path_factory.mktemp("original"), clients=3, algorithm='name = "fedgeomed+"', rounds=2
        )
        site.train(until=lambda log: bool(log.facts("round")))
        site.write_all(0)
        yield site


@pytest.fixture
def site(original: MistakenSite, tmp_path: Path) -> MistakenSite:
    return original.copied(tmp_path)


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What is said on standard error."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert all(line.startswith(f"secagg {arguments[0]}: ") for line in err.splitlines())
    assert "Traceback" not in err
    return err


def check_refusal(
    site: MistakenSite,
    original: MistakenSite,
    arguments: list[str],
    mentioned: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Both the command and its check refuse to start, and change nothing. Corrected, it is in order."""
    before = site.files()
    command, config = arguments
    assert mentioned in refused([command, "--check", str(site / config)], capsys)
    assert mentioned in refused([command, str(site / config)], capsys)
    assert site.files() == before
    site.correct(original)
    assert main([command, "--check", str(site / {"serve": SERVE, "join": JOINS}[command])]) == 0


# --- mistakes ---


def changed(file: str, old: str, new: str) -> Mistake:
    return lambda site: site.change(file, old, new)


def deploy(line: str) -> Mistake:
    """With a further key in the table [deploy], or a further table."""
    if line.startswith("["):
        return lambda site: site.write(SERVE, f"{(site / SERVE).read_text()}\n{line}\n")
    return changed(SERVE, "rest = 0.01", f"rest = 0.01\n{line}")


def lost(file: str) -> Mistake:
    return lambda site: (site / file).unlink()


def filled(file: str, data: bytes = b"nonsense\n") -> Mistake:
    return lambda site: site.write(file, data)


def cut(file: str, size: int = 8192) -> Mistake:
    return lambda site: site.write(file, (site / file).read_bytes()[:size])


def copied(source: str, target: str) -> Mistake:
    return lambda site: shutil.copy(site / source, site / target)


def directory(name: str, mode: int = 0o755) -> Mistake:
    return lambda site: (site / name).mkdir(mode=mode)


def both(*mistakes: Mistake) -> Mistake:
    return lambda site: [each(site) for each in mistakes]


def model(kind: str, code: str = "") -> Mistake:
    """The scenario's model is `kind`, from a module with this `code`."""

    def act(site: TrainingSite) -> None:
        assert isinstance(site, MistakenSite)
        module = write_module(site.directory, code) if code else site.module
        old = f'kind = "{site.module}:Net"\nhidden = 4'
        site.change(SERVE, old, f'kind = "{kind.format(module=module)}"')

    return act


def source(key: str, name: str, code: str = "") -> Mistake:
    """The client's data or learner is `name`, from a module with this `code`."""

    def act(site: TrainingSite) -> None:
        assert isinstance(site, MistakenSite)
        module = write_module(site.directory, code) if code else site.module
        site.change(JOINS, f'data = "{site.module}:own"', f'{key} = "{name.format(module=module)}"')

    return act


def stale(name: str, days: int) -> Mistake:
    moment = int(time.time()) + days * 86_400
    return lambda site: site.write(f"{name}.pem", site.certificate(name, now=moment))


OF_SERVERS: Table = {
    # the scenario
    "no table [deploy]": (
        lambda site: site.write(SERVE, (site / SERVE).read_text().split("[deploy]")[0]),
        "deploy: ",
    ),
    "no TOML": (filled(SERVE, b"[algorithm"), SERVE),
    "a misspelt key": (changed(SERVE, "epochs", "epocs"), "training.epocs"),
    "a misspelt table": (changed(SERVE, "[algorithm]", "[algoritm]"), "algoritm: is not known here; did you"),
    "an empty file": (filled(SERVE, b"# later\n"), "is empty"),
    "a misspelt key of [deploy]": (changed(SERVE, "linger", "lingr"), "deploy.lingr"),
    "an unknown algorithm": (changed(SERVE, "fedgeomed+", "fedgeomedian"), "algorithm.name"),
    "an unknown trust level": (changed(SERVE, "curious_server", "trusted_server"), "channel.trust"),
    "no rounds": (changed(SERVE, "rounds = 2", "rounds = 0"), "rounds"),
    "no port": (changed(SERVE, "127.0.0.1:0", "127.0.0.1"), "deploy.listen"),
    "too few clients for a round": (changed(SERVE, "min_cohort = 3", "min_cohort = 2"), "min_cohort"),
    "more clients than the run is for": (changed(SERVE, "min_cohort = 3", "min_cohort = 4"), "min_cohort"),
    "more clients than are enrolled": (
        both(
            changed(SERVE, "clients = 3", "clients = 9"), changed(SERVE, "min_cohort = 3", "min_cohort = 4")
        ),
        "deploy.min_cohort",
    ),
    "too few contributors": (deploy("min_contributors = 2"), "min_contributors"),
    "a rest of less than nothing": (changed(SERVE, "rest = 0.01", "rest = -1.0"), "deploy.rest"),
    "to linger for a year": (changed(SERVE, "linger = 20.0", "linger = 3e7"), "deploy.linger"),
    "no time to join": (deploy("[deploy.deadlines]\njoin = 0.0"), "deploy.deadlines"),
    "no patience": (deploy("[deploy.patience]\ngrace = -1.0"), "deploy.patience"),
    "no uploads": (deploy("[deploy.capacity]\nuploads = 0"), "deploy.capacity"),
    # code of the operator's own
    "no module": (model("no_such_module:Net"), "no_such_module"),
    "a module that fails": (model("{module}:Net", "1 / 0\n"), "model.kind"),
    "no such object": (model("{module}:Nett"), "Nett"),
    "a model that is none": (model("{module}:dataset"), "model.kind"),
    "a model with statistics": (model("{module}:normalised"), SERVE),
    # keys and certificates
    "no key": (lost("server.key"), "server.key"),
    "a key that others can read": (lambda site: (site / "server.key").chmod(0o640), "server.key"),
    "a certificate of another key": (copied("client-1.pem", "server.pem"), "server.pem"),
    "a certificate that has expired": (stale("server", -100), "server.pem"),
    "a certificate of tomorrow": (stale("server", 100), "server.pem"),
    "a client's identity": (
        both(changed(SERVE, "server.key", "client-1.key"), changed(SERVE, "server.pem", "client-1.pem")),
        "deploy.key",
    ),
    "a registry of another authority": (copied("client-2.pem", "authority.pem"), "deploy.registry"),
    "no certificates of clients": (lost("registry.pem"), "registry.pem"),
    # files
    "a log in place of the key": (deploy('log = "server.key"'), "deploy.log"),
    "a log in place of the ledger": (deploy('log = "run/ledger"'), "deploy.log"),
    "a log nowhere": (deploy('log = "no/such/log"'), "deploy.log"),
    "evidence in a file": (deploy('evidence = "sums.toml"'), "deploy.evidence"),
    "evidence for everybody": (both(directory("open"), deploy('evidence = "open"')), "deploy.evidence"),
    "evidence under a long name": (deploy(f'evidence = "{LONG}"'), "deploy.evidence"),
    "a hand-over under a long name": (deploy(f'hand_over = "{LONG}"'), "deploy.hand_over"),
    # the run directory
    "a file as run directory": (changed(SERVE, 'run = "run"', 'run = "sums.toml"'), "deploy.run"),
    "a run below a file": (changed(SERVE, 'run = "run"', 'run = "sums.toml/run"'), "deploy.run"),
    "a run under a long name": (changed(SERVE, 'run = "run"', f'run = "{LONG}"'), "File name too long"),
    "a directory with other files": (changed(SERVE, 'run = "run"', 'run = "."'), "deploy.run"),
    "a run of other settings": (changed(SERVE, "rate = 0.1", "rate = 0.2"), "run/checkpoint"),
    "a run of more rounds": (changed(SERVE, "rounds = 2", "rounds = 3"), "run/checkpoint"),
    "no run.json": (lost("run/run.json"), "run/run.json"),
    "a damaged run.json": (filled("run/run.json"), "run/run.json"),
    "no checkpoint": (lost("run/checkpoint"), "run/checkpoint"),
    "a damaged checkpoint": (cut("run/checkpoint", 100), "run/checkpoint"),
    "no ledger": (lost("run/ledger"), "run/ledger"),
    "a ledger that is cut off": (cut("run/ledger"), "run/ledger"),
    "no sums": (lost("run/sums.jsonl"), "run/sums.jsonl"),
    "damaged sums": (filled("run/sums.jsonl"), "run/sums.jsonl"),
    "damaged metrics": (filled("run/metrics.jsonl", b"nonsense\n" * 9), "run/metrics.jsonl"),
}


# Of many similar mistakes, some are made every time, and the others in the slow tests.
QUICK = {
    "no table [deploy]", "a misspelt table", "an empty file", "a misspelt key", "a module that fails",
    "more clients than are enrolled",
    "a key that others can read", "a log in place of the key", "a run of other settings", "no run.json",
    "a ledger that is cut off", "samples that are no numbers", "a learner of another length",
    "a member that no client can be", "another client's state", "no key of the state", "a model nowhere",
    "a budget that is too small", "a run under a long name", "evidence under a long name",
    "a hand-over under a long name", "a state under a long name", "a model under a long name",
}  # fmt: skip


def cases(table: Table) -> list[Any]:
    return [pytest.param(case, marks=[] if case in QUICK else pytest.mark.slow) for case in table]


@pytest.mark.parametrize("case", cases(OF_SERVERS))
def test_a_mistake_of_a_server(
    site: MistakenSite, original: MistakenSite, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mistake, mentioned = OF_SERVERS[case]
    mistake(site)
    check_refusal(site, original, ["serve", SERVE], mentioned, capsys)


OF_CLIENTS: Table = {
    # the configuration
    "no scenario": (lost(SERVE), "client.scenario"),
    "a misspelt key of the scenario": (changed(SERVE, "epochs", "epocs"), "training.epocs"),
    "a misspelt key": (changed(JOINS, "personal =", "persona ="), "input.persona"),
    "single sums and training": (changed(JOINS, "scenario =", 'table = "sums.toml"\nscenario ='), "client: "),
    # data
    "no data": (source("share", "0"), "input.share"),
    "no data at all": (changed(JOINS, "data =", "# data ="), "input: "),
    "data twice": (changed(JOINS, "data =", 'learner = "x:y"\ndata ='), "input: "),
    "values for single sums": (changed(JOINS, "data =", 'values = "values-0.npz"\ndata ='), "input: "),
    "no module": (source("data", "no_such_module:load"), "no_such_module"),
    "a module that fails": (source("data", "{module}:load", "1 / 0\n"), "input.data"),
    "a module that is no Python": (source("data", "{module}:load", "def load(:\n"), "input.data"),
    "nothing to call": (source("data", "{module}:load", "load = 3\n"), "input.data"),
    "a function that exits": (source("data", "{module}:load", "def load():\n    exit()\n"), "input.data"),
    "no samples": (source("data", "{module}:nobody"), "input.data"),
    "samples that are no numbers": (source("data", "{module}:unknown_numbers"), "input.data"),
    "samples of another length": (source("data", "{module}:wide"), "input.data"),
    "classes that the model has not": (source("data", "{module}:many_classes"), "input.data"),
    "a learner that is none": (source("learner", "{module}:dataset"), "input.learner"),
    "a learner of another length": (source("learner", "{module}:SmallLearner"), "input.learner"),
    # keys and certificates
    "another client's key": (copied("client-1.key", "client-0.key"), "client.certificate"),
    "another client's identity": (
        both(copied("client-1.key", "client-0.key"), copied("client-1.pem", "client-0.pem")),
        "client.member",
    ),
    "no member": (changed(JOINS, "member = 0", "member = 7"), "client.member"),
    "a member that no client can be": (changed(JOINS, "member = 0", f"member = {1 << 70}"), "client.member"),
    "its own certificate as the server's": (copied("client-0.pem", "server.pem"), "server_certificate"),
    "an expired registry": (lambda site: site.enrol(expires=int(time.time()) - 1), "client.registry"),
    "a hand-over under a long name": (
        changed(JOINS, "ledger =", f'hand_over = "{LONG}"\nledger ='),
        "client.hand_over",
    ),
    # the ledger
    "no ledger": (lost("client-0.ledger"), "client-0.ledger"),
    "a ledger that is cut off": (cut("client-0.ledger"), "client-0.ledger"),
    "a directory as ledger": (changed(JOINS, "client-0.ledger", "run"), "client.ledger"),
    "another client's ledger": (
        both(
            copied("client-1.ledger", "client-0.ledger"),
            copied("client-1.ledger-seal", "client-0.ledger-seal"),
        ),
        "client.ledger",
    ),
    # the state
    "no state": (changed(JOINS, "state =", "# state ="), "input.state"),
    "another client's state": (
        both(copied("state-1", "state-0"), copied("state-1.key", "state-0.key")),
        "state-0",
    ),
    "the state of another run": (changed(SERVE, "rate = 0.1", "rate = 0.2"), "state-0"),
    "no key of the state": (lost("state-0.key"), "state-0.key"),
    "a key of the state that others can read": (
        lambda site: (site / "state-0.key").chmod(0o644),
        "state-0.key",
    ),
    "another key of the state": (copied("state-1.key", "state-0.key"), "state-0.key"),
    "a damaged state": (cut("state-0", 300), "state-0"),
    "a state nowhere": (changed(JOINS, '"state-0"', '"no/such/state"'), "input.state"),
    "a state under a long name": (changed(JOINS, '"state-0"', f'"{LONG}"'), "input.state"),
    "a state below a file": (changed(JOINS, '"state-0"', '"sums.toml/state"'), "input.state"),
    "a state whose key is the identity": (changed(JOINS, '"state-0"', '"client-0"'), "client.key"),
    # models
    "a model nowhere": (changed(JOINS, '"final-0.npz"', '"no/such/final.npz"'), "input.model"),
    "a model under a long name": (changed(JOINS, '"final-0.npz"', f'"{LONG}"'), "input.model"),
    "a directory as model": (changed(JOINS, '"final-0.npz"', '"run"'), "input.model"),
    "a model in place of the state's key": (changed(JOINS, '"final-0.npz"', '"state-0.key"'), "input.model"),
    "two models under one name": (changed(JOINS, '"final-0.npz"', '"personal-0.bin"'), "safetensors"),
    # the policy
    "a policy of more trust": (changed(JOINS, "curious_server", "malicious_server"), "policy.trust"),
    "a policy of other keys": (
        changed(JOINS, "[input]", 'key_agreement = "x25519+ml-kem-768"\n\n[input]'),
        "policy.key_agreement",
    ),
    "a policy of more clients": (
        both(
            changed(JOINS, "min_cohort = 3", "min_cohort = 4"),
            changed(JOINS, "max_cohort = 3", "max_cohort = 4"),
        ),
        "policy.min_cohort",
    ),
    "a policy that is none": (changed(JOINS, "max_sums = 64", "max_sums = 0"), "max_sums"),
    "a budget that is too small": (
        changed(JOINS, "unnoised_sums = 10000", "unnoised_sums = 1"),
        "policy.unnoised_sums",
    ),
}


@pytest.mark.parametrize("case", cases(OF_CLIENTS))
def test_a_mistake_of_a_client(
    site: MistakenSite, original: MistakenSite, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mistake, mentioned = OF_CLIENTS[case]
    mistake(site)
    check_refusal(site, original, ["join", JOINS], mentioned, capsys)


# --- what does not fit the tables ---


def test_a_port_in_use_and_a_host_that_does_not_exist(
    site: MistakenSite, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run directory is open by then. It stays as it is, and a new one is not left behind."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for place in (address, "host.invalid:7443", "192.0.2.1:7443"):
            own = re.compile('^listen = ".*"', re.M)
            site.write(SERVE, own.sub(f'listen = "{place}"', (site / SERVE).read_text()))
            assert main(["serve", str(site / SERVE)]) == 2
            assert "deploy.listen" in capsys.readouterr().err
    assert main(["serve", "--check", str(site / SERVE)]) == 0
    site.change(SERVE, 'run = "run"', 'run = "new"')
    assert main(["serve", str(site / SERVE)]) == 2
    assert not (site / "new").exists()


def test_a_run_directory_that_another_server_uses(
    site: MistakenSite, capsys: pytest.CaptureFixture[str]
) -> None:
    before = site.files()
    with RunDirectory(site / "run").locked():
        assert main(["serve", str(site / SERVE)]) == 2
    assert "run is in use" in capsys.readouterr().err
    assert site.files().keys() - before.keys() <= {Path("run/.lock")}


@pytest.mark.parametrize(
    ("arguments", "mentioned"),
    [
        (["join", "--check", SERVE], SERVE),
        (["serve", "--check", JOINS], JOINS),
        (["serve", "--new-ledger", SERVE], "--new-ledger"),
        (["serve", "--forgive", "1", SERVE], "--forgive"),
        (["join", "--new-ledger", JOINS], "client-0.ledger"),
        (["serve", "--check", "run"], "run"),
        (["join", "--check", "no-such.toml"], "no-such.toml"),
    ],
)
def test_the_wrong_file_or_option(
    site: MistakenSite, arguments: list[str], mentioned: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = site.files()
    *command, config = arguments
    assert mentioned in refused([*command, str(site / config)], capsys)
    assert site.files() == before


@pytest.mark.slow
def test_a_finished_run_outlives_an_error_of_its_server(
    original: MistakenSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server fails after the last round, while it hands out the model."""
    site = original.copied(tmp_path)

    async def fail(*_: object) -> None:
        raise ConfigError("an error")

    monkeypatch.setattr(TrainingServer, "_tell_everybody", fail)
    with pytest.raises(BaseExceptionGroup):
        site.train()
    assert RunDirectory(site / "run").status == FINISHED
    assert main(["serve", "--check", str(site / SERVE)]) == 0
    (site / "run/outcome").unlink()
    assert main(["serve", "--check", str(site / SERVE)]) == 2


SIMULATED: Table = {
    "a module that fails": (model("{module}:Net", "1 / 0\n"), "model.kind"),
    "no module": (model("no_such_module:Net"), "no_such_module"),
    "data that fail": (changed(SERVE, ":by_client", ":secret_failure"), "data.kind"),
    "data without samples": (changed(SERVE, ":by_client", ":nobodies"), "data.kind"),
    "data of no numbers": (changed(SERVE, ":by_client", ":unknown_by_client"), "data.kind"),
    "nothing to call": (changed(SERVE, ":by_client", ":NUMBER"), "NUMBER"),
}


@pytest.mark.parametrize("case", cases(SIMULATED))
def test_a_mistake_in_a_simulation(site: MistakenSite, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    mistake, mentioned = SIMULATED[case]
    site.change(SERVE, "[model]", f'[data]\nkind = "{site.module}:by_client"\n\n[model]')
    mistake(site)
    before = site.files()
    assert mentioned in refused(["simulate", str(site / SERVE), "--out", str(site / "out")], capsys)
    assert site.files() == before


def test_the_library_raises_the_same_errors(site: MistakenSite) -> None:
    scenario = site / SERVE
    files = {name: site / f"{file}" for name, file in FILES.items()}
    common = {"member": 0, "server": "127.0.0.1:1", "files": files}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"learner": object()}, "learner"),
        ({"files": {**files, "state": site / "no/such/state"}}, "input.state"),
        ({"files": {**files, "state": site / "state-1"}}, "state-1"),
        ({"files": {**files, "ledger": site / "client-1.ledger"}}, "client.ledger"),
        ({"policy": {"unnoised_sums": 1}}, "policy.unnoised_sums"),
        ({"policy": {"trust": "malicious_server"}}, "policy.trust"),
    ]
    before = site.files()
    for changes, mentioned in wrong:
        own = {"data": None if "learner" in changes else own_samples()}
        with pytest.raises(ConfigError, match=re.escape(mentioned)):
            train_as_client(scenario, **{**common, **own, **changes})
    for deploy_keys, mentioned in (({"min_cohort": 4}, "min_cohort"), ({"rest": -1.0}, "deploy.rest")):
        with pytest.raises(ConfigError, match=re.escape(mentioned)):
            train_as_server(scenario, **deploy_keys)
    assert site.files() == before


FILES = {
    "key": "client-0.key",
    "certificate": "client-0.pem",
    "server_certificate": "server.pem",
    "authority": "authority.pem",
    "registry": "registry.secagg",
    "ledger": "client-0.ledger",
    "state": "state-0",
}


def own_samples() -> TensorDataset:
    return TensorDataset(torch.zeros(6, 4), torch.zeros(6, dtype=torch.int64))
