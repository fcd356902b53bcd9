"""Data sets of images from files, and what is said when the files are not as they should be."""

from __future__ import annotations

import gzip
import hashlib
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl.data import SOURCES, checksums, cifar10, file_reading, load, mnist_fashion_and_emnist
from fl.errors import DataError
from fl.samples import Array, Samples

RNG = np.random.default_rng(7)
IMAGES = RNG.integers(0, 256, (5, 28, 28), np.uint8)
LABELS = np.array([3, 0, 9, 1, 1], np.uint8)


def packed(values: Array) -> bytes:
    """An idx file."""
    return struct.pack(f">{1 + values.ndim}I", 0x800 + values.ndim, *values.shape) + values.tobytes()


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write_mnist(directory: Path, end: str = "", images: Array = IMAGES, labels: Array = LABELS) -> None:
    for prefix in ("train", "t10k"):
        write(directory / f"{prefix}-images-idx3-ubyte{end}", packed(images))
        write(directory / f"{prefix}-labels-idx1-ubyte{end}", packed(labels))


def samples(name: str, directory: Path, **parameters: Any) -> Samples:
    loaded = load(name, directory, **parameters)
    assert isinstance(loaded, Samples)
    return loaded


# --- What good files hold ---


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize(("part", "copies"), [("train", 1), ("test", 1), ("all", 2)])
def test_idx(tmp_path: Path, name: str, end: str, part: str, copies: int) -> None:
    write_mnist(tmp_path, end)
    found = samples(name, tmp_path, part=part, check=False)
    assert found.x.shape == (5 * copies, 1, 28, 28)
    assert found.x.dtype == np.float32
    assert np.array_equal(np.rint(found.x[-5:, 0] * 255), IMAGES)
    assert found.y.tolist() == LABELS.tolist() * copies
    assert found.y.dtype == np.int64


def test_pixels_span_exactly_zero_to_one(tmp_path: Path) -> None:
    write_mnist(tmp_path, images=np.where(IMAGES > 127, 255, 0).astype(np.uint8))
    found = samples("mnist", tmp_path, check=False)
    assert np.unique(found.x).tolist() == [0, 1]


def test_idx_is_found_where_other_tools_put_it_and_under_its_other_name(tmp_path: Path) -> None:
    folder = tmp_path / "FashionMNIST" / "raw"
    write(folder / "train-images.idx3-ubyte", packed(IMAGES))
    write(folder / "train-labels.idx1-ubyte.gz", packed(LABELS))
    assert len(samples("fashion-mnist", tmp_path, part="train", check=False)) == 5


@pytest.mark.parametrize(
    ("split", "labels"),
    [("byclass", [0, 61, 36]), ("balanced", [0, 46, 9]), ("letters", [1, 26, 2]), ("digits", [0, 9, 5])],
)
def test_emnist_is_put_upright_and_its_labels_start_at_zero(
    tmp_path: Path, split: str, labels: list[int]
) -> None:
    turned = np.ascontiguousarray(IMAGES[:3].transpose(0, 2, 1))
    write(tmp_path / "gzip" / f"emnist-{split}-test-images-idx3-ubyte", packed(turned))
    write(tmp_path / "gzip" / f"emnist-{split}-test-labels-idx1-ubyte.gz", packed(np.array(labels, np.uint8)))
    found = samples("emnist", tmp_path, split=split, part="test", check=False)
    assert np.array_equal(np.rint(found.x[:, 0] * 255), IMAGES[:3])
    assert found.x.flags.c_contiguous
    assert found.y.tolist() == [label - min(labels) for label in labels]


# --- Files that are missing or damaged ---


