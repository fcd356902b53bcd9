"""Removable noise in the hands of a cheating server: how little of it can be left on a total?

Clients say nothing about layers but by the number of survivors they were told. So a server that wants more
layers than it may have tells of more survivors than the total is over, of several numbers, or of one and then
another; or of so few survivors that even all their noise is too little. Every seed it uses is interpolated
from shares that machines really revealed, and checked against what its owner published.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, TypeAlias

from secagg import messages as m
from secagg.bitmap import unpack_positions
from secagg.cohort_members import Cohort
from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.keys import noise_commitment
from secagg.mask_keystream import KeyStream
from secagg.shamir import shares_from_bytes
from secagg.sum_spec import Count, Part, SumSpec, Table
from tests.attacks.attackers.cheated_sum import CheatedSum, Vector
from tests.attacks.attackers.colluder import Colluder
from tests.attacks.rig import KIND, PART, Rig

SCALE = 64
LIMIT = 100
Views: TypeAlias = Mapping[int, frozenset[int]]  # client -> the survivors it is told of

_SELF_MASK, _MASK_KEY = 0, 1  # in the order in which secrets are dealt; layer k of the noise is 1 + k


def noise_table(promise: NoiseAssumptions, *, bare: bool = False, **settings: Any) -> Table:
    """One kind of sum over counts up to `LIMIT`, with noise; and `bare` with a part that has none."""
    noise = Noise(scale=SCALE, variance=Fraction(10**6))
    parts = [Part(name=PART, size=4, bits=32, bound=Count(LIMIT), noise=noise)]
    if bare:
        parts.append(Part(name="bare", size=1, bits=16, bound=Count(1)))
    return Table({KIND: SumSpec(parts=tuple(parts), promise=promise, **settings)})


class NoisySum(CheatedSum):
    """The attacker's notes on one sum with noise."""

    def __init__(
        self, rig: Rig, cohort: Cohort, query: bytes, colluders: Iterable[Colluder] = (), **settings: Any
    ) -> None:
        super().__init__(rig, cohort, query, colluders, **settings)
        self._told: list[tuple[int, frozenset[int], m.Reveal]] = []

    def _note(self, member: int, survivors: Collection[int], replies: Iterable[m.Message]) -> None:
        found = list(replies)
        super()._note(member, survivors, found)
        self._told += [
            (member, frozenset(survivors), reply) for reply in found if isinstance(reply, m.Reveal)
        ]

    # --- shares ---

    def shares(self, dealer: int, *, alive: bool) -> dict[int, int]:
        return self._column(dealer, _SELF_MASK if alive else _MASK_KEY)

    def _column(self, dealer: int, column: int) -> dict[int, int]:
        """Point -> share of one of a dealer's secrets: colluders' and all that was revealed."""
        around = self._around(dealer)
        found = {
            point: self._colluders[holder].column(dealer, self.question.sum_index, column)
            for point, holder in enumerate(around, start=1)
            if holder in self._colluders
        }
        for holder, secrets in self._revealed():
            if (dealer, column) in secrets:
                found[around.index(holder) + 1] = secrets[dealer, column]
        return found

    def _revealed(self) -> Iterator[tuple[int, dict[tuple[int, int], int]]]:
        """Of each reveal, its sender and (dealer, column) -> share."""
        for holder, survivors, reveal in self._told:
            around = self._around(holder)
            places = unpack_positions(reveal.dealers, len(around), sender=holder)
            noise = (1 + layer for layer in self.question.surplus(len(survivors)))
            released = (_SELF_MASK, *noise)
            owed = [
                (around[place], column)
                for place in places
                for column in (released if around[place] in survivors else (_MASK_KEY,))
            ]
            values = shares_from_bytes(reveal.shares)
            assert values is not None  # honest clients reveal what was dealt to them
            yield holder, dict(zip(owed, values, strict=True))

    # --- what can be computed ---

    def seeds(self, owner: int) -> dict[int, bytes]:
        """Layer -> seed: the noise of `owner` that can be taken off."""
        index, advert = self.question.sum_index, self.cohort.adverts[self.cohort.position[owner]]
        found = {}
        for layer in range(1, 1 + self.question.spec.seeds):
            secret = self.rig.secret_of(self.cohort, self._column(owner, 1 + layer))
            if secret is not None:
                published = advert.noise_commitment(index, layer)
                assert noise_commitment(secret, owner=owner, sum_index=index, layer=layer) == published
                found[layer] = secret
        return found

    def least_noisy_total(self, members: Collection[int]) -> Vector | None:
        """The sum of the inputs of `members` with as little noise as possible."""
        total = self.total(members)
        if total is None:
            return None
        noise = self.question.encoding.noise()
        for member in members:
            for layer, secret in self.seeds(member).items():
                seed = self.question.noise_seed(secret, self.cohort.position[member], layer)
                noise.remove(layer, [total], KeyStream(seed))
        return total

    def noise_left(self, members: Iterable[int]) -> Fraction:
        """The variance that `members` leave on it, as a part of what was promised."""
        promise = self.question.spec.promise
        assert promise is not None  # it is about sums with noise
        shares = promise.components(len(self.question.roster))
        left = Fraction(0)
        for member in members:
            gone = self.seeds(member)
            left += sum(share for layer, share in enumerate(shares) if layer not in gone)
        return left


