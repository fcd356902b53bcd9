"""How the masks of one sum are put on, and taken off for whoever went missing.

A client adds its self mask, and one mask for each other member of the roster: plus for those with lower ids,
minus for those with higher ones. In the sum over everybody the pairs cancel. What remains are the self masks
of the survivors, and the pair masks between survivors and those who sent nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from secagg.keys import Agreement, pair_info, self_mask_seed
from secagg.masks import add_mask, subtract_mask
from secagg.question import Question
from secagg.ring import Residues


def put_on(
    residues: Sequence[Residues], question: Question, *, position: int, mask_key: bytes, self_mask: bytes
) -> None:
    """Mask the input of the member at `position`, in place."""
    add_mask(residues, _self_seed(question, position, self_mask))
    agreement = Agreement(mask_key)
    for peer in question.roster:
        if peer != position:
            apply = add_mask if position > peer else subtract_mask
            apply(residues, _pair_seed(question, agreement, position, peer))


def take_off_self(residues: Sequence[Residues], question: Question, *, position: int, secret: bytes) -> None:
    """Remove a survivor's self mask from the total."""
    subtract_mask(residues, _self_seed(question, position, secret))


def take_off_pairs(
    residues: Sequence[Residues],
    question: Question,
    *,
    dropped: int,
    mask_key: bytes,
    survivors: Sequence[int],
) -> None:
    """Remove from the total the masks that survivors agreed with one who then sent nothing."""
    agreement = Agreement(mask_key)
    for position in survivors:
        undo = subtract_mask if position > dropped else add_mask
        undo(residues, _pair_seed(question, agreement, dropped, position))


def _self_seed(question: Question, position: int, secret: bytes) -> bytes:
    cohort = question.cohort
    return self_mask_seed(
        secret, session=cohort.session, context=question.mask_context, owner=cohort.ids[position]
    )


def _pair_seed(question: Question, agreement: Agreement, owner: int, peer: int) -> bytes:
    cohort = question.cohort
    info = pair_info(question.mask_context, cohort.ids[owner], cohort.ids[peer])
    key = cohort.adverts[peer].mask_keys[question.sum_index]
    return agreement.derive(key, salt=cohort.session, info=info)
