"""``secagg plan`` tells what then happens: sums and bytes are those of a real run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from math import comb
from typing import Any

import numpy as np
import pytest

from protocols.catalogue import CATALOGUE
from protocols.quadratic import QuadraticLearner
from protocols.run import Run
from secagg.local import Stage
from secagg.thresholds import Trust
from sims.channels import Setting, insecure_plain_sum, secure_sum
from sims.cli import main
from sims.outlook import Conditions, look_ahead

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
}
HONEST_SERVERS_ONLY = {"trimmed-mean", "qffl"}


def settings_of(name: str, trust: Trust) -> dict[str, Any]:
    """Bounds for an example, and as many steps as were asked for, not as many as were needed."""
    entry = CATALOGUE[name]
    fewer = {"steps": 3, "tolerance": 0.0}
    own = {key: value for key, value in fewer.items() if key in entry.parameters and key not in entry.example}
    floors = FLOORS.get(name, {}) if trust is Trust.MALICIOUS else {}
    return {**entry.example, **own, **floors}


@pytest.mark.parametrize(
    ("name", "trust"),
    [
        (name, trust)
        for name in CATALOGUE
        for trust in Trust
        if trust is Trust.CURIOUS or name not in HONEST_SERVERS_ONLY
    ],
)
def test_a_real_run_takes_the_sums_and_bytes_that_were_planned(name: str, trust: Trust) -> None:
    algorithm = CATALOGUE[name].build(dim=DIM, clients=CLIENTS, **settings_of(name, trust))
    outlook = look_ahead(algorithm, Conditions(trust=trust))
    channel = secure_sum(algorithm, learners(), Setting(trust=trust))
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
    assert "how many clients have which loss" in shown
    assert "the sum of the tail's updates" in shown
    assert "under a malicious_server it is refused" in shown


def test_nothing_is_planned_for_who_works_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "local"]) == 0
    assert "a server learns nothing" in capsys.readouterr().out
    assert planned(capsys, "local")["sums_per_round"] == 0


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
        (["rfa", "--session-sums", "2"], "take fewer steps"),
        (["simplicial", "--set", "clip=1"], "loss_bound must be set"),
        (
            ["simplicial", "--set", "clip=1", "--set", "loss_bound=5", "--trust", "malicious_server"],
            "Set a floor of at least 0.1, or add noise",
        ),
        (["rfa", "--clients", "10", "--corrupt", "9"], "colluders"),
        (["rfa", "--clients", "10", "--dropout-training", "0.9", "--trust", "malicious_server"], "drop-out"),
        (["fedbc", "--rho", "1"], "has no private variant"),
        (["rfa", "--rho", "1"], "step must be set"),
        (["fedavg", "--set", "clip=1", "--rho", "1"], "set weighted to False"),
        (["fedavg", "--set", "clip=1", "--epsilon", "1"], "means nothing without delta"),
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


# --- chances ------------------------------------------------------------------------------------------


def exact_chance(clients: int, quorum: int, threshold: int, sums: int, p: Fraction, q: Fraction) -> Fraction:
    """The formula of the outlook, in fractions."""

    def pmf(n: int, k: int, chance: Fraction) -> Fraction:
        return comb(n, k) * chance**k * (1 - chance) ** (n - k)

    return sum(
        (
            pmf(clients, m, 1 - p)
            * (1 - q) ** (m * (sums - 1))
            * sum((pmf(m, stay, 1 - q) for stay in range(threshold, m + 1)), Fraction(0))
            for m in range(quorum, clients + 1)
        ),
        Fraction(0),
    )


@pytest.mark.parametrize("p", [Fraction(0), Fraction(1, 10), Fraction(2, 5)])
@pytest.mark.parametrize("q", [Fraction(0), Fraction(1, 100), Fraction(1, 5)])
@pytest.mark.parametrize("clients", [5, 12])
def test_the_chance_that_a_group_completes_is_exact(clients: int, p: Fraction, q: Fraction) -> None:
    algorithm = CATALOGUE["rfa"].build(dim=3, clients=clients)
    outlook = look_ahead(algorithm, Conditions(dropout_training=p, dropout_sum=q))
    (group,) = outlook.groups
    exact = [
        float(exact_chance(clients, outlook.quorum, outlook.threshold, sums, p, q)) for sums in (1, 2, 3)
    ]
    assert group.completes == pytest.approx(exact[-1], rel=1e-9)
    assert group.expected == pytest.approx(sum(exact), rel=1e-9)


def test_simulated_drop_outs_stop_groups_as_often_as_planned() -> None:
    """400 rounds; the number of sums is off by 5.2 standard deviations with a chance below 1e-6."""
    rounds, rate = 400, 0.04
    algorithm = CATALOGUE["rfa"].build(dim=2, clients=8)
    rng = np.random.default_rng(11)
    fates: dict[tuple[int, int, int], bool] = {}

    def lost(member: int, stage: Stage, round_number: int, sum_number: int) -> bool:
        if stage is not Stage.REVEAL:
            return False
        return fates.setdefault((member, round_number, sum_number), bool(rng.random() < rate))

    small = {k: QuadraticLearner(rng.normal(size=2), steps=1) for k in range(8)}
    channel = insecure_plain_sum(algorithm, small, Setting(fate=lost, dropout=0.5))
    run = Run(algorithm, channel, algorithm.start(np.zeros(2)))
    released = [sum(run.round().sums.values()) for _ in range(rounds)]
    conditions = Conditions(dropout_sum=Fraction(rate))
    (group,) = look_ahead(algorithm, conditions).groups
    assert abs(np.mean(released) - group.expected) < 5.2 * 1.5 / rounds**0.5
