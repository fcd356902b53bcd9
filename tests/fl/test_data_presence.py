"""Files of a data set are looked for as they would be read, and nothing is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fl.data import look
from fl.errors import DataError

IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
LETTERS = [
    f"gzip/emnist-letters-{part}-{what}.gz"
    for part in ("train", "test")
    for what in ("images-idx3-ubyte", "labels-idx1-ubyte")
]
CIFAR = [
    f"cifar-10-batches-bin/{name}.bin" for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch")
]

SETS: list[tuple[str, list[str], dict[str, Any], str]] = [
    ("mnist", list(IDX), {}, "t10k-labels-idx1-ubyte is missing"),
    ("mnist", list(IDX[:2]), {"part": "train", "check": False}, "train-labels-idx1-ubyte is missing"),
    ("fashion-mnist", list(IDX), {}, "t10k-labels-idx1-ubyte is missing"),
    ("emnist", LETTERS, {"split": "letters"}, "emnist-letters-test-labels-idx1-ubyte is missing"),
    ("cifar10", CIFAR, {}, "test_batch is missing"),
    ("leaf", ["train/a.json", "test/b.json"], {"drop_empty": True}, "json files are missing"),
    ("shakespeare", ["plays.txt"], {"file": "plays.txt", "window": 10}, "plays.txt is missing"),
    ("npz", ["x.npz"], {"file": "x.npz"}, "x.npz is missing"),
    ("npz-owned", ["x.npz"], {"file": "x.npz", "owner": "me"}, "x.npz is missing"),
]


@pytest.mark.parametrize(("kind", "files", "parameters", "expected"), SETS)
def test_all_files_have_to_be_there(
    tmp_path: Path, kind: str, files: list[str], parameters: dict[str, Any], expected: str
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"never read")
    look(kind, tmp_path, parameters)
    (tmp_path / files[-1]).unlink()
    with pytest.raises(DataError, match=expected):
        look(kind, tmp_path, parameters)


def test_of_a_source_of_ones_own_the_directory_has_to_be_there(tmp_path: Path) -> None:
    look("mine", tmp_path, {})
    with pytest.raises(DataError, match="nowhere is not a directory: mine is read from it"):
        look("mine", tmp_path / "nowhere", {})
