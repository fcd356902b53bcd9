"""What an audit says of a run: what was learned, what it cost, what is not private, who was lost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protocols.fedavg import FedAvg
from protocols.local_only_training import LocalTraining
from protocols.order_statistics import MedianByCounts, TrimmedMean
from protocols.rfa import RFA
from secagg.local_session import Stage
from secagg.noise.rho_and_epsilon import epsilon
from sims.audit.audit_result import Audit
from sims.audit.audit_run import as_json, audit_run
from sims.audit.table_of_runs import compared
from sims.config_problems import ConfigError
from sims.runtime import Setting
from tests.sims.audit_run import DELTA, DIM, make_run, noisy

RFA3 = RFA(dim=DIM, clients=6, weighted=False)
FEW = Setting(sums=6, dropout=0.4)


def absent(*places: tuple[int, Stage, int, int]) -> Setting:
    return replace(FEW, dropouts=lambda *place: place in places)


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rounds with noise for four; in the second one, two of eight are missing."""
    algorithm = noisy(8, epsilon=2.0, rounds=4, dropouts=3, removable=True)
    missing = absent((0, Stage.MASK, 1, 0), (1, Stage.MASK, 1, 0))
    return make_run(tmp_path_factory.mktemp("runs") / "private", algorithm, missing, rounds=3)


def told(audit: Audit) -> str:
    return "\n".join(f"{each.what}: {each.why}" for each in audit.exposures)


def change(path: Path, **facts: Any) -> Path:
    run = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**run, **facts}))
    return path


# --- what was learned -------------------------------------------------------------------------------


def test_every_sum_with_its_noise_and_cost(private: Path) -> None:
    audit = audit_run(private)
    assert [release.contributors for release in audit.releases] == [8, 6, 8]
    (kind,) = audit.kinds
    assert kind.private
    assert [(part.name, part.size, part.bound) for part in kind.parts] == [
        ("update", 3, "a norm of at most 1")
    ]
    costs = [release.rho for release in audit.releases]
    assert costs == [costs[0]] * 3
    assert audit.releases[-1].rho_so_far == pytest.approx(3 * (costs[0] or 0), rel=1e-15)
    assert audit.spending.server.epsilon == epsilon([3 * (costs[0] or 0)], delta=DELTA)


def test_removable_noise_stays_what_it_was_planned_for(private: Path) -> None:
    """Whoever is missing, what is left on the total is the target, and less than half a percent more."""
    audit = audit_run(private)
    sigmas = [release.sigmas[0] or 0.0 for release in audit.releases]
    rho = audit.releases[0].rho or 0.0
    assert max(sigmas) / min(sigmas) < 1.005
    assert (2 * rho * min(sigmas) ** 2) ** -0.5 <= 1.0  # one client moves the total by 1, if not by more


def test_noise_that_is_not_removed_grows_with_the_contributors(tmp_path: Path) -> None:
    missing = absent((0, Stage.MASK, 1, 0), (1, Stage.MASK, 1, 0))
    audit = audit_run(make_run(tmp_path / "run", noisy(8, dropouts=2), missing))
    (first,), (second,) = (release.sigmas for release in audit.releases)
    assert first is not None
    assert second is not None
    assert first / second == pytest.approx((8 / 6) ** 0.5)


def test_epsilon_at_another_delta(private: Path) -> None:
    strict, loose = (audit_run(private, delta=delta).spending.server.epsilon for delta in (1e-9, 1e-3))
    assert strict is not None
    assert loose is not None
    assert strict > (audit_run(private).spending.server.epsilon or 0) > loose


def test_rounds_that_are_alike_are_told_together(tmp_path: Path) -> None:
    cut = absent((2, Stage.MASK, 2, 2))
    audit = audit_run(make_run(tmp_path / "run", RFA3, cut, rounds=5))
    found = [(each.first, each.last, each.sums) for each in audit.stretches]
    assert found == [(1, 2, {"residuals": 3}), (3, 3, {"residuals": 2}), (4, 5, {"residuals": 3})]


def test_a_plain_run_is_known_by_what_it_wrote_down(tmp_path: Path) -> None:
    audit = audit_run(make_run(tmp_path / "run", noisy(6), plain=True))
    assert audit.integrity.rows is None
    assert len(audit.releases) == 2
    assert audit.releases[0].rho is not None
    assert "everything was visible to the simulation" in told(audit)


# --- who keeps count --------------------------------------------------------------------------------


