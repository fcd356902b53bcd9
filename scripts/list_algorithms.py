"""Writes the tables of algorithms in docs/algorithms.md and README.md, from the algorithms themselves.

python scripts/list_algorithms.py
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from protocols.algorithm import Sum
from protocols.catalogue import CATALOGUE
from protocols.catalogue_entry import CatalogueEntry

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "algorithms.md"
README = ROOT / "README.md"
START, STOP = "<!-- table -->\n", "<!-- end of table -->\n"
CLIENTS = 100
DIM = 100_003  # a number that nothing else has, so that it can be told from others
HEAD = (
    f"| algorithm | sums | numbers x bits of one sum (d parameters, {CLIENTS} clients) "
    "| what a total reveals | private variant | under `malicious_server` |\n|---|---|---|---|---|---|\n"
)


SHORT_HEAD = (
    "| algorithm | | sums a round | what the totals reveal | private variant |\n|---|---|---|---|---|\n"
)


def table() -> str:
    return HEAD + "".join(row for entry in CATALOGUE.values() for row in _rows(entry))


def overview() -> str:
    """One row for each, for who wants to choose."""
    return SHORT_HEAD + "".join(map(_row, CATALOGUE.values()))


def redraw(page: str, content: str | None = None) -> str:
    """The page with its table as it should be: by default, the long one."""
    before, rest = page.split(START, 1)
    return before + START + (table() if content is None else content) + STOP + rest.split(STOP, 1)[1]


def _row(entry: CatalogueEntry) -> str:
    sums = entry.build(dim=DIM, clients=CLIENTS, **entry.example).sums()
    private = _private(entry) if sums else ""
    return f"| `{entry.name}` | {entry.summary} | {count_of(sums)} | {reveals_of(sums)} | {private} |\n"


def count_of(sums: Sequence[Sum]) -> str:
    """How many there are in a round."""
    return "up to " * any(each.spec.times > 1 for each in sums) + str(sum(each.spec.times for each in sums))


def reveals_of(sums: Sequence[Sum]) -> str:
    """What their totals say, each thing once."""
    return "; ".join(dict.fromkeys(each.reveals for each in sums)) or "nothing"


def _rows(entry: CatalogueEntry) -> list[str]:
    algorithm = entry.build(dim=DIM, clients=CLIENTS, **entry.example)
    private = _private(entry)
    if not algorithm.sums():
        return [f"| `{entry.name}` | 0 | | nothing | | |\n"]
    rows = []
    for number, each in enumerate(algorithm.sums()):
        name = f"`{entry.name}`" if number == 0 else ""
        cells = (name, str(each.spec.times), _size(each), each.reveals, private, _malicious(each))
        rows.append(f"| {' | '.join(cells)} |\n")
    return rows


def _private(entry: CatalogueEntry) -> str:
    if entry.budget is None:
        return "no"
    if "step" in entry.budget_names:
        return "yes, with a `step`"
    defaults = {each.name: each.default for each in entry.settings}
    return "yes, unweighted" if defaults.get("weighted") else "yes"


def _size(each: Sum) -> str:
    names = {DIM: "d", DIM - 1: "(d - 1)"}
    return " + ".join(f"{names.get(part.size, part.size)} x {part.bits}" for part in each.spec.parts)


def _malicious(each: Sum) -> str:
    if each.singles_out:
        return f"only if you {each.remedy}" if each.remedy else "no"
    return "yes"


def main() -> int:
    for path, content in ((PAGE, table()), (README, overview())):
        path.write_text(redraw(path.read_text(encoding="utf-8"), content), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
