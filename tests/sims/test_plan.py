"""``secagg plan`` tells what then happens: sums and bytes are those of a real run."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest

from protocols.catalogue import CATALOGUE
from protocols.quadratic import QuadraticLearner
from protocols.run import Run
from secagg.thresholds import Trust
from sims.channels import Setting, secure_sum
from sims.cli import main
from sims.outlook import Conditions, look_ahead

DIM, CLIENTS, ROUNDS = 6, 5, 2


def learners() -> dict[int, QuadraticLearner]:
    rng = np.random.default_rng(4)
    return {k: QuadraticLearner(rng.normal(size=DIM), samples=3 + k, steps=2) for k in range(CLIENTS)}


@pytest.mark.parametrize("trust", list(Trust))
@pytest.mark.parametrize("name", list(CATALOGUE))
def test_a_real_run_takes_the_sums_and_bytes_that_were_planned(name: str, trust: Trust) -> None:
    entry = CATALOGUE[name]
    algorithm = entry.build(dim=DIM, clients=CLIENTS, **entry.example)
    if trust is Trust.MALICIOUS and look_ahead(algorithm, Conditions()).unsafe:
        pytest.skip("refused under a malicious server, as the contract suite shows")
    outlook = look_ahead(algorithm, Conditions(trust=trust))
    channel = secure_sum(algorithm, learners(), Setting(trust=trust))
    run = Run(algorithm, channel, algorithm.start(np.zeros(DIM)))
    for _ in range(ROUNDS):
        report = run.round()
        assert report.completed
        assert report.sums == {each.kind: each.times for each in outlook.sums}
    channel.close()
    planned = outlook.setup_bytes + ROUNDS * outlook.round_bytes if outlook.sums else 0
    assert sum(channel.bytes_up.values()) == CLIENTS * planned