def test_a_missing_file_is_named_with_where_and_whence(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        load("mnist", tmp_path)
    text = str(error.value)
    assert text.startswith("train-images-idx3-ubyte is missing")
    assert str(tmp_path) in text
    assert "train-images-idx3-ubyte.gz" in text
    assert "train-images.idx3-ubyte" in text
    assert "yann.lecun.com" in text


@pytest.mark.parametrize(
    ("name", "parameters", "missing", "origin"),
    [
        ("fashion-mnist", {}, "train-images-idx3-ubyte", "github.com/zalandoresearch/fashion-mnist"),
        ("emnist", {}, "emnist-byclass-train-images-idx3-ubyte", "nist.gov/itl"),
        ("cifar10", {}, "data_batch_1", "cs.toronto.edu/~kriz/cifar.html"),
        ("shakespeare", {}, "shakespeare_by_role.tsv", "columns play, role and line"),
        ("leaf", {}, "json files", "github.com/TalwalkarLab/leaf"),
        ("npz", {"file": "mine.npz"}, "mine.npz", "as numpy.savez writes it"),
    ],
)
def test_every_source_says_what_is_missing_and_where_it_is_from(
    tmp_path: Path, name: str, parameters: dict[str, str], missing: str, origin: str
) -> None:
    with pytest.raises(DataError) as error:
        load(name, tmp_path, **parameters)
    assert re.match(f"{missing} (is|are) missing: looked in {tmp_path}", str(error.value))
    assert origin in str(error.value)


def test_a_directory_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere is not a directory: train-images"):
        load("mnist", tmp_path / "nowhere")


def test_a_truncated_gz_says_so(tmp_path: Path) -> None:
    write_mnist(tmp_path, ".gz")
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-700])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: it is truncated: download it again"):
        load("mnist", tmp_path, check=False)


def test_a_gz_with_flipped_bits_is_damaged(tmp_path: Path) -> None:
    write_mnist(tmp_path, ".gz")
    path = tmp_path / "train-images-idx3-ubyte.gz"
    data = bytearray(path.read_bytes())
    data[-6] ^= 1  # in gzip's own checksum
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"ubyte\.gz: damaged"):
        load("mnist", tmp_path, check=False)


def test_a_broken_deflate_stream_is_damaged(tmp_path: Path) -> None:
    write_mnist(tmp_path, ".gz")
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:10] + b"\xff" * 300)
    with pytest.raises(DataError, match=r"ubyte\.gz: damaged \(Error -3"):
        load("mnist", tmp_path, check=False)


def test_a_gz_that_a_browser_unpacked_is_explained(tmp_path: Path) -> None:
    write_mnist(tmp_path, ".gz")
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(packed(IMAGES))
    with pytest.raises(DataError, match=r"remove \.gz from its name"):
        load("mnist", tmp_path)


@pytest.mark.parametrize("end", ["", ".gz"])
def test_a_wrong_checksum_says_what_was_expected_and_the_way_out(tmp_path: Path, end: str) -> None:
    write_mnist(tmp_path, end)
    found = hashlib.md5(packed(IMAGES), usedforsecurity=False).hexdigest()
    with pytest.raises(DataError) as error:
        load("mnist", tmp_path)
    text = str(error.value)
    assert f"train-images-idx3-ubyte{end}: wrong checksum" in text
    assert "expected md5:6bbc9ace898e44ae57da46a324031adb" in text
    assert f"found md5:{found}" in text
    assert "damaged, or another edition" in text
    assert "check=False" in text


def test_a_right_checksum_passes_however_the_file_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path)
    known = {
        ("mnist", f"{prefix}-{kind}"): checksums.digest("md5", packed(values))
        for prefix in ("train", "t10k")
        for kind, values in (("images-idx3-ubyte", IMAGES), ("labels-idx1-ubyte", LABELS))
    }
    monkeypatch.setattr(checksums, "CONTENT", known)
    assert len(samples("mnist", tmp_path)) == 10
    for path in tuple(tmp_path.iterdir()):
        write(path.with_name(path.name + ".gz"), path.read_bytes())
        path.unlink()
    assert len(samples("mnist", tmp_path)) == 10


def test_files_of_another_data_set_are_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path)
    known = {
        **checksums.CONTENT,
        ("fashion-mnist", "train-images-idx3-ubyte"): checksums.digest("md5", packed(IMAGES)),
    }
    monkeypatch.setattr(checksums, "CONTENT", known)
    with pytest.raises(DataError, match="it is train-images-idx3-ubyte of fashion-mnist"):
        load("mnist", tmp_path)


def test_packed_emnist_is_checked_and_unpacked_emnist_cannot_be(tmp_path: Path) -> None:
    stem = "emnist-digits-test-{}-ubyte"
    write(tmp_path / stem.format("images-idx3"), packed(IMAGES))
    write(tmp_path / stem.format("labels-idx1"), packed(LABELS))
    assert len(samples("emnist", tmp_path, split="digits", part="test")) == 5
    (tmp_path / stem.format("images-idx3")).unlink()
    write(tmp_path / (stem.format("images-idx3") + ".gz"), packed(IMAGES))
    with pytest.raises(DataError, match="expected md5:a159b8b3bd6ab4ed4793c1cb71a2f5cc"):
        load("emnist", tmp_path, split="digits", part="test")


