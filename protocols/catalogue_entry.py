"""Entries of the catalogue of algorithms: each builds an algorithm and describes its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import partial
from typing import Any, Final

from protocols.algorithm import AnyAlgorithm
from protocols.checks import MissingBound, MissingBounds, shown
from protocols.parameter_fields import index_range_parameters, meanings_of
from protocols.privacy_budget import PrivacyBudget
from protocols.serialisation import Vector
from secagg.errors import ParameterError

_COMMON: Final = ("dim", "clients")
_PRIVACY: Final = "privacy"
INITIAL: Final = "initial"


@dataclass(frozen=True)
class Parameter:
    """A parameter of an algorithm: its default value, its meaning in words, whether users must set it, and
    whether it belongs to the privacy budget of the algorithm's variant with noise (`private`)."""

    name: str
    default: Any
    meaning: str
    required: bool = False
    private: bool = False


@dataclass(frozen=True)
class CatalogueEntry:
    """An algorithm of the catalogue.

    `label`    its name in the paper and in reports.
    `make`     the class, or a partial of it, that builds the algorithm.
    `example`  example values for required parameters, which have no default because they depend on the data.
    `fixed`    values of the parameters that users cannot set, because they define this algorithm.
    """

    name: str
    label: str
    make: Callable[..., AnyAlgorithm]
    summary: str
    example: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters of `make` that users can set, by name, except for `dim` and `clients`."""
        named = inspect.signature(self.make).parameters
        return {key: each for key, each in named.items() if key not in _COMMON and key not in self.fixed}

    @property
    def index_range_parameters(self) -> tuple[str, ...]:
        """The names of parameters that are index ranges of a model, or layer names in scenario files."""
        return tuple(name for name in index_range_parameters(self._kind) if name in self.parameters)

    @property
    def _kind(self) -> Callable[..., AnyAlgorithm]:
        return self.make.func if isinstance(self.make, partial) else self.make

    @property
    def budget(self) -> type[PrivacyBudget] | None:
        """The class of privacy budget with which this algorithm's sums have noise; None if they cannot."""
        if _PRIVACY not in self.parameters:
            return None
        found: type[PrivacyBudget] | None = getattr(self._kind, "budget_type", None)
        return found

    @property
    def budget_names(self) -> tuple[str, ...]:
        """The names of the parameters that this algorithm's class of privacy budget adds to `PrivacyBudget`,
        without those that are also names of the algorithm's own parameters; () if it cannot have noise."""
        common = {each.name for each in fields(PrivacyBudget)}
        named = () if self.budget is None else (each.name for each in fields(self.budget))
        return tuple(name for name in named if name not in common and name not in self.parameters)

    @property
    def settings(self) -> tuple[Parameter, ...]:
        """All parameters of the algorithm and of its privacy budget that users can set by name."""
        meanings = meanings_of(self._kind)
        own = (
            Parameter(name, each.default, meanings.get(name, ""), required=name in self.example)
            for name, each in self.parameters.items()
            if name != _PRIVACY
        )
        noise = meanings_of(self.budget)
        defaults = {} if self.budget is None else inspect.signature(self.budget).parameters
        return *own, *(
            Parameter(name, defaults[name].default, noise[name], defaults[name].default is None, private=True)
            for name in self.budget_names
        )

    def build(
        self, *, dim: int, clients: int, initial: Vector | None = None, **settings: Any
    ) -> AnyAlgorithm:
        """Return the algorithm with the parameters `settings`. Raises `ParameterError` for unknown or invalid
        ones. If several required parameters are missing, one error names all of them. `initial` is the
        clients' initial model, for algorithms that never send clients a whole model."""
        fixed = {**self.fixed, **({INITIAL: initial} if INITIAL in self.fixed else {})}
        for key in settings:
            if key not in self.parameters:
                raise ParameterError(self._no_such(key), parameter=key)
        missing: list[MissingBound] = []
        while True:
            try:
                found = self.make(dim=dim, clients=clients, **fixed, **settings)
            except MissingBound as error:
                if settings.get(error.name) is not None or error.name not in self.parameters:
                    raise
                # A placeholder is set, so that the next attempt finds the next missing parameter.
                settings[error.name] = self.example.get(error.name, 1.0)
                missing.append(error)
                continue
            except ParameterError:
                if not missing:
                    raise
            if missing:
                raise MissingBounds(missing)
            return found

    def _no_such(self, name: str) -> str:
        if name in self.budget_names:
            return f"{name} is a parameter of the noise of {self.name}: in a scenario, set it in [privacy]"
        if name in self.fixed:
            return f"{name} is what makes it {self.name}, and cannot be set"
        known = {each.name: each for each in self.settings}
        return describe_unknown_name("parameter", name, known, f" of {self.name}")


def describe_unknown_name(what: str, name: str, known: Mapping[str, object], where: str = "") -> str:
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known) or 'none'}"
    return f"there is no {what} {shown(name)}{where}: {hint}"
