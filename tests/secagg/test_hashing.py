"""The one hash: purposes and lists of fields never meet."""

from __future__ import annotations

import hashlib

from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.hashing import DIGEST_BYTES, digest, framed, label

PURPOSES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=5)
FIELDS = st.lists(st.binary(max_size=4), max_size=4)


def test_the_label_names_the_protocol_and_its_version() -> None:
    assert label("spec") == b"secagg/1 spec"


def test_fields_are_prefixed_with_their_length() -> None:
    lengths = [(13).to_bytes(8, "big"), (2).to_bytes(8, "big"), (0).to_bytes(8, "big")]
    assert framed("spec", b"ab", b"") == lengths[0] + b"secagg/1 spec" + lengths[1] + b"ab" + lengths[2]


@given(PURPOSES, FIELDS)
@settings(deadline=None)
def test_a_digest_is_the_hash_of_the_framed_fields(purpose: str, fields: list[bytes]) -> None:
    assert digest(purpose, *fields) == hashlib.sha256(framed(purpose, *fields)).digest()
    assert len(digest(purpose, *fields)) == DIGEST_BYTES


@given(PURPOSES, FIELDS, PURPOSES, FIELDS)
@settings(deadline=None, max_examples=300)
def test_framing_can_be_undone(one: str, fields: list[bytes], other: str, others: list[bytes]) -> None:
    same = (one, fields) == (other, others)
    assert (framed(one, *fields) == framed(other, *others)) == same
    joined = [b"".join(fields)]
    assert (framed(one, *joined) == framed(one, *fields)) == (joined == fields)
