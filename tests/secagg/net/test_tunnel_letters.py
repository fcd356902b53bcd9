"""Letters: what an engine carries is parsed exactly, and anything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.errors import MalformedMessage
from secagg.net.tunnel_letters import (
    INSTANCE_BYTES,
    KEY_BYTES,
    MAX_DATA,
    MAX_SEGMENTS,
    Letter,
    Segment,
    parse_letter,
)

NODE = 7
KEY = b"k" * KEY_BYTES
INSTANCE = b"i" * INSTANCE_BYTES
EMPTY = Letter(INSTANCE, 5).encode()
FULL = Letter(INSTANCE, 5, (Segment(key=KEY, limit=9, start=3, data=b"data"),), has_more=True).encode()
HAS_MORE = len(EMPTY) - 2  # the places of two bytes
COUNT = len(EMPTY) - 1
FLAGS = len(EMPTY) + KEY_BYTES
SIZE = FLAGS + 1 + 8 + 8 + 3  # the last byte of it

numbers = st.integers(0, 2**64 - 1)
keys = st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES)
parts = st.builds(
    Segment,
    key=keys,
    limit=numbers,
    start=numbers,
    data=st.binary(),
    is_first=st.booleans(),
    is_last=st.booleans(),
)
resets = st.builds(Segment, key=keys, is_reset=st.just(True))
letters = st.builds(
    Letter,
    st.binary(min_size=INSTANCE_BYTES, max_size=INSTANCE_BYTES),
    numbers,
    st.lists(parts | resets, max_size=MAX_SEGMENTS).map(tuple),
    has_more=st.booleans(),
)


def refused(content: bytes) -> str:
    with pytest.raises(MalformedMessage) as caught:
        parse_letter(content, sender=NODE)
    assert caught.value.peer == NODE
    return caught.value.why


def changed(content: bytes, place: int, value: int) -> bytes:
    return content[:place] + bytes([value]) + content[place + 1 :]


@given(letters)
def test_a_letter_is_what_was_sent(letter: Letter) -> None:
    assert parse_letter(letter.encode(), sender=NODE) == letter


@given(letters, st.data())
def test_a_part_of_a_letter_is_none(letter: Letter, data: st.DataObject) -> None:
    content = letter.encode()
    refused(content[: data.draw(st.integers(0, len(content) - 1))])
    refused(content + b"\0")


@given(st.binary() | st.binary().map(lambda rest: FULL[: len(FULL) - 10] + rest))
def test_other_bytes_are_a_letter_or_refused(content: bytes) -> None:
    """Nothing else is raised, and no two contents are the same letter."""
    try:
        letter = parse_letter(content, sender=NODE)
    except MalformedMessage:
        return
    assert letter.encode() == content


def test_no_letter_is_shorter_than_its_head() -> None:
    assert refused(EMPTY[:-1]) == "a letter of a length that none has"


def test_no_letter_has_more_data_than_allowed() -> None:
    most = Segment(key=KEY, data=bytes(MAX_DATA))
    others = tuple(Segment(key=bytes([n]) * KEY_BYTES) for n in range(MAX_SEGMENTS - 1))
    content = Letter(INSTANCE, 0, (most, *others)).encode()
    assert len(parse_letter(content, sender=NODE).segments) == MAX_SEGMENTS
    more = Segment(key=KEY, data=bytes(MAX_DATA + 1))
    assert refused(Letter(INSTANCE, 0, (more, *others)).encode()) == "a letter of a length that none has"


@pytest.mark.parametrize(
    "content",
    [changed(EMPTY, 0, 0), changed(EMPTY, HAS_MORE, 2), changed(EMPTY, COUNT, MAX_SEGMENTS + 1)],
    ids=["another magic", "no truth value", "too many segments"],
)
def test_a_head_that_is_none(content: bytes) -> None:
    assert refused(content) == "not a letter of this transport"


def test_a_letter_that_ends_early() -> None:
    assert refused(changed(EMPTY, COUNT, 1)) == "a letter that ends early"


def test_a_letter_with_bytes_at_its_end() -> None:
    assert refused(FULL + b"x") == "a letter with bytes at its end"


@pytest.mark.parametrize(
    "content",
    [
        changed(FULL, FLAGS, 8),
        changed(FULL, FLAGS, 4),
        changed(FULL, FLAGS, 5),
        changed(FULL, FLAGS, 6),
        changed(FULL, SIZE, 5),
    ],
    ids=["unknown flag", "reset with data", "reset that opens", "reset that ends", "too large"],
)
def test_a_segment_that_is_none(content: bytes) -> None:
    assert refused(content) == "a letter with a segment that is none"


def test_only_parts_of_streams_are_worth_a_wait() -> None:
    reset, part = Segment(key=KEY, is_reset=True), Segment(key=KEY)
    assert not Letter(INSTANCE, 0, (reset,)).has_stream
    assert Letter(INSTANCE, 0, (reset, part)).has_stream


def test_data_is_not_printed() -> None:
    """Not that it is secret: it is long."""
    assert "xyz" not in repr(Segment(key=KEY, data=b"xyz"))
