"""Scenario files: what they mean, and everything that is wrong with one, said at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sims.config_problems import ConfigError, Problems
from sims.scenario import Scenario, Settings, load
from sims.scenario.kind_parameters import _imported
from sims.scenario.overrides_and_axes import parsed

BASE = """
seed = 1
rounds = 30
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


def no_check(_settings: Settings, _problems: Problems) -> None:
    pass


def scenario(
    tmp_path: Path, text: str, *changes: str, quick: bool = False, check: Any = no_check
) -> Scenario:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return load(path, parsed(changes), quick=quick, check=check)


def problems(tmp_path: Path, text: str, *changes: str, check: Any = None) -> list[str]:
    """What is wrong, without the name of the file that every line begins with."""
    with pytest.raises(ConfigError) as caught:
        scenario(tmp_path, text, *changes, check=check)
    prefix = f"{tmp_path / 'mine.toml'}: "
    lines = str(caught.value).splitlines()
    assert all(line.startswith(prefix) for line in lines)
    return [line.removeprefix(prefix) for line in lines]


# --- one simulation ---


def test_what_is_not_said_has_a_default(tmp_path: Path) -> None:
    found = scenario(tmp_path, BASE, check=None)
    assert found.name == "mine"
    (variant,) = found.variants
    assert variant.key == {}
    given = variant.settings
    assert (given.seed, given.rounds) == (1, 30)
    assert given.partition is not None
    assert given.partition.parameters == {"alpha": 0.5}
    assert given.algorithm.parameters == {"clip": 10}
    assert (given.channel.kind, given.cohort.per_round, given.attack) == ("plain", None, None)


def test_a_name_of_its_own(tmp_path: Path) -> None:
    assert scenario(tmp_path, 'name = "table-1"\n' + BASE).name == "table-1"
    assert problems(tmp_path, 'name = "../x"\n' + BASE) == [
        "name: must be a text that can be the name of a file, not '../x'"
    ]
    assert scenario(tmp_path, BASE, "name=table-2").name == "table-2"


def test_keys_that_are_wrong_are_all_named_at_once(tmp_path: Path) -> None:
    wrong = BASE.replace("rounds = 30", 'rounds = "30"').replace("batch", "bach").replace("seed", "sede")
    wrong = wrong.replace("rate = 0.5", "rate = -1")
    assert problems(tmp_path, wrong + "[channel]\nkind = 'secured'\n") == [
        "rounds: must be a whole number, not '30'",
        "training.rate: must be greater than 0",
        "training.bach: is not known here; did you mean batch?",
        "channel.kind: 'secured' is no choice; did you mean secure?",
        "sede: is not known here; did you mean seed?",
    ]


def test_kinds_and_their_parameters_are_asked_of_those_that_offer_them(tmp_path: Path) -> None:
    wrong = BASE.replace('"digits"', '"digit"').replace("alpha = 0.5", 'alhpa = 0.5\nsamples = "many"')
    wrong = wrong.replace('kind = "softmax"', 'kind = "softmax"\nbias = 3\nwidth = 2')
    wrong += "[attack]\nkind = 'gaussian'\nfraction = 0.1\ndeviatoin = 2\n"
    found = problems(tmp_path, wrong)
    assert sorted(found) == sorted(
        [
            "data.kind: 'digit' is not known; did you mean digits?",
            "partition.alhpa: is not known here; did you mean alpha?",
            "partition.samples: must be a valid integer, not 'many'",
            "partition.alpha: is missing: dirichlet needs it",
            "model.bias: must be a valid boolean, not 3",
            "model.width: is not known here; there are features, classes, bias, zero, kind, start",
            "attack.deviatoin: is not known here; did you mean deviation?",
        ]
    )


