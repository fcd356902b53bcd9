"""Partitions: every sample at most once, and what each recipe says of sizes and classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import Generator, default_rng

from fl.errors import DataError
from fl.federation import ClientData
from fl.partition import (
    PARTITIONS,
    NoisyClasses,
    at_least,
    by_owner,
    classes_per_client,
    describe,
    dirichlet,
    divide,
    fedbc,
    federate,
    federate_pair,
    fedprox_mnist,
    fedprox_nist,
    iid,
    lp_proj,
    matching,
    mnist_personal,
    mnist_robust,
    partition,
    power_law,
    shards,
)
from fl.partition.part_sizes import apportion
from fl.samples import Array, Samples

# What a recipe cannot do without, or should have so that small data sets suffice.
PARAMETERS: dict[str, dict[str, Any]] = {
    "dirichlet": {"alpha": 0.3},
    "fedprox_mnist": {"first": 1},
    "fedprox_nist": {"classes": 2, "mean": 0.5, "minimum": 0},
    "fedbc": {"exponent": 1.2, "classes": 2},
}


def balanced(classes: int, each: int) -> Array:
    return np.tile(np.arange(classes), each)


def numbered(labels: Array) -> Samples:
    """Samples that carry their own index, so that a test can tell where each went."""
    return Samples(np.arange(len(labels), dtype=np.float32)[:, None], labels)


def parameters(name: str, labels: Array) -> dict[str, Any]:
    owner = {"owner": np.arange(len(labels)) % 7} if name == "by_owner" else {}
    return PARAMETERS.get(name, {}) | owner


def sizes(parts: Sequence[Array]) -> list[int]:
    return [len(part) for part in parts]


def classes_of(parts: Sequence[Array], labels: Array) -> list[set[int]]:
    return [set(labels[part].tolist()) for part in parts]


def assert_disjoint(parts: Sequence[Array], samples: int) -> None:
    used = np.concatenate(parts)
    assert len(np.unique(used)) == len(used)
    assert used.min() >= 0
    assert used.max() < samples
    assert min(sizes(parts)) >= 1


@pytest.mark.parametrize("name", PARTITIONS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_parts_are_disjoint_filled_and_repeatable(name: str, data: st.DataObject) -> None:
    classes = data.draw(st.integers(2, 8))
    clients = data.draw(st.integers(1, 7))
    seed = data.draw(st.integers(0, 2**32))
    counts = data.draw(st.lists(st.integers(40, 90), min_size=classes, max_size=classes))
    labels = default_rng(seed).permutation(np.repeat(np.arange(classes) * 3, counts))
    given_ = parameters(name, labels)
    parts = partition(name, labels, clients, default_rng(seed), **given_)
    assert len(parts) == clients
    assert_disjoint(parts, len(labels))
    again = partition(name, labels, clients, default_rng(seed), **given_)
    assert all(np.array_equal(one, two) for one, two in zip(parts, again, strict=True))


@pytest.mark.parametrize("name", sorted(set(PARTITIONS) - {"by_owner"}))
def test_another_seed_is_another_partition(name: str) -> None:
    labels = balanced(5, 60)
    one, two = (partition(name, labels, 5, default_rng(seed), **parameters(name, labels)) for seed in (1, 2))
    assert not all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("name", ["iid", "dirichlet", "shards", "power_law", "fedbc"])
def test_some_recipes_use_every_sample(name: str) -> None:
    labels = balanced(7, 41)
    parts = partition(name, labels, 6, default_rng(0), **parameters(name, labels))
    assert sum(sizes(parts)) == len(labels)


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize("clients", [0, -1, 2.5, True])
def test_a_number_of_clients_that_is_none_is_refused(name: str, clients: Any) -> None:
    labels = balanced(4, 50)
    with pytest.raises(DataError, match="clients must be a whole number of at least 1"):
        partition(name, labels, clients, default_rng(0), **parameters(name, labels))


@pytest.mark.parametrize("name", PARTITIONS)
def test_more_clients_than_samples_are_refused(name: str) -> None:
    labels = balanced(4, 5)
    with pytest.raises(DataError, match=r"fewer|at most"):
        partition(name, labels, 50, default_rng(0), **parameters(name, labels))


@pytest.mark.parametrize("name", sorted(set(PARTITIONS) - {"iid", "power_law", "by_owner"}))
def test_only_some_recipes_take_targets_of_a_regression(name: str) -> None:
    labels = np.linspace(0, 1, 100)
    with pytest.raises(
        DataError,
        match=r"labels of type float64 and shape \(100,\) are not classes, one whole number per sample:",
    ):
        partition(name, labels, 4, default_rng(0), **parameters(name, labels))
    for other in ("iid", "power_law", "by_owner"):
        parts = partition(other, labels, 4, default_rng(0), **parameters(other, labels))
        assert_disjoint(parts, 100)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    labels = balanced(2, 5)
    with pytest.raises(
        DataError,
        match=r"there is no partition 'dirchlet'; did you mean 'dirichlet'\? Available: iid, dirichlet,",
    ):
        partition("dirchlet", labels, 2, default_rng(0))
    with pytest.raises(DataError, match=r"no partition 'zzz'\. Available: iid, dirichlet, shards"):
        partition("zzz", labels, 2, default_rng(0))
    with pytest.raises(DataError, match="no parameter of dirichlet 'alfa'; did you mean 'alpha'"):
        partition("dirichlet", labels, 2, default_rng(0), alfa=1.0)
    with pytest.raises(DataError, match=r"no parameter of iid 'zzz'\. Available: none"):
        partition("iid", labels, 2, default_rng(0), zzz=1.0)
    with pytest.raises(DataError, match="dirichlet needs alpha"):
        partition("dirichlet", labels, 2, default_rng(0))


def test_iid_parts_have_equal_sizes() -> None:
    assert sorted(sizes(iid(balanced(2, 26), 10, default_rng(0)))) == [5] * 8 + [6] * 2


def test_sizes_of_a_power_law_differ_by_far_and_have_a_minimum() -> None:
    parts = power_law(balanced(10, 500), 50, default_rng(0), minimum=4)
    assert min(sizes(parts)) >= 4
    assert max(sizes(parts)) > 10 * np.median(sizes(parts))
    with pytest.raises(DataError, match="takes 500 samples, but there are 20"):
        power_law(balanced(2, 10), 50, default_rng(0), minimum=10)
    with pytest.raises(DataError, match="sigma must be above 0"):
        power_law(balanced(2, 10), 5, default_rng(0), sigma=0.0)


def test_owners_keep_their_samples() -> None:
    owner = np.array(["b", "a", "b", "c", "b", "a"])
    labels = balanced(2, 3)
    parts = by_owner(labels, None, default_rng(0), owner=owner)
    assert [part.tolist() for part in parts] == [[1, 5], [0, 2, 4], [3]]
    assert sizes(by_owner(labels, None, default_rng(0), owner=owner, minimum=2)) == [2, 3]
    drawn = [by_owner(labels, 1, default_rng(seed), owner=owner, minimum=2)[0] for seed in range(20)]
    assert {len(part) for part in drawn} == {2, 3}


def test_owners_that_there_are_not_are_refused() -> None:
    owner = np.array([0, 0, 1])
    labels = np.zeros(3, int)
    with pytest.raises(DataError, match=r"3 clients, but 2 owners have at least 1 samples.*at most 2"):
        by_owner(labels, 3, default_rng(0), owner=owner)
    with pytest.raises(DataError, match="no owner has 3 samples, the largest has 2"):
        by_owner(labels, None, default_rng(0), owner=owner, minimum=3)
    with pytest.raises(DataError, match="one owner for every sample"):
        by_owner(labels, None, default_rng(0), owner=owner[:2])
    assert sizes(by_owner(labels, None, default_rng(0), owner=owner.tolist())) == [2, 1]
    with pytest.raises(
        DataError,
        match=r"owners are not an array: give rows of equal length \(setting an array element with a",
    ):
        by_owner(labels, None, default_rng(0), owner=[[0], [0, 1], 1])  # type: ignore[arg-type]


def test_small_clients_can_be_left_out() -> None:
    parts = (np.arange(3), np.arange(3, 4), np.arange(4, 9))
    assert sizes(at_least(parts, 2)) == [3, 5]
    with pytest.raises(DataError, match="no client has 6 samples"):
        at_least(parts, 6)


def test_shards_that_fit_the_classes_give_at_most_two() -> None:
    labels = balanced(10, 60)
    parts = shards(labels, 30, default_rng(0))
    assert set(sizes(parts)) == {20}
    assert max(len(classes) for classes in classes_of(parts, labels)) == 2
    one = shards(labels, 10, default_rng(0), per_client=1)
    assert sorted(classes_of(one, labels), key=min) == [{label} for label in range(10)]


def test_every_client_has_as_many_classes_as_asked_for() -> None:
    labels = balanced(6, 40)
    parts = classes_per_client(labels, 9, default_rng(0), classes=2)
    held = classes_of(parts, labels)
    assert {len(classes) for classes in held} == {2}
    # 9 clients of 2 classes make 18 shares of 6 classes: each is shared by 3.
    assert [sum(label in classes for classes in held) for label in range(6)] == [3] * 6
    assert sum(sizes(parts)) == len(labels)
    assert sizes(classes_per_client(labels, 1, default_rng(0), classes=2)) == [80]
    with pytest.raises(DataError, match="7 classes for each client, but there are 6"):
        classes_per_client(labels, 9, default_rng(0), classes=7)


def test_clients_without_a_share_of_their_class_are_named() -> None:
    with pytest.raises(DataError, match=r"clients \d, \d, \d of 5 would have no samples.*at_least"):
        classes_per_client(np.array([0, 0]), 5, default_rng(0), classes=1)


def test_lp_proj_gives_one_shard_of_each_class() -> None:
    labels = balanced(10, 200)
    parts = lp_proj(labels, 100, default_rng(0))
    assert {len(classes) for classes in classes_of(parts, labels)} == {2}
    assert set(sizes(parts)) == {20}
    assert sum(sizes(parts)) == len(labels)


def test_lp_proj_can_make_classes_equal() -> None:
    labels = np.repeat(np.arange(3), [30, 90, 60])
    unequal = lp_proj(labels, 6, default_rng(0))
    equal = lp_proj(labels, 6, default_rng(0), equal=True)
    assert sum(sizes(unequal)) == 180
    assert [np.bincount(labels[np.concatenate(equal)])[label] for label in range(3)] == [30] * 3
    # Four shards of a class: 30 samples are 7, 7, 8 and 8.
    assert set(sizes(equal)) <= {14, 15, 16}


def test_lp_proj_refuses_a_class_that_is_smaller_than_its_shards() -> None:
    labels = np.repeat([0, 5], [50, 3])
    with pytest.raises(DataError, match="class 5 has 3 samples for 4 shards"):
        lp_proj(labels, 4, default_rng(0), classes=2)
    with pytest.raises(DataError, match="3 classes for each client, but there are 2"):
        lp_proj(labels, 4, default_rng(0), classes=3)


@settings(max_examples=30, deadline=None)
@given(classes=st.integers(1, 9), clients=st.integers(1, 20), data=st.data())
def test_lp_proj_never_runs_out_of_classes(classes: int, clients: int, data: st.DataObject) -> None:
    each = data.draw(st.integers(1, classes))
    labels = balanced(classes, 25)
    parts = lp_proj(labels, clients, default_rng(0), classes=each)
    assert {len(held) for held in classes_of(parts, labels)} == {each}


def test_test_samples_match_those_to_train_on() -> None:
    labels, test_labels = balanced(10, 200), balanced(11, 40)
    parts = lp_proj(labels, 100, default_rng(0))
    matched = matching(labels, parts, test_labels, default_rng(1))
    assert_disjoint(matched, len(test_labels))
    assert classes_of(matched, test_labels) == classes_of(parts, labels)
    assert set(sizes(matched)) == {4}
    # Nobody trains on the class 10, so nobody is tested on it.
    assert sum(sizes(matched)) == 400


def test_a_client_that_no_test_sample_matches_is_named() -> None:
    labels = np.array([0, 0, 0, 1])
    parts = (np.array([0, 1, 2]), np.array([3]))
    with pytest.raises(DataError, match="client 1 of 2 would have no test samples"):
        matching(labels, parts, np.array([0, 0]), default_rng(0))


def test_a_small_alpha_means_few_classes() -> None:
    labels = balanced(10, 500)
    few, many = (dirichlet(labels, 20, default_rng(0), alpha=alpha, samples=100) for alpha in (0.01, 100))
    assert set(sizes(few)) == set(sizes(many)) == {100}
    assert np.mean([len(held) for held in classes_of(few, labels)]) < 2
    assert min(len(held) for held in classes_of(many, labels)) == 10


def test_clients_may_have_an_alpha_each() -> None:
    labels = balanced(10, 500)
    parts = dirichlet(labels, 20, default_rng(0), alpha=[100.0] * 10 + [0.01] * 10, samples=100)
    held = [len(each) for each in classes_of(parts, labels)]
    assert min(held[:10]) == 10
    assert np.mean(held[10:]) < 2


def test_a_class_that_is_used_up_is_made_up_by_others() -> None:
    labels = np.repeat([0, 1], [3, 97])
    parts = dirichlet(labels, 4, default_rng(0), alpha=1e-3)
    assert sizes(parts) == [25] * 4
    assert np.bincount(labels[np.concatenate(parts)]).tolist() == [3, 97]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"alpha": 0.0}, "alpha must be above 0"),
        ({"alpha": [1.0, 2.0]}, "2 values of alpha for 4 clients"),
        ({"alpha": [1.0, 2.0, -1.0, 1.0]}, "alpha must be above 0"),
        ({"alpha": 1.0, "samples": 6}, "takes 24 samples, but there are 20"),
        ({"alpha": 1.0, "samples": 0}, "samples must be a whole number of at least 1"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        dirichlet(balanced(2, 10), 4, default_rng(0), **wrong)


def test_fedprox_mnist_gives_two_neighbouring_digits() -> None:
    labels = balanced(10, 400)
    parts = fedprox_mnist(labels, 100, default_rng(0))
    assert classes_of(parts, labels) == [{k % 10, (k + 1) % 10} for k in range(100)]
    counts = [np.bincount(labels[part], minlength=10) for part in parts]
    assert min(count[count > 0].min() for count in counts) >= 5
    # Rounding leaves less than one sample of each client's two classes.
    assert 4000 - 200 < sum(sizes(parts)) <= 4000
    assert max(sizes(parts)) > 5 * np.median(sizes(parts))


def test_fedprox_mnist_may_leave_a_class_to_nobody() -> None:
    labels = balanced(10, 20)
    parts = fedprox_mnist(labels, 3, default_rng(0), classes=1)
    assert classes_of(parts, labels) == [{0}, {1}, {2}]
    assert sizes(parts) == [20, 20, 20]
    with pytest.raises(
        DataError,
        match="class 0 has 20 samples, but its clients need 40: ask for fewer clients, or for fewer",
    ):
        fedprox_mnist(labels, 40, default_rng(0))


def test_fedprox_nist_gives_equally_many_of_each_class() -> None:
    labels = balanced(10, 400)
    parts = fedprox_nist(labels, 30, default_rng(0), classes=3)
    for client, part in enumerate(parts):
        counts = np.bincount(labels[part], minlength=10)
        assert set(np.flatnonzero(counts)) == {(client + j) % 10 for j in range(3)}
        assert len(set(counts[counts > 0])) == 1
    smallest = fedprox_nist(labels, 30, default_rng(0), mean=-20.0, minimum=0)
    assert set(sizes(smallest)) == {10}  # Two of each of five classes.
    with pytest.raises(
        DataError,
        match="class 0 has 400 samples, but its clients need 1487: ask for fewer clients, or for fewer",
    ):
        fedprox_nist(labels, 200, default_rng(0))


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("power_law", {"sigma": 1e4}, "weights .* are infinite, or all zero: choose a smaller sigma"),
        ("power_law", {"sigma": "2"}, "sigma must be above 0 and finite, not '2'"),
        ("power_law", {"sigma": 10**400}, "sigma must be above 0 and finite"),
        ("fedprox_mnist", {"sigma": 1e4}, "weights .* are infinite, or all zero: choose a smaller sigma"),
        ("fedprox_mnist", {"first": 10**30}, "takes 6000000000000000000000000000000 samples"),
        (
            "fedprox_nist",
            {"mean": 1000.0},
            "class 0 has 60 samples, but its clients need 219902325556: ask for fewer clients, or for",
        ),
        (
            "fedprox_nist",
            {"mean": 60.0},
            "class 0 has 60 samples, but its clients need 219902325556: ask for fewer clients, or for",
        ),
        ("fedprox_nist", {"mean": np.nan}, "mean must be a finite number, not nan"),
        ("fedprox_nist", {"mean": np.inf}, "mean must be a finite number, not inf"),
        ("fedprox_nist", {"minimum": 10**30}, "takes 6000000000000000000000000000000 samples"),
        ("fedbc", {"exponent": 1e200}, r"600 samples are too few for 6 clients that grow by 1e\+200"),
        ("fedbc", {"exponent": "a"}, "exponent must be a finite number, not 'a'"),
        ("dirichlet", {"alpha": None}, "alpha must be above 0 and finite, not None"),
        ("dirichlet", {"alpha": "abcdef"}, "alpha must be above 0 and finite, not 'a'"),
    ],
)
def test_extreme_parameters_are_refused(name: str, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        partition(name, balanced(10, 60), 6, default_rng(0), **wrong)


@pytest.mark.parametrize("alpha", [5e-324, 1e308])
def test_mixtures_stand_every_alpha(alpha: float) -> None:
    labels = balanced(10, 60)
    parts = dirichlet(labels, 6, default_rng(0), alpha=alpha)
    assert_disjoint(parts, len(labels))
    assert sizes(parts) == [100] * 6


@pytest.mark.parametrize("name", ["fedprox_mnist", "fedprox_nist", "fedbc", "dirichlet"])
def test_clients_beyond_number_are_refused_before_memory_is_set_aside(name: str) -> None:
    labels = balanced(10, 60)
    with pytest.raises(DataError, match=f"takes .* samples, but there are {len(labels)}"):
        partition(name, labels, 10**30, default_rng(0), **parameters(name, labels))


@pytest.mark.parametrize(
    ("name", "numpys", "pythons"),
    [
        ("dirichlet", {"alpha": np.float32(0.5)}, {"alpha": 0.5}),
        ("dirichlet", {"alpha": np.array(0.5)}, {"alpha": 0.5}),
        ("dirichlet", {"alpha": np.full(4, 0.5)}, {"alpha": [0.5] * 4}),
        ("power_law", {"sigma": np.float32(2), "minimum": np.int64(3)}, {"sigma": 2.0, "minimum": 3}),
        ("fedbc", {"exponent": np.float32(1.5), "classes": np.uint8(2)}, {"exponent": 1.5, "classes": 2}),
        ("fedprox_mnist", {"sigma": np.float16(2)}, {"sigma": 2.0}),
    ],
)
def test_numbers_of_numpy_are_as_good(name: str, numpys: dict[str, Any], pythons: dict[str, Any]) -> None:
    labels = balanced(5, 60)
    one, two = (partition(name, labels, 4, default_rng(3), **given_) for given_ in (numpys, pythons))
    assert [part.tolist() for part in one] == [part.tolist() for part in two]


@pytest.mark.parametrize("name", PARTITIONS)
def test_labels_may_be_a_list(name: str) -> None:
    labels = balanced(5, 60)
    one, two = (
        partition(name, each, 4, default_rng(3), **parameters(name, labels))
        for each in (labels, labels.tolist())
    )
    assert [part.tolist() for part in one] == [part.tolist() for part in two]


def test_fedbc_sizes_grow_by_the_exponent() -> None:
    labels = balanced(10, 6000)
    parts = fedbc(labels, 20, default_rng(0), exponent=1.4, classes=3)
    held = sizes(parts)
    # floor(60000 / sum(1.4 ** k)) is 20; the largest clients also have what rounding left over.
    assert held[:10] == [int(20 * 1.4**k) for k in range(1, 11)]
    assert held == sorted(held)
    assert sum(held) == 60000
    assert [len(each) for each in classes_of(parts, labels)][:15] == [3] * 15
    assert len(classes_of(parts, labels)[-1]) > 3


def test_fedbc_gives_what_is_left_over_to_the_largest() -> None:
    # A client takes at most its share of the large class at first, and two clients a fifth of the rest each.
    labels = np.repeat(np.arange(5), [200, 5, 5, 5, 5])
    parts = fedbc(labels, 2, default_rng(0), exponent=5.0, classes=4)
    assert sum(sizes(parts)) == 220
    assert sizes(parts)[1] > 3 * sizes(parts)[0]


def test_fedbc_says_when_there_is_too_little() -> None:
    labels = balanced(10, 100)
    with pytest.raises(DataError, match="1000 samples are too few for 30 clients"):
        fedbc(labels, 30, default_rng(0), exponent=1.5)
    with pytest.raises(DataError, match="exponent must be at least 1"):
        fedbc(labels, 3, default_rng(0), exponent=0.9)
    with pytest.raises(DataError, match="11 classes for each client"):
        fedbc(labels, 3, default_rng(0), classes=11)


@settings(max_examples=60, deadline=None)
@given(
    weights=st.lists(st.floats(0, 1e6), min_size=1, max_size=20).filter(lambda each: sum(each) > 1e-3),
    total=st.integers(0, 10_000),
)
def test_shares_sum_to_the_total_and_are_off_by_less_than_one(weights: list[float], total: int) -> None:
    shares = apportion(np.array(weights), total)
    assert shares.sum() == total
    assert np.abs(shares - np.array(weights) / sum(weights) * total).max() < 1 + 1e-6


def test_a_description_counts_samples_and_classes() -> None:
    labels = np.array([0, 0, 1, 2, 2, 2, 1])
    summary = describe((np.array([0]), np.array([2, 3]), np.array([1, 4, 6])), labels)
    assert (summary.clients, summary.used, summary.there) == (3, 6, 7)
    assert summary.samples == (1, 2.0, 3)
    assert summary.classes == (1, 2.0, 3)
    assert str(summary).splitlines() == [
        "3 clients, 6 of 7 samples",
        "for each client      min    median     max",
        "samples                1         2       3",
        "classes                1         2       3",
    ]
    assert "classes" not in str(describe((np.array([0]),), labels.astype(float)))
    with pytest.raises(DataError, match="no parts"):
        describe((), labels)


def everything(data: ClientData) -> list[int]:
    return Samples.join((data.train, data.validation, data.test)).x.reshape(-1).astype(int).tolist()


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    validation=st.floats(0, 0.45),
    test=st.floats(0, 0.5),
    each=st.lists(st.integers(1, 30), min_size=2, max_size=6),
)
def test_a_split_loses_no_sample_and_leaves_some_to_train(
    seed: int, validation: float, test: float, each: list[int]
) -> None:
    samples = numbered(np.zeros(sum(each), int))
    parts = np.split(np.arange(sum(each)), np.cumsum(each)[:-1])
    federation = federate(samples, parts, default_rng(seed), validation=validation, test=test, held_out=1)
    assert len(federation.held_out) == 1
    clients = {**federation.clients, **federation.held_out}
    for client, part in enumerate(parts):
        data = clients[client]
        assert sorted(everything(data)) == part.tolist()
        assert len(data.train) >= 1
        assert len(data.test) - test * len(part) < 1 + 1e-6
        if test > 1e-6 and len(part) > 1:
            assert len(data.test) >= min(len(part) - 1, test * len(part) - 1e-6)


def test_shares_are_rounded_up() -> None:
    samples = numbered(np.zeros(36, int))
    parts = (np.arange(30), np.arange(30, 33), np.arange(33, 35), np.arange(35, 36))
    federation = federate(samples, parts, default_rng(0), validation=0.2, test=0.1)
    split = [(len(data.train), len(data.validation), len(data.test)) for data in federation.clients.values()]
    # One sample is to train on; of two, the other is to test.
    assert split == [(21, 6, 3), (1, 1, 1), (1, 0, 1), (1, 0, 0)]
    assert federation.clients[3].test.x.shape == (0, 1)


def test_a_split_is_random_unless_told_otherwise() -> None:
    samples = numbered(np.zeros(40, int))
    parts = (np.arange(40)[::-1],)
    ordered = federate(samples, parts, default_rng(0), shuffle=False).clients[0]
    assert everything(ordered) == list(range(39, -1, -1))
    assert len(ordered.test) == 8
    one, two, other = (everything(federate(samples, parts, default_rng(s)).clients[0]) for s in (1, 1, 2))
    assert one == two != other != everything(ordered)


def test_a_client_with_one_class_is_split_like_others() -> None:
    labels = np.array([2] * 5 + [0, 1] * 5)
    federation = federate(numbered(labels), (np.arange(5), np.arange(5, 15)), default_rng(0))
    assert federation.clients[0].train.y.tolist() == [2] * 4
    assert federation.clients[0].test.y.tolist() == [2]
    assert federation.classes == 3


@pytest.mark.parametrize(
    ("held_out", "number"), [(0, 0), (3, 3), (0.3, 3), (0.25, 2), ([1, 4], 2), (range(8, 10), 2)]
)
def test_clients_can_be_held_out(held_out: Any, number: int) -> None:
    samples = numbered(balanced(2, 50))
    federation = federate(samples, iid(samples.y, 10, default_rng(0)), default_rng(1), held_out=held_out)
    assert len(federation.held_out) == number
    assert sorted([*federation.clients, *federation.held_out]) == list(range(10))
    if not isinstance(held_out, int | float):
        assert list(federation.held_out) == list(held_out)


@pytest.mark.parametrize(
    ("held_out", "message"),
    [
        (10, "all 10 clients are held out"),
        (11, "cannot draw 11 of 10 clients: ask for fewer"),
        (-1, "must be a whole number of at least 0"),
        (True, "must be a whole number of at least 0"),
        (1.0, "all 10 clients are held out"),
        (1.5, "fraction of clients must be from 0 to 1"),
        ([3, 12], "there is no client 12: clients are numbered from 0 to 9"),
    ],
)
def test_clients_that_cannot_be_held_out(held_out: Any, message: str) -> None:
    samples = numbered(balanced(2, 50))
    parts = iid(samples.y, 10, default_rng(0))
    with pytest.raises(DataError, match=message):
        federate(samples, parts, default_rng(1), held_out=held_out)


@pytest.mark.parametrize(("validation", "test"), [(0.5, 0.5), (-0.1, 0.2), (0.0, -0.1), (0.0, 1.0)])
def test_shares_that_leave_nothing_to_train_on_are_refused(validation: float, test: float) -> None:
    with pytest.raises(DataError, match="sum to less than 1"):
        federate(numbered(balanced(2, 5)), (np.arange(10),), default_rng(0), validation=validation, test=test)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([[0, 1], [], [2], []], "clients 1, 3 of 4 would have no samples"),
        ([[0]] + [[]] * 15, "clients 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 5 more of 16"),
        ([[0, 1], [1]], "two clients share a sample: make the parts disjoint"),
        ([[0, 10]], "a part has an index outside of 10 samples: partition the labels of these samples"),
        ([[0, -1]], "a part has an index outside of 10 samples: partition the labels of these samples"),
        ([[0.5]], "whole numbers, not float64"),
        ([[[0], [1]]], "not int64 of shape"),
        ([], "without clients|all 0 clients"),
    ],
)
def test_parts_that_are_no_partition_are_refused(parts: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        federate(numbered(balanced(2, 5)), [np.array(part) for part in parts], default_rng(0))


def test_the_number_of_classes_is_counted_or_checked() -> None:
    parts = (np.arange(4),)
    samples = numbered(np.array([0, 1, 4, 1]))
    assert federate(samples, parts, default_rng(0)).classes == 5
    assert federate(samples, parts, default_rng(0), classes=62, name="some").classes == 62
    with pytest.raises(DataError, match="labels go from 0 to 4, and classes are counted from 0 to 3"):
        federate(samples, parts, default_rng(0), classes=4)
    with pytest.raises(DataError, match="labels go from -1 to 1, and classes are counted from 0:"):
        federate(numbered(np.array([0, 1, -1, 1])), parts, default_rng(0))
    regression = Samples(samples.x, samples.y.astype(float))
    assert federate(regression, parts, default_rng(0)).classes is None
    with pytest.raises(DataError, match="5 classes, but targets are float64"):
        federate(regression, parts, default_rng(0), classes=5)


def test_a_transform_sees_each_client_before_the_split() -> None:
    def add(client: int, samples: Samples, rng: Generator) -> Samples:
        return Samples(samples.x + 100 * client, samples.y)

    samples = numbered(balanced(2, 10))
    parts = (np.arange(10), np.arange(10, 20))
    federation = federate(samples, parts, default_rng(0), test=0.5, transform=add)
    assert sorted(everything(federation.clients[0])) == list(range(10))
    assert sorted(everything(federation.clients[1])) == list(range(110, 120))


def test_a_test_set_of_its_own_is_kept_apart() -> None:
    def add(client: int, samples: Samples, rng: Generator) -> Samples:
        return Samples(samples.x + 100 * client, samples.y)

    train, test = numbered(balanced(4, 50)), numbered(balanced(4, 10))
    parts = lp_proj(train.y, 4, default_rng(0))
    test_parts = matching(train.y, parts, test.y, default_rng(0))
    federation = federate_pair(
        train,
        parts,
        test,
        test_parts,
        default_rng(0),
        validation=0.2,
        held_out=[3],
        name="pair",
        transform=add,
    )
    assert list(federation.held_out) == [3]
    assert (federation.classes, federation.name) == (4, "pair")
    for client, data in (federation.clients | federation.held_out).items():  # type: ignore[operator]
        assert (len(data.train), len(data.validation)) == (40, 10)
        fitted = np.concatenate((data.train.x, data.validation.x)).reshape(-1) - 100 * client
        assert sorted(fitted) == sorted(parts[client])
        assert sorted(data.test.x.reshape(-1) - 100 * client) == sorted(test_parts[client])
    with pytest.raises(DataError, match="4 training parts and 3 test parts: give one of each per client"):
        federate_pair(train, parts, test, test_parts[:3], default_rng(0))
    with pytest.raises(DataError, match="sum to less than 1"):
        federate_pair(train, parts, test, test_parts, default_rng(0), validation=1.0)


def test_held_out_clients_can_be_divided() -> None:
    samples = numbered(balanced(2, 50))
    federation = federate(samples, iid(samples.y, 20, default_rng(0)), default_rng(0), held_out=11)
    chooses, tests = divide(federation.held_out, (0.5, 0.5), default_rng(0))
    assert {len(chooses), len(tests)} == {5, 6}
    assert sorted([*chooses, *tests]) == list(federation.held_out)
    assert all(federation.held_out[client] is data for client, data in chooses.items())
    (some,) = divide(federation.held_out, (0.3,), default_rng(0))
    assert len(some) == 3
    drawn = {tuple(divide(federation.held_out, (0.3,), default_rng(seed))[0]) for seed in range(5)}
    assert len(drawn) > 1


@pytest.mark.parametrize(
    ("fractions", "message"),
    [
        ((), "above 0 and sum to at most 1"),
        ((0.7, 0.4), "above 0 and sum to at most 1"),
        ((0.5, 0.0), "above 0 and sum to at most 1"),
        ((0.9, 0.01), "4 clients are too few"),
    ],
)
def test_groups_that_cannot_be_are_refused(fractions: tuple[float, ...], message: str) -> None:
    samples = numbered(balanced(2, 10))
    clients = federate(samples, iid(samples.y, 4, default_rng(0)), default_rng(0)).clients
    with pytest.raises(DataError, match=message):
        divide(clients, fractions, default_rng(0))


def images(count: int, classes: int = 10) -> Samples:
    """Dark images, of which each has the value 0.25 everywhere."""
    return Samples(np.full((count, 1, 4, 4), 0.25, np.float32), balanced(classes, count // classes))


def test_some_parties_of_mnist_robust_have_negatives() -> None:
    federation = mnist_robust(images(400), 10, default_rng(0), negated=0.2)
    values = {client: np.unique(data.train.x).tolist() for client, data in federation.clients.items()}
    assert sorted(values.values()) == [[0.25]] * 8 + [[0.75]] * 2
    assert all(np.unique(data.test.x) == values[k] for k, data in federation.clients.items())
    assert {(len(data.train), len(data.test)) for data in federation.clients.values()} == {(20, 20)}
    assert (federation.classes, federation.name) == (10, "MNIST-robust")
    one = mnist_robust(images(100), 5, default_rng(0), negated=[2], held_out=1, validation=0.25)
    clients = {**one.clients, **one.held_out}
    assert [clients[client].train.x.max() for client in range(5)] == [0.25, 0.25, 0.75, 0.25, 0.25]
    assert len(clients[0].validation) == 5


def test_each_party_of_mnist_personal_has_noise_on_two_classes() -> None:
    federation = mnist_personal(images(2000), 5, default_rng(0), negated=[1], scale=0.1)
    noisy = []
    for client, data in federation.clients.items():
        both = Samples.join((data.train, data.test))
        base = 0.75 if client == 1 else 0.25
        touched = (both.x != np.float32(base)).any(axis=(1, 2, 3))
        noisy.append(set(both.y[touched].tolist()))
        assert len(noisy[-1]) == 2
        assert touched.tolist() == np.isin(both.y, list(noisy[-1])).tolist()
        # The mean distance of a Laplace variable from its centre is its scale.
        assert np.abs(both.x[touched] - base).mean() == pytest.approx(0.1, rel=0.15)
        assert both.x.dtype == np.float32
    assert len({frozenset(each) for each in noisy}) > 1


def test_images_that_cannot_be_negated_or_made_noisy_are_refused() -> None:
    bright = Samples(np.full((20, 1, 2, 2), 200.0, np.float32), balanced(2, 10))
    with pytest.raises(DataError, match="clients must be a whole number"):
        mnist_robust(images(20), 0, default_rng(0), negated=0)
    with pytest.raises(DataError, match="floats from 0 to 1"):
        mnist_robust(bright, 2, default_rng(0), negated=1)
    with pytest.raises(
        DataError,
        match="client 0 has 1 classes, but noise is needed on 2: ask for fewer classes, or for fewer",
    ):
        mnist_personal(images(20, 1), 2, default_rng(0), negated=0)
    with pytest.raises(DataError, match="scale must be above 0"):
        mnist_personal(images(20), 2, default_rng(0), negated=0, scale=0.0)
    with pytest.raises(DataError, match="classes must be a whole number"):
        NoisyClasses(0.5, classes=0)
