"""What pydantic finds wrong with a scenario, where its own words are about Python and not about TOML."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails

from sims.deploy.problems import Problems, shown
from sims.scenario.settings import Settings

_TEST: Final = ("partition", "test")
_BESIDE: Final = ("name", "sweep", "quick")  # of the file, and not of one simulation


def tell(error: ValidationError, problems: Problems) -> None:
    """Add everything that is wrong, each in one line."""
    others: list[InitErrorDetails] = []
    told: set[str] = set()
    for detail in error.errors(include_url=False):
        why = _why(detail)
        if why is None:
            others.append(_again(detail))
            continue
        key = ".".join(_key(detail).split(".")[:2])
        if key not in told:
            told.add(key)
            problems.add(key, why)
    if others:
        problems.add_all(ValidationError.from_exception_data(error.title, others), Settings)


def _why(detail: ErrorDetails) -> str | None:
    if detail["loc"][:2] == _TEST:  # one error for each of the types that it may have
        return f'must be a part of all, from 0 to below 1, or "given", not {shown(detail["input"])}'
    if detail["type"] == "extra_forbidden":
        close = get_close_matches(_key(detail), (*Settings.model_fields, *_BESIDE), n=1)
        if _key(detail) in _BESIDE:
            return "is of the whole file, and cannot be changed from outside or by a sweep"
        return f"is not known here; did you mean {close[0]}?" if close and close[0] in _BESIDE else None
    if detail["type"] == "list_type":
        return f"must be a list, such as [{_quoted(detail['input'])}], not {shown(detail['input'])}"
    return None


def _key(detail: ErrorDetails) -> str:
    return ".".join(map(str, detail["loc"]))


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else shown(value)


def _again(detail: ErrorDetails) -> InitErrorDetails:
    return InitErrorDetails(
        type=detail["type"], loc=detail["loc"], input=detail["input"], ctx=detail.get("ctx", {})
    )
