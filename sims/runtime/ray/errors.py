"""Puts errors of Ray, which have many lines and colours of terminals, into one line."""

from __future__ import annotations

import re
from typing import Final

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_LONGEST: Final = 500  # characters of Ray's own text that are shown


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or the name of its class if it has none."""
    lines = _plain(error).splitlines()
    return lines[0].strip() if lines else type(error).__name__


def one_line(error: BaseException) -> str:
    """Return an error's whole text as one line, without its end if it is long."""
    text = " ".join(_plain(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST else text[: _LONGEST - 4] + " ..."


def _plain(error: BaseException) -> str:
    return _COLOURS.sub("", str(error)).strip()
