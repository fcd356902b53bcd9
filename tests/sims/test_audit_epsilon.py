"""The epsilon of an audit is that of an independent computation, from the scenario alone.

The cost of a sum is worked out here by the formulas of the papers, apart from the product: the norm of a
rounded vector (equation 2 of "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure
Aggregation"), and rho = B^2 / (2 V). dp-accounting then composes them at many orders.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import ZCDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import minimize_scalar

from secagg.sum_spec import SumSpec
from sims.audit.audit_run import audit_run
from sims.records import RunDirectory
from sims.scenario import load
from sims.scenario.algorithm_builder import build
from sims.simulation import simulate

CLIENTS, DIM = 8, 650
EPSILON, DELTA, CLIP, ROUNDS = 6.0, 1e-5, 0.5, 3
SCENARIO = f"""
seed = 3
rounds = {ROUNDS}
[data]
kind = "digits"
[partition]
clients = {CLIENTS}
[model]
kind = "softmax"
[training]
rate = 0.2
steps = 1
batch = 10
[algorithm]
name = "fedavg"
clip = {CLIP}
weighted = false
[privacy]
epsilon = {EPSILON}
delta = {DELTA}
dropouts = 2
removable = true
[tail]
epsilon = 2.0
delta = 1e-6
bins = 2
[channel]
kind = "secure"
dropout = 0.25
sums = 4
[evaluation]
every = 3
"""


def rounded_norm2(clip: float, scale: float, width: int) -> float:
    """The square of what one client moves a sum by, in grid points: equation (2), with beta = exp(-1/2)."""
    reach, root = clip * scale, math.sqrt(width)
    slack = math.sqrt(2 * math.log(1 / math.exp(-0.5)))
    return math.floor(min(reach**2 + width / 4 + slack * (reach + root / 2), (reach + root) ** 2))


def rho_of(spec: SumSpec) -> float:
    """Of one sum: a single part, a vector of a bounded norm."""
    (part,) = spec.parts
    assert part.noise is not None
    assert spec.promise is not None
    # A component of four grid points or more makes tau d less than 1e-60, which is nothing.
    assert min(spec.promise.components(CLIENTS)) * part.noise.variance >= 16
    width = 2 ** math.ceil(math.log2(part.size))
    return rounded_norm2(CLIP, part.noise.scale, width) / (2 * float(part.noise.variance))


def independent_epsilon(rho: float, times: int, delta: float) -> float:
    def bound(order: float) -> float:
        return times * rho * order + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)

    best = minimize_scalar(bound, bounds=(1.02, 1000), method="bounded", options={"xatol": 1e-9}).x
    accountant = RdpAccountant(np.linspace(best - 1e-3, best + 1e-3, 2001))
    accountant.compose(ZCDpEvent(rho), times)
    return float(accountant.get_epsilon(delta))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `secagg simulate` keeps it."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "dp.toml").write_text(SCENARIO)
    (variant,) = load(folder / "dp.toml").variants
    directory = RunDirectory(folder / "dp")
    simulate(variant.settings, directory=directory)
    return directory.path


def test_epsilon_is_what_the_scenario_says_independently(run: Path) -> None:
    (variant,) = load(run.parent / "dp.toml").variants
    table = build(variant.settings, dim=DIM, clients=CLIENTS, known={}).table
    assert table is not None
    rho = rho_of(table["update"])
    expected = independent_epsilon(rho, ROUNDS, DELTA)

    audit = audit_run(run)
    assert audit.intact, audit.integrity.problems
    training, tail = (audit.spending.of_budgets[name] for name in ("algorithm", "tail"))
    assert training.epsilon == pytest.approx(expected, abs=1e-9)
    assert training.rho == pytest.approx(ROUNDS * rho, rel=1e-12)
    whole = independent_epsilon((ROUNDS * rho + tail.rho), 1, DELTA)
    assert audit.guarantee.epsilon == pytest.approx(whole, abs=1e-6)
    assert EPSILON * 0.999 < whole <= EPSILON
    one = independent_epsilon(rho, 1, DELTA)
    own = [release for release in audit.releases if release.kind == "update"]
    assert [release.epsilon for release in own] == [pytest.approx(one, abs=1e-9)] * ROUNDS
    so_far = [independent_epsilon(rho, count, DELTA) for count in range(1, ROUNDS + 1)]
    assert [release.epsilon_so_far for release in own] == [pytest.approx(each, abs=1e-9) for each in so_far]


def test_a_histogram_takes_its_part_of_the_budget(run: Path) -> None:
    audit = audit_run(run)
    tail, training = audit.spending.of_budgets["tail"], audit.spending.of_budgets["algorithm"]
    assert tail.delta == 1e-6
    assert 1.99 < (tail.epsilon or 0.0) <= 2.0
    assert audit.spending.server.rho == pytest.approx(tail.rho + training.rho)
    assert audit.guarantee.covers == ("training", "tail")
    most, limit = audit.guarantee.most_spent, audit.spending.max_rho
    assert most is not None
    assert limit is not None
    assert most.rho == pytest.approx(audit.spending.server.rho, rel=1e-9)
    assert most.rho <= limit * (1 + 2.0**-20)
    assert {kind.kind for kind in audit.kinds if kind.extra} == {"errors"}
    assert [release.round for release in audit.releases] == [1, 2, 3, 3]


def test_bytes_of_a_real_run(run: Path) -> None:
    audit = audit_run(run)
    assert audit.traffic is not None
    assert audit.traffic.differences == ()
    assert audit.traffic.exact == audit.traffic.sums == 6
    assert audit.subject.dim == DIM
    assert audit.spending.larger == "equal"
    assert audit.achieved.accuracy is not None
