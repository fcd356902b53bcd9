"""Tables as TOML text, for scenarios that are written down as they were run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def as_toml(document: Mapping[str, Any]) -> str:
    """A document of plain values, arrays and tables. What is None is left out: TOML has no such value."""
    return "\n".join(_table(document, ())) + "\n"


def _table(table: Mapping[str, Any], path: Sequence[str]) -> Iterator[str]:
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    own = {key: value for key, value in table.items() if key not in inner and value is not None}
    if path and (own or not inner):
        yield from ("", f"[{'.'.join(map(_key, path))}]")
    for key, value in own.items():
        yield f"{_key(key)} = {_value(value)}"
    for key, value in inner.items():
        yield from _table(value, (*path, key))


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case float() if not math.isfinite(value):
            return str(value)  # inf, -inf and nan are the same in both
        case int() | float():
            return repr(value)
        case str():
            return _text(value)
        case Mapping():
            pairs = (f"{_key(key)} = {_value(each)}" for key, each in value.items() if each is not None)
            return f"{{{', '.join(pairs)}}}"
        case _:
            return f"[{', '.join(map(_value, value))}]"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
