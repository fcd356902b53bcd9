"""Registry of data sets: `load` returns a data set by name, `register` adds one.

A data set is made by a source, a function that returns samples, samples by owner, or a whole federation.
Sources that read files take the directory as their first argument. No source downloads anything.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, TypeAlias, get_type_hints

from fl.checks import unknown_name
from fl.data import (
    cifar10,
    digits,
    fedplus_regression,
    fedprox_synthetic,
    file_reading,
    leaf,
    leaf_clustered,
    least_squares_problem,
    logistic_problem,
    mnist_fashion_and_emnist,
    npz,
    quantile_paper_synthetic,
    shakespeare,
)
from fl.data.owned_samples import OwnedSamples
from fl.errors import DataError
from fl.federation import Federation
from fl.samples import Samples

Source: TypeAlias = Callable[..., Samples | OwnedSamples | Federation]

# --- generated data sets ---

Generate: TypeAlias = Callable[..., Any]


def _synthetic(**given: Any) -> Federation:
    return fedprox_synthetic.synthetic(**given)


def _like(
    function: Generate, parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any]
) -> Generate:
    """Set the signature of `function`, which takes any keywords, to `parameters` (as keywords) and its
    annotations to `hints`, so that `load` can check arguments. Return this function."""
    named = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters.values()]
    function.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    function.__annotations__ = {**hints, "return": Federation}
    return function


def _presets() -> Generate:
    """Return a function that makes FedProx's synthetic data from a preset, a seed and fields of `Recipe`."""
    taken = inspect.signature(fedprox_synthetic.synthetic).parameters
    recipe = inspect.signature(fedprox_synthetic.Recipe).parameters
    names = [each.name for each in fields(fedprox_synthetic.Recipe) if each.name != "name"]
    parameters = {name: taken[name] for name in ("preset", "seed")} | {name: recipe[name] for name in names}
    hints = {**get_type_hints(fedprox_synthetic.Recipe), "preset": str, "seed": int}
    return _like(_synthetic, parameters, hints)


def _federation_of(problem: Generate) -> Generate:
    """Return a function with the parameters of `problem`. It calls `problem` and returns its federation."""
    parameters, hints = inspect.signature(problem).parameters, get_type_hints(problem)
    return _like(lambda **given: problem(**given).federation(), parameters, hints)


_GENERATED: Final[Mapping[str, Generate]] = {
    "synthetic": _presets(),
    "leaf-synthetic": leaf_clustered.leaf_synthetic,
    "fedplus-regression": fedplus_regression.fed_plus_regression,
    "least-squares": _federation_of(least_squares_problem.least_squares),
    "logistic": _federation_of(logistic_problem.logistic),
    "classification": quantile_paper_synthetic.classification,
    "quantile-task": quantile_paper_synthetic.quantile_task,
}


# --- the registry ---

SOURCES: dict[str, Source] = {
    "cifar10": cifar10.cifar10,
    "digits": digits.digits,
    "emnist": mnist_fashion_and_emnist.emnist,
    "fashion-mnist": mnist_fashion_and_emnist.fashion_mnist,
    "leaf": leaf.leaf,
    "mnist": mnist_fashion_and_emnist.mnist,
    "npz": npz.pooled,
    "npz-owned": npz.owned,
    "shakespeare": shakespeare.shakespeare,
    **_GENERATED,
}


def register(name: str, source: Source) -> None:
    """Add a data set, so that `load` and descriptions of simulations accept its name. Raise `DataError` if it
    is taken. The return annotation of `source` must be `Samples`, `OwnedSamples` or `Federation`."""
    if name in SOURCES:
        raise DataError(f"there is a data set {name!r} already: choose another name", parameter="name")
    SOURCES[name] = source


def load(
    name: str, directory: str | Path | None = None, **parameters: Any
) -> Samples | OwnedSamples | Federation:
    """Return the data set called `name`. Give `directory` only if it is read from files. Raise `DataError`
    for an unknown name, an invalid parameter, missing files, or a directory that is missing or not needed."""
    if name not in SOURCES:
        raise unknown_name("data set", name, sorted(SOURCES), DataError, parameter="kind")
    source = SOURCES[name]
    accepted = inspect.signature(source).parameters
    if ("directory" in accepted) != (directory is not None):
        need = (
            "is read from files: give the directory" if directory is None else "is not read from a directory"
        )
        raise DataError(f"{name} {need}")
    if directory is not None:
        parameters = {"directory": directory, **parameters}
    try:
        inspect.signature(source).bind(**parameters)
    except TypeError as error:
        raise DataError(f"{name}: {error}. It takes {', '.join(accepted) or 'no parameters'}") from error
    return source(**parameters)


Look: TypeAlias = Callable[[str, Path, Mapping[str, Any]], Any]


def look(kind: str, directory: Path, parameters: Mapping[str, Any]) -> None:
    """Raise `DataError` if files of the data set `kind` are missing, without loading it. `parameters` are
    those for `load`; the ones that do not select files are ignored. For data sets without such a check, such
    as registered ones, only the existence of the directory is checked."""
    if kind in _LOOKS:
        _LOOKS[kind](kind, directory, parameters)
    elif not directory.is_dir():
        raise DataError(f"{directory} is not a directory: {kind} is read from it")


def _idx(kind: str, directory: Path, parameters: Mapping[str, Any]) -> None:
    named = {name: parameters[name] for name in ("split", "part") if name in parameters}
    mnist_fashion_and_emnist.look(kind, directory, **named)


def _npz(_kind: str, directory: Path, parameters: Mapping[str, Any]) -> None:
    file_reading.find(directory, (parameters["file"],), npz.ORIGIN)


_LOOKS: Final[Mapping[str, Look]] = {
    "cifar10": lambda _, directory, given: list(cifar10.batch_files(directory, given.get("part", "all"))),
    "emnist": _idx,
    "fashion-mnist": _idx,
    "leaf": lambda _, directory, given: leaf.json_files(directory, given.get("part", "all")),
    "mnist": _idx,
    "npz": _npz,
    "npz-owned": _npz,
    "shakespeare": lambda _, directory, given: shakespeare.text_in(directory, given.get("file")),
}
