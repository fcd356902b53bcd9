"""Shakespeare's plays by role. Each role is an owner of samples; the task is to predict the next character.

Two kinds of file are read, plain or packed with gzip:

- tsv: a header, then play, role and line in three columns, in order. The same role in two plays is two
  owners;
- txt: speeches separated by empty lines, each starting with the name of the role and a colon.

All lines of a role are joined, and a window slides over them: a sample is a window of characters and the
character after it. Characters outside the vocabulary and roles with less text than a sample are omitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from fl.checks import counted
from fl.data import file_reading
from fl.data.leaf import LETTERS, encode
from fl.data.owned_samples import OwnedSamples
from fl.errors import DataError
from fl.samples import Array, Samples

_ORIGIN = (
    "Make it from any edition of the plays (Project Gutenberg's, or the Moby text), "
    "as a tsv with the columns play, role and line"
)
_NAMES = ("shakespeare_by_role.tsv", "shakespeare.tsv", "shakespeare.txt", "tinyshakespeare.txt", "input.txt")
_LARGEST = 1 << 28  # fifty times all the plays


def shakespeare(
    directory: str | Path,
    *,
    file: str | None = None,
    window: int = 80,
    stride: int = 1,
    letters: str = LETTERS,
) -> OwnedSamples:
    """Return windows of `window` characters, as bytes that are indices in `letters`, with the character after
    each as its target and the role as its owner. A window starts at every `stride`-th character of a role."""
    window, stride = counted("window", window), counted("stride", stride)
    path = text_in(directory, file)
    text = file_reading.content(path, _LARGEST)
    with file_reading.blame(path):
        lines = text.decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\n").split("\n")
        spoken = _tsv(lines) if ".tsv" in path.suffixes else _speeches(lines)
        codes = {role: encode("\n".join(said), letters, drop=True) for role, said in spoken.items()}
        return _windows({role: code for role, code in codes.items() if len(code) > window}, window, stride)


def text_in(directory: str | Path, file: str | None = None) -> Path:
    """Return the path of `file` or, if it is None, of the first file with a usual name, such as
    shakespeare.txt. Raise `DataError` if there is none."""
    return file_reading.find(directory, _NAMES if file is None else (file,), _ORIGIN, (".", "shakespeare"))


def _tsv(lines: list[str]) -> Mapping[str, list[str]]:
    """Return each role's lines, by "play: role". Rows are play, role and line with tabs, after a header."""
    if lines[0].split("\t") != ["play", "role", "line"]:
        raise DataError("the first line must be play, role and line, separated by tabs")
    spoken: dict[str, list[str]] = {}
    for number, line in enumerate(lines[1:], 2):
        columns = line.split("\t")
        if len(columns) != 3:
            raise DataError(f"line {number} has {len(columns)} columns instead of play, role and line")
        spoken.setdefault(f"{columns[0]}: {columns[1]}", []).append(columns[2])
    return spoken


def _speeches(lines: list[str]) -> Mapping[str, list[str]]:
    """Return each role's lines, by role. Speeches start with a line "ROLE:"; others raise `DataError`."""
    spoken: dict[str, list[str]] = {}
    for number, speech in _paragraphs(lines):
        if not speech[0].endswith(":"):
            raise DataError(f"line {number} must be the name of a role and a colon: {speech[0][:40]!r}")
        spoken.setdefault(speech[0][:-1], []).extend(speech[1:])
    return spoken


def _paragraphs(lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield runs of non-empty lines, each with the line number of its first line."""
    run: list[str] = []
    for number, line in enumerate([*lines, ""], 1):
        if line.strip():
            run.append(line)
        elif run:
            yield number - len(run), run
            run = []


def _windows(codes: Mapping[str, Array], window: int, stride: int) -> OwnedSamples:
    if not codes:
        raise DataError(f"no role has more than {window} characters: choose a smaller window")
    counts = [len(range(0, len(code) - window, stride)) for code in codes.values()]
    if sum(counts) * window > file_reading.LARGEST:
        raise DataError(f"{sum(counts)} windows of {window} are too many for memory: choose a larger stride")
    x = np.empty((sum(counts), window), np.uint8)
    y = np.empty(sum(counts), np.int64)
    start = 0
    for code, count in zip(codes.values(), counts, strict=True):
        x[start : start + count] = sliding_window_view(code[:-1], window)[::stride]
        y[start : start + count] = code[window::stride]
        start += count
    return OwnedSamples(Samples(x, y), np.repeat(np.arange(len(counts)), counts), tuple(codes))
