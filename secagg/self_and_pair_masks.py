"""The masks of one sum: those that a client adds to its input, and those that the server removes.

A client adds its self mask. For each neighbour in the roster it also adds a pair mask if the neighbour has a
lower id, and subtracts the pair mask otherwise. In the sum, the pair masks between two survivors cancel. Two
kinds of masks remain: the self masks of survivors, and the pair masks between survivors and drop-outs. A
`Removal` describes remaining masks as plain bytes, so that another process can remove them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from secagg.keys import Agreement, hkdf, pair_info, self_mask_info
from secagg.mask_keystream import apply_masks
from secagg.query_context import Question
from secagg.residue_packing import Residues

Seeds: TypeAlias = tuple[list[bytes], list[bytes]]  # of the masks to add, and of the masks to subtract
Pair: TypeAlias = tuple[bytes, bytes, bool]  # the other client's key, HKDF info, whether the mask was added


@dataclass(frozen=True)
class SelfMask:
    """The self mask of a survivor, to be removed from the total. `secret` and `info` determine its seed."""

    secret: bytes = field(repr=False)
    info: bytes

    def seeds(self, salt: bytes) -> Seeds:
        """Return two lists of seeds: of masks to add to the total (none), and to subtract (the self mask)."""
        return [], [hkdf(self.secret, salt=salt, info=self.info)]


@dataclass(frozen=True)
class PairMasks:
    """The pair masks between the client that has the private key `mask_key` and each client in `pairs`."""

    mask_key: bytes = field(repr=False)
    pairs: tuple[Pair, ...]

    def seeds(self, salt: bytes) -> Seeds:
        """Return two lists of seeds: of the masks marked in `pairs` as subtracted, and as added."""
        agreement = Agreement(self.mask_key)
        seeds: Seeds = ([], [])
        for key, info, added in self.pairs:
            seeds[added].append(agreement.derive(key, salt=salt, info=info))
        return seeds


Removal: TypeAlias = SelfMask | PairMasks


def put_on(
    residues: Sequence[Residues], question: Question, *, position: int, mask_key: bytes, self_mask: bytes
) -> None:
    """Add all masks of the client at `position` to its encoded input `residues`, in place."""
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
    """Return the self mask of the survivor at `position`, from its reconstructed `secret`."""
    return SelfMask(secret, _self_info(question, position))


def masks_with(question: Question, *, dropped: int, mask_key: bytes, survivors: Iterable[int]) -> PairMasks:
    """Return the pair masks of the drop-out at position `dropped` with its neighbours at `survivors`."""
    pairs = (_pair(question, dropped, peer, added=peer > dropped) for peer in survivors)
    return PairMasks(mask_key, tuple(pairs))


def seeds_of(removals: Iterable[Removal], *, salt: bytes) -> Seeds:
    """Return two lists of seeds for `removals`: of masks to add to the total, and of masks to subtract."""
    return joined(removal.seeds(salt) for removal in removals)


def joined(several: Iterable[Seeds]) -> Seeds:
    plus: list[bytes] = []
    minus: list[bytes] = []
    for more_plus, more_minus in several:
        plus += more_plus
        minus += more_minus
    return plus, minus


def take_off(residues: Sequence[Residues], removals: Iterable[Removal], *, salt: bytes) -> None:
    """Remove the masks in `removals` from the total `residues`, in place. `salt` is the session id."""
    plus, minus = seeds_of(removals, salt=salt)
    apply_masks(residues, plus=plus, minus=minus)


class Expander(Protocol):
    """The interface of `OneProcess` and `secagg.mask_pool.ProcessPool`, which remove masks from a total."""

    def get_ready(self) -> None:
        """Prepare for a call of `take_off` that will follow within milliseconds."""

    def take_off(self, residues: Sequence[Residues], removals: Sequence[Removal], *, salt: bytes) -> None: ...


class OneProcess:
    """An `Expander` that removes masks in the calling process, without worker processes."""

    def get_ready(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def take_off(self, residues: Sequence[Residues], removals: Sequence[Removal], *, salt: bytes) -> None:
        take_off(residues, removals, salt=salt)


def _self_info(question: Question, position: int) -> bytes:
    return self_mask_info(question.mask_context, question.cohort.ids[position])


def _pair(question: Question, owner: int, peer: int, *, added: bool) -> Pair:
    cohort = question.cohort
    info = pair_info(question.mask_context, cohort.ids[owner], cohort.ids[peer])
    return cohort.adverts[peer].mask_keys[question.sum_index], info, added
