"""Words of others, as they stand in a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def sentence_of(text: str) -> str:
    """With a capital and a full stop."""
    text = text[:1].upper() + text[1:]
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."


def values_of(cell: Mapping[str, Any]) -> list[str]:
    """What was swept, one by one: a label says enough by itself, and a number needs its name."""
    return [
        value if isinstance(value, str) else f"{key.rpartition('.')[2]} {value}"
        for key, value in cell.items()
    ]
