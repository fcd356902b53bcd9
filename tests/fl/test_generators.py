"""Data that is made up: the same numbers as the published recipes make, and errors that say what to do."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl.data.fedplus_regression import RegressionRecipe, fed_plus_regression, input_variances, true_weights
from fl.data.fedprox_synthetic import PRESETS, Recipe, generate, synthetic
from fl.data.leaf_clustered import SEED as LEAF_SEED
from fl.data.leaf_clustered import leaf_synthetic
from fl.data.quantile_paper_synthetic import ClassTask, ClientPopulation, classification, quantile_task
from fl.data.synthetic_train_test_split import SplitFractions
from fl.errors import DataError
from fl.federation import Federation
from fl.samples import Array, Samples

_VECTORS = json.loads(
    (Path(__file__).parents[1] / "vectors" / "make-classification.json").read_text(encoding="utf-8")
)
_SMALL = {"clients": 6, "features": 5, "classes": 4}


@pytest.fixture
def global_generators() -> Iterator[Callable[[int], None]]:
    """Seeds numpy's and the standard library's global generators, as papers' scripts do; tidies up after."""
    before, before_too = np.random.get_state(), random.getstate()

    def seed(value: int) -> None:
        np.random.seed(value)
        random.seed(value)

    yield seed
    np.random.set_state(before)
    random.setstate(before_too)


def _softmax_label(row: Array, weights: Array, bias: Array) -> int:
    powers = np.exp(np.dot(row, weights) + bias)
    return int(np.argmax(powers / np.sum(powers)))


def _transcribed(recipe: Recipe) -> list[tuple[list[Array], list[int]]]:
    """The recipe of the FedProx paper and its relatives, step by step and sample by sample, shuffled."""
    number, width, classes = recipe.clients, recipe.features, recipe.classes
    drawn = np.random.lognormal(recipe.mean, recipe.sigma, 1 if recipe.equal else number)
    sizes = [(int(size) + recipe.minimum) * recipe.times for size in drawn]
    sizes = sizes * number if recipe.equal else sizes
    model_means = input_means = np.zeros(number)
    if recipe.draws != "needed":
        model_means = np.random.normal(0, recipe.alpha, number)
        input_means = np.random.normal(0, recipe.beta, number)
    centers = np.zeros((number, width))
    for k in range(recipe.alike, number):
        centers[k] = np.random.normal(input_means[k], 1, width)
    covariance = np.diag([(j + 1) ** -1.2 for j in range(width)])
    if recipe.alike:
        shared = np.random.normal(0, 1, (width, classes)), np.random.normal(0, 1, classes)
    data = []
    for k in range(number):
        if k >= recipe.alike or recipe.draws == "all":
            own_weights = np.random.normal(model_means[k], 1, (width, classes))
            own_bias = np.random.normal(model_means[k], 1, classes)
        weights, bias = shared if k < recipe.alike else (own_weights, own_bias)
        inputs = np.random.multivariate_normal(centers[k], covariance, sizes[k])
        data.append([(row, _softmax_label(row, weights, bias)) for row in inputs])
    for samples in data:
        random.shuffle(samples)
    return [([row for row, _ in samples], [label for _, label in samples]) for samples in data]


