"""Late drop: a client takes part in several sums and drops at the next, so its mask key is revealed there.

With one mask key for all sums (seeds derived from one agreement per pair), the key revealed at the drop
opens every earlier input: the self masks of those sums are known already. With a key per sum it opens none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from secagg.cohort_members import Cohort
from tests.attacks.attackers.cheated_sum import CheatedSum, Vector
from tests.attacks.rig import Rig


def late_drop(
    rig: Rig, cohort: Cohort, victim: int, inputs: Sequence[Mapping[int, Vector]]
) -> list[Vector | None]:
    """What the mask key of the last sum makes of the victim's earlier inputs, one guess per sum.

    `inputs` holds everybody's vectors per sum; the sum in which the victim drops comes after them.
    """
    members = cohort.ids
    earlier = []
    for index, vectors in enumerate(inputs):
        query = rig.query(cohort, index, members, payload=bytes([index]), round_number=index)
        done = CheatedSum(rig, cohort, query)
        done.ask(members, vectors)
        done.reveal(members, members)
        earlier.append(done)
    key = _key_at_drop(rig, cohort, victim, len(inputs))
    return [done.vector(victim, mask_key=key) for done in earlier]


def _key_at_drop(rig: Rig, cohort: Cohort, victim: int, index: int) -> bytes:
    """The victim is in the roster and sends nothing: any honest server obtains its mask key now."""
    query = rig.query(cohort, index, cohort.ids, payload=bytes([index]), round_number=index)
    last = CheatedSum(rig, cohort, query)
    rest = [member for member in cohort.ids if member != victim]
    last.ask(rest)
    last.reveal(rest, rest)
    key = last.mask_key(victim)
    assert key is not None  # that much is the protocol's purpose
    return key