def test_parameters_that_are_records_are_tables(tmp_path: Path) -> None:
    text = BASE.replace('kind = "digits"', 'kind = "fedplus-regression"\nrecipe = {parties = 4}')
    text = text.replace('[partition]\nkind = "dirichlet"\nclients = 20\nalpha = 0.5\n', "")
    assert scenario(tmp_path, text, check=None).variants[0].settings.data.parameters == {
        "recipe": {"parties": 4}
    }
    assert problems(tmp_path, text, "data.recipe.party=3") == [
        "data.recipe.party: is not known here; did you mean parties?"
    ]
    assert problems(tmp_path, text, "data.recipe.parties=two") == [
        "data.recipe.parties: must be a valid integer, not 'two'"
    ]
    (line,) = problems(tmp_path, text, "data.recipe.outliers=5")
    assert line.startswith("data.recipe: 5 outliers among 4 parties")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            ("algorithm.name=fedavgg",),
            "algorithm.name: there is no algorithm 'fedavgg': did you mean 'fedavg'?",
        ),
        (
            ("algorithm.clop=3",),
            "algorithm.clop: there is no parameter 'clop' of fedavg: did you mean 'clip'?",
        ),
        (("training.epochs=1", "training.steps=2"), "training: set either steps or epochs, not both"),
        (("cohort.per_round=21",), "cohort.per_round: must be at most 20, the clients that train"),
        (
            ("partition.held_out=20",),
            "partition.held_out: must be less than partition.clients: some clients must train",
        ),
        (
            ("cohort.per_round=4", "channel.corrupt=3"),
            "channel.corrupt: with 3 colluders a round needs 5 clients or more, not 4",
        ),
        (
            ("evaluation.held_out=true",),
            "evaluation.held_out: no client is held out: set partition.held_out, or remove this",
        ),
        (
            ('evaluation.observe=["movment"]',),
            "evaluation.observe: 'movment' is not known; did you mean movement?",
        ),
        (
            ('evaluation.observe=["optimality-gap"]',),
            "evaluation.observe: optimality-gap needs a model whose optimum is known: "
            'set model.kind = "linear", or remove it',
        ),
        (("algorithm.clip=many",), "algorithm.clip: fedavg: clip must be a number above 0, not 'many'"),
        (
            ("algorithm={name='median', reach=1.0}", "privacy.rho=1"),
            "privacy: median has no private variant: remove [privacy]",
        ),
        (
            ("privacy.rho=1", "privacy.step=1", "algorithm.weighted=false"),
            "privacy.step: is not known here; there are rho, epsilon, delta, dropouts, removable, "
            "participations, min_separation",
        ),
        (
            ("privacy.epsilon=1", "privacy.dleta=1e-5", "algorithm.weighted=false"),
            "privacy.dleta: is not known here; did you mean delta?",
        ),
        (("partition.held_uot=2",), "partition.held_uot: is not known here; did you mean held_out?"),
        (("training.rate=1e40",), "training.rate: must be at most 1e+06, not 1e+40"),
        (("training.weight_decay=1e40",), "training.weight_decay: must be at most 1e+06, not 1e+40"),
        (
            ("cohort.stragglers=0.5",),
            "cohort.stragglers: a single epoch or step cannot be cut short: set training.epochs or "
            "training.steps to 2 or more",
        ),
        (
            ("channel.dropout=0.95",),
            "channel.dropout: 20 clients with 0 colluders under curious_server need 2 survivors, but a "
            "drop-out of 0.95 leaves 1",
        ),
        (
            ("algorithm={name='local'}",),
            'evaluation.what: local has no sum and no common model: set what = "personal"',
        ),
        (
            ("attack.kind=label-flip", "attack.fraction=0.02"),
            "attack.fraction: 0.02 of 20 clients is no client: set it to more, or remove [attack]",
        ),
        (
            ("attack.kind=label-flip", "attack.fraction=0.99"),
            "attack.fraction: 0.99 of 20 clients is every client: set it to less",
        ),
        (
            ("attack.kind=wrap", "attack.fraction=0.2"),
            "attack.kind: 'wrap' is an attack of the other level: set level = \"message\"",
        ),
        (
            ("attack.kind=scaling", "attack.fraction=0.2", "attack.level=message"),
            "attack.kind: 'scaling' is an attack of the other level: set level = \"update\"",
        ),
        (
            ("partition.test=1.2",),
            'partition.test: must be a part of all, from 0 to below 1, or "given", not 1.2',
        ),
        (
            ("evaluation.observe=centralised",),
            "evaluation.observe: must be a list, such as [\"centralised\"], not 'centralised'",
        ),
        (("evaluation.observe=3",), "evaluation.observe: must be a list, such as [3], not 3"),
    ],
)
def test_what_does_not_go_together(tmp_path: Path, changes: tuple[str, ...], expected: str) -> None:
    assert problems(tmp_path, BASE, *changes) == [expected]


