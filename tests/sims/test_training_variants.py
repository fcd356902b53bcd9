"""What a scenario may say besides its algorithm: `secagg serve` and `secagg join` follow it as a simulation
does, or say that they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sims.audit.audit_run import audit_run
from sims.cli import main
from sims.config_problems import ConfigError
from sims.deploy.client_setup import load_client_setup
from sims.deploy.run_terms import RunTerms, run_terms, terms_of
from sims.deploy.training_server import load_deployment
from sims.scenario.federated_data import draw_cohort
from sims.scenario.loading_and_variants import Variant
from sims.scenario.settings import Settings
from tests.sims.training_processes import SimulatedRun
from tests.sims.training_site import JOIN, SCENARIO, TrainingSite

FEDAVG = 'name = "fedavg"\nclip = 5.0'
PER_ROUND = "\n\n[cohort]\nper_round = 3"


def site_with(
    directory: Path, *changes: tuple[str, str], most: int | None = None, **settings: Any
) -> TrainingSite:
    """A site whose scenario is changed. At most `most` clients take part in a round, by default all."""

    class ChangedSite(TrainingSite):
        scenario_text = SCENARIO
        join_text = JOIN if most is None else JOIN.replace("max_cohort = {clients}", f"max_cohort = {most}")

    for old, new in changes:
        assert old in ChangedSite.scenario_text
        ChangedSite.scenario_text = ChangedSite.scenario_text.replace(old, new)
    return ChangedSite(directory, **settings)


# --- followed ---

DRAWN: dict[str, Any] = {"clients": 5, "most": 3}
FEWER = ("min_cohort = {clients}", "min_cohort = 3")
PERSONAL = 'evaluation = {what = "personal"}'  # which takes training, but changes nothing
SLOWER = ("batch = 16", 'batch = 16\nschedule = {{kind = "steps", every = 1, factor = 0.5}}')


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        ((FEWER,), {**DRAWN, "algorithm": f'name = "scaffold"\nclip = 10.0{PER_ROUND}'}),
        ((FEWER,), {**DRAWN, "algorithm": f'name = "ditto"\nclip = 10.0{PER_ROUND}'}),
        ((FEWER, SLOWER), {**DRAWN, "algorithm": f'name = "per-fedavg"\nclip = 10.0{PER_ROUND}'}),
        ((SLOWER,), {}),
        ((), {"algorithm": f'{FEDAVG}\n\n[server]\nkind = "adam"\nrate = 0.01'}),
        ((), {"algorithm": f"{FEDAVG}\nweighted = false"}),
        ((("corrupt = 1\n", "corrupt = 1\nsums = 2\n"),), {}),  # a session for every round
        ((("corrupt = 1\n", "corrupt = 1\nsums = 5\n"),), {"algorithm": 'name = "rfa"'}),
        ((('kind = "softmax"', 'kind = "mlp"\nhidden = [16]'),), {}),
        ((("batch = 16", 'batch = 16\nprecision = "float64"\nmomentum = 0.5\nclip = 1.0'),), {}),
        ((('kind = "iid"', 'kind = "dirichlet"\nalpha = 0.1'),), {}),
        ((("[deploy]", "[sweep]\nseed = [7]\n\n[deploy]"),), {}),
        ((), {"more": PERSONAL, "algorithm": 'name = "ditto"\nclip = 10.0'}),
        ((), {"more": PERSONAL, "algorithm": 'name = "per-fedavg"\nclip = 10.0'}),
        (
            (),
            {
                "more": PERSONAL,
                "algorithm": 'name = "fedbc"\nclip = 10.0\nlambda_min = 0.1\nlambda_max = 1.0\nfine_tune = 2',
            },
        ),
    ],
)
def test_the_models_are_those_of_the_simulation(tmp_path: Path, changes: Any, settings: Any) -> None:
    site = site_with(tmp_path, *changes, **settings)
    log = site.train()
    drawn = settings.get("most", len(site.clients))
    assert [each["clients"] for each in log.facts("round")] == [drawn] * 3
    simulated = SimulatedRun(site / "train.toml")
    assert np.abs(site.model() - simulated.model).max() < 1e-4
    for member, own in simulated.personal.items():
        assert np.abs(site.model(f"personal-{member}.npz") - own).max() < 1e-4
    assert not log.facts("caution")


def test_a_round_draws_from_the_clients_that_are_there() -> None:
    settings = made(cohort={"per_round": 3})
    draws = [draw_cohort(settings, (2, 3, 5, 8, 9), number) for number in range(30)]
    assert all(len(set(each)) == 3 for each in draws)
    assert set().union(*draws) == {2, 3, 5, 8, 9}
    assert len(set(draws)) > 5
    assert draw_cohort(settings, (2, 3), 0) == (2, 3)
    assert draw_cohort(made(), (2, 3, 5, 8), 0) == (2, 3, 5, 8)


# --- left out ---


def made(**more: Any) -> Settings:
    tables: dict[str, Any] = {
        "rounds": 2,
        "model": {"kind": "softmax", "features": 4, "classes": 3},
        "training": {"rate": 0.1},
        "algorithm": {"name": "fedavg", "clip": 1.0},
        "channel": {"kind": "secure"},
    }
    return Settings.model_validate({**tables, **more})


def terms(**more: Any) -> RunTerms:
    return terms_of("run", made(**more), clients=4)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("attack", {"kind": "label-flip", "fraction": 0.25}, "[attack]"),
        ("dropout", {"group": 0.1}, "[dropout]"),
        ("cohort", {"stragglers": 0.5}, "cohort.stragglers"),
        ("tail", {"epsilon": 4.0, "delta": 1e-5}, "[tail]"),
        ("audit", {"canaries": 10}, "audit.canaries"),
        ("evaluation", {"observe": ["movement"]}, "evaluation.observe"),
        ("evaluation", {"held_out": True}, "evaluation.held_out"),
        ("evaluation", {"what": "both"}, "evaluation.what"),
        ("insecure_seed", True, "insecure_seed"),
        ("output", {"identity": "other.key"}, "output.identity"),
    ],
)
def test_what_only_a_simulation_follows_is_left_out_and_named(key: str, value: Any, named: str) -> None:
    plain, other = terms(), terms(**{key: value})
    assert [named in each for each in other.cautions] == [True]
    assert other.settings == plain.settings
    assert Variant({}, other.settings).digest == Variant({}, plain.settings).digest
    assert other.digest == plain.digest
    assert plain.cautions == ()


def test_samples_for_evaluations_are_named_if_they_are_others() -> None:
    (caution,) = terms(evaluation={"part": "train"}).cautions
    assert "evaluation.part" in caution


def test_keys_and_noise_never_follow_from_the_seed() -> None:
    for kind in ("plain", "secure", "processes"):
        assert not terms(channel={"kind": kind}).settings.seeded


def test_what_is_left_out_is_named_when_files_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = site_with(tmp_path, more="dropout = {training = 0.1}")
    for command, file in (("serve", "train.toml"), ("join", "join-0.toml")):
        assert main([command, "--check", str(site / file)]) == 0
        cautions = [line for line in capsys.readouterr().out.splitlines() if line.startswith("caution: ")]
        assert len([each for each in cautions if "[dropout]" in each]) == 1


@pytest.mark.slow
def test_what_is_left_out_is_in_both_logs(tmp_path: Path) -> None:
    more = 'insecure_seed = true\nattack = {kind = "label-flip", fraction = 0.25}\ndropout = {training = 0.1}'
    site = site_with(tmp_path, ('kind = "secure"', 'kind = "plain"'), more=more)
    log = site.train()
    told = [str(each["reason"]) for each in log.facts("caution")]
    for named in ("[attack]", "[dropout]", "insecure_seed"):
        assert len([each for each in told if named in each]) == 1
    for diary in site.diaries.values():
        assert set(told) <= {str(each["reason"]) for each in diary.facts("caution")}
    honest = SimulatedRun(site / "train.toml", **{"attack.fraction": 0.0, "dropout.training": 0.0})
    assert np.abs(site.model() - honest.model).max() < 1e-4
    audited = audit_run(site / "run")
    assert audited.integrity.problems == ()
    assert audited.subject.insecure_seed is None


# --- refused ---

EVERYBODY = 'name = "afl"\nclip = 10.0\nloss_cap = 5.0'


@pytest.mark.parametrize(
    ("changes", "settings", "key"),
    [
        ((("corrupt = 1\n", "corrupt = 1\nsums = 1\n"),), {}, "channel.sums"),
        ((("[deploy]", "[sweep]\nseed = [1, 2]\n\n[deploy]"),), {}, "sweep"),
        ((), {"algorithm": f"{EVERYBODY}{PER_ROUND}"}, "cohort.per_round"),
    ],
)
def test_what_cannot_be_served_is_refused_by_both_sides(
    tmp_path: Path, changes: Any, settings: Any, key: str
) -> None:
    site = site_with(tmp_path, *changes, **settings)
    with pytest.raises(ConfigError, match=key):
        load_deployment(site / "train.toml")
    with pytest.raises(ConfigError, match=key):
        load_client_setup(site / "join-0.toml")


def test_an_algorithm_that_needs_all_clients_waits_for_them(tmp_path: Path) -> None:
    site = site_with(tmp_path, FEWER, algorithm=EVERYBODY)
    with pytest.raises(ConfigError, match="min_cohort must be 4"):
        load_deployment(site / "train.toml")
    with pytest.raises(ConfigError, match=r"cohort\.per_round"):
        terms(algorithm={"name": "afl", "clip": 1.0, "loss_cap": 5.0}, cohort={"per_round": 3})


def test_a_share_of_a_client_that_never_trains_is_refused(tmp_path: Path) -> None:
    held_out = ("clients = {clients}\n\n[model]", "clients = 5\nheld_out = 1\n\n[model]")
    site = site_with(tmp_path, held_out, clients=5, most=4)
    trained = run_terms(site / "train.toml", tmp_path).federation
    assert trained is not None
    (other,) = set(site.clients) - set(trained.clients)
    with pytest.raises(ConfigError, match=f"share {other}"):
        load_client_setup(site / f"join-{other}.toml")
    load_client_setup(site / f"join-{min(trained.clients)}.toml")


def test_a_policy_for_more_clients_than_a_round_has_is_refused(tmp_path: Path) -> None:
    site = site_with(tmp_path, FEWER, clients=5, algorithm=f"{FEDAVG}{PER_ROUND}")
    with pytest.raises(ConfigError, match=r"policy\.max_cohort: .* set 3 or less"):
        load_client_setup(site / "join-0.toml")
