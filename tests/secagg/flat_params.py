"""Keyword arguments of a server or a session, written flat: tests change single ones of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from secagg.session_params import SessionParams

NAMES = {field.name for field in fields(SessionParams)}


def session_params(flat: Mapping[str, Any]) -> SessionParams:
    """The `SessionParams` among `flat` arguments."""
    return SessionParams(**{name: value for name, value in flat.items() if name in NAMES})


def with_params(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The same arguments, with one `params` instead of its fields."""
    rest = {name: value for name, value in flat.items() if name not in NAMES}
    return {**rest, "params": session_params(flat)}