@pytest.mark.parametrize("kind", ["same-value", "gaussian_norm", "omniscient", "poisoning-with-scaling"])
@pytest.mark.parametrize("name", ["apfl", "per-fedavg", "per-fedbc"])
def test_corrupt_updates_do_not_reach_who_takes_steps_of_its_own(
    tmp_path: Path, name: str, kind: str
) -> None:
    extra = ", lambda_max=1.0" if name == "per-fedbc" else ""
    chosen = (f"algorithm={{name='{name}', clip=10{extra}}}", f"attack.kind={kind}", "attack.fraction=0.2")
    (line,) = problems(tmp_path, BASE, *chosen)
    assert line.startswith(f"attack.kind: {kind} changes the result of local training, but {name} ")
    scenario(tmp_path, BASE, chosen[0], "attack.kind=label-flip", chosen[2], check=None)


def test_a_bound_that_only_the_user_knows_is_asked_for(tmp_path: Path) -> None:
    (line,) = problems(tmp_path, BASE.replace("clip = 10", ""))
    assert line.startswith("algorithm.clip: fedavg: clip must be set")


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.toml"):
        load(tmp_path / "no.toml")
    for content in (b"rounds = ", b"\xff\xfe"):
        (tmp_path / "bad.toml").write_bytes(content)
        with pytest.raises(ConfigError, match="is not TOML"):
            load(tmp_path / "bad.toml")


def test_a_library_that_is_missing_is_named_with_its_extra() -> None:
    with pytest.raises(ConfigError, match=r"torch_of_tomorrow is not there: pip install 'secagg\[fl\]'"):
        _imported("torch_of_tomorrow")


# --- sweeps ---

SWEEP = (
    BASE
    + """
[sweep]
"training.rate" = [0.1, 0.2]
seed = [1, 2, 3]
"""
)


def test_a_sweep_is_the_cross_product_in_the_order_of_the_file(tmp_path: Path) -> None:
    found = [(each.settings.training.rate, each.settings.seed) for each in scenario(tmp_path, SWEEP).variants]
    assert found == [(0.1, 1), (0.1, 2), (0.1, 3), (0.2, 1), (0.2, 2), (0.2, 3)]
    assert scenario(tmp_path, SWEEP).variants[3].key == {"training.rate": 0.2, "seed": 1}


def test_keys_of_a_sweep_need_no_quotes(tmp_path: Path) -> None:
    bare = SWEEP.replace('"training.rate"', "training.rate")
    assert scenario(tmp_path, bare).variants == scenario(tmp_path, SWEEP).variants


def test_an_axis_may_set_several_keys_at_once(tmp_path: Path) -> None:
    text = BASE.replace("clip = 10", "").replace('name = "fedavg"', "") + (
        "[sweep]\nseed = [1, 2]\n"
        '[[sweep.method]]\nlabel = "mean"\nalgorithm = {name = "fedavg", clip = 5}\n'
        '[[sweep.method]]\n"algorithm.name" = "rfa"\n'
    )
    found = scenario(tmp_path, text, check=None).variants
    assert [(each.key, each.settings.algorithm.parameters) for each in found] == [
        ({"seed": 1, "method": "mean"}, {"clip": 5}),
        ({"seed": 1, "algorithm.name": "rfa"}, {}),
        ({"seed": 2, "method": "mean"}, {"clip": 5}),
        ({"seed": 2, "algorithm.name": "rfa"}, {}),
    ]


