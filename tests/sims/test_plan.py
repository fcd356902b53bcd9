"""``secagg plan`` tells what then happens: sums and bytes are those of a real run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from protocols.catalogue import CATALOGUE
from protocols.quadratic_learner import QuadraticLearner
from protocols.query_encoding import encode_query
from protocols.rounds import Query, RoundInfo
from protocols.run import Run
from secagg.hybrid_keys import KeyAgreement
from secagg.messages import MAX_SUMS
from secagg.session_params import SessionParams
from secagg.sum_spec import Total
from secagg.trust_levels import Trust
from sims.cli import main
from sims.plan.cost_plan import Conditions, plan_costs
from sims.runtime import SessionChannel, Setting, insecure_plain_sum, secure_sum

DIM, CLIENTS, ROUNDS = 6, 5, 2


def learners() -> dict[int, QuadraticLearner]:
    rng = np.random.default_rng(4)
    return {k: QuadraticLearner(rng.normal(size=DIM), samples=3 + k, steps=2) for k in range(CLIENTS)}


# What lets clients take part under a malicious server, where the defaults do not.
FLOORS: Mapping[str, Mapping[str, float]] = {
    "simplicial": {"floor": 0.2},
    "fedbc": {"lambda_min": 0.2},
    "per-fedbc": {"lambda_min": 0.2},
    "term": {"least": 0.5, "most": 4.0},
    "afl": {"floor": 0.1},
    "quantised": {"adaptive": False},
}
HONEST_SERVERS_ONLY = {"trimmed-mean", "qffl", "lp-proj-2"}  # the last one without noise


def settings_of(name: str, trust: Trust) -> dict[str, Any]:
    """Bounds for an example, and as many steps as were asked for, not as many as were needed."""
    entry = CATALOGUE[name]
    fewer = {"steps": 3, "tolerance": 0.0}
    own = {key: value for key, value in fewer.items() if key in entry.parameters and key not in entry.example}
    floors = FLOORS.get(name, {}) if trust is Trust.MALICIOUS else {}
    return {**entry.example, **own, **floors}


@pytest.mark.parametrize(
    ("name", "trust", "agreement"),
    [
        (name, trust, agreement)
        for name in CATALOGUE
        for trust in Trust
        for agreement in KeyAgreement
        if trust is Trust.CURIOUS or name not in HONEST_SERVERS_ONLY
        if agreement is KeyAgreement.X25519 or name in ("fedavg", "rfa")
    ],
)
def test_a_real_run_takes_the_sums_and_bytes_that_were_planned(
    name: str, trust: Trust, agreement: KeyAgreement
) -> None:
    algorithm = CATALOGUE[name].build(dim=DIM, clients=CLIENTS, **settings_of(name, trust))
    params = SessionParams(trust=trust, corrupt=0, sums=MAX_SUMS, key_agreement=agreement)
    outlook = plan_costs(algorithm, Conditions(params=params))
    channel = secure_sum(algorithm, learners(), Setting(trust=trust, key_agreement=agreement))
    run = Run(algorithm, channel, algorithm.start(np.zeros(DIM)))
    for _ in range(ROUNDS):
        report = run.round()
        assert report.completed
        assert report.sums == {each.kind: each.times for each in outlook.sums}
    channel.close()
    sent = outlook.setup_bytes + ROUNDS * outlook.round_bytes if outlook.sums else 0
    assert sum(channel.bytes_up.values()) == CLIENTS * sent


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["plan", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", *arguments]) == 2
    return capsys.readouterr().err


def test_without_a_name_all_algorithms_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(CATALOGUE)
    assert main(["plan", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == list(CATALOGUE)


def test_the_lines_tell_what_each_sum_reveals(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "simplicial", "--set", "clip=1", "--set", "loss_bound=5"]) == 0
    shown = capsys.readouterr().out
    assert "the number of clients in each bin of losses" in shown
    assert "the sum of the updates of the tail" in shown
    assert "refused under malicious_server" in shown


def test_a_plan_warns_of_differences_and_of_liars(capsys: pytest.CaptureFixture[str]) -> None:
    """Sums without noise, of clients that may drop out; and so few clients that liars end the sums."""
    options = ("fedavg", "--set", "clip=1", "--clients", "12", "--corrupt", "3", "--dropout-training", "0.2")
    found = planned(capsys, *options, "--trust", "malicious_server")
    assert found["liars"] == 1
    assert found["key_agreement"] == "x25519"
    liars, differences = found["cautions"]
    assert differences.startswith("update without noise while")
    assert main(["plan", *options, "--trust", "malicious_server"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [f"caution: {liars}", f"caution: {differences}"]


@pytest.mark.parametrize(
    "options",
    [
        ("--set", "clip=1"),
        (
            "--set",
            "clip=1",
            "--set",
            "weighted=false",
            "--rho",
            "1",
            "--dropout-sum",
            "0.05",
            "--dropouts",
            "20",
        ),
    ],
)
def test_a_plan_without_drop_outs_or_with_noise_warns_of_nothing(
    options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert planned(capsys, "fedavg", *options)["cautions"] == []


def test_hybrid_keys_are_planned(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("fedavg", "--set", "clip=1", "--key-agreement", "x25519+ml-kem-768")
    assert planned(capsys, *options)["setup_bytes"] > 99 * 1088
    assert main(["plan", *options]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("curious_server, x25519+ml-kem-768")


def test_nothing_is_planned_for_who_works_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "local"]) == 0
    assert "the server learns nothing" in capsys.readouterr().out
    assert planned(capsys, "local")["sums_per_round"] == 0


SIMPLICIAL = ("--set", "clip=1", "--set", "loss_bound=5")
QFFL = ("--set", "rate=0.1", "--set", "loss_cap=5")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fedav"], "did you mean 'fedavg'"),
        (["krum"], "there is no algorithm 'krum'"),
        (["fedavg"], "clip must be set"),
        (["fedavg"], "--set NAME=VALUE"),
        (["fedavg", "--set", "clip"], "NAME=VALUE"),
        (["fedavg", "--set", "clp=1"], "did you mean 'clip'"),
        (["fedavg", "--set", "clip=-1"], "clip must be a number above 0"),
        (["fedavg", "--set", "clip=big"], "clip must be a number above 0"),
        (["fedavg", "--set", "clip=1", "--set", "cap=x"], "cap must be a whole number"),
        (["fedbc", "--set", "clip=1"], "lambda_max must be set"),
        (["rfa", "--set", "steps=65"], "a round needs up to 65 sums, but a session has 64"),
        (["rfa", "--session-sums", "2"], "raise --session-sums to 3"),
        (["simplicial", "--set", "clip=1"], "loss_bound must be set"),
        (
            ["simplicial", "--set", "clip=1", "--set", "loss_bound=5", "--trust", "malicious_server"],
            "set floor to 0.1 or more, or add noise",
        ),
        (["rfa", "--clients", "10", "--corrupt", "9"], "colluders"),
        (["rfa", "--clients", "10", "--dropout-training", "0.9", "--trust", "malicious_server"], "drop-out"),
        (["fedbc", "--rho", "1"], "has no private variant"),
        (["rfa", "--rho", "1"], "step must be set"),
        (["fedavg", "--set", "clip=1", "--rho", "1"], "set weighted to False"),
        (["fedavg", "--set", "clip=1", "--epsilon", "1"], "means nothing without delta"),
        (["rfa", "--set", "steps=65"], "set a smaller steps"),
        (["ditto", "--set", "robust=yes", "--set", "median_steps=65"], "set a smaller median_steps"),
        (["simplicial", *SIMPLICIAL, "--session-sums", "1"], "raise --session-sums to 2"),
        (["rfa", "--set", "steps=1000000"], "steps must be a whole number from 1 to 65536, not 1000000"),
        (["rfa", "--set", "privacy=1"], "use --rho or --epsilon"),
        (["rfa", "--set", "dim=1"], "use --dim"),
        (["rfa", "--set", "clients=1"], "use --clients"),
        (["rfa", "--set", "rounds=1", "--rho", "1"], "use --rounds"),
        (["rfa", "--set", "goal=1", "--rho", "1"], "use --rho or --epsilon"),
        (["rfa", "--set", "promise=1", "--rho", "1"], "use --clients, --dropouts and --corrupt"),
        (["rfa", "--set", "step=1"], "step belongs to the private variant: add --rho or --epsilon"),
        (["simplicial", *SIMPLICIAL, "--set", "ratio=1"], "ratio belongs to the private variant"),
        (["rfa", "--delta", "1e-5"], "--delta belongs to the private variant"),
        (["rfa", "--rounds", "9"], "--rounds belongs to the private variant"),
        (["rfa", "--dropouts", "9"], "--dropouts belongs to the private variant"),
        (["rfa", "--removable"], "--removable belongs to the private variant"),
        (["local", "--removable"], "has no private variant: leave out --removable"),
        (["rfa", "--set", "steps=1", "--set", "steps=2"], "--set steps is given twice"),
        (["ditto", "--set", "robust=maybe"], "robust must be true or false, not 'maybe'"),
        (["rfa", "--set", "fast=1"], "fast must be true or false, not 1"),
        (["fedavg", "--set", "clip=1", "--set", "weighted=ü"], "weighted must be true or false"),
        (["fedavg", "--set", "clip=1e200"], "clip must be a number from"),
        (["fedavg", "--set", f"clip={'9' * 500}x"], "999999..."),
        (["fedavg", "--set", "clip=1", "--set", f"cap=0x{'f' * 9000}"], "a number of thousands of digits"),
        (["qffl", *QFFL, "--set", "clip=1e140"], "set a smaller clip or q"),
        (["scaffold", "--set", "clip=1e150", "--set", "steps=1", "--set", "rate=1e-9"], "bounds a control"),
        (["rfa", "--set", "nu=1e-300"], "nu must be a number from"),
        (["fedavg", "--set", "clip=1", "--dim", "4294967296"], "--dim 4294967296 is too large"),
        (["fedavg", "--set", "clip=1", "--clients", "100000", "--set", "bits=8"], "set bits to"),
        (["fedavg", "--set", "mu=1"], "mu is what makes it fedavg"),
        (["rfa", "--set", "nu=[1]"], "nu must be a number above 0"),
        (["krum", "--parameters"], "there is no algorithm 'krum'"),
    ],
)
def test_what_cannot_work_is_refused_with_what_to_do(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refusal(capsys, *arguments)


def test_a_private_variant_costs_what_it_may(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(
        capsys, "rfa", "--clients", "50", "--rho", "1.2", "--rounds", "10", "--set", "step=0.1",
    )  # fmt: skip
    (only,) = found["sums"]
    assert only["private"]
    assert only["rho"] * only["times"] * 10 == pytest.approx(1.2, rel=1e-3)
    found = planned(
        capsys, "simplicial", "--clients", "50", "--rho", "2", "--rounds", "5", "--set", "clip=1",
        "--set", "loss_bound=5", "--set", "ratio=0.5", "--trust", "malicious_server",
    )  # fmt: skip
    assert [each["rho"] * 5 for each in found["sums"]] == pytest.approx([1, 1], rel=0.02)


def test_all_that_is_missing_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, "qffl")
    assert all(f"{name} must be set" in said for name in ("rate", "loss_cap", "clip"))
    said = refusal(capsys, "fedavg+", "--rho", "1")
    assert all(f"{name} must be set" in said for name in ("step", "clip"))
    assert "privacy" not in refusal(capsys, "rfa", "--set", "zzz=1")


def test_a_parameter_keeps_its_name_beside_that_of_the_budget(capsys: pytest.CaptureFixture[str]) -> None:
    """pFedMe has rounds of its own, which are none of the budget's."""
    arguments = ("pfedme", "--set", "clip=1", "--set", "weighted=no", "--rho", "2", "--rounds", "10")
    (only,) = planned(capsys, *arguments, "--set", "rounds=5")["sums"]
    assert only["rho"] * 10 == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize("name", CATALOGUE)
