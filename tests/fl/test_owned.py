"""Data sets whose samples have owners: npz files, LEAF's, and Shakespeare's roles."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl.data import file_reading, load, npz
from fl.data.leaf import LETTERS, encode
from fl.data.owned_samples import OwnedSamples
from fl.errors import DataError
from fl.federation import ClientData
from fl.samples import Array, Samples

RNG = np.random.default_rng(11)
IMAGES = RNG.integers(0, 256, (6, 28, 28), np.uint8)
LABELS = np.array([0, 1, 2, 2, 1, 61], np.uint8)
WRITER = np.array([4, 4, 4, 9, 9, 4], np.uint16)


def pooled(directory: Path, **parameters: Any) -> Samples:
    loaded = load("npz", directory, file="own.npz", **parameters)
    assert isinstance(loaded, Samples)
    return loaded


def owned(name: str, directory: Path, **parameters: Any) -> OwnedSamples:
    loaded = load(name, directory, **parameters)
    assert isinstance(loaded, OwnedSamples)
    return loaded


def save(directory: Path, **arrays: Array) -> Path:
    np.savez_compressed(directory / "own.npz", **arrays)  # type: ignore[arg-type]
    return directory / "own.npz"


# --- OwnedSamples ---


def test_owners_and_what_they_hold() -> None:
    samples = Samples(np.arange(6.0).reshape(6, 1), LABELS)
    held = OwnedSamples(samples, WRITER)
    assert len(held) == 6
    assert held.of(9).x[:, 0].tolist() == [3, 4]
    with pytest.raises(DataError, match="owner 5 has no samples"):
        held.of(5)
    assert OwnedSamples(samples, WRITER.tolist()).owner.tolist() == WRITER.tolist()


@pytest.mark.parametrize(
    ("owner", "names", "message"),
    [
        (WRITER[:5], (), r"6 samples and \(5,\) owners"),
        (WRITER.astype(float), (), "whole numbers, not float64"),
        (WRITER, ("a", "b"), "owners from 4 to 9, but 2 names"),
        (np.full(6, -1), ("a", "b"), "owners from -1 to -1"),
    ],
)
def test_owners_must_fit(owner: Array, names: tuple[str, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        OwnedSamples(Samples(np.zeros((6, 1)), LABELS), owner, names)


# --- npz ---


def test_npz_by_writer(tmp_path: Path) -> None:
    save(tmp_path, x=IMAGES, y=LABELS, writer=WRITER, other=np.array(["not", "read"]))
    held = owned("npz-owned", tmp_path, file="own.npz")
    assert held.samples.x.shape == (6, 1, 28, 28)
    assert np.array_equal(np.rint(held.samples.x[:, 0] * 255), IMAGES)
    assert held.samples.y.tolist() == LABELS.tolist()
    assert held.owner.tolist() == WRITER.tolist()
    assert len(pooled(tmp_path)) == 6


def test_npz_images_are_averaged_over_squares(tmp_path: Path) -> None:
    save(tmp_path, x=IMAGES, y=LABELS, writer=WRITER)
    x = owned("npz-owned", tmp_path, file="own.npz", shrink=2).samples.x
    assert x.shape == (6, 1, 14, 14)
    assert x[1, 0, 3, 5] == pytest.approx(IMAGES[1, 6:8, 10:12].mean() / 255)


@pytest.mark.parametrize("shrink", [0, 3])
def test_npz_images_that_do_not_shrink_are_refused(tmp_path: Path, shrink: int) -> None:
    save(tmp_path, x=IMAGES, y=LABELS, writer=WRITER)
    with pytest.raises(DataError, match=rf"own.npz.* do not shrink by {shrink}"):
        owned("npz-owned", tmp_path, file="own.npz", shrink=shrink)


def test_npz_by_name(tmp_path: Path) -> None:
    save(tmp_path, x=IMAGES, y=LABELS, who=np.array(["bo", "al", "bo", "al", "al", "al"]))
    held = owned("npz-owned", tmp_path, file="own.npz", owner="who")
    assert held.names == ("al", "bo")
    assert held.owner.tolist() == [1, 0, 1, 0, 0, 0]


def test_npz_in_parts(tmp_path: Path) -> None:
    save(
        tmp_path,
        x_train=IMAGES[:4],
        y_train=LABELS[:4, None],
        x_test=IMAGES[4:],
        y_test=LABELS[4:, None],
        writer_train=WRITER[:4],
        writer_test=WRITER[4:],
    )
    assert np.array_equal(np.rint(pooled(tmp_path).x[:, 0] * 255), IMAGES)
    assert pooled(tmp_path, part="train").y.tolist() == LABELS[:4].tolist()
    held = owned("npz-owned", tmp_path, file="own.npz", part="test")
    assert held.samples.y.tolist() == LABELS[4:].tolist()
    assert held.owner.tolist() == WRITER[4:].tolist()


@pytest.mark.parametrize("order", ["C", "F"])
def test_npz_puts_channels_first(tmp_path: Path, order: Any) -> None:
    colour = RNG.integers(0, 256, (2, 32, 32, 3), np.uint8)
    save(tmp_path, x=np.array(colour, order=order), y=np.array([0, 1]))
    found = pooled(tmp_path)
    assert found.x.shape == (2, 3, 32, 32)
    assert np.array_equal(np.rint(found.x[:, 1] * 255), colour[..., 1])
    save(tmp_path, x=np.moveaxis(colour, 3, 1), y=np.array([0, 1]))
    assert np.array_equal(pooled(tmp_path).x, found.x)


def test_npz_keeps_floats_and_symbols(tmp_path: Path) -> None:
    values = RNG.normal(size=(3, 4))
    save(tmp_path, x=values, y=np.array([0.5, -1, 2]))
    found = pooled(tmp_path)
    assert found.x.dtype == found.y.dtype == np.float32
    assert np.array_equal(found.x, values.astype(np.float32))
    assert found.y.tolist() == [0.5, -1, 2]
    save(tmp_path, x=np.array([[7, 300]], np.uint16), y=np.array([1], np.uint8))
    found = pooled(tmp_path)
    assert found.x.tolist() == [[7, 300]]
    assert found.x.dtype == np.int64


NOT_FINITE = np.array([[0.0, 1.0], [np.nan, 0.0], [1.0, np.inf]])


@pytest.mark.parametrize(
    ("arrays", "parameters", "message"),
    [
        ({"x": NOT_FINITE, "y": np.arange(3)}, {}, "2 of 3 inputs are not finite, the first in row 1: drop"),
        ({"x": np.zeros((2, 2)), "y": np.array([0, np.nan])}, {}, "1 of 2 targets are not finite"),
        ({"x": np.zeros((2, 2)), "y": np.array([0, -1])}, {}, "labels from -1 to 0, where they go from 0 up"),
        ({"x": np.zeros((2, 2)), "y": np.array([0, 3])}, {"classes": 3}, "where they go from 0 to 2"),
        ({"x": np.zeros((2, 2)), "y": np.array([0.0, 1])}, {"classes": 3}, "whole numbers, not float64"),
        ({"x": np.zeros((2, 2)), "y": np.array(["a", "b"])}, {}, "labels must be whole numbers, not <U1"),
        ({"x": np.zeros((2, 2)), "y": np.zeros((2, 2), int)}, {}, r"targets have shape \(2, 2\)"),
        ({"x": np.array([["a"]]), "y": np.array([0])}, {}, "inputs must be numbers, not <U1"),
        ({"x": np.array([[True]]), "y": np.array([0])}, {}, "inputs must be numbers, not bool"),
        ({"x": np.zeros((2, 2)), "y": np.arange(3)}, {}, "one target for every input"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, int)}, {}, "holds no samples"),
        ({"x": np.array(1.0), "y": np.arange(1)}, {}, "a single number"),
        ({"x": np.array(1, np.uint8), "y": np.arange(1)}, {}, "a single number"),
        ({"x": IMAGES, "z": LABELS}, {}, "it holds x, z; missing: y"),
        ({"a": IMAGES}, {}, "it holds a; missing: x_train, x_test"),
        ({"x": IMAGES, "y": LABELS}, {"part": "test"}, "not split, so it has no part 'test'"),
        (
            {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES / 255, "y_test": LABELS},
            {},
            "inputs of its parts differ: float64",
        ),
    ],
)
def test_npz_that_is_not_right_is_refused(
    tmp_path: Path, arrays: dict[str, Array], parameters: dict[str, Any], message: str
) -> None:
    save(tmp_path, **arrays)
    with pytest.raises(DataError, match=rf"own\.npz: .*{message}"):
        pooled(tmp_path, **parameters)


def test_npz_without_the_owner_is_refused(tmp_path: Path) -> None:
    save(tmp_path, x=IMAGES, y=LABELS)
    with pytest.raises(DataError, match="it holds x, y; missing: writer"):
        load("npz-owned", tmp_path, file="own.npz")
    save(tmp_path, x=IMAGES, y=LABELS, writer=WRITER[:3])
    with pytest.raises(DataError, match=r"own\.npz: 6 samples and \(3,\) owners"):
        load("npz-owned", tmp_path, file="own.npz")


def test_npz_never_unpickles(tmp_path: Path) -> None:
    save(tmp_path, x=np.array([{"a": 1}], dtype=object), y=np.array([0]))
    with pytest.raises(DataError, match="x holds Python objects, which are never read"):
        pooled(tmp_path)


def test_npz_that_is_cut_short_or_damaged_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, x=IMAGES, y=LABELS)
    data = path.read_bytes()
    path.write_bytes(data[:-100])
    with pytest.raises(DataError, match=r"own\.npz: damaged \(File is not a zip file\)"):
        pooled(tmp_path)
    path.write_bytes(data[:2000] + bytes([data[2000] ^ 255]) + data[2001:])
    with pytest.raises(DataError, match=r"own\.npz: damaged"):
        pooled(tmp_path)


def forged(directory: Path, member: bytes) -> None:
    with zipfile.ZipFile(directory / "own.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", member)
        archive.writestr("y.npy", member)


def array_header(shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"shape": shape, "fortran_order": False, "descr": "|u1"})
    return stream.getvalue()


def nonsense(header: bytes, version: int = 1) -> bytes:
    """The start of an array, whose header is whatever."""
    length = len(header).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + header


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (array_header((1 << 40,)), "claims to hold 1099511627776 bytes; at most"),
        (array_header((1 << 28,)), "claims to hold 268435456 bytes, but is only"),
        (array_header((-5,)), "claims an impossible shape"),
        (array_header((0, 1 << 70)), "claims an impossible shape"),
        (array_header((0, 1 << 40, 1 << 40)), "claims an impossible shape"),
        (array_header((1,) * 33), "claims an impossible shape"),
        (array_header((5,)) + bytes(4), "truncated"),
        (array_header((5,)) + bytes(6), "longer than its header says"),
        (b"\x93NUMPY\x09\x00", "x has numpy format version 9.0, not 1.0 or 2.0"),
        (nonsense(b"{}", 3), "x has numpy format version 3.0, not 1.0 or 2.0: save it again"),
        (nonsense(b"(" * 5000), "x is not a numpy array: .*EOF"),
        (nonsense(b"{'descr': '''"), "x is not a numpy array: .*EOF"),
        (nonsense(b"  a\n b\n"), "x is not a numpy array: unindent"),
        (nonsense(b"-" * 9000), "x is not a numpy array: (its header cannot be read|.*recursion)"),
        (nonsense(b"1" * 9000), "x is not a numpy array: .{1,200}$"),
        (nonsense(b"{1: 2, 'a': 3}"), "x is not a numpy array"),
        (nonsense(b"{'descr': (), 'fortran_order': False, 'shape': ()}"), "x is not a numpy array"),
        (b"hello, world", "x is not a numpy array"),
    ],
)
def test_npz_that_is_forged_is_refused(tmp_path: Path, member: bytes, message: str) -> None:
    forged(tmp_path, member)
    with pytest.raises(DataError, match=rf"own\.npz: .*{message}"):
        npz.pooled(tmp_path, file="own.npz")


def test_only_arrays_are_members(tmp_path: Path) -> None:
    path = save(tmp_path, x=IMAGES, z=LABELS)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("y", b"no array")
    with pytest.raises(DataError, match=r"own\.npz: it holds x, z; missing: y"):
        pooled(tmp_path)


def test_members_are_packed_as_numpy_does_it(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "own.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("x.npy", array_header((0,)))
    with pytest.raises(DataError, match=r"own\.npz: x uses a compression that numpy does not"):
        pooled(tmp_path)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("code", "good"), [(0x7FFFFFFF, False), (0x110000, False), (0xDC80, False), (65, True)]
)
def test_names_are_texts(tmp_path: Path, order: str, code: int, good: bool) -> None:
    who = np.full(6, code, f"{order}u4").view(f"{order}U1")
    save(tmp_path, x=IMAGES, y=LABELS, writer=who)
    if good:
        assert owned("npz-owned", tmp_path, file="own.npz").names == ("A",)
        return
    with pytest.raises(DataError, match=r"own\.npz: writer has invalid characters"):
        load("npz-owned", tmp_path, file="own.npz")


@pytest.mark.parametrize(
    ("train", "test"),
    [
        (np.zeros(6, int), np.zeros(6)),
        (np.zeros(6, int), np.zeros(6, np.uint64)),
        (np.zeros(6, int), np.zeros(6, "M8[s]")),
        (np.zeros(6, int), np.zeros((6, 2), int)),
    ],
    ids=["floats", "longest", "times", "shapes"],
)
def test_targets_of_both_parts_are_alike(tmp_path: Path, train: Array, test: Array) -> None:
    save(tmp_path, x_train=IMAGES, y_train=train, x_test=IMAGES, y_test=test)
    with pytest.raises(DataError, match=r"own\.npz: the arrays of its parts differ: int64 \(6,\), "):
        pooled(tmp_path)
    save(tmp_path, x_train=IMAGES, y_train=LABELS, x_test=IMAGES, y_test=LABELS.astype(int))
    assert pooled(tmp_path).y.tolist() == LABELS.tolist() * 2


@pytest.mark.parametrize(("x", "y", "what"), [(1e300, 0.0, "inputs"), (0.0, -1e300, "targets")])
def test_numbers_that_are_too_large_for_single_floats_are_refused(
    tmp_path: Path, x: float, y: float, what: str
) -> None:
    save(tmp_path, x=np.array([[0.0], [x]]), y=np.array([0.5, y]))
    with pytest.raises(DataError, match=f"1 of 2 {what} are not finite, the first in row 1"):
        pooled(tmp_path)


# --- LEAF ---


def leaf_file(path: Path, held: dict[str, tuple[list[Any], list[Any]]], **changed: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(held),
        "num_samples": [len(y) for _, y in held.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in held.items()},
    }
    path.write_text(json.dumps({**content, **changed}))


def test_leaf_joins_the_parts_of_a_user(tmp_path: Path) -> None:
    leaf_file(tmp_path / "train" / "b.json", {"f1": ([[0, 0.5], [1, 0]], [3, 4]), "f0": ([[0.25, 0]], [9])})
    leaf_file(tmp_path / "test" / "b.json", {"f0": ([[1, 1]], [8])})
    held = owned("leaf", tmp_path)
    assert held.names == ("f1", "f0")
    assert held.owner.tolist() == [0, 0, 1, 1]
    assert held.samples.x.tolist() == [[0, 0.5], [1, 0], [0.25, 0], [1, 1]]
    assert held.samples.x.dtype == np.float32
    assert held.samples.y.tolist() == [3, 4, 9, 8]
    assert owned("leaf", tmp_path, part="test").names == ("f0",)


def test_numbers_that_happen_to_be_whole_do_not_change_the_kind(tmp_path: Path) -> None:
    leaf_file(tmp_path / "train" / "a.json", {"a": ([[1], [0]], [1, 2]), "b": ([[0.5]], [0.5])})
    held = owned("leaf", tmp_path, part="train")
    assert held.samples.x.dtype == held.samples.y.dtype == np.float32
    assert held.samples.y.tolist() == [1, 2, 0.5]


def test_leaf_before_the_split(tmp_path: Path) -> None:
    leaf_file(tmp_path / "data" / "all_data" / "1.json", {"b": ([[0.5] * 4], [1])})
    leaf_file(tmp_path / "data" / "all_data" / "0.json", {"a": ([[0.0] * 4], [0])})
    held = owned("leaf", tmp_path, shape=(1, 2, 2))
    assert held.names == ("a", "b")
    assert held.samples.x.shape == (2, 1, 2, 2)
    with pytest.raises(DataError, match=r"json files are missing: looked in .* for \*\.json in test\. LEAF"):
        load("leaf", tmp_path, part="test")


def test_leaf_of_texts(tmp_path: Path) -> None:
    leaf_file(tmp_path / "train" / "a.json", {"HAMLET": (["To b", "o be"], ["e", ","])})
    held = owned("leaf", tmp_path, part="train")
    assert held.samples.x.tolist() == [
        [LETTERS.index(letter) for letter in text] for text in ("To b", "o be")
    ]
    assert held.samples.y.tolist() == [LETTERS.index("e"), LETTERS.index(",")]


def test_a_client_of_one_class_is_fine(tmp_path: Path) -> None:
    leaf_file(tmp_path / "train" / "a.json", {"one": ([[0.1], [0.2]], [7, 7]), "two": ([[0.3]], [1])})
    held = owned("leaf", tmp_path, part="train")
    mine = held.of(0)
    assert mine.y.tolist() == [7, 7]
    assert len(ClientData(mine, mine, mine).train) == 2


def test_an_empty_client_is_named_or_dropped(tmp_path: Path) -> None:
    leaf_file(tmp_path / "train" / "a.json", {"f0": ([], []), "f1": ([[0.5]], [1])})
    with pytest.raises(DataError, match=r"a\.json: user 'f0': no samples: pass drop_empty=True"):
        load("leaf", tmp_path, part="train")
    assert owned("leaf", tmp_path, part="train", drop_empty=True).names == ("f1",)
    leaf_file(tmp_path / "train" / "a.json", {"f0": ([], [])})
    with pytest.raises(DataError, match="none of its users has samples"):
        load("leaf", tmp_path, part="train", drop_empty=True)
    nothing = Samples(np.zeros((0, 1)), np.zeros(0))
    with pytest.raises(DataError, match="a client has no training data"):
        ClientData(nothing, nothing, nothing)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([[0.5], [float("nan")]], [1, 2], "1 of 2 inputs are not finite, the first in row 1"),
        ([[0.5], [0.5, 1]], [1, 2], "inhomogeneous"),
        ([["1", "tweet"], ["2", "tweet"]], [1, 2], "neither numbers nor texts"),
        ([[0.5], "text"], [1, 2], "texts of different lengths, or mixed with numbers"),
        (["tex", "text"], ["a", "b"], "texts of different lengths"),
        (["café"], ["a"], "character 'é' at 3 is not in the vocabulary"),
        ([[0.5]], [-1], "labels from -1"),
        ([[True]], [1], "neither numbers nor texts, but bool"),
        ([[0.5] * 3], [1], r"cannot reshape array of size 3 into shape \(1,1,2,2\)"),
    ],
)
def test_what_a_user_holds_is_checked(tmp_path: Path, x: list[Any], y: list[Any], message: str) -> None:
    leaf_file(tmp_path / "train" / "a.json", {"f7": (x, y)})
    shape = (1, 2, 2) if "reshape" in message else None
    with pytest.raises(DataError, match=rf"a\.json: user 'f7': .*{message}"):
        load("leaf", tmp_path, part="train", shape=shape)


@pytest.mark.parametrize(
    ("second", "labels"), [(["ab"], [1]), ([[0.5, 0.5]], ["a"]), (["ab"], ["a"])], ids=["x", "y", "both"]
)
def test_users_hold_either_texts_or_numbers(tmp_path: Path, second: list[Any], labels: list[Any]) -> None:
    leaf_file(tmp_path / "train" / "a.json", {"f0": ([[1, 2]], [1])})
    leaf_file(tmp_path / "train" / "b.json", {"f1": (second, labels)})
    with pytest.raises(
        DataError, match=r"b\.json: user 'f1' has texts and others have numbers, or the reverse"
    ):
        load("leaf", tmp_path, part="train")


def test_a_user_is_listed_once(tmp_path: Path) -> None:
    path = tmp_path / "train" / "a.json"
    leaf_file(path, {"f0": ([[0.5]], [1])}, users=["f0", "f0"], num_samples=[1, 1])
    with pytest.raises(DataError, match=r"a\.json: user 'f0' is listed twice"):
        load("leaf", tmp_path, part="train")


def test_users_of_different_shapes_are_refused(tmp_path: Path) -> None:
    leaf_file(tmp_path / "train" / "a.json", {"f0": ([[0.5]], [1]), "f1": ([[0.5, 0.5]], [1])})
    with pytest.raises(DataError, match=r"differ in shape: \[\(1,\), \(2,\)\]"):
        load("leaf", tmp_path, part="train")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"users": ["f0", "f1"]}, "2 users, but 1 in num_samples"),
        ({"num_samples": [2]}, "user 'f0' should have 2 inputs x"),
        ({"user_data": {}}, "user 'f0' should have 1 inputs x"),
        ({"users": [["f0"]]}, "should have 1 inputs x"),
        ({"user_data": None}, "it is not in LEAF's format"),
    ],
)
def test_leaf_that_contradicts_itself_is_refused(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    leaf_file(tmp_path / "train" / "a.json", {"f0": ([[0.5]], [1])}, **changed)
    with pytest.raises(DataError, match=rf"a\.json: .*{message}"):
        load("leaf", tmp_path, part="train")


@pytest.mark.parametrize("data", [b'{"users": ["f0"', b"\xff\xfe\xfd", b"[" * 100_000, b"9" * 5000])
def test_leaf_that_is_no_json_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "train" / "a.json"
    path.parent.mkdir()
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"a\.json: (not json, or truncated|damaged \(maximum recursion)"):
        load("leaf", tmp_path, part="train")


# --- Shakespeare ---

TSV = (
    "play\trole\tline\n"
    "hamlet\tGHOST\tMark me.\n"
    "hamlet\tHAMLET\tI will.\n"
    "hamlet\tGHOST\tMy $hour\n"
    "lear\tGHOST\t???\n"
)


def words(row: Array) -> str:
    return "".join(LETTERS[code] for code in row)


@pytest.mark.parametrize("name", ["shakespeare.tsv", "shakespeare_by_role.tsv.gz"])
def test_roles_guess_their_next_character(tmp_path: Path, name: str) -> None:
    data = TSV.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    held = owned("shakespeare", tmp_path, window=5)
    # A role of another play is another owner; one with too little to say is left out.
    assert held.names == ("hamlet: GHOST", "hamlet: HAMLET")
    said = "Mark me.\nMy hour"
    assert [words(row) for row in held.of(0).x] == [said[at : at + 5] for at in range(len(said) - 5)]
    assert words(held.of(0).y) == said[5:]
    assert words(held.of(1).y) == "l."
    assert held.samples.x.dtype == np.uint8


def test_windows_can_be_thinned_out(tmp_path: Path) -> None:
    (tmp_path / "shakespeare.tsv").write_text(TSV)
    every = owned("shakespeare", tmp_path, window=4)
    for stride in (2, 3, 50):
        some = owned("shakespeare", tmp_path, window=4, stride=stride)
        assert np.array_equal(some.of(0).x, every.of(0).x[::stride])
        assert np.array_equal(some.of(0).y, every.of(0).y[::stride])


def test_speeches_in_plain_text(tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_text("All:\nSpeak.\r\n\nFirst Citizen:\nYou are\nall\n\n\nAll:\nSay on.\n")
    held = owned("shakespeare", tmp_path, window=6)
    assert held.names == ("All", "First Citizen")
    assert words(held.of(0).y) == "\nSay on."
    assert words(held.of(1).y) == "e\nall"


@pytest.mark.parametrize(
    ("name", "data", "parameters", "message"),
    [
        ("shakespeare.tsv", b"", {}, "first line must be play, role and line"),
        ("shakespeare.tsv", b"hamlet\tGHOST\tMark me.\n", {}, "first line must be play, role and line"),
        ("shakespeare.tsv", TSV.encode() + b"lear\tLEAR\n", {}, "line 6 has 2 columns"),
        ("shakespeare.tsv", TSV.encode(), {"window": 80}, "no role has more than 80 characters"),
        ("shakespeare.tsv", TSV.encode() + b"lear\tLEAR\t\xff\n", {}, "cannot be read: 'utf-8'"),
        ("shakespeare.tsv", TSV.encode(), {"letters": "aa"}, "letters must be 1 to 255 different characters"),
        ("shakespeare.txt", b"\nAll:\nhm\n\nSpeak, speak.\n", {}, "line 5 must be the name of a role"),
        ("shakespeare.txt", b"", {}, "no role has more"),
    ],
)
def test_a_text_that_is_not_right_is_refused(
    tmp_path: Path, name: str, data: bytes, parameters: dict[str, Any], message: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=f"{name}: .*{message}"):
        load("shakespeare", tmp_path, **{"window": 3, **parameters})


@pytest.mark.parametrize("name", ["window", "stride"])
@pytest.mark.parametrize("value", [0, 2.5, "3", None])
def test_windows_are_whole_numbers(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(DataError, match=f"{name} must be a whole number of at least 1, not {value!r}"):
        load("shakespeare", tmp_path, **{name: value})


def test_more_windows_than_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shakespeare.tsv").write_text(TSV)
    monkeypatch.setattr(file_reading, "LARGEST", 13 * 5 - 1)
    with pytest.raises(DataError, match="13 windows of 5 are too many for memory: choose a larger stride"):
        load("shakespeare", tmp_path, window=5)


def test_the_vocabulary_is_that_of_leaf() -> None:
    assert len(LETTERS) == 80
    assert encode(LETTERS).tolist() == list(range(80))
    assert encode("\U0001f600a$b", drop=True).tolist() == encode("ab").tolist()
    assert not len(encode(""))