def test_counts_that_are_equal(private: Path) -> None:
    spending = audit_run(private).spending
    assert spending.adjacency == "zero-out"
    assert spending.larger == "equal"
    assert spending.most is not None
    assert spending.least is not None
    assert spending.most.rho == pytest.approx(spending.server.rho, abs=1e-11)
    assert spending.least.rho == pytest.approx(spending.server.rho * 2 / 3, abs=1e-11)


def test_clients_have_paid_for_what_came_to_nothing(tmp_path: Path) -> None:
    audit = audit_run(make_run(tmp_path / "run", RFA3, absent((2, Stage.MASK, 0, 1))))
    assert audit.spending.larger == "clients"
    assert audit.spending.why.endswith("1 sum failed after inputs were sent")


def test_a_server_counts_sums_of_which_each_client_missed_some(tmp_path: Path) -> None:
    """In each of two rounds, another half of them is missing."""
    absences = [(client, Stage.MASK, client % 2, 0) for client in range(6)]
    setting = replace(absent(*absences), dropout=0.5)
    spending = audit_run(make_run(tmp_path / "run", FedAvg(dim=DIM, clients=6, clip=1.0), setting)).spending
    assert (spending.server.unnoised, spending.larger) == (2, "server")
    assert spending.why == "no client was in every sum that was released, as some were missing"


def test_a_server_counts_sums_over_draws(tmp_path: Path) -> None:
    drawn = Setting(sums=6, sample_cohort=lambda number: [number, (number + 1) % 6, (number + 2) % 6])
    algorithm = FedAvg(dim=DIM, clients=3, clip=1.0, weighted=False)
    spending = audit_run(make_run(tmp_path / "run", algorithm, drawn, clients=6, rounds=4)).spending
    assert (spending.server.unnoised, spending.larger) == (4, "server")
    assert spending.why.endswith("each round is over a draw of them")


# --- what is not private ----------------------------------------------------------------------------


def test_sums_without_noise_are_not_private(tmp_path: Path) -> None:
    audit = audit_run(make_run(tmp_path / "run", RFA3, FEW))
    assert "the total is exact, so a server that knows all inputs but one can compute that one" in told(audit)
    assert "every total states its number of clients, without noise" in told(audit)
    assert "moves its total anywhere" in told(audit)
    assert "median" not in told(audit)
    assert audit.spending.server.epsilon is None


def test_a_sum_with_noise_is_not_on_the_list(private: Path) -> None:
    assert [each for each in audit_run(private).exposures if each.kind is not None] == []


@pytest.mark.parametrize(
    "algorithm",
    [
        MedianByCounts(dim=DIM, clients=6, reach=1.0, steps=2),
        TrimmedMean(dim=DIM, clients=6, reach=1.0, steps=2, trim=0.2),
    ],
)
def test_an_exact_median_is_somebodys_value(tmp_path: Path, algorithm: Any) -> None:
    audit = audit_run(make_run(tmp_path / "run", algorithm, plain=True))
    assert "in every coordinate, some client's value" in told(audit)
    singled_out = "the input of a client that a malicious server singles out" in told(audit)
    assert singled_out == isinstance(algorithm, TrimmedMean)


def test_a_seed_makes_everything_computable(tmp_path: Path) -> None:
    path = change(make_run(tmp_path / "run", RFA3, plain=True), insecure_seed="ab" * 16)
    assert "they follow from insecure_seed" in told(audit_run(path))


# --- groups and losses ------------------------------------------------------------------------------


def test_steps_of_a_group_and_why_they_ended(tmp_path: Path) -> None:
    cut = absent((2, Stage.MASK, 1, 2), (3, Stage.REVEAL, 2, 0))
    audit = audit_run(make_run(tmp_path / "run", RFA3, cut, rounds=4))
    (group,) = audit.groups
    assert (group.group, group.planned, dict(group.rounds)) == ("vectors", 3, {3: 2, 2: 1, 1: 1})
    assert group.mean == 2.25
    assert [(each.round, each.steps) for each in group.cut_short] == [(2, 2), (3, 1)]
    assert [each.why for each in group.cut_short] == [
        "a client left in the midst of a group",
        "a client of this group has left; its last total stands",
    ]


def test_a_step_within_the_tolerance_is_not_cut_short(tmp_path: Path) -> None:
    algorithm = RFA(dim=DIM, clients=6, weighted=False, tolerance=100.0)
    (group,) = audit_run(make_run(tmp_path / "run", algorithm, FEW)).groups
    assert dict(group.rounds) == {1: 2}
    assert group.cut_short == ()


