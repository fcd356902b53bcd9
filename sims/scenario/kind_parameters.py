"""Checks the kinds of data, partition, model and attack that a scenario names, and their parameters. The
package `fl` has a registry with one function for each kind. The parameters of a kind are those of its
function, with the types of its annotations. A check imports torch."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError

from sims.config_problems import ConfigError, Problems, nearest, shown
from sims.imported_object import imported, is_reference
from sims.scenario.settings import NO_DATA, AttackSection, OpenSection, Settings

Maker = Callable[..., Any]
_VARIABLE: Final = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


@dataclass(frozen=True)
class KindTable:
    """The kinds that a scenario's table, such as `[data]`, may name, and the function that makes each kind.
    The simulation provides the parameters in `given`, which a scenario cannot set, and those in `likely` that
    the scenario does not set."""

    table: str  # its name in a scenario, such as "data"
    kinds: Callable[[], Mapping[str, Maker]]
    given: frozenset[str]  # parameters of functions that the simulation provides; they cannot be set
    likely: frozenset[str] = frozenset()  # parameters that the simulation provides unless they are set
    own_code: bool = False  # whether a kind may also be "module:object", a function of the user's own

    def has(self, kind: str) -> bool:
        return (self.own_code and is_reference(kind)) or kind.replace("_", "-") in self._dashed()

    def _dashed(self) -> dict[str, Maker]:
        """Return a mapping from kinds, with dashes for underscores, to the functions that make them."""
        return {name.replace("_", "-"): maker for name, maker in self.kinds().items()}

    def find(self, kind: str) -> Maker:
        """Return the function that makes objects of this kind. Raise `ConfigError` for an unknown kind, or
        for a function of the user's own that cannot be imported."""
        if self.own_code and is_reference(kind):
            return imported(kind)
        kinds = self._dashed()
        if not self.has(kind):
            raise ConfigError(f"{shown(kind)} is not known; {nearest(kind, sorted(kinds))}")
        return kinds[kind.replace("_", "-")]

    def arguments(self, section: OpenSection, kind: str, problems: Problems) -> dict[str, Any]:
        """Return the keys of `section` beyond its fields as typed arguments of the function that makes
        `kind`. Add problems: an unknown kind, unknown or missing keys, values of a wrong type."""
        try:
            maker = self.find(kind)
        except ConfigError as error:
            problems.add(f"{self.table}.kind", str(error))
            return {}
        values = section.parameters
        found: dict[str, Any] = {}
        known = self.parameters(maker)
        taken = signature_of(maker).parameters.values()
        is_open = any(each.kind is each.VAR_KEYWORD for each in taken)
        for name, value in values.items():
            if name in known:
                found[name] = _typed(known[name], value, problems, f"{self.table}.{name}")
            elif is_open:
                found[name] = value  # The function itself checks the value.
            else:
                names = dict.fromkeys((*known, *type(section).model_fields))
                problems.add(f"{self.table}.{name}", f"is not known here; {nearest(name, list(names))}")
        required = {each.name for each in taken if each.default is each.empty}
        for name in required & (known.keys() - self.likely) - values.keys():
            problems.add(f"{self.table}.{name}", f"is missing: {kind} needs it")
        return found

    def arguments_or_raise(self, section: OpenSection, kind: str) -> dict[str, Any]:
        """Return what `arguments` returns (typed arguments by name), but raise `ConfigError` for problems."""
        problems = Problems(Path(self.table))
        found = self.arguments(section, kind, problems)
        problems.check()
        return found

    def parameters(self, maker: Maker) -> dict[str, Any]:
        """Return the parameters of the function `maker` that a scenario can set: name -> type."""
        parameters = signature_of(maker).parameters.items()
        names = (name for name, each in parameters if name not in self.given and each.kind not in _VARIABLE)
        hints = _hints(maker)
        fixed = maker.keywords if isinstance(maker, partial) else {}
        return {name: hints.get(name, Any) for name in names if name not in fixed}


def _imported(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] == "fl":
            raise
        raise ConfigError(f"{error.name} is not there: pip install 'secagg[fl]'") from None


_SPLIT: Final = frozenset({"validation", "test", "held_out", "name"})
_INPUTS: Final = frozenset({"features", "classes", "channels", "size"})

