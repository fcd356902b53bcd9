"""The masks of one sum: those that a client adds to its input, and those that the server removes.

A client adds its self mask, and one mask for each neighbour in the roster: plus for those with lower ids,
minus for those with higher ones. In the sum over all clients the pairs cancel. What remains are the self
masks of the survivors, and the pair masks between survivors and clients that sent nothing. `Removal`s
describe these in bytes alone, so that another process can remove them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from secagg.keys import Agreement, hkdf, pair_info, self_mask_info
from secagg.mask_keystream import apply_masks
from secagg.query_context import Question
from secagg.residue_ring import Residues

Pair: TypeAlias = tuple[bytes, bytes, bool]  # the other end's key, the HKDF info, whether it was added


@dataclass(frozen=True)
class SelfMask:
    """A survivor's own mask."""

    secret: bytes = field(repr=False)
    info: bytes

    def seeds(self, salt: bytes) -> tuple[list[bytes], list[bytes]]:
        """The seeds of masks to add to the total, and of those to subtract from it."""
        return [], [hkdf(self.secret, salt=salt, info=self.info)]


@dataclass(frozen=True)
class PairMasks:
    """The masks that survivors agreed with a client that then sent nothing."""

    mask_key: bytes = field(repr=False)
    pairs: tuple[Pair, ...]

    def seeds(self, salt: bytes) -> tuple[list[bytes], list[bytes]]:
        """As for a self mask: what was added is subtracted, and the other way round."""
        agreement = Agreement(self.mask_key)
        seeds: tuple[list[bytes], list[bytes]] = ([], [])
        for key, info, added in self.pairs:
            seeds[added].append(agreement.derive(key, salt=salt, info=info))
        return seeds


Removal: TypeAlias = SelfMask | PairMasks


def put_on(
    residues: Sequence[Residues], question: Question, *, position: int, mask_key: bytes, self_mask: bytes
) -> None:
    """Mask the input of the member at `position`, in place."""
    cohort = question.cohort
    pairs = tuple(
        _pair(question, position, peer, added=position > peer)
        for peer in cohort.neighbourhood
        if peer in question.roster and peer != position
    )
    minus, plus = PairMasks(mask_key, pairs).seeds(cohort.session)
    plus.append(hkdf(self_mask, salt=cohort.session, info=_self_info(question, position)))
    apply_masks(residues, plus=plus, minus=minus)


def own_mask(question: Question, *, position: int, secret: bytes) -> SelfMask:
    """Return the mask that a survivor's secret removes from the total."""
    return SelfMask(secret, _self_info(question, position))


def masks_with(question: Question, *, dropped: int, mask_key: bytes, survivors: Iterable[int]) -> PairMasks:
    """Return the masks that the key of a dropped client removes; `survivors` are among its neighbours."""
    pairs = (_pair(question, dropped, peer, added=peer > dropped) for peer in survivors)
    return PairMasks(mask_key, tuple(pairs))


def seeds_of(removals: Iterable[Removal], *, salt: bytes) -> tuple[list[bytes], list[bytes]]:
    """Return the seeds of all masks to add to the total, and of all to subtract from it."""
    plus: list[bytes] = []
    minus: list[bytes] = []
    for removal in removals:
        more_plus, more_minus = removal.seeds(salt)
        plus += more_plus
        minus += more_minus
    return plus, minus


def take_off(residues: Sequence[Residues], removals: Iterable[Removal], *, salt: bytes) -> None:
    """Remove masks from a total, in place."""
    plus, minus = seeds_of(removals, salt=salt)
    apply_masks(residues, plus=plus, minus=minus)


def _self_info(question: Question, position: int) -> bytes:
    return self_mask_info(question.mask_context, question.cohort.ids[position])


def _pair(question: Question, owner: int, peer: int, *, added: bool) -> Pair:
    cohort = question.cohort
    info = pair_info(question.mask_context, cohort.ids[owner], cohort.ids[peer])
    return cohort.adverts[peer].mask_keys[question.sum_index], info, added
