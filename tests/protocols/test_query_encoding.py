"""Queries as bytes: what arrives, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.query_encoding import QueryDecoder, encode_query, query_content
from protocols.rounds import Query, RoundInfo
from protocols.serialisation import Vector, as_vector, pack
from secagg.errors import MalformedMessage, ParameterError


@dataclass(frozen=True)
class Step(Query):
    kind: ClassVar[str] = "step"
    point: Vector
    number: int = 0


@dataclass(frozen=True)
class Choosy(Query):
    """Has an opinion about its own values."""

    kind: ClassVar[str] = "choosy"
    part: float

    def __post_init__(self) -> None:
        if not 0 <= self.part <= 1:
            raise ParameterError("part must be from 0 to 1")


BOOK = QueryDecoder((Step, Choosy), dim=3)
STEP = Step(as_vector([1.0, 2.0, 3.0]), 7)


def test_a_query_arrives_as_it_was_sent() -> None:
    round_info, query = BOOK.decode("step", encode_query(RoundInfo(3, 5), STEP))
    assert round_info == RoundInfo(3, 5)
    assert isinstance(query, Step)
    assert (query.point.tolist(), query.number) == ([1.0, 2.0, 3.0], 7)


def test_no_two_rounds_ask_the_same() -> None:
    assert encode_query(RoundInfo(1), STEP) != encode_query(RoundInfo(2), STEP)
    assert encode_query(RoundInfo(1), STEP) == encode_query(RoundInfo(1), Step(as_vector([1.0, 2.0, 3.0]), 7))


def letter(*fields: object) -> bytes:
    data: bytes = msgpack.packb(list(fields))
    return data


def raw(query: object, round_info: object = (3, 0, ())) -> bytes:
    return letter(round_info, msgpack.packb(query))


POINT = np.zeros(3).tobytes()
HOSTILE = {
    "nothing": b"",
    "no letter": b"\x00",
    "a letter with less": letter([3, 0, []]),
    "a letter with more": letter([3, 0, []], pack(STEP), 1),
    "a turn of text": raw([POINT, 1], "3"),
    "a turn with less": raw([POINT, 1], [3]),
    "a negative turn": raw([POINT, 1], [-1, 0, []]),
    "a turn too large": raw([POINT, 1], [2**64 - 1, 0, []]),
    "a history too long": raw([POINT, 1], [3, 2**63, []]),
    "a history before the beginning": raw([POINT, 1], [3, 8, []]),
    "a query that is no bytes": letter([3, 0, []], [POINT, 1]),
    "a query with less": raw([POINT]),
    "a query with more": raw([POINT, 1, 1]),
    "a map": raw({"point": POINT, "number": 1}),
    "numbers as a list": raw([[0.0, 0.0, 0.0], 1]),
    "not a number": raw([np.array([0, np.nan, 0.0]).tobytes(), 1]),
    "infinity": raw([np.array([0, np.inf, 0.0]).tobytes(), 1]),
    "too short": raw([POINT[:-8], 1]),
    "too long": raw([POINT + bytes(8), 1]),
    "far too long": raw([bytes(8 * 10**6), 1]),
    "cut within a number": raw([POINT[:-1], 1]),
    "a float for a whole number": raw([POINT, 1.0]),
    "a truth value for a whole number": raw([POINT, True]),
    "nested": letter([3, 0, []], b"\x91" * 10**5),
    "nested around": b"\x92" * 10**5,
}


@pytest.mark.parametrize("payload", HOSTILE.values(), ids=HOSTILE)
def test_hostile_payloads_are_malformed_messages(payload: bytes) -> None:
    with pytest.raises(MalformedMessage):
        BOOK.decode("step", payload)


def test_every_truncation_is_a_malformed_message() -> None:
    good = encode_query(RoundInfo(3, 1), STEP)
    for length in range(len(good)):
        with pytest.raises(MalformedMessage):
            BOOK.decode("step", good[:length])
    with pytest.raises(MalformedMessage):
        BOOK.decode("step", good + b"\x00")


@given(st.binary(max_size=80), st.sampled_from(["step", "choosy", "", "other"]))
def test_noise_is_a_malformed_message(payload: bytes, kind: str) -> None:
    with pytest.raises(MalformedMessage):
        BOOK.decode(kind, payload)


def test_unknown_kinds_and_payloads_of_other_kinds() -> None:
    good = encode_query(RoundInfo(), STEP)
    for kind in ("", "Step", "step ", "choosy", "other"):
        with pytest.raises(MalformedMessage):
            BOOK.decode(kind, good)


def test_what_a_query_thinks_of_its_values_is_the_servers_fault() -> None:
    with pytest.raises(MalformedMessage, match="part must be from 0 to 1"):
        BOOK.decode("choosy", raw([1.5]))
    assert BOOK.decode("choosy", raw([0.5]))[1] == Choosy(0.5)


def test_kinds_are_names_of_their_own() -> None:
    with pytest.raises(ParameterError, match="the same kind"):
        QueryDecoder((Step, Step), dim=3)


def test_vectors_of_other_lengths_than_the_models_are_named() -> None:
    book = QueryDecoder((Step,), dim=5, lengths={"step": {"point": 3}})
    assert pack(book.decode("step", encode_query(RoundInfo(), STEP))[1]) == pack(STEP)
    long = Step(as_vector(np.zeros(5)), 7)
    with pytest.raises(MalformedMessage, match="5 elements, not 3"):
        book.decode("step", encode_query(RoundInfo(), long))


def test_the_content_of_a_payload_is_its_query() -> None:
    """Two rounds that ask the same have the same content; what is no query is content as a whole."""
    first, second = (encode_query(RoundInfo(number), STEP) for number in (0, 1))
    assert first != second
    assert query_content(Step.kind, first) == query_content(Step.kind, second) == pack(STEP)
    assert query_content(Step.kind, b"\xc1") == b"\xc1"
