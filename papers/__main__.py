"""Redraw every figure of papers/results.md and fill its tables, from the results in papers/results.

python -m papers
"""

from __future__ import annotations

import sys
from pathlib import Path

from papers.page import all_tables, filled, topics

HERE = Path(__file__).resolve().parent


def main() -> int:
    results, out = HERE / "results", HERE / "figures"
    out.mkdir(exist_ok=True)
    for name, topic in topics().items():
        print(f"{name} ...")
        topic.figures(results, out)
    page = HERE / "results.md"
    page.write_text(filled(page.read_text(encoding="utf-8"), all_tables(results)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
