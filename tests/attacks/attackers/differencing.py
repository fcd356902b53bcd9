"""Differencing: one private vector summed twice, over everybody and over everybody but the victim.

Both totals are genuine and masks hide nothing of them; their difference is the victim's vector. Clients can
only refuse to answer the second time. Each attacker here is one way to ask again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from secagg.cohort_members import Cohort
from tests.attacks.attackers.cheated_sum import CheatedSum, Vector
from tests.attacks.attackers.colluder import Colluder
from tests.attacks.rig import Rig


def difference(larger: Vector | None, smaller: Vector | None) -> Vector:
    """What the clients in one total and not in the other contributed."""
    assert larger is not None
    assert smaller is not None
    apart: Vector = np.subtract(larger, smaller)
    return apart


def total_over(rig: Rig, cohort: Cohort, query: bytes, members: Collection[int]) -> Vector | None:
    """The total of `members`, who are all asked and all survive."""
    cheated = CheatedSum(rig, cohort, query)
    cheated.ask(members)
    cheated.reveal(members, members)
    return cheated.total(members)


def _without(cohort: Cohort, victim: int) -> list[int]:
    return [member for member in cohort.ids if member != victim]


# --- within one session ----------------------------------------------------------------------------


def left_out(rig: Rig, cohort: Cohort, victim: int, first: dict[str, Any], second: dict[str, Any]) -> Vector:
    """The second roster lacks the victim. `first` and `second` are fields of the two queries."""
    rest = _without(cohort, victim)
    one = total_over(rig, cohort, rig.query(cohort, 0, cohort.ids, **first), cohort.ids)
    other = total_over(rig, cohort, rig.query(cohort, 1, rest, **second), rest)
    return difference(one, other)


def dropped(rig: Rig, cohort: Cohort, victim: int) -> Vector:
    """The second roster is the first one; then the victim is said to have dropped."""
    rest = _without(cohort, victim)
    one = total_over(rig, cohort, rig.query(cohort, 0, cohort.ids, payload=b"one"), cohort.ids)
    second = CheatedSum(rig, cohort, rig.query(cohort, 1, cohort.ids, payload=b"two"))
    second.ask(cohort.ids)
    second.reveal(rest, rest)
    return difference(one, second.total(rest))


def in_the_dark(rig: Rig, cohort: Cohort, victim: int, colluder: Colluder) -> Vector | None:
    """Only the victim and a colluder reveal the first sum; those who never saw it confirmed give the second.

    The difference is the sum of victim and colluder. Returns None where the others sit the second sum out.
    """
    rest = [member for member in range(rig.clients) if member != victim]
    first = CheatedSum(rig, cohort, rig.query(cohort, 0, cohort.ids, payload=b"one"), [colluder])
    first.ask(range(rig.clients))
    first.reveal([victim], cohort.ids)
    query = rig.query(cohort, 1, rest, payload=b"two")
    second = CheatedSum(rig, cohort, query)
    for member in rest:
        if rig.send(member, query):
            return None  # it declined
        second.inputs[member] = rig.answer(member)
    second.reveal(rest, rest)
    return difference(first.total(range(rig.clients)), second.total(rest))


# --- in another session ----------------------------------------------------------------------------


def asked_later(rig: Rig, victim: int, *, threshold: int, payload: bytes, round_number: int) -> Vector | None:
    """The total of everybody but the victim, asked in a new session without it."""
    rest = [member for member in range(rig.clients) if member != victim]
    rig.restart(seed=b"later")
    cohort = rig.set_up(threshold=threshold, members=rest, nonce=b"later".ljust(32))
    query = rig.query(cohort, 0, rest, payload=payload, round_number=round_number)
    return total_over(rig, cohort, query, rest)


def parallel_session(rig: Rig, victim: int, *, threshold: int) -> Vector:
    """Two sessions at once with the same identities; both ask before either is answered."""
    everyone = range(rig.clients)
    rest = [member for member in everyone if member != victim]
    twin = replace(rig)
    twin.memories = rig.memories
    twin.restart(seed=b"parallel")
    cohort = rig.set_up(threshold=threshold)
    other = twin.set_up(threshold=threshold, members=rest, nonce=b"parallel".ljust(32))
    first = CheatedSum(rig, cohort, rig.query(cohort, 0, everyone))
    second = CheatedSum(twin, other, twin.query(other, 0, rest))
    for member in rest:
        rig.send(member, first.query)
        twin.send(member, second.query)
        first.inputs[member] = rig.answer(member)
        second.inputs[member] = twin.answer(member)
    first.ask([victim])
    first.reveal(everyone, everyone)
    second.reveal(rest, rest)
    return difference(first.total(everyone), second.total(rest))