def test_checksums_are_well_formed() -> None:
    for known in (*checksums.CONTENT.values(), *checksums.PACKED.values()):
        kind, _, value = known.partition(":")
        assert len(bytes.fromhex(value)) == {"md5": 16, "sha256": 32}[kind]
    everything = [*checksums.CONTENT.values(), *checksums.PACKED.values()]
    assert len(set(everything)) == len(everything)


def header(magic: int, *shape: int) -> bytes:
    return struct.pack(f">{1 + len(shape)}I", magic, *shape)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "truncated"),
        (header(0x803, 5), "truncated"),
        (header(0x801, 5, 28, 28) + IMAGES.tobytes(), "magic number 0x801 instead of 0x803"),
        (header(0x803, 5, 28, 27) + IMAGES.tobytes(), r"rows of shape \(28, 27\)"),
        (header(0x803, 0, 28, 28), "0 rows"),
        (header(0x803, 6, 28, 28) + IMAGES.tobytes(), "truncated"),
        (header(0x803, 4, 28, 28) + IMAGES.tobytes(), "longer than its header says"),
        (header(0x803, 2**32 - 1, 28, 28), "claims to hold 3367254359280 bytes; at most"),
        (header(0x803, 2**20, 28, 28), "claims to hold 822083584 bytes, but is only"),
    ],
)
@pytest.mark.parametrize("end", ["", ".gz"])
def test_a_damaged_idx_file_is_refused(tmp_path: Path, end: str, data: bytes, message: str) -> None:
    write_mnist(tmp_path, end)
    write(tmp_path / f"train-images-idx3-ubyte{end}", data)
    with pytest.raises(DataError, match=f"train-images-idx3-ubyte{end}: .*{message}"):
        load("mnist", tmp_path, check=False)


def test_a_gz_bomb_is_not_unpacked_beyond_what_its_header_says(tmp_path: Path) -> None:
    write_mnist(tmp_path, ".gz")
    write(tmp_path / "train-labels-idx1-ubyte.gz", header(0x801, 5) + bytes(1 << 24))
    with pytest.raises(DataError, match="longer than its header says"):
        load("mnist", tmp_path, check=False)


def test_content_stops_at_its_limit(tmp_path: Path) -> None:
    write(tmp_path / "text.gz", bytes(1 << 20))
    assert len(file_reading.content(tmp_path / "text.gz", 1 << 20)) == 1 << 20
    with pytest.raises(DataError, match="longer than 1000 bytes"):
        file_reading.content(tmp_path / "text.gz", 1000)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([3, 0, 10, 1, 1], "labels from 0 to 10, where they go from 0 to 9"),
        ([3, 0, 9, 1], "4 labels for 5 images"),
    ],
)
def test_labels_that_do_not_fit_are_refused(tmp_path: Path, labels: list[int], message: str) -> None:
    write_mnist(tmp_path, labels=np.array(labels, np.uint8))
    with pytest.raises(DataError, match=message):
        load("mnist", tmp_path, check=False)


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(DataError, match="secret: cannot be read: not yours"),
        file_reading.blame(tmp_path / "secret"),
    ):
        raise PermissionError("not yours")


# --- CIFAR-10 ---

PIXELS = RNG.integers(0, 256, (4, 3072), np.uint8)
CLASSES = [6, 9, 0, 1]


def text(value: bytes) -> bytes:
    """A string, as pickles of Python 2 hold it."""
    return (
        b"U" + bytes([len(value)]) + value
        if len(value) < 256
        else b"T" + struct.pack("<I", len(value)) + value
    )


