"""Data sets that are generated, by name: each is a whole federation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final, get_type_hints

from fl.data import fedplus_regression, gaussian_classes, leaf_synthetic, least_squares, logistic, synthetic
from fl.federation import Federation

Maker = Callable[..., Any]


def _least_squares(**given: Any) -> Federation:
    return least_squares.least_squares(**given).federation()


def _logistic(**given: Any) -> Federation:
    return logistic.logistic(**given).federation()


def _synthetic(**given: Any) -> Federation:
    return synthetic.synthetic(**given)


def _like(function: Maker, parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any]) -> Maker:
    """Return `function`, which takes any keywords, with the signature of what it passes them to."""
    named = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters.values()]
    function.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    function.__annotations__ = {**hints, "return": Federation}
    return function


def _presets() -> Maker:
    """Return the synthetic data with a preset, and every field of its recipe as a parameter."""
    taken = inspect.signature(synthetic.synthetic).parameters
    recipe = inspect.signature(synthetic.Recipe).parameters
    names = [each.name for each in fields(synthetic.Recipe) if each.name != "name"]
    parameters = {name: taken[name] for name in ("preset", "seed")} | {name: recipe[name] for name in names}
    hints = {**get_type_hints(synthetic.Recipe), "preset": str, "seed": int}
    return _like(_synthetic, parameters, hints)


def _of(function: Maker, shape: Maker) -> Maker:
    return _like(function, inspect.signature(shape).parameters, get_type_hints(shape))


GENERATORS: Final[Mapping[str, Maker]] = {
    "synthetic": _presets(),
    "leaf-synthetic": leaf_synthetic.leaf_synthetic,
    "fedplus-regression": fedplus_regression.fed_plus_regression,
    "least-squares": _of(_least_squares, least_squares.least_squares),
    "logistic": _of(_logistic, logistic.logistic),
    "classification": gaussian_classes.classification,
    "quantile-task": gaussian_classes.quantile_task,
}