# --- what a server may tell ------------------------------------------------------------------------


def claim(
    rig: Rig,
    cohort: Cohort,
    survivors: Collection[int],
    *,
    asked: Collection[int],
    colluders: Iterable[Colluder] = (),
    roster: Collection[int] | None = None,
) -> NoisySum:
    """Take the inputs of `asked`, and tell all of them who are said to survive of the same survivors."""
    roster = cohort.ids if roster is None else roster
    cheated = NoisySum(rig, cohort, rig.query(cohort, 0, roster), colluders)
    cheated.ask(asked)
    cheated.reveal([member for member in asked if member in survivors], survivors)
    return cheated


def claim_twice(
    rig: Rig, cohort: Cohort, survivors: Collection[int], *, colluders: Iterable[Colluder]
) -> NoisySum:
    """First everybody has survived, so that all layers are surplus; then only `survivors` have."""
    honest = range(rig.clients)
    cheated = claim(rig, cohort, cohort.ids, asked=honest, colluders=colluders)
    cheated.reveal([member for member in honest if member in survivors], survivors)
    return cheated


def cut_views(cohort: Cohort, honest: Collection[int], dead: Collection[int], *, needed: int) -> Views:
    """Each of `dead` is dead to `needed` others, and each view is as large as possible."""
    hidden: dict[int, set[int]] = {member: set() for member in honest}
    for target in dead:
        others = sorted((k for k in honest if k != target), key=lambda k: len(hidden[k]))
        for member in others[:needed]:
            hidden[member].add(target)
    return {member: frozenset(cohort.ids) - hidden[member] for member in honest}


def claim_several(
    rig: Rig,
    cohort: Cohort,
    dead: Collection[int],
    *,
    colluders: Collection[Colluder],
    second_lists: bool = False,
) -> NoisySum:
    """Nobody is told that all of `dead` are, and yet a threshold is told so of each of them.

    With `second_lists`, each view is first shown to all who are alive in it, for their signatures.
    """
    honest = range(rig.clients)
    views = cut_views(cohort, honest, dead, needed=cohort.threshold - len(colluders))
    cheated = NoisySum(rig, cohort, rig.query(cohort, 0, cohort.ids), colluders)
    cheated.ask(honest)
    if second_lists:
        for survivors in dict.fromkeys(views.values()):
            cheated.tell([member for member in honest if member in survivors], survivors)
    for member, survivors in views.items():
        cheated.reveal([member], survivors)
    return cheated
