"""Messages: one that exists is well-formed, and decoding is the inverse of encoding."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import messages as m
from secagg.canonical_msgpack import encode_fields
from secagg.errors import MalformedMessage, OversizeMessage, WrongVersion
from secagg.hashing import VERSION

KINDS = (*m.FROM_SERVER, *m.FROM_CLIENT)
LIMIT = 1 << 20

VALUES: dict[type, Any] = {
    m.Uint: lambda f: st.integers(0, f.most),
    m.Blob: lambda f: st.sampled_from(list(f.lengths[:80])).flatmap(
        lambda n: st.binary(min_size=n, max_size=n)
    ),
    m.Text: lambda _: st.text(st.characters(max_codepoint=127), min_size=1, max_size=64),
}


def any_of(kind: type[m.Message]) -> st.SearchStrategy[m.Message]:
    return st.builds(kind, *(VALUES[type(field)](field) for field in kind.SCHEMA))


ANY_MESSAGE = st.sampled_from(KINDS).flatmap(any_of)


def decode(frame: bytes, limit: int = LIMIT) -> m.Message:
    return m.decode(frame, sender=7, limit=limit)


@given(ANY_MESSAGE)
@settings(deadline=None, max_examples=200)
def test_decoding_undoes_encoding(message: m.Message) -> None:
    frame = message.encode()
    assert decode(frame) == message
    assert decode(frame).encode() == frame


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_type_has_a_code_of_its_own(kind: type[m.Message]) -> None:
    assert [other.TYPE for other in KINDS].count(kind.TYPE) == 1
    assert (kind.TYPE < 16) == (kind in m.FROM_SERVER)


@given(ANY_MESSAGE, st.data())
@settings(deadline=None)
def test_a_message_with_one_field_more_or_less_is_refused(message: m.Message, data: st.DataObject) -> None:
    values: list[Any] = [VERSION, message.TYPE, *(getattr(message, name) for name in names(type(message)))]
    extra: Any = data.draw(st.sampled_from([0, b"", "a"]))
    with pytest.raises(MalformedMessage, match="an unknown type of message, or one with other fields"):
        decode(encode_fields(*values, extra))
    with pytest.raises(MalformedMessage, match="unknown type"):
        decode(encode_fields(*values[:-1]))


def names(kind: type[m.Message]) -> list[str]:
    return [column.name for column in fields(kind)]


@given(ANY_MESSAGE, st.data())
@settings(deadline=None, max_examples=200)
def test_a_field_outside_its_range_cannot_exist(message: m.Message, data: st.DataObject) -> None:
    """Neither on this side, which is a bug of ours, nor on the wire, which is the sender's."""
    kind = type(message)
    at = data.draw(st.integers(0, len(kind.SCHEMA) - 1))
    values: list[Any] = [getattr(message, name) for name in names(kind)]
    field = kind.SCHEMA[at]
    if isinstance(field, m.Uint):
        values[at] = data.draw(st.integers(field.most + 1, (1 << 64) - 1))
    elif isinstance(field, m.Text):
        values[at] = ""
    else:
        outside = [n for n in (0, 1, 31, 33, 63, 65) if n not in field.lengths]
        if not outside:
            return
        values[at] = bytes(data.draw(st.sampled_from(outside)))
    with pytest.raises(ValueError, match=rf"{kind.__name__}\.\w+ is outside its range"):
        kind(*values)
    with pytest.raises(MalformedMessage, match=rf"client 7: {kind.__name__}\.\w+ is outside its range"):
        decode(encode_fields(VERSION, kind.TYPE, *values))


@pytest.mark.parametrize(
    "values", [(b"", 1), (bytes(32), "1"), (bytes(32), 1.0), (bytes(32), True), (bytearray(32), 1), (None, 1)]
)
def test_a_field_of_another_type_cannot_exist(values: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match="outside its range"):
        m.Decline(*values)
    text: Any = b"kind"
    for kind in (text, "k\xe4nd", "a" * 65):
        with pytest.raises(ValueError, match=r"Query\.kind"):
            m.Query(bytes(32), 0, 0, kind, b"\1", b"")


@pytest.mark.parametrize("code", [0, 10, 15, 25, 255, 1 << 32])
def test_unknown_types_are_refused(code: int) -> None:
    with pytest.raises(MalformedMessage, match="an unknown type of message"):
        decode(encode_fields(VERSION, code, bytes(32)))


@pytest.mark.parametrize("version", [0, 1, 3, 255, (1 << 64) - 1])
def test_other_versions_are_refused_and_nothing_is_negotiated(version: int) -> None:
    with pytest.raises(WrongVersion, match=f"version {version}; this side speaks only {VERSION}"):
        decode(encode_fields(version, m.Farewell.TYPE, bytes(32)))


@pytest.mark.parametrize(
    "frame", [b"", b"\x93", b"\x93\x01", b"\x80\x01\x08", b"\xdc\x00\x03\x01\x08", b"\x01\x02\x03"]
)
def test_what_does_not_begin_like_a_message_is_none(frame: bytes) -> None:
    with pytest.raises(MalformedMessage, match="not a message"):
        decode(frame)


def test_the_limit_is_exact() -> None:
    frame = m.Farewell(bytes(32)).encode()
    assert decode(frame, limit=len(frame)) == m.Farewell(bytes(32))
    with pytest.raises(
        OversizeMessage, match=f"a message of {len(frame)} bytes; the limit is {len(frame) - 1}"
    ):
        decode(frame, limit=len(frame) - 1)


@given(ANY_MESSAGE, st.binary(min_size=1, max_size=4))
@settings(deadline=None, max_examples=50)
def test_bytes_after_a_message_are_refused(message: m.Message, rest: bytes) -> None:
    with pytest.raises(MalformedMessage, match="bytes after the end"):
        decode(message.encode() + rest)


def test_a_message_prints_none_of_its_fields() -> None:
    message = m.MaskedInput(b"\x11" * 32, 3, b"\x22\x33secret", b"secret", b"")
    assert repr(message) == "MaskedInput()"
    assert "secret" not in f"{message}"


@given(st.binary(max_size=64))
@settings(deadline=None, max_examples=200)
def test_any_bytes_are_a_message_or_a_typed_error(frame: bytes) -> None:
    try:
        message = decode(frame)
    except (MalformedMessage, WrongVersion):
        return
    assert message.encode() == frame