def test_what_is_wrong_in_one_cell_says_in_which(tmp_path: Path) -> None:
    assert problems(tmp_path, SWEEP, "sweep.training.rate=[0.1, -1]", check=no_check) == [
        "training.rate: must be greater than 0 (in training.rate=-1, seed=1)"
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seed = 3", "sweep.seed: must be a list of values, not 3"),
        ("seed = []", "sweep.seed: must be a list of values, not []"),
        (
            'seed = [1]\ncase = [{seed = 2, "training.rate" = 1.0}]',
            "sweep.case: seed is varied by sweep.seed, too",
        ),
        (
            "case = [{label = 'a', seed = 2}, {label = 'a', seed = 3}]",
            "sweep.case: 2 cases have the label 'a'",
        ),
        (
            "rounds = [3, 4]\ncase = [{label = 'a'}, {label = 'b', seed = 1}]",
            "sweep: rounds=3, case=a and rounds=3, case=b are the same",
        ),
    ],
)
def test_a_sweep_that_makes_no_sense(tmp_path: Path, text: str, expected: str) -> None:
    assert problems(tmp_path, f"{BASE}[sweep]\n{text}\n") == [expected]


def test_a_sweep_that_never_ends_is_refused(tmp_path: Path) -> None:
    many = str(list(range(400)))
    text = f"{BASE}[sweep]\nseed = {many}\nrounds = {many}\n"
    assert problems(tmp_path, text) == ["sweep: 160000 cells are too many; at most 100000"]


def test_tables_that_are_none(tmp_path: Path) -> None:
    assert problems(tmp_path, "sweep = 3\nquick = 4\n" + BASE) == [
        "quick: must be a table, not 4",
        "sweep: must be a table, not 3",
    ]


# --- changes ---


def test_changes_win_over_the_file_and_its_sweep(tmp_path: Path) -> None:
    found = scenario(tmp_path, SWEEP, "seed=7", "channel.kind=secure").variants
    assert [(each.settings.training.rate, each.settings.seed) for each in found] == [(0.1, 7), (0.2, 7)]
    assert all(each.settings.channel.kind == "secure" for each in found)
    found = scenario(tmp_path, SWEEP, "sweep.seed=[9]").variants
    assert [each.settings.seed for each in found] == [9, 9]


def test_cells_that_a_change_makes_the_same_are_one(tmp_path: Path) -> None:
    text = BASE + '[[sweep.case]]\n"training.rate" = 0.1\n[[sweep.case]]\n"training.rate" = 0.2\n'
    assert len(scenario(tmp_path, text).variants) == 2
    (only,) = scenario(tmp_path, text, "training.rate=0.3").variants
    assert only.key == {"training.rate": 0.3}
    (only,) = scenario(tmp_path, text, "training={rate = 0.4}").variants
    assert (only.key, only.settings.training.rate) == ({}, 0.4)


def test_cells_are_called_what_they_are_when_an_axis_is_fixed(tmp_path: Path) -> None:
    found = scenario(tmp_path, SWEEP, "seed=7").variants
    assert [each.key for each in found] == [
        {"training.rate": 0.1, "seed": 7},
        {"training.rate": 0.2, "seed": 7},
    ]


LABELLED = (
    BASE
    + """
[[sweep.method]]
label = "small steps"
"training.rate" = 0.1
[[sweep.method]]
label = "large steps"
"training.rate" = 0.9
[[sweep.method]]
label = 3
"training.rate" = 0.3
"""
)


