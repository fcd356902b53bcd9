"""Repeated sum: the index of a sum comes again, or goes back, so that its one-time secrets serve twice.

If the victim is dead the second time, both kinds of its shares are out and its first input is read. If the
very same query comes again and the client has another vector by then, one mask covers two inputs, and the
difference of the masked inputs is the difference of the vectors, without anybody revealing anything.
"""

from __future__ import annotations

from collections.abc import Mapping

from secagg import messages as m
from secagg.cohort_members import Cohort
from tests.attacks.attackers.cheated_sum import CheatedSum, Vector
from tests.attacks.rig import Rig

INDEX = 1


def repeated_index(rig: Rig, cohort: Cohort, victim: int, *, rewind: bool) -> Vector | None:
    """The victim's first input to sum 1. With `rewind`, the index first goes back in a `GroupClosed`."""
    rest = [member for member in cohort.ids if member != victim]
    first = CheatedSum(rig, cohort, rig.query(cohort, INDEX, cohort.ids, payload=b"first"))
    first.ask(cohort.ids)
    first.reveal(cohort.ids, cohort.ids)
    if rewind:
        for member in rest:
            rig.send(member, m.GroupClosed(cohort.session, INDEX - 1).encode())
    query = rig.query(cohort, INDEX, cohort.ids, payload=b"second", round_number=1)
    second = CheatedSum(rig, cohort, query)
    second.ask(rest)
    second.reveal(rest, rest)
    return first.vector(victim, mask_key=second.mask_key(victim))


def two_inputs_under_one_mask(rig: Rig, cohort: Cohort, victim: int, later: Mapping[int, Vector]) -> Vector:
    """How the victim's later vector differs from its first, from two masked inputs to one query."""
    cheated = CheatedSum(rig, cohort, rig.query(cohort, 0, cohort.ids))
    cheated.ask(cohort.ids)
    cheated.reveal(cohort.ids, cohort.ids)
    before = rig.residues(cheated.question, cheated.inputs[victim].data)
    cheated.ask([victim], later)
    after = rig.residues(cheated.question, cheated.inputs[victim].data)
    return rig.vector(cheated.question, [new - old for new, old in zip(after, before, strict=True)])