def _is_same(samples: Samples, rows: list[Array], labels: list[int]) -> None:
    assert np.array_equal(samples.x, np.array(rows, dtype=np.float32).reshape(samples.x.shape))
    assert samples.y.tolist() == labels


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("fedprox", {"alpha": 0.5, "beta": 0.5}),
        ("fedprox-iid", {"alike": 6}),
        ("q-ffl", {}),
        ("q-ffl-hybrid", {"alike": 3}),
        ("pfedme", {"minimum": 7}),
        ("lp-proj", {"minimum": 30, "sigma": 0.5}),
        ("lp-proj-unbalanced", {}),
        ("lp-proj-iid", {"alike": 6, "sigma": 0.5}),
        ("fedbc", {}),
    ],
)
def test_presets_follow_the_recipe_draw_by_draw(
    preset: str, changes: dict[str, Any], global_generators: Callable[[int], None]
) -> None:
    changes = {**_SMALL, "mean": 2.0, **changes}
    made = synthetic(preset, seed=11, **changes)
    global_generators(11)
    recipe = _changed(preset, changes)
    expected = _transcribed(recipe)
    assert list(made.clients) == list(range(6))
    for client, (rows, labels) in enumerate(expected):
        kept = int((1 - recipe.shares.test) * len(rows))
        train = kept - int(recipe.shares.validation * kept)
        data = made.clients[client]
        _is_same(data.train, rows[:train], labels[:train])
        _is_same(data.validation, rows[train:kept], labels[train:kept])
        _is_same(data.test, rows[kept:], labels[kept:])


def _changed(preset: str, changes: dict[str, Any]) -> Recipe:
    return Recipe(
        **{**{name: getattr(PRESETS[preset], name) for name in Recipe.__dataclass_fields__}, **changes}
    )


def test_the_fedprox_data_set_in_full(global_generators: Callable[[int], None]) -> None:
    made = synthetic("fedprox", seed=3, largest=None)
    global_generators(3)
    sizes = np.random.lognormal(4, 2, 30).astype(int) + 50
    assert [len(data.train) + len(data.test) for data in made.clients.values()] == sizes.tolist()
    assert [len(data.train) for data in made.clients.values()] == [int(0.9 * size) for size in sizes]
    means = np.random.normal(0, 1, 30)
    spreads = np.random.normal(0, 1, 30)
    centers = [np.random.normal(spread, 1, 60) for spread in spreads]
    weights, bias = np.random.normal(means[0], 1, (60, 10)), np.random.normal(means[0], 1, 10)
    inputs = np.random.multivariate_normal(centers[0], np.diag(np.arange(1, 61) ** -1.2), sizes[0])
    labels = (inputs @ weights + bias).argmax(axis=1)
    first = made.clients[0]
    both = np.concatenate((first.train.y, first.test.y))
    assert np.bincount(both, minlength=10).tolist() == np.bincount(labels, minlength=10).tolist()
    assert made.classes == 10
    assert first.train.x.shape[1:] == (60,)
    assert first.train.x.dtype == np.float32


@pytest.mark.parametrize(
    ("preset", "clients", "shares"),
    [
        ("fedprox", 30, (0.9, 0, 0.1)),
        ("fedprox-iid", 30, (0.9, 0, 0.1)),
        ("q-ffl", 100, (0.9, 0, 0.1)),
        ("q-ffl-hybrid", 100, (0.9, 0, 0.1)),
        ("pfedme", 100, (0.9, 0, 0.1)),
        ("lp-proj", 100, (0.64, 0.16, 0.2)),
        ("lp-proj-unbalanced", 100, (0.64, 0.16, 0.2)),
        ("fedbc", 30, (0.8, 0, 0.2)),
        ("fed+", 30, (0.8, 0, 0.2)),
    ],
)
def test_presets_have_the_published_numbers(preset: str, clients: int, shares: tuple[float, ...]) -> None:
    made = synthetic(preset, seed=0, largest=150)
    assert len(made.clients) == clients
    for data in made.clients.values():
        parts = [len(part) for part in (data.train, data.validation, data.test)]
        assert parts == pytest.approx([share * sum(parts) for share in shares], abs=1.5)
        assert 50 <= sum(parts) <= 150


def test_sizes_of_the_variants() -> None:
    def sizes(name: str) -> list[int]:
        made = synthetic(name, seed=0, features=2)
        return [len(data.train) + len(data.validation) + len(data.test) for data in made.clients.values()]

    assert len(set(sizes("lp-proj"))) == 1
    assert len(set(sizes("lp-proj-unbalanced"))) > 50
    assert min(sizes("lp-proj-unbalanced")) >= 100
    assert all(size % 5 == 0 for size in sizes("pfedme"))
    assert sizes("pfedme") == [5 * size for size in sizes("q-ffl")]