DATA: Final = KindTable(
    "data",
    lambda: _imported("fl.data").SOURCES,
    frozenset({"rng"}),
    frozenset({"seed", "directory"}),
    own_code=True,
)
PARTITIONS: Final = KindTable(
    "partition",
    lambda: _imported("fl.partition").PARTITIONS,
    frozenset({"labels", "clients", "rng", "owner"}),
)
# These partitions also change samples, so their functions return whole federations.
RECIPES: Final = KindTable(
    "partition",
    lambda: {each: getattr(_imported("fl.partition"), each) for each in ("mnist_robust", "mnist_personal")},
    frozenset({"samples", "clients", "rng"}) | _SPLIT,
)
# The inputs of a model follow from the data, but may be set.
MODELS: Final = KindTable(
    "model", lambda: _imported("fl.models").MODELS, frozenset({"seed"}), _INPUTS, own_code=True
)
ATTACKS: Final = KindTable("attack", lambda: _imported("fl.attacks").ATTACKS, frozenset({"learner", "rng"}))
TAMPERINGS: Final = KindTable("attack", lambda: _imported("fl.attacks").TAMPERINGS, frozenset({"rng"}))


def partitions(kind: str) -> KindTable:
    return RECIPES if kind.replace("-", "_") in RECIPES.kinds() else PARTITIONS


def attacks(level: str) -> KindTable:
    return TAMPERINGS if level == "message" else ATTACKS


def check(settings: Settings, problems: Problems) -> None:
    """Add a problem for each unknown kind, and for each parameter that its kind does not accept or lacks."""
    if settings.data != NO_DATA:
        DATA.arguments(settings.data, settings.data.kind, problems)
    if settings.partition is not None:
        kind = settings.partition.kind
        partitions(kind).arguments(settings.partition, kind, problems)
    MODELS.arguments(settings.model, settings.model.kind, problems)
    if settings.attack is not None:
        _check_attack(settings.attack, problems)


def _check_attack(attack: AttackSection, problems: Problems) -> None:
    registry = attacks(attack.level)
    level = "update" if attack.level == "message" else "message"
    if not registry.has(attack.kind) and attacks(level).has(attack.kind):
        problems.add(
            "attack.kind", f'{shown(attack.kind)} is an attack of the other level: set level = "{level}"'
        )
    else:
        registry.arguments(attack, attack.kind, problems)


# --- parameters by signature ---


def signature_of(maker: Maker) -> inspect.Signature:
    """Return the signature of the callable whose parameters a scenario can set. If Python cannot tell, as for
    some callables of libraries, it takes any keywords."""
    try:
        return inspect.signature(_target(maker))
    except (TypeError, ValueError):
        return inspect.Signature([inspect.Parameter("parameters", inspect.Parameter.VAR_KEYWORD)])


def _hints(maker: Maker) -> dict[str, Any]:
    """Return the types of parameters; {} if an annotation of the user's own code cannot be evaluated."""
    try:
        return get_type_hints(_annotated(maker))
    except (AttributeError, NameError, TypeError):
        return {}


def _target(maker: Maker) -> Maker:
    """Return the callable whose parameters a scenario can set. For `partial(function, inner)`, this is
    `inner`; for a `partial` without positional arguments, its function; for anything else, `maker` itself."""
    if isinstance(maker, partial):
        return maker.args[0] if maker.args else maker.func
    return maker


def _annotated(maker: Maker) -> Any:
    target = _target(maker)
    if not isinstance(target, type):
        return target
    return target if is_dataclass(target) else getattr(target, "__init__")  # noqa: B009


def _typed(hint: Any, value: Any, problems: Problems, key: str) -> Any:
    """Return a TOML value converted to the type `hint`: lists to tuples, tables to dataclasses. If it does
    not fit, add a problem of `key` and return the value unchanged."""
    if isinstance(value, dict):
        known = _fields(hint)
        for name in value.keys() - set(known):
            problems.add(f"{key}.{name}", f"is not known here; {nearest(name, known)}")
    try:
        adapter = TypeAdapter(hint)
    except PydanticSchemaGenerationError:
        return value  # Only the function itself can check this type.
    try:
        # JSON and TOML have the same types, so strict validation of JSON fits TOML.
        return adapter.validate_json(json.dumps(value, default=str), strict=True)
    except ValidationError as error:
        for name, reasons in _reasons(error, value).items():
            problems.add(f"{key}.{name}".rstrip("."), " or ".join(reasons))
        return value


def _fields(hint: Any) -> list[str]:
    """Return the field names of `hint` if it is a dataclass, or of the dataclasses in a union; [] if none."""
    candidates = (hint, *get_args(hint))
    return [each.name for kind in candidates if is_dataclass(kind) for each in fields(kind)]


def _reasons(error: ValidationError, value: Any) -> dict[str, list[str]]:
    """Return error texts by the key of the table `value` that they concern; "" if they concern all of it."""
    found: dict[str, list[str]] = {}
    for each in error.errors(include_url=False):
        name = next((str(step) for step in each["loc"] if isinstance(value, dict) and step in value), "")
        if each["type"] == "value_error":
            why = str(each["ctx"]["error"])
        else:
            why = f"{each['msg'].replace('Input should', 'must')}, not {shown(each['input'])}"
        if why not in found.setdefault(name, []):
            found[name].append(why)
    return found
