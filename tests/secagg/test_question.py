"""A question: what both sides derive from a query, and that nothing of it can differ unnoticed."""

from __future__ import annotations

from typing import Any

import pytest

from secagg.bitmap import PositionSet
from secagg.cohort import Cohort
from secagg.errors import SpecError
from secagg.hashing import digest
from secagg.keys import mask_context
from secagg.messages import Query
from secagg.question import Question, content_digest, query_digest
from secagg.records import Advert
from secagg.spec import LInf, Part, Residue, SumSpec

SPEC = SumSpec(parts=(Part(name="x", size=2, bits=8, bound=Residue()),))


def cohort(session: bytes = b"s" * 32, ids: tuple[int, ...] = (0, 1, 2)) -> Cohort:
    adverts = tuple(Advert(member, bytes(32), (bytes(32),), (bytes(32),)) for member in ids)
    return Cohort(session, 2, adverts)


def query(**changes: Any) -> Query:
    fields: dict[str, Any] = {
        "context": b"s" * 32, "sum_index": 1, "round": 4, "kind": "a", "roster": b"\x07", "payload": b"model",
    }  # fmt: skip
    return Query(**{**fields, **changes})


def question(**changes: Any) -> Question:
    asked = changes.pop("query", query())
    fields: dict[str, Any] = {
        "cohort": cohort(),
        "spec": SPEC,
        "query": asked,
        "digest": query_digest(asked.encode()),
        "roster": PositionSet((0, 1, 2)),
        "later_in_group": False,
    }
    return Question(**{**fields, **changes})


def test_the_context_of_masks_is_made_of_what_both_sides_saw() -> None:
    one = question()
    expected = mask_context(
        session=b"s" * 32,
        sum_index=1,
        query=digest("query", query().encode()),
        spec=SPEC.digest,
        cohort=cohort().digest,
        roster=b"\x07",
    )
    assert one.mask_context == expected
    assert one.sum_index == 1


OTHERS = [
    question(query=query(payload=b"modem")),
    question(query=query(kind="b")),
    question(query=query(round=5)),
    question(query=query(sum_index=2)),
    question(query=query(roster=b"\x03")),
    question(spec=SumSpec(parts=SPEC.parts, times=2)),
    question(cohort=cohort(session=b"t" * 32)),
    question(cohort=cohort(ids=(0, 1, 3))),
]


def test_anything_seen_differently_changes_the_masks() -> None:
    """A server that shows two clients different models gets noise, not their data."""
    contexts = {one.mask_context for one in (question(), *OTHERS)}
    assert len(contexts) == 1 + len(OTHERS)


def test_a_confirmation_covers_the_question_and_the_survivors() -> None:
    one = question()
    fields = one.confirmed_fields((0, 2))
    assert fields == (b"s" * 32, b"\0\0\0\1", one.digest, SPEC.digest, b"\x07", b"\x05")
    signed = [one.confirmed_fields(survivors) for survivors in ((0, 2), (0, 1), (0, 1, 2))]
    signed += [other.confirmed_fields((0, 2)) for other in OTHERS[:-1]]
    assert len(set(signed)) == 2 + len(OTHERS)


def test_the_content_of_a_query_is_its_kind_and_broadcast() -> None:
    """Not when, to whom or in which session it was asked: a repeated question is a repeated question."""
    assert content_digest("a", b"model") == content_digest("a", b"model")
    contents = {content_digest(*fields) for fields in (("a", b"bc"), ("ab", b"c"), ("a", b"b"), ("b", b"bc"))}
    assert len(contents) == 4


def test_the_grid_depends_on_the_cohort_and_not_on_the_roster() -> None:
    real = SumSpec(parts=(Part(name="x", size=2, bits=8, bound=LInf(1.0)),))
    assert question(spec=real, roster=PositionSet((0, 1))).encoding.cohort == 3
    narrow = SumSpec(parts=(Part(name="x", size=2, bits=2, bound=LInf(1.0)),))
    with pytest.raises(SpecError):
        _ = question(spec=narrow).encoding
