"""Every mistake in a scenario is told with its key and what would be right, before anything runs: exit 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from sims.cli import main

BASE = """
rounds = 5
[data]
kind = "digits"
[partition]
kind = "iid"
clients = 40
[model]
kind = "softmax"
[training]
rate = 0.3
epochs = 2
[algorithm]
name = "fedavg"
clip = 10.0
[channel]
kind = "secure"
dropout = 0.2
"""
NOISE = ("privacy.epsilon=8.0", "privacy.delta=1e-5", "algorithm.weighted=false")
TAIL = ("tail.epsilon=4.0", "tail.delta=1e-5")

# What is set, the key that is to blame, and what is said about it.
MISTAKES = [
    # names
    (["rouns=3"], "rouns", "is not known here; did you mean rounds?"),
    (["chanel.kind=plain"], "chanel", "is not known here; did you mean channel?"),
    (["sweeep.seed=[1]"], "sweeep", "is not known here; did you mean sweep?"),
    (["channel.worker=2"], "channel.worker", "is not known here; did you mean workers?"),
    (["dropout.trainig=0.1"], "dropout.trainig", "is not known here; did you mean training?"),
    (["output.keeep=run"], "output.keeep", "is not known here; did you mean keep?"),
    (["audit.canary=3"], "audit.canary", "is not known here; did you mean canaries?"),
    ([*TAIL, "tail.bin=3"], "tail.bin", "is not known here; did you mean bins?"),
    (["training.schedule.evry=3"], "training.schedule.evry", "is not known here; did you mean every?"),
    (["name=a/b"], "name", "must be a text that can be the name of a file, not 'a/b'"),
    (["quick.rounds=3"], "quick", "is of the whole file, and cannot be changed from outside"),
    (["data.kind=digit"], "data.kind", "'digit' is not known; did you mean digits?"),
    (["partition.kind=dirichle"], "partition.kind", "'dirichle' is not known; did you mean dirichlet?"),
    (["model.kind=softmx"], "model.kind", "'softmx' is not known; did you mean softmax?"),
    (["algorithm.name=fedavgg"], "algorithm.name", "there is no algorithm 'fedavgg': did you mean 'fedavg'?"),
    (["algorithm.clop=1"], "algorithm.clop", "there is no parameter 'clop' of fedavg: did you mean 'clip'?"),
    ([*NOISE, "privacy.detla=1"], "privacy.detla", "is not known here; did you mean delta?"),
    (["attack.kind=sign-flop", "attack.fraction=0.2"], "attack.kind", "did you mean sign-flip?"),
    (["evaluation.observe=['jump']"], "evaluation.observe", "'jump' is not known; did you mean jumps?"),
    # types and ranges
    (["rounds=many"], "rounds", "must be a whole number, not 'many'"),
    (["rounds=0"], "rounds", "must be greater than or equal to 1"),
    (["insecure_seed=3"], "insecure_seed", "must be true or false, not 3"),
    (["channel.kind=secured"], "channel.kind", "'secured' is no choice; did you mean secure?"),
    (["channel.kind=process"], "channel.kind", "'process' is no choice; did you mean processes?"),
    (["channel.trust=malicious"], "channel.trust", "no choice; did you mean malicious_server?"),
    (["channel.graph=circle"], "channel.graph", "'circle' is no choice; there are auto, complete, ring"),
    (["channel.sums=65"], "channel.sums", "must be less than or equal to 64"),
    (["channel.workers=-1"], "channel.workers", "must be greater than or equal to 0"),
    (["dropout.reveal=1.0"], "dropout.reveal", "must be less than 1"),
    (["output.keep=all"], "output.keep", "'all' is no choice; there are run, table"),
    (["training=3"], "training", "must be a table, not 3"),
    (["training.device=gpu7"], "training.device", "there is no device 'gpu7'"),
    ([*TAIL, "tail.delta=1.5"], "tail.delta", "must be less than 1"),
    (["partition.test=1.5"], "partition.test", 'must be a part of all, from 0 to below 1, or "given"'),
    # data, partition, model
    (
        ["data.kind=mnist"],
        "data",
        "mnist is not a directory: train-images-idx3-ubyte is read from it",
    ),
    (["data={kind='npz', file='x.npz'}"], "data", "npz is not a directory: x.npz is read from it"),
    (["data={kind='cifar10'}"], "data", "data_batch_1 is read from it"),
    (["data={kind='leaf'}", "partition={kind='by_owner'}"], "data", "json files are missing: looked in leaf"),
    (["data={kind='npz'}"], "data.file", "is missing: npz needs it"),
    (["partition={kind='iid'}"], "partition.clients", "is missing: iid needs it"),
    (["partition={kind='by_owner'}"], "partition.kind", "digits does not say who owns what: take another"),
    (
        ["partition.test=given"],
        "partition.test",
        "digits has no test set of its own: set a part, such",
    ),
    (["data={kind='synthetic'}"], "partition", "synthetic makes its own clients: leave out [partition]"),
    (["model.kind=cnn-mnist"], "model", "cnn-mnist: "),
    (["evaluation.part=validation"], "evaluation.part", "set partition.validation to a part above 0"),
    (["partition.test=0.0"], "evaluation.part", "set partition.test to a part above 0"),
    (["output.identity=no.key"], "output.identity", "no.key does not exist; make one with secagg keygen"),
    # the cohort and its protection
    (
        ["partition.clients=1"],
        "partition.clients",
        "a sum over 1 shows what that client sent: a round needs",
    ),
    (["cohort.per_round=1"], "cohort.per_round", "a sum over 1 shows what that client sent: a round needs"),
    (["cohort.per_round=41"], "cohort.per_round", "must be at most 40, the clients that train"),
    (["cohort.per_round=4", "channel.corrupt=3"], "channel.corrupt", "needs 5 clients or more, not 4"),
    (["channel.corrupt=35"], "channel.dropout", "40 clients with 35 colluders under curious_server need"),
    (
        ["channel.trust=malicious_server", "channel.dropout=0.6"],
        "channel.dropout",
        "40 clients with 0 colluders under malicious_server need 21 survivors",
    ),
    (
        ["channel.trust=malicious_server", "channel.graph=ring"],
        "channel.graph",
        "a ring needs a curious_server",
    ),
    (["channel.kind=processes", "channel.workers=41"], "channel.workers", "must be at most 40, one for each"),
    (
        ["algorithm={name='rfa', steps=5}", "channel.sums=4"],
        "channel.sums",
        "a round of rfa takes 5: set that or more",
    ),
    (
        ["algorithm={name='afl', clip=10.0, loss_cap=5.0}", "cohort.per_round=20"],
        "cohort.per_round",
        "afl needs all clients in every round: remove this",
    ),
    (
        ["algorithm={name='simplicial', clip=10.0, loss_bound=5.0}", "channel.trust=malicious_server"],
        "channel.trust",
        "the server could single out one client",
    ),
    (
        ["channel.kind=processes", "attack.kind=omniscient", "attack.fraction=0.2"],
        "attack.kind",
        "omniscient clients know what all others are about to send, which is impossible across processes",
    ),
    (
        ["channel.kind=processes", "evaluation.observe=['agreement']"],
        "evaluation.observe",
        "agreement reads the memory of clients, which run in other processes",
    ),
    # drop-outs
    (
        ["dropout.training=0.7"],
        "dropout",
        "about 28 of 40 clients drop out in a round, but with channel.dropout = 0.2 a session tolerates 19: "
        "set channel.dropout to ",
    ),
    (
        ["dropout.reveal=0.7", "channel.trust=malicious_server"],
        "dropout",
        "lower the rates of [dropout]: no session tolerates that many",
    ),
    (
        [*NOISE, "dropout.training=0.1", "privacy.dropouts=1"],
        "privacy.dropouts",
        "noise is planned for 1 clients that send nothing, but about 4 of 40 do so in a round, which then "
        "releases nothing: set it to 9",
    ),
    # bits and noise
    (["algorithm.bits=4"], "algorithm.bits", "fedavg: "),
    (["algorithm.clip=-1"], "algorithm.clip", "fedavg: clip must be a number above 0, not -1"),
    (["algorithm={name='fedavg'}"], "algorithm.clip", "fedavg: clip must be set"),
    (["privacy.epsilon=1.0", "algorithm.weighted=false"], "privacy", "epsilon means nothing without delta"),
    ([*NOISE, "privacy.rho=1.0"], "privacy", "a goal is either epsilon or rho"),
    ([*NOISE, "privacy.epsilon=1e-10"], "privacy", "epsilon must be a number from 1e-09 to 1e+06"),
    (
        [*NOISE, "privacy.epsilon=1e-5"],
        "privacy.epsilon",
        "over 5 sums, each costs so little (rho 6.55e-11) that the budget ends before the last sum, as "
        "clients round costs up: set a larger epsilon, or fewer rounds",
    ),
    ([*NOISE, "privacy.dropouts=40"], "privacy", "fedavg: "),
    (
        [*NOISE, "algorithm.weighted=true"],
        "algorithm.weighted",
        "all clients count the same: set weighted",
    ),
    (
        ["algorithm={name='median', reach=1.0}", "privacy.rho=1.0"],
        "privacy",
        "median has no private variant: remove [privacy]",
    ),
    (["audit.canaries=100"], "audit.canaries", "there is no noise to test: set [privacy] or [tail]"),
    (["tail.epsilon=1.0"], "tail.delta", "is missing"),
    (["tail.delta=1e-5", *NOISE], "tail.epsilon", "is missing"),  # there is no tail without noise
    (
        [*TAIL, "tail.epsilon=0.01"],
        "tail.epsilon",
        "hides all 40 clients: set a larger epsilon, fewer bins, or",
    ),
    ([*TAIL, "partition.clients=4"], "tail.epsilon", "hides all 4 clients"),
    ([*TAIL, "tail.epsilon=1e-9"], "tail", "is too small"),
    (
        [*TAIL, "dropout.training=0.3"],
        "tail",
        "its noise is planned for 8 clients that send nothing, as channel.dropout says, but about 12 of 40",
    ),
    # attacks and training
    (
        ["attack.kind=label-flip", "attack.fraction=0.01"],
        "attack.fraction",
        "0.01 of 40 clients is no client",
    ),
    (["attack.kind=wrap", "attack.fraction=0.2"], "attack.kind", 'set level = "message"'),
    (
        ["attack.kind=label-flip", "attack.fraction=0.2", "attack.level=answer"],
        "attack.kind",
        'set level = "update"',
    ),
    (
        ["algorithm={name='apfl', clip=10.0}", "attack.kind=sign-flip", "attack.fraction=0.2"],
        "attack.kind",
        "apfl takes gradient steps of its own",
    ),
    (["training.steps=3"], "training", "set either steps or epochs, not both"),
    (
        ["training.epochs=1", "cohort.stragglers=0.5"],
        "cohort.stragglers",
        "a single epoch or step cannot be cut short",
    ),
    (["algorithm={name='local'}"], "evaluation.what", 'set what = "personal"'),
]


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SECAGG_DATA", raising=False)
    path = tmp_path / "mine.toml"
    path.write_text(BASE)
    return path


def told(scenario: Path, capsys: pytest.CaptureFixture[str], changes: list[str]) -> list[str]:
    """What is said, without what every line begins with; nothing else happens."""
    last = {each.partition("=")[0]: each for each in changes}
    options = [word for each in last.values() for word in ("--set", each)]
    assert main(["simulate", str(scenario), *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert [path.name for path in scenario.parent.iterdir()] == ["mine.toml"]
    lines = err.splitlines()
    prefix = f"secagg simulate: {scenario}: "
    assert all(line.startswith(prefix) for line in lines), err
    return [line.removeprefix(prefix) for line in lines]


@pytest.mark.parametrize(
    ("changes", "key", "sentence"), MISTAKES, ids=[" ".join(row[0]).replace("/", "") for row in MISTAKES]
)
def test_a_mistake_is_told(
    scenario: Path, capsys: pytest.CaptureFixture[str], changes: list[str], key: str, sentence: str
) -> None:
    (line,) = told(scenario, capsys, changes)
    found, _, said = line.partition(": ")
    assert found == key
    assert sentence in said
    assert len(said) > 8


def test_mistakes_of_all_sorts_are_told_at_once(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(
        scenario,
        capsys,
        [
            "data={kind='npz', file='x.npz'}",
            "channel.workers=50",
            "audit.canaries=1",
            "algorithm.bits=4",
            "dropout.reveal=0.9",
        ],
    )
    keys = [line.partition(":")[0] for line in found]
    assert sorted(keys) == ["algorithm.bits", "audit.canaries", "channel.workers", "data"]
    found = told(scenario, capsys, ["rouns=3", "rounds=no", "training.bach=1", "channel.kind=x"])
    assert [line.partition(":")[0] for line in found] == ["rounds", "training.bach", "channel.kind", "rouns"]
    found = told(scenario, capsys, ["attack.kind=x", "attack.fraction=0.01", "data.kind=mnist"])
    assert [line.partition(":")[0] for line in found] == ["attack.kind", "attack.fraction", "data"]


def test_what_is_wrong_in_some_cells_says_in_which(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = told(scenario, capsys, ["sweep.algorithm.bits=[32, 4]"])
    assert line.startswith("algorithm.bits: ")
    assert line.endswith("(in algorithm.bits=4)")


def test_nothing_is_wrong_with_what_these_mistakes_are_made_in(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [
        "rounds=1",
        "partition.clients=4",
        "channel.kind=plain",
        "channel.dropout=0.0",
        "output.keep=table",
    ]
    options = [word for each in more for word in ("--set", each)]
    assert main(["simulate", str(scenario), *options]) == 0
    assert "rounds 1 of 1" in capsys.readouterr().out