@pytest.mark.parametrize("change", ["training.rate=0.2", "training={rate=0.2}"])
def test_what_a_label_stands_for_is_not_changed(tmp_path: Path, change: str) -> None:
    key = change.partition("=")[0]
    assert problems(tmp_path, LABELLED, change) == [
        f"{key}: is set by cases of sweep.method, whose labels would be wrong: choose from them, such as "
        "--set 'sweep.method=small steps'"
    ]


def test_cases_are_chosen_by_their_labels(tmp_path: Path) -> None:
    for change, rates in (
        ("sweep.method=large steps", [0.9]),
        ("sweep.method=3", [0.3]),
        ('sweep.method=[3, "small steps"]', [0.1, 0.3]),
        ('sweep.method=[{label = "mine", training.rate = 0.7}]', [0.7]),
    ):
        found = scenario(tmp_path, LABELLED, change).variants
        assert [each.settings.training.rate for each in found] == rates
    assert problems(tmp_path, LABELLED, "sweep.method=[]") == [
        "sweep.method: must be a list of values, not []"
    ]
    assert problems(tmp_path, LABELLED, "sweep.method=large step") == [
        "sweep.method: has no case 'large step'; did you mean large steps?"
    ]


def test_an_axis_with_a_dotted_name_is_replaced_as_well(tmp_path: Path) -> None:
    found = scenario(tmp_path, SWEEP, "sweep.training.rate=[0.7]", "seed=1").variants
    assert [each.key for each in found] == [{"training.rate": 0.7, "seed": 1}]


def test_texts_in_lists_need_quotes() -> None:
    with pytest.raises(ConfigError, match=r"--set a.b: '\[x, y\]' is no list .* need quotes, such as"):
        parsed(["a.b=[x, y]"])


def test_values_are_as_toml_writes_them_and_else_texts() -> None:
    assert parsed(["a=1", "b.c=[1, 2.5]", "d=text", "e = true", 'f="1"', "g=a=b"]) == {
        "a": 1,
        "b.c": [1, 2.5],
        "d": "text",
        "e": True,
        "f": "1",
        "g": "a=b",
    }


@pytest.mark.parametrize("text", ["rate", "=3", "training.=1", ".rate=1"])
def test_changes_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="--set needs KEY=VALUE, such as"):
        parsed([text])


def test_changes_that_contradict(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--set seed is given twice"):
        parsed(["seed=1", "seed=2"])
    with pytest.raises(ConfigError, match=r"rounds\.x: rounds is a value, and has nothing in it"):
        scenario(tmp_path, BASE, "rounds.x=1")


def test_quick_is_two_rounds_of_one_cell(tmp_path: Path) -> None:
    text = SWEEP + '[quick]\n"partition.clients" = 4\n'
    found = scenario(tmp_path, text, quick=True)
    (variant,) = found.variants
    assert found.name == "mine-quick"
    assert (variant.settings.rounds, variant.settings.seed, variant.settings.training.rate) == (2, 1, 0.1)
    assert variant.settings.partition is not None
    assert variant.settings.partition.clients == 4
    slow = scenario(tmp_path, text).variants[0].settings
    assert slow.rounds == 30
    assert slow.partition is not None
    assert slow.partition.clients == 20


# --- errors as data ---


def test_an_error_carries_its_problems_and_their_keys(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(BASE)
    with pytest.raises(ConfigError) as caught:
        load(path, parsed(["cohort.per_round=0", "rounds=x"]))
    assert set(caught.value.keys) == {"cohort.per_round", "rounds"}
    assert {each.path for each in caught.value.problems} == {path}
    assert str(caught.value) == "\n".join(f"{path}: {each.key}: {each.why}" for each in caught.value.problems)
    assert ConfigError("the disk is full").keys == ()


def test_keys_survive_a_sweep(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(BASE + "\n[sweep]\nrounds = [3, 4]\ncase = [{label = 'a'}, {label = 'b', seed = 1}]\n")
    with pytest.raises(ConfigError) as caught:
        load(path, {}, check=no_check)
    assert caught.value.keys == ("sweep",)
