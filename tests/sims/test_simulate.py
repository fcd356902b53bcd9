"""Simulations: the same numbers from the same settings, over plain and secure sums, whatever is looked at."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sims.cli import main
from sims.cli.commands import COMMANDS
from sims.scenario import Settings
from sims.scenario.settings import OBSERVER_KINDS
from sims.simulation import OBSERVERS, register_observer, simulate
from sims.simulation.simulate import SimulationError

DIGITS = """
seed = 1
rounds = 3
[data]
kind = "digits"
[partition]
kind = "dirichlet"
clients = 20
alpha = 0.5
[model]
kind = "softmax"
[training]
rate = 0.5
batch = 16
[algorithm]
name = "fedavg"
clip = 10
"""


def settings(**tables: Any) -> Settings:
    """Six clients with little data, in four rounds; a table is changed by what is given."""
    document: dict[str, Any] = {
        "seed": 3,
        "insecure_seed": True,
        "rounds": 4,
        "data": {"kind": "digits"},
        "partition": {"kind": "iid", "clients": 6},
        "model": {"kind": "softmax"},
        "training": {"rate": 0.5, "steps": 3, "batch": 8},
        "algorithm": {"name": "fedavg", "clip": 10.0},
        "evaluation": {"every": 2},
    }
    for name, value in tables.items():
        merge = isinstance(value, dict) and isinstance(document.get(name), dict) and "kind" not in value
        document[name] = {**document[name], **value} if merge else value
    return Settings.model_validate(document)


def numbers(result: dict[str, Any]) -> dict[str, Any]:
    """All that has to be the same again: no costs."""
    return {
        name: value for name, value in result.items() if name not in ("seconds", "bytes_up", "bytes_down")
    }


# --- one simulation ---


def test_digits_on_twenty_clients_are_learnt() -> None:
    result = simulate(
        settings(
            partition={"kind": "dirichlet", "clients": 20, "alpha": 0.5},
            training={"steps": None, "epochs": 1, "batch": 16},
            rounds=10,
        )
    )
    series = result["series"]["common"]
    assert result["rounds"] == [0, 2, 4, 6, 8, 10]
    assert series["pooled_accuracy"][0] < 0.2
    assert series["pooled_accuracy"][-1] > 0.8
    assert series["mean_loss"] == sorted(series["mean_loss"], reverse=True)
    assert (result["dim"], result["completed"], result["sums"]) == (650, 10, {"update": 10})
    final = result["final"]["common"]
    assert final["client"] == list(range(20))
    assert sum(final["correct"]) / sum(final["total"]) == pytest.approx(
        series["pooled_accuracy"][-1], abs=1e-6
    )
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_the_same_settings_give_the_same_numbers_and_another_seed_others() -> None:
    first, second, third = simulate(settings()), simulate(settings()), simulate(settings(seed=4))
    assert numbers(first) == numbers(second)
    assert first["series"] != third["series"]


@pytest.mark.parametrize(
    "algorithm", [{"name": "fedavg", "clip": 10.0}, {"name": "fedgeomed+", "clip": None}]
)
def test_secure_sums_give_the_numbers_of_plain_ones(algorithm: dict[str, Any]) -> None:
    common = {"algorithm": algorithm, "evaluation": {"what": "both", "every": 1}, "rounds": 2}
    plain = simulate(settings(**common))
    secure = simulate(settings(**common, channel={"kind": "secure", "corrupt": 1, "dropout": 0.2}))
    assert numbers(plain) == numbers(secure)
    assert not plain["bytes_up"]
    assert sum(secure["bytes_up"].values()) > 650 * 4 * 6


def test_rounds_are_told_of() -> None:
    told: list[int] = []
    simulate(settings(), told.append)
    assert told == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["per-fedavg", "apfl", "ditto"])
def test_looking_changes_nothing(name: str) -> None:
    """Personal models are trained to be looked at, and the order of samples must not notice."""
    algorithm = {"name": name}
    seldom = simulate(settings(algorithm=algorithm, evaluation={"every": 4}))
    often = simulate(settings(algorithm=algorithm, evaluation={"every": 1, "what": "both"}))
    assert seldom["final"]["common"] == often["final"]["common"]
    assert often["series"]["personal"]["mean_loss"][-1] != often["series"]["common"]["mean_loss"][-1]


def test_trainings_for_personal_models_are_not_observed() -> None:
    algorithm = {"name": "fedbc", "lambda_max": 1.0, "fine_tune": 2}
    observed = [
        simulate(
            settings(algorithm=algorithm, evaluation={"every": 1, "what": what, "observe": ["agreement"]})
        )
        for what in ("common", "both")
    ]
    assert observed[0]["observed"] == observed[1]["observed"]
    assert len(observed[0]["observed"]["agreement"]) == 3


def test_a_draw_is_of_so_many_clients_and_of_all_in_turn() -> None:
    seen: list[set[int]] = []

    def observe(_number: int, _run: Any, channel: Any, _crowd: Any) -> int:
        seen.append(set(channel.coordinator._members))
        return len(channel.coordinator._members)

    register_observer("seen", lambda: observe)
    try:
        result = simulate(settings(cohort={"per_round": 3}, evaluation={"observe": ["seen"]}, rounds=8))
    finally:
        del OBSERVERS["seen"], OBSERVER_KINDS["seen"]
    assert result["observed"]["seen"] == [[number, 3] for number in range(1, 9)]
    assert set().union(*seen) == set(range(6))
    assert len(set(map(frozenset, seen))) > 1


def test_scaffold_is_told_what_a_simulation_knows() -> None:
    result = simulate(settings(algorithm={"name": "scaffold"}, cohort={"per_round": 3}))
    assert result["completed"] == 4


def test_held_out_clients_are_measured_and_never_train() -> None:
    result = simulate(
        settings(
            partition={"held_out": 2},
            evaluation={"held_out": True, "what": "both"},
            algorithm={"name": "ditto"},
        )
    )
    strangers = result["final"]["held_out_common"]["client"]
    assert len(strangers) == 2
    assert not set(strangers) & set(result["final"]["common"]["client"])
    assert not set(strangers) & {int(client) for client in result["samples"]}
    # They have kept nothing, so what they would use is what there is for everybody.
    assert result["final"]["held_out_personal"] == result["final"]["held_out_common"]
    assert result["final"]["personal"] != result["final"]["common"]


# --- attacks ---


def attacked(kind: str, **more: Any) -> dict[str, Any]:
    return simulate(settings(attack={"kind": kind, "fraction": 0.34, **more}))


def test_attacks_on_data_and_on_updates_do_harm() -> None:
    clean = simulate(settings())["series"]["common"]["pooled_accuracy"][-1]
    for kind, more in (("label-flip", {}), ("sign-flip", {"deviation": 10.0}), ("omniscient", {})):
        result = attacked(kind, **more)
        assert len(result["corrupt"]) == 2
        assert result["series"]["common"]["pooled_accuracy"][-1] < clean - 0.1
        assert len(result["series"]["common_benign"]["mean_loss"]) == len(result["rounds"])


def test_an_attack_by_nobody_is_none() -> None:
    result = simulate(settings(attack={"kind": "label-flip", "fraction": 0.0}))
    assert numbers(result) == numbers(simulate(settings()))


def test_who_is_corrupt_may_go_by_samples() -> None:
    spread = {"kind": "power-law", "clients": 6, "sigma": 1.0, "minimum": 20}
    result = simulate(
        settings(partition=spread, attack={"kind": "label-flip", "fraction": 0.3, "selection": "samples"})
    )
    samples = {int(client): count for client, count in result["samples"].items()}
    held = sum(samples[client] for client in result["corrupt"])
    assert held > 0.3 * sum(samples.values())


def test_an_attack_inside_the_ring_is_the_same_over_both_channels() -> None:
    attack = {"kind": "wrap", "fraction": 0.2, "level": "message"}
    plain = simulate(settings(attack=attack, rounds=1))
    secure = simulate(settings(attack=attack, rounds=1, channel={"kind": "secure"}))
    assert numbers(plain) == numbers(secure)
    assert (
        plain["series"]["common"]["mean_loss"][-1]
        != simulate(settings(rounds=1))["series"]["common"]["mean_loss"][-1]
    )


def test_stragglers_get_less_far() -> None:
    losses = [
        simulate(settings(cohort={"stragglers": share}, training={"steps": 6}))["series"]["common"][
            "mean_loss"
        ][-1]
        for share in (0.0, 1.0)
    ]
    assert losses[0] < losses[1]


# --- what goes wrong ---


def test_training_that_diverges_is_a_result() -> None:
    result = simulate(settings(training={"rate": 3e38, "steps": 1}, algorithm={"clip": 1e40}))
    assert result["diverged"] == 2
    assert result["clients"] == [6, 0, 0, 0]
    series = result["series"]["common"]
    assert series["mean_loss"][0] is not None
    assert series["mean_loss"][1:] == series["pooled_loss"][1:] == [None, None]
    assert None not in series["mean_accuracy"]
    json.dumps(result, allow_nan=False)


def test_rounds_that_fail_are_told_of() -> None:
    result = simulate(settings(training={"rate": 1e38, "steps": 6}))
    assert (result["completed"], result["diverged"], result["clients"]) == (0, 1, [0, 0, 0, 0])
    assert result["failures"][0] == [
        0,
        "training diverged on 6 clients: only 0 clients sent inputs; 4 are needed",
    ]
    few = simulate(settings(channel={"dropout": 0.9}))
    assert (few["completed"], few["diverged"]) == (0, None)
    assert few["failures"][0][1].startswith("6 clients with 0 colluders")


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ({"partition": None}, "digits has no owners: set .partition. to split it over clients"),
        ({"partition": {"kind": "by_owner"}}, "nothing says who owns the samples"),
        ({"partition": {"kind": "iid"}}, "the partition iid needs a number of clients"),
        ({"partition": {"kind": "iid", "clients": 6, "test": "given"}}, "digits has no test set of its own"),
        ({"data": {"kind": "mnist", "directory": "nowhere"}}, "nowhere is not a directory"),
        (
            {"data": {"kind": "synthetic", "clients": 2, "largest": 60}},
            "synthetic makes its own clients: leave out .partition.",
        ),
        ({"evaluation": {"part": "validation"}}, "common: no client has samples of the part 'validation'"),
        ({"model": {"kind": "lenet"}}, "size"),
        (
            {"attack": {"kind": "label-flip", "fraction": 0.05}},
            r"attack.fraction: 0.05 of 6 clients is none of them: set it to more, or leave out \[attack\]",
        ),
        (
            {"attack": {"kind": "label-flip", "fraction": 0.99, "selection": "samples"}},
            "attack.fraction: 0.99 of 6 clients is all of them: set it to less",
        ),
    ],
)
def test_what_settings_or_data_do_not_allow_is_explained(tables: dict[str, Any], expected: str) -> None:
    with pytest.raises(SimulationError, match=expected):
        simulate(settings(**tables))


# --- data ---


def file_of_samples(path: Path, **more: Any) -> None:
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(3, 5))
    arrays: dict[str, Any] = {}
    for end, count in (("_train", 120), ("_test", 60)) if not more else (("", 120),):
        labels = np.arange(count) % 3
        arrays[f"y{end}"] = labels
        arrays[f"x{end}"] = (centers[labels] + 0.1 * rng.normal(size=(count, 5))).astype(np.float32)
    np.savez(path, **arrays, **more)


def test_a_test_set_that_the_data_comes_with_is_spread_like_the_rest(tmp_path: Path) -> None:
    file_of_samples(tmp_path / "three.npz")
    result = simulate(
        settings(
            data={"kind": "npz", "directory": ".", "file": "three.npz"},
            partition={"kind": "iid", "clients": 4, "test": "given"},
        ),
        root=tmp_path,
    )
    assert sum(result["samples"].values()) == 120
    assert sum(result["final"]["common"]["total"]) == 60
    assert result["series"]["common"]["pooled_accuracy"][-1] > 0.9


def test_samples_with_owners_need_no_partition(tmp_path: Path) -> None:
    file_of_samples(tmp_path / "five.npz", writer=np.arange(120) % 5)
    result = simulate(
        settings(data={"kind": "npz-owned", "directory": ".", "file": "five.npz"}, partition=None),
        root=tmp_path,
    )
    assert len(result["samples"]) == 5


@pytest.mark.parametrize(
    ("data", "more"),
    [
        ({"kind": "synthetic", "preset": "fedprox", "clients": 5, "largest": 60}, {}),
        (
            {"kind": "fedplus-regression", "recipe": {"parties": 4, "features": 5}},
            {"model": {"kind": "linear"}},
        ),
        (
            {"kind": "least-squares", "users": 4, "features": 5, "rows": 20},
            {"model": {"kind": "linear"}, "evaluation": {"part": "train"}},
        ),
    ],
)
def test_data_that_makes_its_own_clients(data: dict[str, Any], more: dict[str, Any]) -> None:
    result = simulate(settings(data=data, partition=None, training={"rate": 0.01}, **more))
    series = result["series"]["common"]
    assert series["mean_loss"][-1] < series["mean_loss"][0]
    assert ("mean_accuracy" in series) == (data["kind"] == "synthetic")


def test_parties_of_fed_plus_are_a_partition_as_well() -> None:
    result = simulate(settings(partition={"kind": "mnist-robust", "clients": 5, "negated": 1}))
    assert len(result["samples"]) == 5


# --- observers ---


def test_observers_see_every_round() -> None:
    observed = simulate(
        settings(
            algorithm={"name": "fedbc", "lambda_max": 1.0},
            evaluation={"observe": ["movement", "multipliers", "training-loss"]},
        )
    )["observed"]
    assert [number for number, _ in observed["training-loss"]] == [1, 2, 3, 4]
    losses = [loss for _, loss in observed["training-loss"]]
    assert losses[-1] < losses[0]
    assert [number for number, _ in observed["movement"]] == [2, 3, 4]
    assert all(length > 0 for _, length in observed["movement"])
    assert set(observed["multipliers"][-1][1]) == {str(client) for client in range(6)}


def test_a_private_variant_is_planned_for_all_rounds() -> None:
    result = simulate(
        settings(
            algorithm={"name": "simplicial", "loss_bound": 5.0},
            privacy={"rho": 10.0, "ratio": 1.0},
            rounds=2,
        )
    )
    assert result["completed"] == 2


# --- the command ---


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "digits.toml"
    path.write_text(DIGITS)
    return path


def test_the_command_prints_a_line_for_each_cell_and_runs_none_twice(
    digits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "simulate" in COMMANDS
    arguments = ["simulate", str(digits), "--set", "sweep.seed=[1, 2]", "--set", "rounds=1"]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    assert [line.split(";")[0] for line in first.splitlines()] == ["seed=1", "seed=2"]
    assert main([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    known, kept = err.splitlines()
    assert known == "secagg simulate: already known, not run again: 2 of 2 cells"
    assert kept == (
        "secagg simulate: kept in results/digits: see results/digits/report.html, and check it with secagg "
        "audit results/digits"
    )
    pages = sorted(str(path.parent) for path in Path("results").rglob("report.html"))
    assert pages == ["results/digits", "results/digits/seed=1", "results/digits/seed=2"]
    found = json.loads(out)
    assert (found["name"], found["known"]) == ("digits", 2)
    assert found["results"] == "results/digits.jsonl"
    assert found["cells"][1]["result"]["completed"] == 1


def test_a_cell_that_fails_is_told_of_and_the_others_go_on(
    digits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    many = "sweep.partition.clients=[5000]"
    assert main(["simulate", str(digits), "--quick", "--set", many, "--out", "o"]) == 1
    out, err = capsys.readouterr()
    assert out == "partition.clients=5000; rounds failed\n"
    assert "secagg simulate: partition.clients=5000: " in err
    assert main(["simulate", str(digits), "--quick", "--out", "o"]) == 0
    assert "rounds 2 of 2" in capsys.readouterr().out


def test_rounds_that_all_fail_are_a_failure_with_its_reason(
    digits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ("training.rate=1e6", "training.weight_decay=1e6", "training.steps=8", "rounds=2")
    assert main(["simulate", str(digits), *(word for each in chosen for word in ("--set", each))]) == 1
    out = capsys.readouterr().out
    assert "; rounds 0 of 2; 0 of 2 rounds completed: training diverged on 20 clients: " in out


def test_results_are_removed_by_the_file_alone(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(digits), "--prune", "--set", "rounds=1"]) == 2
    assert "--prune needs the scenario as it is in its file" in capsys.readouterr().err


def test_data_is_looked_for_where_the_user_says(
    digits: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECAGG_DATA", "from-the-variable")
    mnist = ["simulate", str(digits), "--set", "data.kind=mnist"]
    assert main(mnist) == 2
    assert "from-the-variable/mnist is not a directory" in capsys.readouterr().err
    assert main([*mnist, "--data", "from-the-option"]) == 2
    assert "from-the-option/mnist is not a directory" in capsys.readouterr().err


def test_a_wrong_scenario_is_the_users_business(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digits.write_text(DIGITS.replace("softmax", "sofmax").replace("batch", "bacth"))
    assert main(["simulate", str(digits)]) == 2
    assert capsys.readouterr().err == (
        f"secagg simulate: {digits}: training.bacth: is not known here; did you mean batch?\n"
    )
    assert main(["simulate", "nowhere.toml"]) == 2
    assert "secagg simulate: " in capsys.readouterr().err


def test_without_torch_the_extra_is_named(
    digits: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["simulate", str(digits)]) == 2
    assert capsys.readouterr().err == "this command needs the extra 'fl': pip install 'secagg[fl]'\n"


@pytest.mark.slow
def test_an_interrupted_command_keeps_what_is_finished(digits: Path) -> None:
    command = [sys.executable, "-c", "import sys; from sims.cli import main; sys.exit(main())", "simulate"]
    command += [str(digits), "--jobs", "2", "--set", "sweep.rounds=[1, 100000, 100001]"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        results = digits.parent / "results" / "digits.jsonl"
        for _ in range(600):
            if results.exists() and results.read_bytes().endswith(b"\n"):
                break
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in err  # the command that continues the others
    assert len(results.read_text().splitlines()) == 1