def test_how_different_clients_are_is_as_asked() -> None:
    def spread(alpha: float, beta: float) -> tuple[float, float]:
        """Of the means of inputs over clients, and of the largest class's share within one."""
        made = synthetic("fedprox", seed=5, clients=300, features=12, alpha=alpha, beta=beta, largest=50)
        means = [data.train.x.mean() for data in made.clients.values()]
        shares = [np.bincount(data.train.y).max() / len(data.train) for data in made.clients.values()]
        return float(np.std(means)), float(np.mean(shares))

    assert spread(0, 0)[0] == pytest.approx(1 / np.sqrt(12), rel=0.15)
    assert spread(0, 3)[0] == pytest.approx(3, rel=0.15)
    assert spread(0, 10)[1] > spread(0, 0)[1] + 0.1


def test_labels_of_fed_plus_depend_on_how_they_are_computed() -> None:
    exact = synthetic("fed+", seed=1, largest=100)
    naive = synthetic("fed+", seed=1, largest=100, softmax=True)
    labels = np.concatenate([data.train.y for data in exact.clients.values()])
    assert np.bincount(labels, minlength=10).min() > 0
    zeros = np.concatenate([data.train.y for data in naive.clients.values()]) == 0
    assert zeros.mean() > 0.95
    both = zip(exact.clients.values(), naive.clients.values(), strict=True)
    assert all(np.array_equal(one.train.x, other.train.x) for one, other in both)


def _everything(federation: Federation) -> bytes:
    parts = [
        part.tobytes()
        for data in (*federation.clients.values(), *federation.held_out.values())
        for samples in (data.train, data.validation, data.test)
        for part in (samples.x, samples.y)
    ]
    return b"".join(parts)


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: synthetic("fedbc", seed=seed, largest=60, **_SMALL),
        lambda seed: leaf_synthetic(5, classes=3, features=4, seed=seed),
        lambda seed: fed_plus_regression(np.random.default_rng(seed), RegressionRecipe(features=5)),
        lambda seed: quantile_task(
            np.random.default_rng(seed),
            crowd=ClientPopulation(clients=4, validation=1, test=1, samples=9),
            total=500,
        ),
    ],
)
def test_the_seed_decides_everything(make: Callable[[int], Federation]) -> None:
    assert _everything(make(4)) == _everything(make(4))
    assert _everything(make(4)) != _everything(make(5))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"clients": 0}, "clients must be a whole number of at least 1"),
        ({"clients": 2.0}, "clients must be a whole number"),
        ({"classes": 1}, "classes must be a whole number of at least 2"),
        ({"alpha": -1.0}, "alpha must be a finite number"),
        ({"beta": float("nan")}, "beta must be a finite number"),
        ({"sigma": float("inf")}, "sigma must be a finite number"),
        ({"mean": 50.0}, "mean must be between"),
        ({"alike": 31}, "lower `alike`"),
        ({"draws": "some"}, "draws must be all"),
        ({"draws": "needed"}, "set draws to models"),
        ({"largest": 0}, "largest must be"),
        ({"largest": 1}, "make clients larger"),
        ({"seed": -1}, "seed must be"),
        ({"seed": 2**32}, "seed must be"),
        ({"colour": 3}, "unknown name among colour: the names are name, clients, alpha, beta, alike, draws,"),
        ({"preset": "fedporx"}, "there is no preset 'fedporx': use one of fedprox"),
    ],
)
def test_bad_parameters_are_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        synthetic(**{"seed": 0, **changes})


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_shares_are_shares(share: float) -> None:
    with pytest.raises(DataError, match="test must be a share"):
        SplitFractions(share)
    with pytest.raises(DataError, match="validation must be a share"):
        SplitFractions(0.1, share)


