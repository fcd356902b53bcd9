"""The bundled data set: 1797 handwritten digits of 8 x 8 pixels."""

from __future__ import annotations

from pathlib import Path

from fl.data import checksums, npz, pixel_and_label_conversion
from fl.errors import DataError
from fl.samples import Samples

CLASSES = 10

FILE = Path(__file__).with_name("digits.npz")
DIGEST = "sha256:b2dab7b501728c22e9119ad76740b2e17c77a231e42d1e592380d90886f1a05e"


def digits() -> Samples:
    """Return the bundled digits: images as float32 in [0, 1] of shape (1797, 1, 8, 8), and labels 0..9."""
    return read(FILE)


def read(path: Path) -> Samples:
    """Return the digits in the file at `path`. Raise `DataError` if it is missing or not the bundled file."""
    if not path.is_file():
        raise DataError(f"{path} is missing from the installation: install the package again")
    if (found := checksums.digest("sha256", path.read_bytes())) != DIGEST:
        raise DataError(f"{path}: expected {DIGEST}, found {found}: install the package again")
    images, labels = npz.members(path, ("images", "labels"))
    return Samples(
        pixel_and_label_conversion.scaled([pixel_and_label_conversion.channels_first(images)], top=16),
        pixel_and_label_conversion.targets(labels, CLASSES),
    )
