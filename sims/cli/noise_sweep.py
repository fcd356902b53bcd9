"""``secagg noise --sweep``: the noise for many combinations of settings, as a table, as CSV and as a plot."""

import argparse
import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from io import StringIO
from itertools import product
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sims.cli.commands import UserError
from sims.cli.options import fraction, whole
from sims.text_format import short

if TYPE_CHECKING:
    from secagg.noise.part_plan import Plan
    from sims.report.plot_types import Plot

Value = int | float
MOST_ROWS: Final = 1000
_MOST_LINES: Final = 8  # of a plot
_PARSERS: Final[Mapping[str, Callable[[str], Value]]] = {
    "epsilon": lambda text: float(fraction(text)),
    "clients": whole(1, 1 << 20),
    "bits": whole(1, 64),
    "dropouts": whole(0, 1 << 20),
}


@dataclass(frozen=True)
class Axis:
    """A swept option of ``secagg noise``, such as epsilon, and its values."""

    name: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class SweepRow:
    """The noise for one combination of settings. If there is none, `problem` says why, and all that would
    follow from it is None. `noise_of_mean` is the norm of the noise on the mean of all clients' vectors, if
    no client drops out, in clips: the mean itself has a norm of 1 at most."""

    epsilon: float
    clients: int
    bits: int | None
    dropouts: int
    noise_of_mean: float | None = None
    sigma_total: float | None = None
    sigma_local: float | None = None
    granularity: float | None = None
    rho: float | None = None
    problem: str = ""


def axis(text: str) -> Axis:
    """Parse NAME=VALUES for argparse: values with commas between, or START:STOP:STEP, which includes STOP."""
    name, equals, values = text.partition("=")
    if not equals or name not in _PARSERS:
        names = ", ".join(_PARSERS)
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUES, where NAME is one of {names}")
    parse = _PARSERS[name]
    texts = _range(values) if ":" in values else values.split(",")
    found = tuple(dict.fromkeys(parse(each.strip()) for each in texts))
    if name == "epsilon" and min(found) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: epsilon must be above 0")
    return Axis(name, found)


def _range(text: str) -> list[str]:
    ends = [fraction(each) for each in text.split(":")]
    if len(ends) not in (2, 3):
        raise argparse.ArgumentTypeError(f"{text!r} is no range such as 100:500:100")
    start, stop, step = (*ends, Fraction(1))[:3]
    if step <= 0 or stop < start or (stop - start) / step >= MOST_ROWS:
        raise argparse.ArgumentTypeError(
            f"{text!r} must go up from its start, in at most {MOST_ROWS} steps above 0"
        )
    count = int((stop - start) / step) + 1
    return [str(start + step * number) for number in range(count)]


def run(args: argparse.Namespace, plan: "Callable[[argparse.Namespace], Plan]") -> int:
    """Print the rows of the sweep that `args` asks for, and write its files. `plan` finds the noise of one
    combination. Return 2 if there is none for any of them."""
    axes = _checked(args.sweep)
    rows = [_row(args, dict(zip((each.name for each in axes), values, strict=True)), plan) for values in
            product(*(each.values for each in axes))]  # fmt: skip
    if args.csv is not None:
        _write(args.csv, as_csv(rows))
    if args.plot is not None:
        from sims.report.standalone_svg import standalone

        _write(args.plot, standalone(plotted(axes, rows)))
    print(json.dumps(as_json(args, rows), indent=2) if args.json else "\n".join(table(axes, rows)))
    return 0 if any(not row.problem for row in rows) else 2


def _checked(axes: Sequence[Axis]) -> Sequence[Axis]:
    names = [each.name for each in axes]
    if len(set(names)) < len(names):
        raise UserError("secagg noise: --sweep names an option twice: give all its values at once")
    count = 1
    for each in axes:
        count *= len(each.values)
    if count > MOST_ROWS:
        raise UserError(
            f"secagg noise: --sweep has {count:,} combinations; at most {MOST_ROWS:,} are allowed"
        )
    return axes


