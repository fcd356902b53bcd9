"""Collects all problems of a configuration file, so that one error can report them with their keys."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, get_args

from secagg.errors import LocalError, PeerError, SecaggError
from secagg.net.atomic_files import FileKind

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

Place: TypeAlias = tuple[int | str, ...]  # keys and list indices that lead to a value

# Pydantic's name of a type error -> the text for the user.
_TYPES: Final = {
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be a text in quotes",
    "bool_type": "must be true or false",
    "list_type": "must be an array of tables",
    "model_type": "must be a table",
}
_LONGEST: Final = 60  # characters of a value that are shown


@dataclass(frozen=True)
class Problem:
    """One problem of a configuration file: what is wrong with a key, or if `key` is empty, with the file."""

    path: Path
    key: str
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {self.key}: {self.why}" if self.key else f"{self.path}: {self.why}"


class ConfigError(LocalError):
    """Raised if a command cannot start or continue. The message is for the user and has one line per problem.
    `problems` has the problems of a configuration file. It is empty if the error is about something else."""

    def __init__(self, message: str, problems: Iterable[Problem] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)

    @classmethod
    def listing(cls, problems: Sequence[Problem]) -> ConfigError:
        """Return a `ConfigError` with these problems and a message of one line per problem."""
        return cls("\n".join(map(str, problems)), problems)

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the configuration key of each problem, such as `training.rate`."""
        return tuple(each.key for each in self.problems)


CONFIG: Final = FileKind("a configuration", "write one, or correct the path", ConfigError)


class Problems:
    """Collects the problems of one configuration file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.found: list[Problem] = []

    def add(self, key: str, why: str) -> None:
        self.found.append(Problem(self._path, key, why))

    def about(self, key: str) -> _About:
        """Return a context manager that catches a `SecaggError` and adds it as a problem of `key`."""
        return _About(self, key)

    def take(self, key: str, error: SecaggError) -> None:
        """Add the text of `error` as a problem of `key`."""
        self.add(key, error.why if isinstance(error, PeerError) else str(error))

    def add_all(self, error: ValidationError, model: type[BaseModel]) -> None:
        """Add the problems that pydantic found in a document of type `model`. A misspelt key is only reported
        as unknown, not also as missing."""
        details = error.errors(include_url=False)
        unknown = [detail["loc"] for detail in details if detail["type"] == "extra_forbidden"]
        likely = {place: _likely(model, place) for place in unknown}
        meant = {(*place[:-1], name) for place, name in likely.items()}
        for detail in details:
            place = detail["loc"]
            if detail["type"] == "missing" and place in meant:
                continue  # The key is present under a misspelt name.
            self.add(_key(place), _why(detail, model, likely.get(place)))

    def check(self) -> None:
        """Raise `ConfigError` with all problems, if there are any."""
        if self.found:
            raise self.error()

    def error(self) -> ConfigError:
        return ConfigError.listing(self.found)


class _About:
    """A context manager that catches a `SecaggError` and adds it as a problem of one configuration key."""

    def __init__(self, problems: Problems, key: str) -> None:
        self._problems = problems
        self._key = key

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, SecaggError):
            self._problems.take(self._key, error)
            return True
        return False


def nearest(name: str, names: Sequence[str]) -> str:
    """Return a hint for an unknown name: "did you mean X?" with the most similar one, or all `names`."""
    close = get_close_matches(name, names, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"


def shown(value: object) -> str:
    """Return the `repr` of a value for an error message, cut after `_LONGEST` characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of too many digits, or too many tables within tables
        return "a value that is too long to show"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _key(place: Place) -> str:
    """Return `place` as a dotted key: `server.listen`, or `sum#2.part#1.bits` in the second [[sum]] table."""
    steps = [f"#{step + 1}" if isinstance(step, int) else f".{step}" for step in place]
    return "".join(steps).removeprefix(".")


def _why(detail: ErrorDetails, model: type[BaseModel], likely: str | None) -> str:
    kind, value = detail["type"], detail["input"]
    if kind == "extra_forbidden":
        names = _names(model, detail["loc"])
        hint = f"did you mean {likely}?" if likely else f"there are {', '.join(names)}"
        return f"is not known here; {hint}"
    if kind == "missing":
        return "is missing"
    if kind in _TYPES:
        return f"{_TYPES[kind]}, not {shown(value)}"
    if kind == "literal_error":
        expected = detail["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        return f"{shown(value)} is no choice; {nearest(str(value), expected)}"
    if kind == "value_error":
        return str(detail["ctx"]["error"])
    return detail["msg"].replace("Input should", "must")


def _likely(model: type[BaseModel], place: Place) -> str | None:
    close = get_close_matches(str(place[-1]), _names(model, place), n=1)
    return close[0] if close else None


def _names(model: type[BaseModel], place: Place) -> list[str]:
    """Return all keys that `model` allows in the table that contains the value at `place`."""
    for step in place[:-1]:
        if isinstance(step, str):
            model = _model_in(model.model_fields[step].annotation)
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel]:
    """Return the pydantic class `Model` in a field annotation `Model`, `Model | None` or `list[Model]`."""
    from pydantic import BaseModel  # Imported here because only commands that read configurations need it.

    candidates = (annotation, *get_args(annotation))
    return next(each for each in candidates if isinstance(each, type) and issubclass(each, BaseModel))


def toml_tables(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file as nested dictionaries. Raise `ConfigError` if it cannot be read."""
    try:
        return tomllib.loads(CONFIG.read(path).decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not TOML: it is not even UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    except ValueError:  # Python converts no decimal number of more than 4300 digits.
        raise ConfigError(f"{path} has a number of too many digits; write a shorter one") from None
    except RecursionError:
        raise ConfigError(f"{path} has too many brackets within brackets; write fewer") from None