def name(module: str, member: str) -> bytes:
    return f"c{module}\n{member}\n".encode()


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def pickled_array(
    content: bytes, shape: tuple[int, int], kind: bytes = b"u1", order: bytes = b"\x89"
) -> bytes:
    """An array of numpy's, as Python 2 pickled it."""
    empty = name("numpy", "ndarray") + number(0) + b"\x85" + text(b"b") + b"\x87"
    dtype = name("numpy", "dtype") + text(kind) + number(0) + number(1) + b"\x87Rq\x01("
    dtype += number(3) + text(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    state = (
        b"("
        + number(1)
        + number(shape[0])
        + number(shape[1])
        + b"\x86"
        + dtype
        + order
        + text(content)
        + b"t"
    )
    return name("numpy.core.multiarray", "_reconstruct") + empty + b"Rq\x02" + state + b"b"


def pickled(data: bytes, labels: bytes | None = None) -> bytes:
    """A batch: the pickle of a dictionary."""
    if labels is None:
        labels = b"](" + b"".join(map(number, CLASSES)) + b"e"
    entries = (
        text(b"batch_label") + text(b"testing batch 1 of 1") + text(b"labels") + labels + text(b"data") + data
    )
    return b"\x80\x02}q\x00(" + entries + b"u."


GOOD = pickled_array(PIXELS.tobytes(), PIXELS.shape)


def write_python(directory: Path, data: bytes) -> None:
    write(directory / "cifar-10-batches-py" / "test_batch", data)


def binary(labels: list[int]) -> bytes:
    return np.concatenate([np.array(labels, np.uint8)[:, None], PIXELS], axis=1).tobytes()


def check_images(found: Samples) -> None:
    assert found.x.dtype == np.float32
    assert np.array_equal(np.rint(found.x * 255), PIXELS.reshape(4, 3, 32, 32))
    assert found.y.tolist() == CLASSES


def test_python_batches(tmp_path: Path) -> None:
    write_python(tmp_path, pickled(GOOD))
    check_images(samples("cifar10", tmp_path, part="test", check=False))


def test_python_batches_in_column_order(tmp_path: Path) -> None:
    columns = pickled_array(PIXELS.T.tobytes(), PIXELS.shape, order=b"\x88")
    write_python(tmp_path, pickled(columns))
    check_images(samples("cifar10", tmp_path, part="test", check=False))


def test_binary_batches(tmp_path: Path) -> None:
    write(tmp_path / "cifar-10-batches-bin" / "test_batch.bin", binary(CLASSES))
    check_images(samples("cifar10", tmp_path, part="test", check=False))


def test_all_batches_come_in_order(tmp_path: Path) -> None:
    for number_ in range(1, 6):
        write(tmp_path / f"data_batch_{number_}.bin", binary([number_] * 4))
    write(tmp_path / "test_batch.bin", binary([0] * 4))
    found = samples("cifar10", tmp_path, check=False)
    assert found.y[::4].tolist() == [1, 2, 3, 4, 5, 0]
    (tmp_path / "data_batch_3.bin").unlink()
    with pytest.raises(DataError, match="data_batch_3 is missing"):
        load("cifar10", tmp_path, check=False)


@pytest.mark.parametrize("end", ["", ".bin"])
def test_batches_are_checked(tmp_path: Path, end: str) -> None:
    write(tmp_path / f"test_batch{end}", binary(CLASSES) if end else pickled(GOOD))
    with pytest.raises(DataError, match=f"test_batch{end}: wrong checksum"):
        load("cifar10", tmp_path, part="test")


@pytest.mark.parametrize(
    "what",
    [
        ("os", "system"),
        ("builtins", "eval"),
        ("__builtin__", "eval"),
        ("numpy", "load"),
        ("_codecs", "encode"),
    ],
)
def test_a_pickle_runs_nothing(tmp_path: Path, what: tuple[str, str]) -> None:
    mark = tmp_path / "ran"
    call = name(*what) + text(f"open({str(mark)!r}, 'w')".encode()) + b"\x85R"
    write_python(tmp_path, pickled(call))
    with pytest.raises(DataError, match=r"refers to \w+\.\w+, which no batch of CIFAR-10 does"):
        load("cifar10", tmp_path, part="test", check=False)
    assert not mark.exists()


# Each of sixty tuples holds the one before it twice.
DOUBLING = b"N\x85q\x01" + b"".join(b"h%ch%c\x86q%c" % (at, at, at + 1) for at in range(1, 60))


def test_a_batch_may_refer_back_to_texts_and_objects(tmp_path: Path) -> None:
    # Protocol 0 notes them with p, and g takes them up again.
    data = pickled(GOOD).replace(text(b"testing batch 1 of 1"), text(b"once") + b"p3\n" + b"0g3\n")
    write_python(tmp_path, data)
    check_images(samples("cifar10", tmp_path, part="test", check=False))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickled(GOOD)[:-5000], "not a pickle of Python 2, or truncated"),
        (b"", "not a pickle of Python 2, or truncated"),
        (b"\x80\x02]q\x00.", "data or labels are missing"),
        (pickled(GOOD, text(b"6901")), "not a list of small whole numbers"),
        (pickled(GOOD, b"](" + text(b"6") + b"e"), "not a list of small whole numbers"),
        (pickled(GOOD, b"](" + number(300) + b"e"), "not a list of small whole numbers"),
        (pickled(GOOD, b"](" + number(6) * 3 + b"e"), "3 rows of 3072, one for each label"),
        (pickled(GOOD, b"](" + number(10) * 4 + b"e"), "labels from 10 to 10"),
        (pickled(b"]"), "its data is not an array"),
        (pickled(pickled_array(b"", (0, 3072)), b"]"), "holds no images"),
        (pickled(pickled_array(PIXELS.tobytes(), (1 << 30, 3072))), "not an array of bytes with 4 rows"),
        (pickled(pickled_array(PIXELS.tobytes()[:-1], (4, 3072))), "not an array of bytes with 4 rows"),
        (pickled(pickled_array(PIXELS.tobytes(), (4, 3072), b"f4")), "not an array of bytes with 4 rows"),
        (b"\x80\x02}r\xff\xff\xff\x7f.", "more memo entries than objects"),
        (b"\x80\x02}" + DOUBLING + b"Ns.", "a structure that Python 2 does not produce"),
        (b"\x80\x02}N\x85" + b"2\x86" * 60 + b"Ns.", "a structure that Python 2 does not produce"),
        (b"\x80\x02}N" + b"\x85" * 10**6 + b"Ns.", "a structure that Python 2 does not produce"),
        # Whatever comes between a tuple and the note of it, it is a tuple.
        (b"\x80\x02}N\x85N0q\x01h\x01h\x01\x86Ns.", "a structure that Python 2 does not produce"),
        (
            b"\x80\x02}Nq\x01U\x00q\x01N\x85q\x01h\x01h\x01\x86Ns.",
            "a structure that Python 2 does not produce",
        ),
        (b"\x80\x04\x8f(N\x91.", "a structure that Python 2 does not produce"),
    ],
)
def test_a_batch_that_is_not_right_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    write_python(tmp_path, data)
    with pytest.raises(DataError, match=f"test_batch: .*{message}"):
        load("cifar10", tmp_path, part="test", check=False)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (binary(CLASSES)[:-1], "not a multiple of the record size"),
        (b"", "no images"),
        (binary([1, 2, 3, 10]), "labels"),
    ],
)
def test_a_damaged_binary_batch_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    write(tmp_path / "test_batch.bin", data)
    with pytest.raises(DataError, match=message):
        load("cifar10", tmp_path, part="test", check=False)


