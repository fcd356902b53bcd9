"""Formats numbers, counts and sentences for people to read. Some texts explain the risk of exact totals."""

import math
from collections.abc import Mapping
from typing import Any, Final


def counted(number: int, noun: str) -> str:
    """Return the number and the noun, with a plural s if needed: "1 sum", "3 sums"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


# What noise hides: which change of one client's input, by the name of the adjacency.
ADJACENCY_MEANINGS: Final = {
    "zero-out": "replacing one client's vector by zeros",
    "add-remove": "adding or removing one client (who takes part is public)",
    "replace": "replacing one client's vector by another",
}

# Explain why a sum without noise is not private.
EXACT_TOTAL = "the total is exact, so a server that knows all inputs but one can compute that one"
DIFFERENCING: Final = (
    "{kinds} without noise: the difference of two totals over the same values shows the clients in which "
    "they differ. So a client with unchanged values answers only over the same clients as before, or over "
    "clients that differ by at least min_contributors. After a client drops out there is no total until "
    "values change; noise lifts this limit"
)

DECLINING: Final = (
    "{kinds} without noise: a client whose values cannot be used declines, which shows the server that they "
    "cannot. Choose bounds that all values keep, make sure that there always are values, or add noise to "
    "every part: then the client clips counts, sends zeros for other unusable values, and never declines"
)

# Says it of a plan, in which values need not stay the same.
PLANNED_DIFFERENCING: Final = (
    "{kinds} without noise while clients may drop out: if values stay the same from one sum to the next, as "
    "values from files do, the difference of the two totals shows the clients in which they differ; clients "
    "that declare such values decline the second sum"
)

MISSING: Final = "–"  # noqa: RUF001  # an en dash, as in a printed table
_SPACE: Final = "\N{NO-BREAK SPACE}"
_UNITS: Final = ("B", "kB", "MB", "GB", "TB")


def percent(share: float | None) -> str:
    """Return a fraction as a percentage: 0.912 gives 91.2 %. None, NaN and infinity give a dash."""
    return MISSING if share is None or not math.isfinite(share) else f"{100 * share:.1f}{_SPACE}%"


def hundredths(value: float | None) -> str:
    """Return a value that is already in percent as text: 91.2 gives 91.2 %. None and NaN give a dash."""
    return percent(None if value is None else value / 100)


def size(count: float | None) -> str:
    """Return bytes as text, such as 1.5 MB, in a unit that makes it below 1000. None gives a dash."""
    if count is None:
        return MISSING
    power = 0
    while abs(count) >= 999.5 and power < len(_UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.0f}{_SPACE}{_UNITS[power]}" if not power else f"{_three(count)}{_SPACE}{_UNITS[power]}"


def plain(value: float | None) -> str:
    """Return whole numbers in full, others with 4 digits or, from 10,000, no decimals. None gives a dash."""
    if value is None or not math.isfinite(value):
        return MISSING
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def short(value: float | None) -> str:
    """Return three significant digits, or no decimals from 1000 on. None, NaN and infinity give a dash."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def delta(value: float | None) -> str:
    """Return delta as text, such as 1e-5, with a Unicode minus sign for the hyphen. None gives a dash."""
    return MISSING if value is None else f"{value:g}".replace("e-0", "e-").replace("-", "\N{MINUS SIGN}")


def duration(seconds: float | None) -> str:
    """Return seconds as text: in s below two minutes, in min below two hours, else in h. None: a dash."""
    if seconds is None:
        return MISSING
    if seconds < 120:
        return f"{_three(seconds)}{_SPACE}s"
    return f"{seconds / 60:.1f}{_SPACE}min" if seconds < 7200 else f"{seconds / 3600:.1f}{_SPACE}h"


def _three(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}"


def sentence_of(text: str) -> str:
    """Return the text with a capital first letter and, unless it ends with . ! or ?, a full stop."""
    text = text[:1].upper() + text[1:]
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."


def values_of(cell: Mapping[str, Any]) -> list[str]:
    """Return a cell's values as texts: strings unchanged, others after their setting, such as "rate 0.1"."""
    return [
        value if isinstance(value, str) else f"{key.rpartition('.')[2]} {value}"
        for key, value in cell.items()
    ]
