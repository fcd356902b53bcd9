"""Checksums of the standard data set files.

Most files are compared by their unpacked content, so it does not matter how they were packed. For EMNIST,
only checksums of the packed files are published. MD5, the most common kind, is sufficient to detect damage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

from fl.errors import DataError

Digests: TypeAlias = Mapping[tuple[str, str], str]

_CIFAR10: Final = {
    "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
    "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
    "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "md5:40351d587109b95175f43aff81a1287e",
    "data_batch_1.bin": "sha256:cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "sha256:a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "sha256:bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "sha256:014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "sha256:755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "sha256:8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}

CONTENT: Digests = {
    ("mnist", "train-images-idx3-ubyte"): "md5:6bbc9ace898e44ae57da46a324031adb",
    ("mnist", "train-labels-idx1-ubyte"): "md5:a25bea736e30d166cdddb491f175f624",
    ("mnist", "t10k-images-idx3-ubyte"): "md5:2646ac647ad5339dbf082846283269ea",
    ("mnist", "t10k-labels-idx1-ubyte"): "md5:27ae3e4e09519cfbb04c329615203637",
    ("fashion-mnist", "train-images-idx3-ubyte"): "md5:f4a8712d7a061bf5bd6d2ca38dc4d50a",
    ("fashion-mnist", "train-labels-idx1-ubyte"): "md5:9018921c3c673c538a1fc5bad174d6f9",
    ("fashion-mnist", "t10k-images-idx3-ubyte"): "md5:8181f5470baa50b63fa0f6fddb340f0a",
    ("fashion-mnist", "t10k-labels-idx1-ubyte"): "md5:15d484375f8d13e6eb1aabb0c3f46965",
    **{("cifar10", name): known for name, known in _CIFAR10.items()},
}

PACKED: Digests = {
    ("emnist", "emnist-balanced-train-images-idx3-ubyte.gz"): "md5:4041b0d6f15785d3fa35263901b5496b",
    ("emnist", "emnist-balanced-train-labels-idx1-ubyte.gz"): "md5:7a35cc7b2b7ee7671eddf028570fbd20",
    ("emnist", "emnist-balanced-test-images-idx3-ubyte.gz"): "md5:6818d20fe2ce1880476f747bbc80b22b",
    ("emnist", "emnist-balanced-test-labels-idx1-ubyte.gz"): "md5:acd3694070dcbf620e36670519d4b32f",
    ("emnist", "emnist-byclass-train-images-idx3-ubyte.gz"): "md5:712dda0bd6f00690f32236ae4325c377",
    ("emnist", "emnist-byclass-train-labels-idx1-ubyte.gz"): "md5:ee299a3ee5faf5c31e9406763eae7e43",
    ("emnist", "emnist-byclass-test-images-idx3-ubyte.gz"): "md5:1435209e34070a9002867a9ab50160d7",
    ("emnist", "emnist-byclass-test-labels-idx1-ubyte.gz"): "md5:7a0f934bd176c798ecba96b36fda6657",
    ("emnist", "emnist-bymerge-train-images-idx3-ubyte.gz"): "md5:4a792d4df261d7e1ba27979573bf53f3",
    ("emnist", "emnist-bymerge-train-labels-idx1-ubyte.gz"): "md5:491be69ef99e1ab1f5b7f9ccc908bb26",
    ("emnist", "emnist-bymerge-test-images-idx3-ubyte.gz"): "md5:8eb5d34c91f1759a55831c37ec2a283f",
    ("emnist", "emnist-bymerge-test-labels-idx1-ubyte.gz"): "md5:c13f4cd5211cdba1b8fa992dae2be992",
    ("emnist", "emnist-digits-train-images-idx3-ubyte.gz"): "md5:d2662ecdc47895a6bbfce25de9e9a677",
    ("emnist", "emnist-digits-train-labels-idx1-ubyte.gz"): "md5:2223fcfee618ac9c89ef20b6e48bcf9e",
    ("emnist", "emnist-digits-test-images-idx3-ubyte.gz"): "md5:a159b8b3bd6ab4ed4793c1cb71a2f5cc",
    ("emnist", "emnist-digits-test-labels-idx1-ubyte.gz"): "md5:8afde66ea51d865689083ba6bb779fac",
    ("emnist", "emnist-letters-train-images-idx3-ubyte.gz"): "md5:8795078f199c478165fe18db82625747",
    ("emnist", "emnist-letters-train-labels-idx1-ubyte.gz"): "md5:c16de4f1848ddcdddd39ab65d2a7be52",
    ("emnist", "emnist-letters-test-images-idx3-ubyte.gz"): "md5:382093a19703f68edac6d01b8dfdfcad",
    ("emnist", "emnist-letters-test-labels-idx1-ubyte.gz"): "md5:d4108920cd86601ec7689a97f2de7f59",
}


def digest(kind: str, *pieces: bytes | memoryview) -> str:
    """Return the digest of the concatenated pieces as "kind:hexadecimal". `kind` is md5 or sha256."""
    total = hashlib.new(kind, usedforsecurity=False)
    for piece in pieces:
        total.update(piece)
    return f"{kind}:{total.hexdigest()}"


def verify(dataset: str, path: Path, *pieces: bytes | memoryview) -> None:
    """Raise `DataError` if the file at `path` does not have its known checksum. `pieces` is its unpacked
    content. Files without a known checksum are accepted."""
    plain = path.name.removesuffix(".gz").replace(".idx", "-idx")
    if expected := CONTENT.get((dataset, plain)):
        compare(expected, digest(expected.partition(":")[0], *pieces))
    elif expected := PACKED.get((dataset, path.name)):
        compare(expected, digest(expected.partition(":")[0], path.read_bytes()))


def compare(expected: str, found: str) -> None:
    """Raise `DataError` unless both digests are equal."""
    if found == expected:
        return
    other = [f"; it is {name} of {dataset}" for (dataset, name), known in CONTENT.items() if known == found]
    raise DataError(
        f"wrong checksum: expected {expected}, found {found}{''.join(other)}. The file is damaged, or "
        "another edition: download it again, or pass check=False to read it anyway"
    )
