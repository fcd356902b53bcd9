"""Differencing on a ring: clients that compare the clients of their sums must know the ids of all of them.

Ten clients on a ring, of which one is left out of a sum in a later session. A curious server that names its
members follows the protocol; what it names is checked as far as a client can.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import pytest

from secagg import key_list_checks
from secagg.differencing_rules import SequenceRules
from secagg.errors import (
    HiddenMembers,
    MalformedMessage,
    PeerError,
    SmallDifference,
    SmallThreshold,
    UnchangedValues,
)
from secagg.message_records import encode_ids
from secagg.transitions import ClientState
from secagg.trust_levels import Trust
from tests.attacks.attackers.cheated_sum import CheatedSum, Vector
from tests.attacks.attackers.differencing import difference
from tests.attacks.attackers.drawn_ring import set_up_ring
from tests.attacks.guards import allow, assert_refused, forget_sets
from tests.attacks.rig import KIND, Rig

SIZE, LEAST = 10, 3
VICTIM = 4
EVERYONE, REST = range(SIZE), [k for k in range(SIZE) if k != VICTIM]


def static_rig() -> Rig:
    return Rig(SIZE, Trust.CURIOUS, min_contributors=LEAST, static=(KIND,))


def wary_rig() -> Rig:
    return Rig(SIZE, Trust.CURIOUS, min_contributors=LEAST, policy_changes={"min_difference": 2})


RULES: dict[str, tuple[Callable[[], Rig], type[PeerError]]] = {
    "unchanged values": (static_rig, UnchangedValues),
    "min_difference": (wary_rig, SmallDifference),
}
every_rule = pytest.mark.parametrize("rule", RULES)


def begin(rig: Rig, order: Sequence[int], number: int, **ring: Any) -> CheatedSum:
    """A new session on a ring of the clients in `order`, which are all asked its one sum."""
    rig.restart(seed=b"session %d" % number)
    drawn = set_up_ring(rig, [], order, **{"neighbours": 4, "threshold": 3, "named": True, **ring})
    query = rig.query(drawn.cohort, 0, order, payload=b"%d" % number, round_number=number)
    return CheatedSum(rig, drawn.cohort, query, graph=drawn.graph)


def total(rig: Rig, order: Sequence[int], number: int, **ring: Any) -> Vector | None:
    """The total of the clients in `order`, who all answer and survive."""
    cheated = begin(rig, order, number, **ring)
    cheated.ask(order)
    cheated.reveal(order, order)
    return cheated.total(order)


def total_without(rig: Rig, survivors: Collection[int], number: int) -> Vector | None:
    """All are asked, and answer; then only `survivors` are said to have done so."""
    cheated = begin(rig, EVERYONE, number)
    cheated.ask(EVERYONE)
    cheated.reveal(survivors, survivors)
    return cheated.total(survivors)


@every_rule
def test_without_the_rule_the_difference_is_the_vector(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_sets(monkeypatch)
    rig = RULES[rule][0]()
    first = total(rig, EVERYONE, 0)
    assert (difference(first, total(rig, REST, 1)) == rig.vectors[VICTIM]).all()
    assert (difference(first, total_without(rig, REST, 2)) == rig.vectors[VICTIM]).all()


@every_rule
def test_the_rule_refuses_a_roster_before_anything_is_masked(rule: str) -> None:
    make, error = RULES[rule]
    rig = make()
    total(rig, EVERYONE, 0)
    with pytest.raises(error):
        total(rig, REST, 1)
    if error is UnchangedValues:
        assert rig.machines[0].state is ClientState.ASKED  # it may decline, and stays in the session
    else:
        assert_refused(rig.machines[0])


@every_rule
def test_the_rule_refuses_survivors_before_a_share_leaves(rule: str) -> None:
    make, error = RULES[rule]
    rig = make()
    total(rig, EVERYONE, 0)
    with pytest.raises(error):
        total_without(rig, REST, 1)
    assert_refused(rig.machines[0])


@every_rule
def test_the_same_clients_are_the_honest_way_out(rule: str) -> None:
    rig = RULES[rule][0]()
    first = total(rig, EVERYONE, 0)
    assert (difference(total(rig, EVERYONE[::-1], 1), first) == 0).all()


@every_rule
def test_a_ring_that_hides_its_members_is_refused(rule: str) -> None:
    rig = RULES[rule][0]()
    with pytest.raises(HiddenMembers):
        total(rig, EVERYONE, 0, named=False)
    assert_refused(rig.machines[0])


def test_clients_that_compare_nothing_join_a_ring_that_hides_its_members() -> None:
    rig = Rig(SIZE, Trust.CURIOUS, min_contributors=LEAST)
    assert total(rig, EVERYONE, 0, named=False) is not None


# --- false ids ---------------------------------------------------------------------------------------


SHIFT = 100


def renamed(members: Sequence[int]) -> bytes:
    """Ids that no client has: sets of them differ from all earlier sets."""
    return encode_ids(member + SHIFT for member in members)


def renamed_total(rig: Rig, order: Sequence[int], number: int) -> Vector:
    """The total of clients that believe these ids, and make their masks with them."""
    cheated = begin(rig, order, number, members=renamed(order))
    cheated.ask(order)
    cheated.reveal(order, order)
    sums = list(cheated.question.encoding.zeros())
    for member in order:
        secret = cheated.self_mask(member)
        assert secret is not None
        for part, more in zip(sums, rig.residues(cheated.question, cheated.inputs[member].data), strict=True):
            part += more
        rig.remove_self_mask(sums, cheated.question, member + SHIFT, secret)
    return rig.vector(cheated.question, sums)


@every_rule
def test_without_a_check_of_the_ids_a_set_looks_like_another_one(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_list_checks, "parse_ids", _unchecked_ids)
    rig = RULES[rule][0]()
    first = total(rig, EVERYONE, 0)
    assert (difference(first, renamed_total(rig, REST, 1)) == rig.vectors[VICTIM]).all()


def _unchecked_ids(blob: bytes, **_: object) -> tuple[int, ...]:
    return tuple(int.from_bytes(blob[at : at + 4], "big") for at in range(0, len(blob), 4))


FALSE_IDS: dict[str, bytes] = {
    "others": renamed(EVERYONE),
    "one neighbour": encode_ids([0, 1, 2, 3, 4, 5, 6, 7, 8, 99]),
    "fewer": encode_ids(range(SIZE - 1)),
    "more": encode_ids(range(SIZE + 1)),
    "cut off": encode_ids(EVERYONE)[:-1],
    "one more byte": encode_ids(EVERYONE) + b"\0",
    "twice": encode_ids([0, 1, 2, 3, 4, 4, 6, 7, 8, 9]),
    "out of order": encode_ids([0, 1, 2, 4, 3, 5, 6, 7, 8, 9]),
}


@pytest.mark.parametrize("told", FALSE_IDS.values(), ids=FALSE_IDS)
def test_ids_that_are_not_those_of_all_are_refused(told: bytes) -> None:
    """Client 0 knows its neighbours 1, 2, 8 and 9. It cannot check the others, but their order and number."""
    rig = static_rig()
    with pytest.raises(MalformedMessage, match="the ids of the members"):
        total(rig, EVERYONE, 0, members=told)
    assert_refused(rig.machines[0])


# --- few that know of a total ------------------------------------------------------------------------

# Each of 24 clients has eight neighbours, and two of these nine open its secrets. Every fourth client alone
# can do so for everybody. The others know nothing of this total, and release another one without the six.
LARGE = range(24)
KNOWING = LARGE[::4]
UNAWARE = [k for k in LARGE if k not in KNOWING]
THIN: dict[str, Any] = {"neighbours": 8, "threshold": 2}


def two_totals_by_few(min_difference: int) -> tuple[Rig, Vector]:
    rig = Rig(len(LARGE), Trust.CURIOUS, policy_changes={"min_difference": min_difference})
    first = begin(rig, LARGE, 0, **THIN)
    first.ask(LARGE)
    first.reveal(KNOWING, LARGE)
    second = begin(rig, LARGE, 1, **THIN)
    second.query = rig.query(second.cohort, 0, UNAWARE, payload=b"second", round_number=1)
    second.question = rig.question(second.cohort, second.query)
    second.ask(UNAWARE)
    second.reveal(UNAWARE, UNAWARE)
    return rig, difference(first.total(LARGE), second.total(UNAWARE))


@pytest.mark.parametrize("least", [5, 7])
def test_few_that_know_of_a_total_are_refused(least: int) -> None:
    """17 clients are the fewest in a total, so that as few as four may reveal one."""
    with pytest.raises(SmallThreshold):
        two_totals_by_few(least)


def test_without_a_check_of_the_cohort_few_that_know_of_a_total_cannot_prevent_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients that require a difference of seven give the sum of six away."""
    monkeypatch.setattr(SequenceRules, "check_cohort", allow)
    rig, found = two_totals_by_few(7)
    assert (found == np.sum([rig.vectors[k] for k in KNOWING], axis=0, dtype=np.uint32)).all()


def test_a_difference_that_those_who_know_of_a_total_guarantee_is_accepted() -> None:
    """With a difference of four, the sum of six is what they agreed to."""
    rig, found = two_totals_by_few(4)
    assert (found == np.sum([rig.vectors[k] for k in KNOWING], axis=0, dtype=np.uint32)).all()