def test_all_parameters_are_listed_with_what_they_mean(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", name, "--parameters"]) == 0
    shown = capsys.readouterr().out
    assert main(["plan", name, "--parameters", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    own = set(CATALOGUE[name].parameters) - {"privacy"}
    assert own <= set(found)
    assert set(CATALOGUE[name].example) <= {key for key, each in found.items() if each["required"]}
    for key, each in found.items():
        assert len(each["meaning"]) > 5
        assert f"  {key} " in shown
    assert "privacy" not in found


def test_words_for_truth_values(capsys: pytest.CaptureFixture[str]) -> None:
    weighted = planned(capsys, "fedavg", "--set", "clip=1", "--set", "weighted=yes")
    plain = planned(capsys, "fedavg", "--set", "clip=1", "--set", "weighted=no")
    assert [len(each["sums"][0]["parts"]) for each in (weighted, plain)] == [2, 1]


def test_lines_count_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "rfa-1"]) == 0
    shown = capsys.readouterr().out
    assert "at one point" in shown
    assert "once a round" in shown
    assert main(["plan", "rfa"]) == 0
    assert "at up to 3 points" in capsys.readouterr().out
    assert main(["plan", "trimmed-mean", "--set", "reach=1"]) == 0
    assert "the round is abandoned" in capsys.readouterr().out
    assert main(["plan", "rfa", "--set", "start_at=mean", "--set", "clip=1"]) == 0
    assert "if at least 2 were released" in capsys.readouterr().out
    assert main(["plan", "fedavg", "--set", "clip=1", "--clients", "5000", "--dropout-sum", "0.01"]) == 0
    assert "clients are on a ring" in capsys.readouterr().out


class Recorded:
    """A channel that knows how long its queries were, in the first round."""

    def __init__(self, channel: SessionChannel) -> None:
        self._channel = channel
        self.lengths: dict[str, list[int]] = {}
        self.begin, self.finish = channel.begin, channel.finish

    def ask(self, query: Query) -> Total:
        self.lengths.setdefault(query.kind, []).append(len(encode_query(RoundInfo(), query)))
        return self._channel.ask(query)


@pytest.mark.parametrize("name", CATALOGUE)
@pytest.mark.parametrize("dim", [6, 10_007])
def test_queries_are_as_long_as_planned(name: str, dim: int) -> None:
    algorithm = CATALOGUE[name].build(dim=dim, clients=4, **settings_of(name, Trust.CURIOUS))
    outlook = plan_costs(algorithm, Conditions())
    rng = np.random.default_rng(5)
    few = {k: QuadraticLearner(rng.normal(size=dim), steps=1) for k in range(4)}
    channel = Recorded(insecure_plain_sum(algorithm, few, Setting()))
    assert Run(algorithm, channel, algorithm.start(np.zeros(dim))).round().completed
    assert {each.kind: each.broadcast_bytes for each in outlook.sums} == {
        kind: max(lengths) for kind, lengths in channel.lengths.items()
    }
    assert outlook.broadcast_bytes == sum(map(sum, channel.lengths.values()))
