"""Attacks on a ring: colluders among a client's neighbours, and rings that fall apart.

Whoever is shared with by a threshold of colluders has no secrets. And masks join neighbours only: where the
colluders and the missing cut the ring into parts, each part's masks cancel by themselves, and its sum shows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tests.attacks.attackers.cheated_sum import CheatedSum, Vector
from tests.attacks.attackers.colluder import Colluder
from tests.attacks.attackers.drawn_ring import DrawnRing, set_up_ring
from tests.attacks.rig import PART, Rig


def surrounding(victim: int, companions: Sequence[int], others: Sequence[int]) -> list[int]:
    """The order in which `companions` stand on both sides of the victim."""
    half = len(companions) // 2
    return [*companions[:half], victim, *companions[half:], *others]


def read_shares(
    rig: Rig,
    victim: int,
    colluders: Collection[Colluder],
    order: Sequence[int],
    *,
    neighbours: int,
    threshold: int,
) -> Vector | None:
    """The vector of `victim` from the shares that colluders next to it hold, before anybody unmasks."""
    ring = set_up_ring(rig, colluders, order, neighbours=neighbours, threshold=threshold)
    cheated = _sum_over(rig, ring, order, colluders)
    cheated.ask([victim])
    return cheated.vector(victim)


def read_part(
    rig: Rig,
    ring: DrawnRing,
    colluders: Collection[Colluder],
    part: Collection[int],
    *,
    roster: Collection[int],
    survivors: Collection[int],
) -> Vector | None:
    """The sum of the honest clients in `part`, which no mask joins to the other survivors."""
    honest = [member for member in roster if member < rig.clients]
    alive = [member for member in honest if member in survivors]
    cheated = _sum_over(rig, ring, roster, colluders)
    cheated.ask(honest)
    cheated.reveal(alive, survivors)
    return cheated.total([member for member in part if member in honest])


def _sum_over(
    rig: Rig, ring: DrawnRing, roster: Collection[int], colluders: Collection[Colluder] = ()
) -> CheatedSum:
    query = rig.query(ring.cohort, 0, roster)
    return CheatedSum(rig, ring.cohort, query, colluders, graph=ring.graph)


class TwoRings:
    """A session in which `target` is told of another ring than everybody else (see `DrawnRing.told`)."""

    def __init__(
        self,
        rig: Rig,
        target: int,
        *,
        neighbours: int,
        threshold: int,
        **told: Any,
    ) -> None:
        everybody = range(rig.clients)
        invitation = rig.invitation()
        adverts = rig.advertise(invitation)
        terms = {"neighbours": neighbours, "threshold": threshold}
        true = DrawnRing.draw(invitation, adverts, everybody, **terms, named="members" in told)
        false = true.told(**told)
        self._rig, self._target, self._everybody = rig, target, everybody
        self._others = [member for member in everybody if member != target]
        shown = {member: false if member == target else true for member in everybody}
        shares = {k: rig.share(k, shown[k].frame(k), neighbours + 1) for k in everybody}
        for member, seen in shown.items():
            rig.send(member, rig.delivery(seen.cohort, seen.parcels(shares, member)))
        self._theirs, self._its = (_sum_over(rig, seen, everybody) for seen in (true, false))

    def total(self) -> Vector | None:
        """The sum over everybody, or None where the target's self mask cannot be had.

        Raises `CorruptTotal` if masks did not cancel.
        """
        self._theirs.ask(self._others)
        self._its.ask([self._target])
        self._theirs.reveal(self._others, self._everybody)
        total = self._theirs.question.encoding.zeros()
        for member in self._everybody:
            cheated = self._its if member == self._target else self._theirs
            secret = self._theirs.self_mask(member)
            if secret is None:
                return None
            masked = self._rig.residues(cheated.question, cheated.inputs[member].data)
            for part, more in zip(total, masked, strict=True):
                part += more
            self._rig.remove_self_mask(total, cheated.question, member, secret)
        size = len(self._everybody)
        return self._theirs.question.encoding.decode(total, contributors=size, invited=size)[PART]
