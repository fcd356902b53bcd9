"""The reader of frames: one encoding per value, and a typed error for everything else."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from secagg.canonical_msgpack import Reader, encode_fields
from secagg.errors import MalformedMessage

FIELDS = st.one_of(
    st.integers(0, (1 << 64) - 1),
    st.binary(max_size=300),
    st.text(st.characters(max_codepoint=127), max_size=64),
)
EDGES = [0, 127, 128, 255, 256, 65535, 65536, (1 << 32) - 1, 1 << 32, (1 << 64) - 1]


def reader(frame: bytes) -> Reader:
    return Reader(frame, sender=3)


def read_back(frame: bytes, fields: list[Any]) -> list[Any]:
    source = reader(frame)
    source.array(len(fields))
    kinds: dict[type, Callable[[], Any]] = {int: source.uint, bytes: source.blob, str: source.text}
    values = [kinds[type(field)]() for field in fields]
    source.end()
    return values


@given(st.lists(FIELDS, max_size=15))
@settings(deadline=None)
@example(EDGES)
@example([bytes(n) for n in (0, 1, 255, 256, 65535, 65536)])
@example(["a" * n for n in (0, 1, 31, 32, 64)])
def test_what_was_encoded_is_read_back(fields: list[Any]) -> None:
    assert read_back(encode_fields(*fields), fields) == fields


@given(st.lists(FIELDS, max_size=15))
@settings(deadline=None)
@example([1, bytes(65535), 2])
@example([1, b"a" * 65536, 300, "text", b"b" * 70000, b"", 1 << 40])
@example([bytes(65536)] * 15)
def test_the_encoding_is_that_of_msgpack(fields: list[Any]) -> None:
    assert encode_fields(*fields) == msgpack.packb(fields, use_bin_type=True)
    assert read_back(encode_fields(*fields), fields) == fields


def test_a_long_string_is_copied_once_on_its_way_into_a_frame_and_once_out_of_it() -> None:
    data = bytes(1 << 22)
    tracemalloc.start()
    frame = encode_fields(1, data)
    encoding = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    tracemalloc.start()
    assert read_back(frame, [1, data]) == [1, data]
    decoding = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert max(encoding, decoding) < 1.1 * len(data)


@given(st.lists(FIELDS, max_size=4), st.integers(0, 1 << 20), st.integers(1, 255))
@settings(deadline=None, max_examples=200)
def test_a_frame_that_is_read_has_only_this_encoding(fields: list[Any], at: int, flip: int) -> None:
    """Whatever a changed byte does, it is refused or read as other values, never as the same ones."""
    frame = bytearray(encode_fields(*fields))
    frame[at % len(frame)] ^= flip
    try:
        values = read_back(bytes(frame), fields)
    except MalformedMessage:
        return
    assert values != fields
    assert encode_fields(*values) == bytes(frame)


@pytest.mark.parametrize(
    "data",
    ["cc7f", "cd00ff", "cd0001", "ce0000ffff", "cf00000000ffffffff", "cf0000000000000000"],
)
def test_integers_in_a_longer_form_than_needed_are_refused(data: str) -> None:
    assert msgpack.unpackb(bytes.fromhex(data)) >= 0  # which a general unpacker takes
    with pytest.raises(MalformedMessage, match="client 3: a number in a longer form than it needs"):
        reader(bytes.fromhex(data)).uint()


@pytest.mark.parametrize(
    "data", [b"\xc5\x00\x01a", b"\xc5\x00\xff" + bytes(255), b"\xc6\x00\x00\xff\xff" + bytes(65535)]
)
def test_lengths_in_a_longer_form_than_needed_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage, match="longer form"):
        reader(data).blob()
    with pytest.raises(MalformedMessage, match="longer form"):
        reader(b"\xd9\x1f" + bytes(31)).text()


@pytest.mark.parametrize(
    "lead",
    [0x80, 0x90, 0xA0, 0xC0, 0xC1, 0xC2, 0xC3, 0xC4, 0xC7, 0xCA, 0xCB, 0xD0, 0xD3, 0xD9, 0xDC, 0xE0, 0xFF],
)
def test_an_integer_is_unsigned_and_nothing_else(lead: int) -> None:
    with pytest.raises(MalformedMessage, match="a field of another type"):
        reader(bytes([lead]) + bytes(16)).uint()


@pytest.mark.parametrize("lead", [0x00, 0x7F, 0x80, 0x90, 0xA0, 0xC0, 0xC7, 0xCC, 0xD9, 0xDC, 0xE0])
def test_a_blob_is_binary_and_nothing_else(lead: int) -> None:
    with pytest.raises(MalformedMessage, match="a field of another type"):
        reader(bytes([lead]) + bytes(16)).blob()


@pytest.mark.parametrize("lead", [0x00, 0x7F, 0x80, 0x90, 0xC0, 0xC4, 0xCC, 0xDA, 0xDB, 0xDC, 0xE0])
def test_text_is_a_short_string_and_nothing_else(lead: int) -> None:
    with pytest.raises(MalformedMessage, match="a field of another type"):
        reader(bytes([lead]) + bytes(200)).text()


@pytest.mark.parametrize("data", [b"\xa1\x80", b"\xa2\xc3\xa4", b"\xd9\x41" + b"a" * 65])
def test_text_is_ascii_and_at_most_64_long(data: bytes) -> None:
    with pytest.raises(MalformedMessage, match="at most 64 ASCII characters"):
        reader(data).text()


@pytest.mark.parametrize("size", [0, 2, 15])
def test_an_array_has_exactly_the_expected_size(size: int) -> None:
    reader(bytes([0x90 | size])).array(size)
    for lead in {0x90 | (size ^ 1), 0x80 | size, 0xDC, 0xC0, size}:
        with pytest.raises(MalformedMessage, match=f"not an array of {size} fields"):
            reader(bytes([lead, 0, 0])).array(size)


def test_a_frame_that_ends_early_is_refused_at_every_byte() -> None:
    fields: list[Any] = [1, 300, b"blob", "text", 1 << 40]
    frame = encode_fields(*fields)
    for stop in range(len(frame)):
        with pytest.raises(MalformedMessage, match="the message ends too early"):
            read_back(frame[:stop], fields)


def test_bytes_after_the_end_are_refused() -> None:
    with pytest.raises(MalformedMessage, match="bytes after the end of the message") as caught:
        read_back(encode_fields(1) + b"\0", [1])
    assert caught.value.peer == 3


def test_a_length_beyond_the_frame_takes_no_memory() -> None:
    with pytest.raises(MalformedMessage, match="ends too early"):
        reader(b"\xc6\xff\xff\xff\xff").blob()
