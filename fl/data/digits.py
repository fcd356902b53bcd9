"""Handwritten digits that come with the package, so that everything runs without a network.

1,797 images of 8x8 pixels, 0..16, ten classes: the test part of "Optical Recognition of Handwritten
Digits" (E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, 1998), in the edition that
scikit-learn ships. It is under the Creative Commons Attribution 4.0 licence (CC BY 4.0); the numbers
are unchanged, stored as bytes in digits.npz.
"""

from __future__ import annotations

from pathlib import Path

from fl.data import arrays, checksums, npz
from fl.errors import DataError
from fl.samples import Samples

CLASSES = 10

FILE = Path(__file__).with_name("digits.npz")
DIGEST = "sha256:b2dab7b501728c22e9119ad76740b2e17c77a231e42d1e592380d90886f1a05e"


def digits() -> Samples:
    """All of them: float32 in [0, 1], of shape (1797, 1, 8, 8), and labels 0..9."""
    return read(FILE)


def read(path: Path) -> Samples:
    """The bundled file, if it is as it was shipped."""
    if not path.is_file():
        raise DataError(f"{path} is missing, and it comes with the package: install the package again")
    if (found := checksums.digest("sha256", path.read_bytes())) != DIGEST:
        raise DataError(f"{path}: expected {DIGEST}, found {found}: install the package again")
    images, labels = npz.members(path, ("images", "labels"))
    return Samples(arrays.scaled([arrays.channels_first(images)], top=16), arrays.targets(labels, CLASSES))
