"""Data sets in LEAF's format: json files of users and their samples.

    {"users": [name, ...], "num_samples": [count, ...], "user_data": {name: {"x": [...], "y": [...]}}}

The files are in train/ and test/, or, before LEAF has split them, in all_data/. Inputs are lists of numbers,
or texts of equal length (as in LEAF's Shakespeare). Characters become their indices in the vocabulary. The
tweets of LEAF's Sent140 must be converted to numbers first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fl.data import file_reading, pixel_and_label_conversion
from fl.data.owned_samples import OwnedSamples
from fl.errors import DataError
from fl.samples import Array, Samples

LETTERS = (
    "\n !\"&'(),-.0123456789:;>?"
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
)  # fmt: skip

_FOREIGN = 255  # code of every character outside the vocabulary
_ORIGIN = "LEAF (github.com/TalwalkarLab/leaf) makes them: its preprocess.sh writes all_data, train and test"
_SUBDIRECTORIES = (".", "data")


def leaf(
    directory: str | Path,
    *,
    part: str = "all",
    shape: tuple[int, ...] | None = None,
    letters: str = LETTERS,
    drop_empty: bool = False,
) -> OwnedSamples:
    """Return all samples of `part` ("train", "test" or "all"). A user, even one in both parts, is one owner.

    `shape`       shape of an input, such as (1, 28, 28): the files hold images as plain lists.
    `letters`     vocabulary of texts: a character becomes its index in it.
    `drop_empty`  whether users without samples are left out; otherwise they raise `DataError`.
    """
    users: dict[str, int] = {}
    pieces: list[Samples] = []
    owner: list[Array] = []
    kinds: set[tuple[bool, bool]] = set()
    for path in json_files(Path(directory), part):
        with file_reading.blame(path):
            for user, x, y in _users(_parsed(path)):
                if not len(x) and drop_empty:
                    continue
                pieces.append(_samples(user, x, y, shape, letters))
                kinds.add((isinstance(x[0], str), isinstance(y[0], str)))
                if len(kinds) > 1:
                    raise DataError(
                        f"user {user!r} has texts and others have numbers, or the reverse: make them alike"
                    )
                owner.append(np.full(len(x), users.setdefault(user, len(users))))
    return OwnedSamples(_joined(pieces, Path(directory)), np.concatenate(owner), tuple(users))


def json_files(directory: Path, part: str) -> list[Path]:
    """Return the paths of the json files of `part` ("train", "test" or "all") in LEAF's `directory`, sorted.
    Raise `DataError` if there are none."""
    folders = file_reading.parts(part)
    for subdirectory in _SUBDIRECTORIES:
        if part == "all" and (found := sorted((directory / subdirectory / "all_data").glob("*.json"))):
            return found
        by_folder = [sorted((directory / subdirectory / folder).glob("*.json")) for folder in folders]
        if all(by_folder):
            return [path for paths in by_folder for path in paths]
    wanted = " and ".join(folders) + (", or all_data" if part == "all" else "")
    where = ", ".join(str(directory / each) for each in _SUBDIRECTORIES)
    raise DataError(f"json files are missing: looked in {where} for *.json in {wanted}. {_ORIGIN}")


def _parsed(path: Path) -> Any:
    data = file_reading.content(path)
    try:
        return json.loads(data)
    except ValueError as error:
        raise DataError(f"not json, or truncated ({error}): make it again") from error


def _users(data: Any) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Yield the name, inputs and targets of each user in `data`, parsed json in LEAF's format. Raise
    `DataError` if it is malformed, or if a user's number of samples is not the one in num_samples."""
    match data:
        case {"users": list(users), "num_samples": list(counts), "user_data": dict(held)}:
            if len(users) != len(counts):
                raise DataError(f"{len(users)} users, but {len(counts)} in num_samples")
        case _:
            raise DataError("it is not in LEAF's format: users, num_samples or user_data is missing")
    seen = set()
    for user, count in zip(users, counts, strict=True):
        if str(user) in seen:
            raise DataError(f"user {user!r} is listed twice: list each user once, with all samples")
        seen.add(str(user))
        match held.get(user) if isinstance(user, str) else None:
            case {"x": list(x), "y": list(y)} if len(x) == len(y) == count:
                yield user, x, y
            case _:
                raise DataError(f"user {user!r} should have {count} inputs x and as many targets y")


def _samples(user: str, x: list[Any], y: list[Any], shape: tuple[int, ...] | None, letters: str) -> Samples:
    try:
        if not x:
            raise DataError("no samples: pass drop_empty=True to leave such users out")
        inputs = _numbers(x, letters)
        if shape is not None:
            inputs = inputs.reshape(len(x), *shape)
        return Samples(
            pixel_and_label_conversion.inputs([inputs]),
            pixel_and_label_conversion.targets(_numbers(y, letters).reshape(len(y), -1)),
        )
    except ValueError as error:  # DataError among them
        raise DataError(f"user {user!r}: {error}") from error


def _numbers(values: list[Any], letters: str) -> Array:
    """Return an array of the numbers, or of the texts as indices in `letters`. Others raise `DataError`."""
    if any(isinstance(value, str) for value in values):
        rows = [encode(value, letters) for value in values if isinstance(value, str)]
        if len(rows) != len(values) or len({len(row) for row in rows}) > 1:
            raise DataError("texts of different lengths, or mixed with numbers")
        return np.stack(rows).astype(np.int64)
    found: Array = np.array(values)
    if found.dtype.kind not in "fi":
        raise DataError(f"neither numbers nor texts, but {found.dtype}")
    return found


def _joined(pieces: list[Samples], directory: Path) -> Samples:
    if not pieces:
        raise DataError(f"{directory}: none of its users has samples")
    shapes = {piece.x.shape[1:] for piece in pieces}
    if len(shapes) > 1:
        raise DataError(f"{directory}: the inputs of its users differ in shape: {sorted(shapes)}")
    joined = Samples.join(pieces)
    return Samples(_single(joined.x), _single(joined.y))


def _single(values: Array) -> Array:
    """Return floats as float32, and integers unchanged."""
    return values.astype(np.float32, copy=False) if values.dtype.kind == "f" else values


def encode(text: str, letters: str = LETTERS, *, drop: bool = False) -> Array:
    """Return the index in `letters` of each character of `text`, as bytes to save memory. Characters that are
    not in `letters` raise `DataError`; with `drop`, they are omitted."""
    if not 0 < len(letters) == len(set(letters)) <= _FOREIGN:
        raise DataError(f"letters must be 1 to {_FOREIGN} different characters")
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    known = np.array([ord(letter) for letter in letters], np.uint32)
    table = np.full(int(known.max()) + 2, _FOREIGN, np.uint8)
    table[known] = np.arange(len(letters))
    codes: Array = table[np.minimum(points, len(table) - 1)]
    foreign = codes == _FOREIGN
    if drop:
        codes = codes[~foreign]
    elif foreign.any():
        at = int(np.argmax(foreign))
        raise DataError(
            f"character {text[at]!r} at {at} is not in the vocabulary: remove it, or pass other letters"
        )
    return codes
