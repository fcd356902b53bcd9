"""Tables and numbers for pages of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import floor, log10
from textwrap import fill
from typing import Final

_DIGITS: Final = 3
_WIDTH: Final = 110


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 1) -> str:
    """Return a table. The first `texts` columns are words, the others are numbers, aligned to the right."""
    rule = [":--" if column < texts else "--:" for column in range(len(head))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def significant(number: float) -> str:
    """Format with three digits, but with all before the point: 0.00123, 12.3, 1,234."""
    if not number:
        return "0"
    # Of the rounded number, because 9.999 becomes 10.0.
    before_point = floor(log10(abs(float(f"{number:.{_DIGITS}g}")))) + 1
    return f"{number:,.{max(_DIGITS - before_point, 0)}f}"


def milliseconds(seconds: float) -> str:
    return significant(1e3 * seconds)


def megabytes(number: int) -> str:
    return significant(number / 1e6)


def prose(text: str) -> str:
    """Return one paragraph in short lines."""
    return fill(" ".join(text.split()), width=_WIDTH, break_long_words=False, break_on_hyphens=False)


def paragraphs(*parts: str) -> str:
    return "\n\n".join(parts)
