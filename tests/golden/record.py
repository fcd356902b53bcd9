"""Write the golden records: `python -m tests.golden.record`, after a change of results that is meant."""

from __future__ import annotations

import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from tests.golden.groups import GROUPS, recorded

RECORDS: Final = Path(__file__).parent / "records"


def text_of(records: dict[str, Any]) -> str:
    """JSON with a line for every part of a record, so that a difference can be read."""
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {_part(part)}" for key, part in records.items()) + "\n}\n"


def _part(part: Any) -> str:
    if not isinstance(part, dict):
        return json.dumps(part)
    return "{\n" + ",\n".join(f" {json.dumps(key)}: {json.dumps(each)}" for key, each in part.items()) + "\n}"


def main() -> None:
    RECORDS.mkdir(exist_ok=True)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(_record, GROUPS))


def _record(group: str) -> None:
    with tempfile.TemporaryDirectory() as out:
        (RECORDS / f"{group}.json").write_text(text_of(recorded(group, Path(out))))


if __name__ == "__main__":
    main()