def test_who_was_lost_by_stage_and_round(tmp_path: Path) -> None:
    lost = absent((0, Stage.ADVERTISE, 0, -1), (1, Stage.MASK, 1, 0), (2, Stage.REVEAL, 1, 0))
    algorithm = FedAvg(dim=DIM, clients=6, clip=1.0)
    missed = audit_run(make_run(tmp_path / "run", algorithm, lost)).losses.missed
    found = [(each.round, each.kind, each.stage, each.clients) for each in missed]
    assert found == [(1, "", "advertise", 1), (2, "update", "mask", 1), (2, "update", "reveal", 1)]


def test_a_session_to_which_too_few_come(tmp_path: Path) -> None:
    away = absent(*((member, Stage.ADVERTISE, 0, -1) for member in range(5)))
    audit = audit_run(make_run(tmp_path / "run", FedAvg(dim=DIM, clients=6, clip=1.0), away))
    assert [(each.round, each.kind) for each in audit.losses.failed] == [(1, "")]
    assert [release.round for release in audit.releases] == [2]
    assert audit.intact
    assert audit.traffic is not None
    assert audit.traffic.exact == audit.traffic.sums - 1
    assert "which cannot be predicted: it failed" in audit.traffic.differences[0]


def test_clients_that_work_alone_show_nothing(tmp_path: Path) -> None:
    audit = audit_run(make_run(tmp_path / "run", LocalTraining(dim=DIM, clients=4), FEW))
    assert audit.intact
    assert (audit.releases, audit.kinds, audit.groups) == ((), (), ())
    assert not any(each.kind or "total" in each.what for each in audit.exposures)


def test_clients_that_refuse(tmp_path: Path) -> None:
    """A budget of one round: in the second one, everybody refuses."""
    algorithm = noisy(6, rounds=2)
    setting = replace(FEW, max_rho=(algorithm.max_rho or 0.0) / 2)
    losses = audit_run(make_run(tmp_path / "run", algorithm, setting)).losses
    assert {(each.round, each.member, each.error) for each in losses.refused} == {
        (2, member, "BudgetExceeded") for member in range(6)
    }
    assert [each.round for each in losses.failed] == [2]


# --- files ------------------------------------------------------------------------------------------


def test_an_audit_is_json(private: Path) -> None:
    found = json.loads(json.dumps(as_json(audit_run(private)), allow_nan=False))
    assert found["intact"] is True
    assert len(found["releases"]) == 3
    assert found["traffic"]["exact"] == found["traffic"]["sums"]


def test_runs_beside_each_other(private: Path, tmp_path: Path) -> None:
    audits = [audit_run(private), audit_run(make_run(tmp_path / "other", RFA3, FEW))]
    found = compared(audits)
    rows = dict(found.rows)
    assert found.names == ("private", "other")
    assert list(rows["sums released"]) == [3, 6]
    assert list(rows["epsilon"]) == [audits[0].spending.server.epsilon, None]
    assert found.growth is not None
    assert found.growth.sizes == (6, 8)


def test_an_unfinished_run_is_audited_as_far_as_it_came(tmp_path: Path) -> None:
    path = change(make_run(tmp_path / "run", RFA3, FEW), status="interrupted", done=1)
    (path / "spend.json").unlink()
    audit = audit_run(path)
    assert audit.intact
    assert audit.spending.most is None
    assert "the run is interrupted: this is what there is so far" in audit.integrity.remarks


def test_a_finished_run_without_its_files(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", RFA3, FEW)
    (path / "spend.json").unlink()
    (path / "metrics.jsonl").unlink()
    assert [remark.split()[0] for remark in audit_run(path).remarks] == ["metrics.jsonl", "spend.json"]


@pytest.mark.parametrize("name", ["run.json", "sums.jsonl", "metrics.jsonl", "spend.json"])
@pytest.mark.parametrize("content", ["{", "[1]\n", "{}\n[]\n", "\x00\n"])
def test_a_file_that_is_damaged(private: Path, tmp_path: Path, name: str, content: str) -> None:
    for file in private.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / name).write_text(content)
    if content == "{" and name.endswith(".jsonl"):
        audit_run(tmp_path)  # a line that a kill has torn is no damage
        return
    with pytest.raises(ConfigError, match=name):
        audit_run(tmp_path)