def test_leaf_follows_its_script(global_generators: Callable[[int], None]) -> None:
    made = leaf_synthetic(6, classes=4, features=7, clusters=(0.3, 0.7))
    global_generators(LEAF_SEED)
    sizes = [min(int(size) + 5, 1000) for size in np.random.lognormal(3, 2, 6)]
    global_generators(LEAF_SEED)
    mixing = np.random.normal(0, 1, (8, 4, 2))
    means = [np.random.normal(np.random.normal(0, 1), 1, 2) for _ in range(2)]
    covariance = np.diag(np.arange(1, 8) ** -1.2)
    for client, size in enumerate(sizes):
        cluster = np.random.choice(range(2), p=[0.3, 0.7])
        center = np.random.normal(np.random.normal(0, 1), 1, 7)
        inputs = np.random.multivariate_normal(center, covariance, size)
        weights = mixing @ np.random.normal(means[cluster], 0.1)
        logits = weights[0] + inputs @ weights[1:] + np.random.normal(0, 0.1, (size, 4))
        powers = np.exp(logits)
        labels = np.argmax(powers / powers.sum(axis=0), axis=1)
        data = made.clients[client]
        assert len(data.test) == size - int(0.9 * size)
        found = np.concatenate((data.train.x, data.test.x))
        order = np.lexsort(found.T), np.lexsort(inputs.astype(np.float32).T)
        assert np.array_equal(found[order[0]], inputs.astype(np.float32)[order[1]])
        assert np.array_equal(np.concatenate((data.train.y, data.test.y))[order[0]], labels[order[1]])


@pytest.mark.parametrize("clusters", [(), (0.5, 0.4), (1.5, -0.5)])
def test_clusters_need_probabilities(clusters: tuple[float, ...]) -> None:
    with pytest.raises(DataError, match="add up to 1"):
        leaf_synthetic(3, classes=2, features=2, clusters=clusters)


def test_regression_of_fed_plus_has_the_variances_of_the_paper() -> None:
    recipe = RegressionRecipe()
    made = fed_plus_regression(np.random.default_rng(0))
    weights = true_weights(np.random.default_rng(0), recipe)
    assert (len(made.clients), made.classes, weights.shape) == (10, None, (10, 1000))
    # A Laplace distribution of scale s has variance 2 s^2.
    assert np.var(weights[:9], axis=1) == pytest.approx(5.5, rel=0.15)
    assert np.var(weights[9]) == pytest.approx(50.5, rel=0.15)
    assert np.var(weights[0] - weights[1]) == pytest.approx(1.0, rel=0.15)
    for party, data in made.clients.items():
        assert (len(data.train), len(data.validation), len(data.test)) == (50, 0, 50)
        both = Samples.join((data.train, data.test))
        assert np.var(both.x.mean(axis=0)) == pytest.approx(0.5, rel=0.2)
        spread = both.x.astype(float).var(axis=0, ddof=1) / input_variances(recipe)
        assert spread.mean() == pytest.approx(1.0, rel=0.05)
        noise = both.y - both.x.astype(float) @ weights[party]
        assert np.var(noise) == pytest.approx(2.0, rel=0.5)


def test_input_variances_of_the_regression_repeat_and_are_finite() -> None:
    variances = input_variances(RegressionRecipe())
    assert variances[[0, 1, 49, 50]] == pytest.approx([1.0, 2**-1.1, 50**-1.1, 1.0])


