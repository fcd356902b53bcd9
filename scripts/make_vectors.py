"""Write the test vectors into tests/vectors. The same files come out every time, on every machine.

    python -m scripts.make_vectors

Encapsulations of ML-KEM are random. Those in the files are used again, so that only a session with other keys
has new ones.

What is in them is said in tests/vectors/README.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from scripts.vectors.describe import to_json
from scripts.vectors.gaussian import gaussian
from scripts.vectors.plays import PLAYS
from scripts.vectors.primitives import primitives
from scripts.vectors.refusals import refusals
from scripts.vectors.transcripts import transcript

FOLDER: Final = Path(__file__).resolve().parent.parent / "tests" / "vectors"


def all_vectors() -> dict[str, str]:
    """File name -> contents."""
    sessions = {
        f"transcript-{name}": transcript(play, _before(f"transcript-{name}", "clients"))
        for name, play in PLAYS.items()
    }
    negative = refusals(_before("refusals", "hybrid_server_clients"))
    others = {"primitives": primitives(), "refusals": negative, "discrete-gaussian": gaussian()}
    return {f"{name}.json": to_json(value) for name, value in (sessions | others).items()}


def _before(name: str, key: str) -> dict[str, Any]:
    """What a file has under a key: the clients, whose encapsulations are used again. Empty without a file."""
    path = FOLDER / f"{name}.json"
    if not path.exists():
        return {}
    value: dict[str, Any] = json.loads(path.read_text(encoding="ascii")).get(key, {})
    return value


def main() -> None:
    for name, text in all_vectors().items():
        (FOLDER / name).write_text(text, encoding="ascii")
        print(f"tests/vectors/{name}: {len(text)} bytes")


if __name__ == "__main__":
    main()