def test_a_batch_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "test_batch.gz", pickled(GOOD))
    monkeypatch.setattr(cifar10, "_LARGEST", 1000)
    with pytest.raises(DataError, match="it is longer than 1000 bytes") as error:
        load("cifar10", tmp_path, part="test", check=False)
    assert str(error.value).count("test_batch.gz") == 1


# --- Names and parameters ---


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(
        DataError, match=r"'mnsit'; did you mean 'mnist'\? Available: cifar10, classification, digits"
    ):
        load("mnsit")
    with pytest.raises(DataError, match=r"'qqq'\. Available: "):
        load("qqq")


def test_a_source_of_files_needs_a_directory() -> None:
    with pytest.raises(DataError, match="mnist is read from files: give the directory"):
        load("mnist")


def test_an_unknown_parameter_gets_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"unexpected keyword argument 'spilt'.*It takes directory, split, part, check"
    ):
        load("emnist", tmp_path, spilt="letters")
    with pytest.raises(DataError, match=r"digits: .*It takes no parameters"):
        load("digits", part="all")


@pytest.mark.parametrize(
    "read", [mnist_fashion_and_emnist.mnist, mnist_fashion_and_emnist.emnist, cifar10.cifar10]
)
def test_an_unknown_part_is_refused(tmp_path: Path, read: Callable[..., Samples]) -> None:
    with pytest.raises(DataError, match="part must be one of train, test, all, not 'trian'"):
        read(tmp_path, part="trian")


def test_an_unknown_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no split 'byletter'; it has byclass"):
        load("emnist", tmp_path, split="byletter")


def test_more_sources_can_be_added(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(*, rows: int) -> Samples:
        return Samples(np.zeros((rows, 2)), np.zeros(rows))

    monkeypatch.setitem(SOURCES, "made", made)
    loaded = load("made", rows=3)
    assert isinstance(loaded, Samples)
    assert len(loaded) == 3
