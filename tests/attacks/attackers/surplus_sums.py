"""Surplus sums: a query by which clients weight themselves, asked once more than agreed.

One sum over the clients above a threshold reveals their sum, as it should. A second one with a threshold just
above the victim's score reveals, by difference, the victim's vector, although nobody ever left. Limits on
the number of sums keep the server from asking for the staircase step by step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from secagg.cohort_members import Cohort
from tests.attacks.attackers.cheated_sum import CheatedSum, Vector
from tests.attacks.attackers.differencing import difference
from tests.attacks.rig import Rig


def two_thresholds(rig: Rig, cohort: Cohort, victim: int, *, rounds: Sequence[int]) -> Vector:
    """The victim's vector from two tail sums over everybody; a client's id is its score."""
    tails = [
        _tail_sum(rig, cohort, index, threshold=victim + index, round_number=round_number)
        for index, round_number in enumerate(rounds)
    ]
    return difference(*tails)


def _tail_sum(rig: Rig, cohort: Cohort, index: int, *, threshold: int, round_number: int) -> Vector | None:
    query = rig.query(cohort, index, cohort.ids, payload=bytes([threshold]), round_number=round_number)
    # Whoever is outside the tail answers with zeros: silence would tell.
    answers = {
        member: vector if member >= threshold else np.zeros_like(vector)
        for member, vector in rig.vectors.items()
    }
    cheated = CheatedSum(rig, cohort, query)
    cheated.ask(cohort.ids, answers)
    cheated.reveal(cohort.ids, cohort.ids)
    return cheated.total(cohort.ids)
