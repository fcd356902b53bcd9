"""Write the test vectors into tests/vectors. The same files come out every time, on every machine.

    python -m scripts.make_vectors

What is in them is said in tests/vectors/README.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from scripts.vectors.describe import to_json
from scripts.vectors.gaussian import gaussian
from scripts.vectors.plays import PLAYS
from scripts.vectors.primitives import primitives
from scripts.vectors.refusals import refusals
from scripts.vectors.transcripts import transcript

FOLDER: Final = Path(__file__).resolve().parent.parent / "tests" / "vectors"


def all_vectors() -> dict[str, str]:
    """File name -> contents."""
    sessions = {f"transcript-{name}.json": to_json(transcript(play)) for name, play in PLAYS.items()}
    others = {"primitives": primitives(), "refusals": refusals(), "discrete-gaussian": gaussian()}
    return {**sessions, **{f"{name}.json": to_json(value) for name, value in others.items()}}


def main() -> None:
    for name, text in all_vectors().items():
        (FOLDER / name).write_text(text, encoding="ascii")
        print(f"tests/vectors/{name}: {len(text)} bytes")


if __name__ == "__main__":
    main()