def _row(
    args: argparse.Namespace, values: Mapping[str, Value], plan: "Callable[[argparse.Namespace], Plan]"
) -> SweepRow:
    from secagg.errors import LocalError

    own = argparse.Namespace(**{**vars(args), **values})
    given = {"epsilon": own.epsilon, "clients": own.clients, "dropouts": own.dropouts}
    try:
        found = plan(own)
    except LocalError as error:
        return SweepRow(**given, bits=own.bits, problem=str(error))
    return SweepRow(
        **given,
        bits=found.bits,
        noise_of_mean=sqrt(found.size) * found.sigma_released / (own.clients * own.clip),
        sigma_total=found.sigma_released,
        sigma_local=found.sigma_local,
        granularity=found.granularity,
        rho=found.rho,
    )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"secagg noise: {path} cannot be written: {error.strerror}") from None


# --- what is shown ---

_HEADS: Final = {
    "epsilon": "epsilon",
    "clients": "clients",
    "bits": "bits",
    "dropouts": "drop-outs",
    "noise_of_mean": "noise of mean",
    "sigma_total": "sigma of total",
}


def table(axes: Sequence[Axis], rows: Sequence[SweepRow]) -> Iterator[str]:
    """Yield the lines of a table with a row for each combination, and a line that explains it."""
    swept = [each.name for each in axes]
    names = [*swept, *(name for name in ("bits", "noise_of_mean", "sigma_total") if name not in swept)]
    cells = [[_HEADS[name] for name in names], *([_cell(row, name) for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    for number, line in enumerate(cells):
        problem = "" if number == 0 or not rows[number - 1].problem else f"  none: {rows[number - 1].problem}"
        shown = (f"{text:>{width}}" for text, width in zip(line, widths, strict=True))
        yield "  ".join(shown) + problem
    yield (
        "noise of mean: norm of the noise on the mean of the clients' vectors, in clips; the mean itself has "
        "a norm of at most 1. sigma of total: standard deviation of the noise on each number of a total"
    )


def _cell(row: SweepRow, name: str) -> str:
    value = getattr(row, name)
    if value is None:
        return "auto" if name == "bits" else "-"
    return f"{value:,}" if isinstance(value, int) else short(value)


def as_csv(rows: Sequence[SweepRow]) -> str:
    """Return the rows as CSV, with a head; what is None is an empty field."""
    names = [each.name for each in fields(SweepRow)]
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        values = (getattr(row, name) for name in names)
        writer.writerow("" if value is None else value for value in values)
    return text.getvalue()


def as_json(args: argparse.Namespace, rows: Sequence[SweepRow]) -> dict[str, Any]:
    common = {
        name: getattr(args, name) for name in ("dim", "clip", "delta", "sums", "colluders", "adjacency")
    }
    return {**common, "rows": [{"ok": not row.problem, **vars(row)} for row in rows]}


def plotted(axes: Sequence[Axis], rows: Sequence[SweepRow]) -> "Plot":
    """Return a plot of the noise of the mean over the axis with most values. Each combination of the other
    axes is a line; of more than eight, the first eight are drawn, and the note says so."""
    from sims.report.plot_types import Plot, Series

    along = max(axes, key=lambda each: len(each.values))
    others = [each for each in axes if each is not along]
    lines = list(product(*(each.values for each in others)))
    names = [each.name for each in (*others, along)]
    found = {tuple(getattr(row, name) for name in names): row for row in rows}
    places = tuple(sorted(along.values))
    series = tuple(
        Series(
            ", ".join(f"{_HEADS[each.name]} {value:,g}" for each, value in zip(others, own, strict=True))
            or "noise of mean",
            tuple(found[(*own, place)].noise_of_mean for place in places),
            number,
        )
        for number, own in enumerate(lines[:_MOST_LINES])
    )
    left_out = len(lines) - len(series)
    return Plot(
        key="noise-sweep",
        title="Noise on the mean of the clients' vectors",
        note="Norm of the noise, in clips: the mean itself has a norm of at most 1."
        + (f" {left_out} more combinations are not drawn." if left_out else ""),
        x=_HEADS[along.name],
        y="noise of mean, in clips",
        places=tuple(map(float, places)),
        series=series,
        least=0.0,
        empty="There is no noise for any of these combinations.",
    )