def test_a_zero_model_errs_as_table_2_of_fed_plus_allows() -> None:
    errors = []
    for seed in range(5):
        made = fed_plus_regression(np.random.default_rng(seed))
        errors += [float((data.test.y.astype(float) ** 2).mean()) for data in made.clients.values()]
    # The paper's errors after training are 1048 to 4268.
    assert 3000 < np.mean(errors) < 12_000


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"parties": 0}, "parties must be"),
        ({"outliers": 11}, "lower `outliers`"),
        ({"test": 1.0}, "lower `test`"),
        ({"samples": 1}, "lower `test`"),
        ({"noise": -1.0}, "noise must be"),
    ],
)
def test_bad_regressions_are_refused(changes: dict[str, Any], says: str) -> None:
    changes = {"test": 0.9, **changes} if "samples" in changes else changes
    with pytest.raises(DataError, match=says):
        RegressionRecipe(**changes)


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=[pytest.mark.slow] if row["samples"] > 10_000 else [])
        for row in _VECTORS["rows"]
    ],
    ids=lambda row: f"{row['samples']}-{row['seed']}",
)
def test_classification_is_that_of_scikit_learn(row: dict[str, Any]) -> None:
    made = classification(row["samples"], task=ClassTask(**row["task"]), seed=row["seed"])
    assert made.y[:10].tolist() == row["first_labels"]
    assert hashlib.sha256(made.y.astype("<i8").tobytes()).hexdigest() == row["labels_sha256"]
    # Other machines add up a matrix product in another order.
    assert made.x[0] == pytest.approx(row["first"], rel=1e-12, abs=1e-12)
    assert made.x[-1] == pytest.approx(row["last"], rel=1e-12, abs=1e-12)
    assert made.x.mean(axis=0) == pytest.approx(row["column_means"], rel=1e-9, abs=1e-11)
    assert (made.x**2).mean(axis=0) == pytest.approx(row["column_squares"], rel=1e-9)


def test_the_quantile_task_has_clients_of_three_kinds() -> None:
    crowd = ClientPopulation(clients=40, validation=10, test=20)
    made = quantile_task(np.random.default_rng(0), crowd=crowd, total=20_000)
    assert (len(made.clients), sorted(made.held_out), made.classes) == (40, list(range(40, 70)), 10)
    assert all(len(data.train) == 100 for data in made.clients.values())
    assert all(not len(data.test) and not len(data.validation) for data in made.clients.values())
    kinds = [(len(data.validation), len(data.test)) for data in made.held_out.values()]
    assert kinds == [(100, 0)] * 10 + [(0, 100)] * 20
    classes = [
        np.mean([len(np.unique(data.train.y)) for data in clients.values()])
        for clients in (made.clients, made.held_out)
    ]
    assert classes[0] > 5
    assert classes[1] < 2
    rows = np.concatenate([data.train.x for data in (*made.clients.values(), *made.held_out.values())])
    assert len(np.unique(rows, axis=0)) == 7000


def test_the_quantile_task_is_that_of_the_paper() -> None:
    assert (ClientPopulation(), ClassTask()) == (
        ClientPopulation(clients=2500, validation=500, test=500, samples=100, alpha=0.5, held_out_alpha=0.01),
        ClassTask(features=20, informative=15, redundant=2, classes=10, separation=5.0, flip=0.01),
    )
    with pytest.raises(DataError, match="samples"):
        quantile_task(np.random.default_rng(0), total=1000)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"features": 16}, "features must be a whole number of at least 17"),
        ({"classes": 1}, "classes must be"),
        ({"informative": 9}, "more than 100 corners"),
        ({"informative": 31, "features": 40}, "at most 30 informative"),
        ({"flip": 1.5}, "flip must be"),
        ({"separation": -1.0}, "separation must be"),
    ],
)
def test_bad_tasks_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        ClassTask(**changes)


def test_too_few_samples_for_the_classes_are_refused() -> None:
    with pytest.raises(DataError, match="samples must be a whole number of at least 10"):
        classification(9)
    with pytest.raises(DataError, match="samples must be a whole number of at least 1"):
        ClientPopulation(samples=0)


def test_recipes_need_no_preset() -> None:
    made = generate(Recipe(clients=2, largest=60), seed=0)
    assert made.name == "synthetic"
    assert len(made.clients) == 2
