"""A question: what both sides derive from a query, and that nothing of it can differ unnoticed."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from secagg.bitmap import PositionSet
from secagg.cohort_members import Cohort
from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.errors import SpecError
from secagg.hashing import digest
from secagg.keys import hkdf, mask_context, noise_info
from secagg.message_records import Advert
from secagg.messages import Query
from secagg.noise.grid_encoding import NoisyReals
from secagg.query_context import Question, content_digest, query_digest
from secagg.sum_spec import L2, LInf, Part, Residue, SumSpec

SPEC = SumSpec(parts=(Part(name="x", size=2, bits=8, bound=Residue()),))


def cohort(session: bytes = b"s" * 32, ids: tuple[int, ...] = (0, 1, 2)) -> Cohort:
    adverts = tuple(Advert(member, bytes(32), b"", (bytes(32),), (bytes(32),)) for member in ids)
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


def test_the_content_of_a_query_under_terms_is_that_of_one_run() -> None:
    """Two runs may begin with the same model; under the same terms, it is the same question."""
    same = [content_digest("a", b"model", terms) for terms in (b"terms", b"other", b"")]
    assert len({*same, content_digest("am", b"odel", b"terms")}) == 4
    assert content_digest("a", b"model", b"terms") == content_digest("a", b"model", b"terms")


def test_the_grid_depends_on_the_cohort_and_not_on_the_roster() -> None:
    real = SumSpec(parts=(Part(name="x", size=2, bits=8, bound=LInf(1.0)),))
    assert question(spec=real, roster=PositionSet((0, 1))).encoding.cohort == 3
    narrow = SumSpec(parts=(Part(name="x", size=2, bits=2, bound=LInf(1.0)),))
    with pytest.raises(SpecError):
        _ = question(spec=narrow).encoding


# --- noise -----------------------------------------------------------------------------------------

PROMISE = NoiseAssumptions(clients=3, dropouts=1, colluders=0, removable=True)
NOISY = SumSpec(
    parts=(Part(name="x", size=2, bits=24, bound=L2(1.0), noise=Noise(scale=64, variance=Fraction(9999))),),
    promise=PROMISE,
)


def test_a_sum_without_noise_needs_nobody_to_stay_and_has_no_surplus() -> None:
    assert question().least_survivors == 0
    assert question().surplus(3) == ()


def test_survivors_and_surplus_are_those_of_the_promise_for_the_roster() -> None:
    one = question(spec=NOISY)
    assert one.least_survivors == 2
    assert [one.surplus(k) for k in (3, 2)] == [PROMISE.surplus(3, 3), ()]
    assert len(one.surplus(3)) == PROMISE.seeds
    smaller = question(spec=NOISY, roster=PositionSet((0, 2)))
    assert smaller.least_survivors == 1
    assert smaller.surplus(2) == PROMISE.surplus(2, 2)


def test_a_seed_of_noise_is_bound_to_the_question_its_owner_and_its_layer() -> None:
    one, secret = question(spec=NOISY), bytes(32)
    info = noise_info(one.mask_context, 1, 2)
    assert one.noise_seed(secret, 1, 2) == hkdf(secret, salt=b"s" * 32, info=info)
    seeds = [one.noise_seed(secret, position, layer) for position in range(3) for layer in (1, 2)]
    seeds += [one.noise_seed(b"\1" * 32, 0, 1)]
    seeds += [other.noise_seed(secret, 0, 1) for other in OTHERS]
    assert len(set(seeds)) == len(seeds)


def test_no_rotation_is_used_twice_and_none_depends_on_what_a_server_says() -> None:
    """It comes from the session, the sum and the spec; a roster or a broadcast does not change it."""

    def rotated(one: Question) -> tuple[float, ...]:
        code = one.encoding._codes[0]
        assert isinstance(code, NoisyReals)
        assert code._rotation is not None
        values = np.arange(1.0, 33.0)
        code._rotation.apply(values)
        return tuple(values)

    wide = SumSpec(parts=(replace(NOISY.parts[0], size=32),), promise=PROMISE)
    same_rotation = [
        question(spec=wide),
        question(spec=wide, query=query(payload=b"modem")),
        question(spec=wide, query=query(roster=b"\x03"), roster=PositionSet((0, 1))),
    ]
    others = [
        question(spec=wide, query=query(sum_index=2)),
        question(spec=wide, cohort=cohort(session=b"t" * 32)),
        question(spec=replace(wide, times=2)),
    ]
    assert len({rotated(one) for one in same_rotation}) == 1
    assert len({rotated(one) for one in (same_rotation[0], *others)}) == 1 + len(others)
