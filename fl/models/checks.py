"""Names and parameters of models, checked with errors that say what would be right."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from fl.errors import TrainingError


def no_such(what: str, name: object, known: Iterable[str]) -> TrainingError:
    """The error for a name that is none of those `known`: it says which is nearest, and lists them all."""
    names = tuple(known)
    near = get_close_matches(str(name), names, n=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    return TrainingError(f"there is no {what} {name!r}: {meant}There are {', '.join(names) or 'none'}")


def whole(**values: int) -> None:
    """Refuse those that are no whole numbers of 1 or more."""
    for name, value in values.items():
        if not _is_size(value):
            raise TrainingError(f"{name} must be a whole number of 1 or more, not {value!r}")


def truth(**values: bool) -> None:
    """Refuse those that are neither True nor False; a text such as "no" would count as true."""
    for name, value in values.items():
        if type(value) is not bool:
            raise TrainingError(f"{name} must be true or false, not {value!r}")


def widths(name: str, values: Iterable[int]) -> tuple[int, ...]:
    """The widths of some layers; a settings file gives a list of them."""
    if not isinstance(values, (list, tuple)) or not all(map(_is_size, values)):
        raise TrainingError(f"{name} must be a list of whole numbers such as [100, 100], not {values!r}")
    return tuple(values)


def probability(**values: float) -> None:
    """Refuse those that are no numbers from 0 to below 1."""
    for name, value in values.items():
        if type(value) not in (int, float) or not 0 <= value < 1:
            raise TrainingError(f"{name} must be a number from 0 to below 1, not {value!r}")


def _is_size(value: object) -> bool:
    return type(value) is int and value >= 1
