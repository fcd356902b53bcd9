"""The masks of one sum: those that a client adds to its input, and those that the server removes.

A client adds its self mask. For each neighbour in the roster it also adds a pair mask if the neighbour has a
lower id, and subtracts the pair mask otherwise. In the sum, the pair masks between two survivors cancel. Two
kinds of masks remain: the self masks of survivors, and the pair masks between survivors and drop-outs. A
`Removal` describes remaining masks as plain bytes, so that another process can remove them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from secagg.keys import Agreement, hkdf, pair_info, self_mask_info
from secagg.mask_keystream import KeyStream, apply_masks
from secagg.query_context import Question
from secagg.residue_packing import Residues
from secagg.session_secrets import MaskSecrets

Seeds: TypeAlias = tuple[list[bytes], list[bytes]]  # of the masks to add, and of the masks to subtract
# The other client's key, HKDF info, whether the mask was added, and the pair secret (empty without KEM).
Pair: TypeAlias = tuple[bytes, bytes, bool, bytes]


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
    pairs: tuple[Pair, ...] = field(repr=False)  # they may contain pair secrets

    def seeds(self, salt: bytes) -> Seeds:
        """Return two lists of seeds: of the masks marked in `pairs` as subtracted, and as added."""
        agreement = Agreement(self.mask_key)
        seeds: Seeds = ([], [])
        for key, info, added, secret in self.pairs:
            seeds[added].append(agreement.derive(key, salt=salt, info=info, more=secret))
        return seeds


Removal: TypeAlias = SelfMask | PairMasks


def put_on(residues: Sequence[Residues], question: Question, *, position: int, secrets: MaskSecrets) -> bytes:
    """Add all masks of the client at `position` to its encoded input `residues`, in place. Return the words
    of its pair masks: what each of them adds to the hidden count."""
    cohort = question.cohort
    pairs = tuple(
        _pair(question, position, peer, added=position > peer, secrets=secrets.pair_secrets)
        for peer in cohort.neighbourhood
        if peer in question.roster and peer != position
    )
    minus, plus = PairMasks(secrets.mask_key, pairs).seeds(cohort.session)
    # Masks are added for neighbours before this client and subtracted for those after it, in their order.
    words = b"".join(count_word(seed, question) for seed in (*plus, *minus))
    plus.append(hkdf(secrets.self_mask, salt=cohort.session, info=_self_info(question, position)))
    apply_masks(residues, plus=plus, minus=minus)
    return words


def count_word(seed: bytes, question: Question) -> bytes:
    """Return the word that the mask of `seed` adds to the hidden count: 8 bytes, little-endian. It says
    nothing about the rest of the mask."""
    return KeyStream(seed, skip=question.encoding.count_offset).words(1).tobytes()


def own_count_word(question: Question, *, position: int, secret: bytes) -> int:
    """Return what the self mask of the client at `position` adds to its hidden count."""
    (seed,) = own_mask(question, position=position, secret=secret).seeds(question.cohort.session)[1]
    return int.from_bytes(count_word(seed, question), "little")


def pair_count_words(masks: PairMasks, question: Question) -> list[int]:
    """Return the words of the pair `masks` of a drop-out, in the order of its neighbours."""
    lower, higher = masks.seeds(question.cohort.session)
    return [int.from_bytes(count_word(seed, question), "little") for seed in (*lower, *higher)]


def own_mask(question: Question, *, position: int, secret: bytes) -> SelfMask:
    """Return the self mask of the survivor at `position`, from its reconstructed `secret`."""
    return SelfMask(secret, _self_info(question, position))


def masks_with(
    question: Question,
    *,
    dropped: int,
    mask_key: bytes,
    survivors: Iterable[int],
    secrets: Mapping[int, bytes],
) -> PairMasks:
    """Return the pair masks of the drop-out at position `dropped` with its neighbours at `survivors`. With
    hybrid key agreement, `secrets` has the pair secrets with them; otherwise it is empty."""
    pairs = (_pair(question, dropped, peer, added=peer > dropped, secrets=secrets) for peer in survivors)
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


def _pair(question: Question, owner: int, peer: int, *, added: bool, secrets: Mapping[int, bytes]) -> Pair:
    cohort = question.cohort
    info = pair_info(question.mask_context, cohort.ids[owner], cohort.ids[peer])
    return cohort.adverts[peer].mask_keys[question.sum_index], info, added, secrets.get(peer, b"")
