"""The catalogue: what its entries say of their parameters, and how they refuse wrong ones."""

from __future__ import annotations

from typing import Any

import pytest

from protocols.algorithm import AnyAlgorithm
from protocols.catalogue import CATALOGUE, find
from protocols.catalogue_entry import CatalogueEntry, Parameter
from protocols.checks import MissingBound, shown
from protocols.fedavg import FedAvg
from protocols.privacy_budget import HistogramBudget, PrivacyBudget
from secagg.errors import ParameterError


def settings_of(name: str) -> dict[str, Parameter]:
    return {each.name: each for each in find(name).settings}


def test_an_unknown_algorithm_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ParameterError, match="did you mean 'fedavg'"):
        find("fedavgg")
    with pytest.raises(ParameterError, match="there are fedavg, "):
        find("0123456789")


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_setting_of_an_entry_has_a_meaning(name: str) -> None:
    assert all(each.meaning for each in find(name).settings)


@pytest.mark.parametrize("name", CATALOGUE)
def test_settings_are_the_parameters_without_the_fixed_ones(name: str) -> None:
    entry = find(name)
    own = {each.name for each in entry.settings if not each.private}
    assert own == set(entry.parameters) - {"privacy"}
    assert not own & {"dim", "clients", *entry.fixed}


def test_settings_have_their_defaults_and_say_which_are_required() -> None:
    found = settings_of("fedavg")
    assert found["clip"].required
    assert not found["cap"].required
    assert found["cap"].default == 1000


def test_private_settings_are_those_of_the_budget_alone() -> None:
    entry = find("simplicial")
    assert entry.budget is not None
    assert issubclass(entry.budget, PrivacyBudget)
    private = {each.name for each in entry.settings if each.private}
    assert private == set(entry.budget_names)
    assert (entry.budget is HistogramBudget) == bool(private)


def test_without_a_private_variant_there_is_no_budget() -> None:
    entry = find("qffl")
    assert entry.budget is None
    assert entry.budget_names == ()


def test_parameters_that_select_parts_of_a_model_are_known() -> None:
    assert "personal_part" in find("fedalt").index_range_parameters
    assert find("fedavg").index_range_parameters == ()


@pytest.mark.parametrize(
    ("name", "setting", "sentence"),
    [
        ("fedavg", "clipp", "did you mean 'clip'"),
        ("fedavg", "mu", "mu is what makes it fedavg"),
    ],
)
def test_a_parameter_that_cannot_be_set_is_named(name: str, setting: str, sentence: str) -> None:
    wrong: dict[str, Any] = {setting: 1.0}
    with pytest.raises(ParameterError, match=sentence) as caught:
        find(name).build(dim=2, clients=4, clip=1.0, **wrong)
    assert caught.value.parameter == setting


def test_a_parameter_of_the_budget_alone_cannot_be_set_without_noise() -> None:
    entry = next(each for each in CATALOGUE.values() if each.budget_names)
    name = entry.budget_names[0]
    wrong: dict[str, Any] = {name: 1.0}
    with pytest.raises(ParameterError, match="noise of") as caught:
        entry.build(dim=2, clients=4, **entry.example, **wrong)
    assert caught.value.parameter == name


def test_all_missing_bounds_are_named_at_once() -> None:
    with pytest.raises(ParameterError, match=r"clip.*; lambda_max|lambda_max.*; clip"):
        find("fedbc").build(dim=2, clients=4)
    with pytest.raises(ParameterError, match="clip must be set") as caught:
        find("fedavg").build(dim=2, clients=4)
    assert caught.value.parameter == "clip"


def test_a_missing_bound_is_named_before_what_else_is_wrong() -> None:
    with pytest.raises(ParameterError, match="clip must be set"):
        find("fedprox").build(dim=2, clients=4, mu=-1.0)
    with pytest.raises(ParameterError, match="mu must be"):
        find("fedprox").build(dim=2, clients=4, clip=1.0, mu=-1.0)


def test_a_bound_that_is_no_parameter_of_the_entry_is_passed_on() -> None:
    def make(dim: int, clients: int) -> AnyAlgorithm:
        return FedAvg(dim=dim, clients=clients)

    with pytest.raises(MissingBound) as caught:
        CatalogueEntry("own", "Own", make, "without a clip").build(dim=2, clients=4)
    assert caught.value.parameter == "clip"


def test_values_in_errors_are_short() -> None:
    assert shown("x" * 100) == "'" + "x" * 56 + "..."
    assert shown(10**5000) == "a number of thousands of digits"
