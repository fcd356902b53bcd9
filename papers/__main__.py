"""Redraws every figure of docs/results.md, and fills its tables, from the results in docs/results.

python papers/__main__.py
"""

from __future__ import annotations

import sys
from pathlib import Path

from papers.page import all_tables, filled, topics

DOCS = Path(__file__).resolve().parent.parent / "docs"


def main() -> int:
    results, out = DOCS / "results", DOCS / "figures"
    out.mkdir(exist_ok=True)
    for name, topic in topics().items():
        print(f"{name} ...")
        topic.figures(results, out)
    page = DOCS / "results.md"
    page.write_text(filled(page.read_text(encoding="utf-8"), all_tables(results)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
