"""Records as bytes and back: everything that fits, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.serialisation import (
    RecordError,
    Vector,
    as_vector,
    is_finite,
    largest_of,
    pack,
    unpack,
    vectors_of,
)
from secagg.errors import LocalError


@dataclass(frozen=True)
class Inner:
    weight: float
    vector: Vector | None = None


@dataclass(frozen=True)
class Record:
    whole: int
    real: float
    truth: bool
    text: str
    data: bytes
    vector: Vector
    maybe: Vector | None
    reals: tuple[float, ...]
    pair: tuple[int, str]
    inner: Inner
    inners: tuple[Inner, ...]


@dataclass(frozen=True)
class Nothing:
    pass


REALS = st.floats(allow_nan=False, allow_infinity=False)
VECTORS = st.lists(REALS, max_size=5).map(as_vector)
INNER = st.builds(Inner, weight=REALS, vector=st.none() | VECTORS)
RECORDS = st.builds(
    Record,
    whole=st.integers(-(2**63), 2**63 - 1),
    real=REALS,
    truth=st.booleans(),
    text=st.text(),
    data=st.binary(),
    vector=VECTORS,
    maybe=st.none() | VECTORS,
    reals=st.lists(REALS, max_size=3).map(tuple),
    pair=st.tuples(st.integers(-5, 5), st.text(max_size=3)),
    inner=INNER,
    inners=st.lists(INNER, max_size=3).map(tuple),
)
SOME = Record(
    whole=1,
    real=2.0,
    truth=True,
    text="a",
    data=b"b",
    vector=as_vector([1.0, 2.0]),
    maybe=None,
    reals=(1.0,),
    pair=(1, "x"),
    inner=Inner(0.5, as_vector([3.0])),
    inners=(Inner(0.5),),
)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.tobytes() == other.tobytes()
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Inner | Record):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    return type(one) is type(other) and bool(one == other)


def changed(**values: Any) -> Record:
    plain = {field.name: getattr(SOME, field.name) for field in fields(SOME)}
    return Record(**{**plain, **values})


@given(RECORDS)
def test_a_record_survives_and_has_one_form(record: Record) -> None:
    data = pack(record)
    again = unpack(Record, data)
    assert same(record, again)
    assert pack(again) == data
    assert not again.vector.flags.writeable


def test_a_record_without_fields() -> None:
    assert unpack(Nothing, pack(Nothing())) == Nothing()


def test_a_vector_is_a_copy_that_nobody_can_change() -> None:
    mine = np.zeros(2)
    vector = as_vector(mine)
    mine[0] = 1.0
    assert vector.tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="read-only"):
        vector[0] = 1.0


def test_a_whole_number_in_the_place_of_a_float_becomes_one() -> None:
    """Type checkers let it pass; those who read it would not."""
    again = unpack(Record, pack(changed(real=3, reals=(1, 2), inner=Inner(7))))
    assert (again.real, again.reals, again.inner.weight) == (3.0, (1.0, 2.0), 7.0)
    assert type(again.real) is float


@pytest.mark.parametrize(
    "values",
    [
        {"whole": 2**63},
        {"whole": -(2**63) - 1},
        {"whole": 1.0},
        {"whole": True},
        {"whole": np.int64(1)},
        {"real": float("nan")},
        {"real": float("inf")},
        {"real": 10**400},
        {"real": True},
        {"real": "1"},
        {"truth": 1},
        {"text": b"a"},
        {"data": "a"},
        {"data": bytearray(b"a")},
        {"vector": [1.0]},
        {"vector": np.array([np.nan])},
        {"vector": np.array([np.inf])},
        {"vector": np.zeros(2, np.float32)},
        {"vector": np.zeros((2, 2))},
        {"vector": None},
        {"maybe": np.array([-np.inf])},
        {"reals": [1.0]},
        {"reals": (float("nan"),)},
        {"pair": (1,)},
        {"pair": (1, "x", "y")},
        {"pair": ("x", 1)},
        {"inner": None},
        {"inner": SOME},
        {"inner": Inner(float("inf"))},
        {"inners": (SOME,)},
    ],
    ids=repr,
)
def test_what_could_not_be_read_again_is_not_written(values: dict[str, Any]) -> None:
    with pytest.raises(RecordError):
        pack(changed(**values))


def as_lists(record: Record) -> list[Any]:
    plain: list[Any] = msgpack.unpackb(pack(record))
    return plain


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, 2**63),
        (0, 1.0),
        (0, True),
        (0, None),
        (1, 1),
        (1, float("nan")),
        (1, float("-inf")),
        (2, 1),
        (3, b"a"),
        (4, "a"),
        (5, b"1234567"),
        (5, np.array([np.nan]).tobytes()),
        (5, np.array([np.inf]).tobytes()),
        (5, [1.0, 2.0]),
        (5, None),
        (6, 0),
        (7, 1.0),
        (7, [1]),
        (7, {}),
        (8, [1]),
        (8, [1, "x", 1]),
        (8, ["x", 1]),
        (9, None),
        (9, [0.5]),
        (9, [0.5, None, None]),
        (10, [[0.5]]),
        (10, None),
        (0, msgpack.Timestamp(1)),
        (0, msgpack.ExtType(5, b"x")),
        (9, {"weight": 0.5, "vector": None}),
    ],
)
def test_bytes_that_do_not_fit_the_declaration_are_refused(place: int, value: Any) -> None:
    plain = as_lists(SOME)
    plain[place] = value
    with pytest.raises(RecordError):
        unpack(Record, msgpack.packb(plain))


@pytest.mark.parametrize("count", [0, 1, 10, 12, 100])
def test_missing_and_further_fields_are_refused(count: int) -> None:
    plain = (as_lists(SOME) + [0] * 100)[:count]
    with pytest.raises(RecordError, match="must have the fields"):
        unpack(Record, msgpack.packb(plain))


BOMBS = {
    "empty": b"",
    "nested arrays": b"\x91" * 100_000,
    "nested maps": b"\x81\xa1a" * 100_000,
    "long array": b"\xdd\xff\xff\xff\xff",
    "long map": b"\xdf\xff\xff\xff\xff",
    "long text": b"\xdb\xff\xff\xff\xff",
    "long bytes": b"\xc6\xff\xff\xff\xff",
    "bad text": b"\xa2\xff\xff",
    "unused byte": b"\xc1",
    "bad timestamp": b"\xc7\x05\xff12345",
    "late timestamp": b"\xc7\x0c\xff" + b"\xff" * 12,
    "map with a list as key": b"\x81\x90\x01",
    "map with a number as key": b"\x81\x01\x01",
}


@pytest.mark.parametrize("data", BOMBS.values(), ids=BOMBS)
def test_bombs_are_refused(data: bytes) -> None:
    with pytest.raises(RecordError):
        unpack(Record, data)
    with pytest.raises(RecordError):
        unpack(Record, pack(SOME) + data + b"\x00")


@given(st.data())
def test_damaged_bytes_give_a_record_or_the_one_error(data: st.DataObject) -> None:
    good = bytearray(pack(SOME))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(good[: data.draw(st.integers(0, len(good)))])
    for each in (bytes(good), cut):
        try:
            record = unpack(Record, each)
        except RecordError:
            continue
        assert pack(record) == pack(unpack(Record, pack(record)))


def test_vectors_are_found_however_deep() -> None:
    record = changed(maybe=as_vector([4.0]), inners=(Inner(1.0), Inner(1.0, as_vector([5.0]))))
    found = {name: vector.tolist() for name, vector in vectors_of(record).items()}
    assert found == {
        "vector": [1.0, 2.0],
        "maybe": [4.0],
        "inner.vector": [3.0],
        "inners[1].vector": [5.0],
    }


def test_whether_all_numbers_are_finite() -> None:
    assert is_finite(SOME)
    assert is_finite(Nothing())
    for values in (
        {"real": float("nan")},
        {"vector": np.array([0.0, np.inf])},
        {"reals": (1.0, float("inf"))},
        {"inner": Inner(float("nan"))},
        {"inners": (Inner(1.0, np.array([np.nan])),)},
    ):
        assert not is_finite(changed(**values))


def test_the_error_is_ours_and_not_a_peers() -> None:
    assert issubclass(RecordError, LocalError)


def test_the_largest_number_of_a_record() -> None:
    @dataclass(frozen=True)
    class Numbers:
        vector: Vector
        pair: tuple[float, ...]
        text: str = "9"

    assert largest_of(Numbers(as_vector([1.0, -3.0]), (2.0, -2.5))) == 3.0
    assert largest_of(Numbers(as_vector([]), (2.0, -2.5))) == 2.5
    assert largest_of(Numbers(as_vector([]), ())) == 0.0
