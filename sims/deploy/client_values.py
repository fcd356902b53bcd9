"""Reads the values that a client adds to a sum, from a file or from a function of the client's operator. If
they are invalid and a part of the sum has no noise, `InputError` is raised and the client declines the sum.
If all parts have noise, `secagg.usable_values` makes values that can be sent. Error messages never contain
values: if the function raises an exception, only its type is reported."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from secagg.clipping_and_fixed_point import checked
from secagg.errors import InputError
from secagg.events import Asked
from secagg.sum_spec import SumSpec
from sims.config_problems import ConfigError
from sims.deploy.config import InputSection
from sims.deploy.repeatable_query_nonce import without_nonce
from sims.imported_object import imported

Source: TypeAlias = Callable[[Asked], Mapping[str, Any]]
Arrays: TypeAlias = dict[str, NDArray[Any]]


def open_source(section: InputSection, directory: Path) -> Source:
    """Return a function that gives the client's values for a question, which is a server's request for a sum.
    It reads a file, which need not exist yet, or is imported; then `directory` is appended to `sys.path`.
    Raise `ConfigError` unless `section` names either a file or a function, or if the import fails."""
    if (section.values is None) == (section.answer is None):
        raise ConfigError("needs either values, a file, or answer, a function, and not both")
    if section.values is not None:
        return _from_file(section.values)
    assert section.answer is not None
    try:
        return imported(section.answer, directory)
    except ConfigError as error:
        raise ConfigError(f"answer: {error}") from None


def is_static(section: InputSection, source: Source) -> bool:
    """Return whether values do not depend on the question: those of a file or a `secagg.static` function."""
    return section.values is not None or bool(getattr(source, "static", False))


def answer_of(source: Source, asked: Asked) -> Mapping[str, Any]:
    """Return what `source` answers, by part name: unchecked if all parts of the sum have noise, because such
    values are changed if they are invalid. Otherwise raise `InputError` if it fails, or if they are."""
    return _raw(source, asked) if asked.spec.is_private else _checked(source, asked)


def _raw(source: Source, asked: Asked) -> Mapping[str, Any]:
    return source(replace(asked, payload=without_nonce(asked.payload)))


def _checked(source: Source, asked: Asked) -> Arrays:
    try:
        return _fitting(_raw(source, asked), asked.spec)
    except (InputError, ConfigError) as error:
        raise InputError(str(error)) from None
    except BaseException as error:  # including sys.exit() in the owner's code
        raise InputError(f"{type(error).__name__} was raised") from None


def _fitting(values: Mapping[str, Any], spec: SumSpec) -> Arrays:
    """Return the arrays for the parts of `spec`, by name. Raise `InputError` if one is missing or invalid."""
    if not isinstance(values, Mapping):
        raise InputError(f"the values are not a mapping but {type(values).__name__}")
    absent = [part.name for part in spec.parts if part.name not in values]
    if absent:
        raise InputError(f"there is no array {absent[0]!r}")
    return {part.name: checked(part, values[part.name]) for part in spec.parts}


def _from_file(path: Path) -> Source:
    def read(_asked: Asked) -> Mapping[str, Any]:
        try:
            with _opened(path) as file, np.load(file, allow_pickle=False) as archive:
                return dict(archive)
        except InputError:
            raise
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or 'it is damaged'}") from None
        except Exception as error:  # numpy raises many types
            what = f"({type(error).__name__})"
            raise InputError(f"{path} does not hold arrays as numpy.savez writes them {what}") from None

    return read


def _opened(path: Path) -> BinaryIO:
    # Without O_NONBLOCK, opening a pipe would wait for its writer.
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    raise InputError(f"{path} is a directory or a special file, not one of numpy.savez")
