"""Imports and calls functions of the user's own code, which a configuration names as "package.module:object".

Error messages say where in the user's code an exception was raised. They contain its text only if it cannot
contain private data.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final, TypeVar

from fl.errors import FLError
from sims.config_problems import ConfigError

R = TypeVar("R")
_COLON: Final = ":"
_NOTHING: Final = object()
_VARIABLE: Final = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
_OWN: Final = ("sims", "fl", "protocols", "secagg")  # the packages of this project
_LIBRARIES: Final = (
    *(Path(__file__).resolve().parents[1] / each for each in _OWN),
    *(Path(sysconfig.get_path(each)) for each in ("stdlib", "purelib", "platlib")),
)


def is_reference(name: str) -> bool:
    """Return whether `name` names an object of the user's own code, and not one of this project."""
    return _COLON in name


def search_modules_in(directory: Path) -> None:
    """Have later imports also find modules in `directory`, after all others: no file there can replace an
    installed library."""
    found = str(directory.resolve())
    if found not in sys.path:
        sys.path.append(found)
    importlib.invalidate_caches()


def imported(name: str, directory: Path | None = None) -> Callable[..., Any]:
    """Return the function or class that `name` names. Its module is looked for on `sys.path` and then in
    `directory`. Raise `ConfigError` if it cannot be imported, or has no such function or class."""
    module_name, colon, object_name = name.partition(_COLON)
    if not (colon and module_name and object_name):
        raise ConfigError(f"must be 'package.module:object', not {name!r}")
    if directory is not None:
        search_modules_in(directory)
    try:
        module = importlib.import_module(module_name)
        found = getattr(module, object_name, _NOTHING)  # which may call code of the module, too
    except ModuleNotFoundError as error:
        remedy = f"put {module_name}.py beside the file that names it" if error.name == module_name else ""
        raise ConfigError(
            f"{module_name} cannot be imported ({error}): {remedy or 'install what it imports'}"
        ) from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # libraries derive errors from it, and a module may call sys.exit()
        raise ConfigError(f"{module_name} cannot be imported ({_where(error)}): correct it") from None
    if not callable(found):
        other = "" if found is _NOTHING else f", only a {type(found).__name__}"
        origin = getattr(module, "__file__", None) or "built in"
        raise ConfigError(
            f"{module_name} ({origin}) has no function or class {object_name!r}{other}: add one, or correct "
            "the name"
        )
    made: Callable[..., Any] = found
    return made


def check_arguments(name: str, function: Callable[..., Any], arguments: Collection[str], table: str) -> None:
    """Raise `ConfigError` if the user's `function`, which a configuration calls `name`, cannot be called with
    arguments of these names, which the table `table` of the configuration has."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return  # Python cannot tell this of some callables of libraries.
    named = [each for each in parameters if each.kind not in _VARIABLE]
    taken = [each.name for each in named if each.kind is not each.POSITIONAL_ONLY]
    unknown = [each for each in arguments if each not in taken]
    if unknown and not any(each.kind is each.VAR_KEYWORD for each in parameters):
        has = ", ".join(taken) or "none"
        raise ConfigError(f"{name} has no parameter {', '.join(unknown)}; it has {has}: correct [{table}]")
    needed = [each for each in named if each.default is each.empty and each.name not in arguments]
    for each in needed:
        if each.kind is each.POSITIONAL_ONLY:
            raise ConfigError(f"{name} takes {each.name} by position only: remove the / from its parameters")
    if needed:
        names = ", ".join(each.name for each in needed)
        raise ConfigError(f"{name} needs {names}: set it in [{table}], or give default values")


def called(name: str, function: Callable[..., R], *, private: bool, **arguments: Any) -> R:
    """Return what the user's `function`, which a configuration calls `name`, returns for these arguments.
    Raise `ConfigError` if it raises an exception; with `private`, its text is shown only if it is one of this
    project."""
    try:
        return function(**arguments)
    except (FLError, ConfigError) as error:
        raise ConfigError(f"{name}: {error}") from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        text = "" if private or not str(error) else f": {error}"
        raise ConfigError(f"{name} raised {_where(error)}{text}; correct it") from None


def _where(error: BaseException) -> str:
    """Return the type of `error` and, if it is known, the last line of code outside of libraries."""
    kind = type(error).__name__
    if isinstance(error, SyntaxError) and error.filename and _is_of_user(error.filename):
        line = f", line {error.lineno}" if error.lineno else ""
        return f"{kind} in {Path(error.filename).name}{line}"
    frames = [each for each in traceback.extract_tb(error.__traceback__) if _is_of_user(each.filename)]
    if frames:
        return f"{kind} in {Path(frames[-1].filename).name}, line {frames[-1].lineno}"
    return f"{kind}: its file is not Python text" if isinstance(error, SyntaxError) else kind


def _is_of_user(file: str) -> bool:
    path = Path(file)
    return path.is_file() and not any(path.is_relative_to(each) for each in _LIBRARIES)
