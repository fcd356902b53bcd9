"""Evidence as bytes: it is read as it was written, and what is damaged is not read at all."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.errors import ParameterError
from secagg.evidence import Evidence, Offence, Signed, Statement

BLOBS = st.binary(max_size=20)
IDS = st.integers(0, (1 << 32) - 1)
PURPOSES = st.sampled_from(["share tags", "reveal", "masked input", "lost", "deposit"])
STATEMENTS = st.builds(Statement, IDS, PURPOSES, st.lists(BLOBS, max_size=6).map(tuple), BLOBS)
EVIDENCE = st.builds(
    Evidence,
    st.sampled_from(Offence),
    IDS,
    BLOBS,
    BLOBS,
    st.lists(STATEMENTS, max_size=4).map(tuple),
    st.lists(BLOBS, max_size=5).map(tuple),
)
SAMPLE = Evidence(
    Offence.FALSE_COUNT,
    3,
    b"invitation",
    b"keys",
    (Statement(3, "masked input", (b"s" * 32, b"", b"words"), b"signature"),),
    (b"secret", b""),
)


def field(blob: bytes) -> bytes:
    return len(blob).to_bytes(4, "big") + blob


@given(STATEMENTS)
@settings(deadline=None)
def test_a_statement_is_read_as_it_was_written(statement: Statement) -> None:
    assert Statement.decode(statement.encode()) == statement


@given(EVIDENCE)
@settings(deadline=None, max_examples=200)
def test_evidence_is_read_as_it_was_written(evidence: Evidence) -> None:
    assert Evidence.decode(evidence.encode()) == evidence


def test_evidence_is_a_list_of_fields_with_their_lengths() -> None:
    statement = b"".join(map(field, [b"\0\0\0\3", b"masked input", b"signature", b"s" * 32, b"", b"words"]))
    values = field(b"secret") + field(b"")
    fields = [b"false count", b"\0\0\0\3", b"invitation", b"keys", field(statement), values]
    assert SAMPLE.encode() == b"".join(map(field, fields))


@given(EVIDENCE, st.data())
@settings(deadline=None, max_examples=200)
def test_evidence_that_is_cut_short_is_refused(evidence: Evidence, data: st.DataObject) -> None:
    blob = evidence.encode()
    with pytest.raises(ParameterError, match="this is not evidence of a lie, or it is damaged"):
        Evidence.decode(blob[: data.draw(st.integers(0, len(blob) - 1))])


@given(st.binary(max_size=80))
@settings(deadline=None, max_examples=200)
def test_any_bytes_are_evidence_or_a_typed_error(blob: bytes) -> None:
    with pytest.raises(ParameterError):
        Evidence.decode(blob)


@given(EVIDENCE, st.data())
@settings(deadline=None, max_examples=300)
def test_damaged_evidence_is_other_evidence_or_a_typed_error(evidence: Evidence, data: st.DataObject) -> None:
    blob = bytearray(evidence.encode())
    bit = data.draw(st.integers(0, 8 * len(blob) - 1))
    blob[bit // 8] ^= 1 << bit % 8
    try:
        found = Evidence.decode(bytes(blob))
    except ParameterError:
        return
    assert found != evidence


@pytest.mark.parametrize(
    "fields",
    [
        [b"false count", b"\0\0\0\3", b"i", b"k", b""],  # one too few
        [b"false count", b"\0\0\0\3", b"i", b"k", b"", b"", b""],
        [b"no offence", b"\0\0\0\3", b"i", b"k", b"", b""],
        [b"\xff", b"\0\0\0\3", b"i", b"k", b"", b""],
        [b"false count", b"\0\0\0\3", b"i", b"k", b"\0\0\0\1", b""],  # a statement that is cut off
        [b"false count", b"\0\0\0\3", b"i", b"k", field(field(b"\3") + field(b"lost")), b""],
        [b"false count", b"\0\0\0\3", b"i", b"k", field(field(b"\3") + field(b"\xff") + field(b"")), b""],
        [b"false count", b"\0\0\0\3", b"i", b"k", b"", b"\0\0\0"],
    ],
)
def test_fields_that_do_not_belong_are_refused(fields: list[bytes]) -> None:
    with pytest.raises(ParameterError, match="this is not evidence of a lie, or it is damaged"):
        Evidence.decode(b"".join(map(field, fields)))


def test_evidence_prints_no_secret_and_names_the_accused() -> None:
    assert repr(SAMPLE) == "Evidence(offence=<Offence.FALSE_COUNT: 'false count'>, accused=3)"
    assert repr(SAMPLE.statements[0]) == "Statement(signer=3, purpose='masked input')"


def test_what_is_signed_becomes_a_statement() -> None:
    signed = Signed((b"a", b"b"), b"signature")
    assert Statement(4, "lost", *signed) == Statement(4, "lost", (b"a", b"b"), b"signature")
