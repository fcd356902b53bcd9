"""Masks of one sum: pairs cancel, self masks come off, and what a missing client left behind too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from secagg.bitmap import PositionSet
from secagg.cohort_members import Cohort, Neighbourhood
from secagg.insecure_seeds import SeededRandom
from secagg.keys import Agreement, hkdf, pair_info, public_key, self_mask_seed
from secagg.mask_keystream import apply_masks
from secagg.message_records import Advert
from secagg.messages import Query
from secagg.query_context import Question
from secagg.residue_packing import Residues
from secagg.self_and_pair_masks import SelfMask, masks_with, own_mask, put_on, take_off
from secagg.sum_spec import Part, Residue, SumSpec

IDS = (2, 3, 7, 11, 500)
ROSTER = (0, 1, 3, 4)  # positions; client 7 was not asked
SPEC = SumSpec(parts=(Part(name="x", size=5, bits=13, bound=Residue()),))


def mask_key(position: int, sum_index: int = 1) -> bytes:
    return SeededRandom(b"mask key", bytes([position, sum_index]))(32)


def self_mask(position: int) -> bytes:
    return SeededRandom(b"self mask", bytes([position]))(32)


def question() -> Question:
    adverts = tuple(
        Advert(
            member, bytes(32), tuple(public_key(mask_key(position, k)) for k in range(2)), (bytes(32),) * 2
        )
        for position, member in enumerate(IDS)
    )
    query = Query(b"s" * 32, 1, 0, "a", b"\x1b", b"")
    return Question(Cohort(b"s" * 32, 2, adverts), SPEC, query, b"d" * 32, PositionSet(ROSTER), False)


def take_off_self(residues: Sequence[Residues], position: int) -> None:
    removal = own_mask(question(), position=position, secret=self_mask(position))
    take_off(residues, [removal], salt=b"s" * 32)


def take_off_pairs(
    residues: Sequence[Residues], dropped: int, survivors: Iterable[int], *, sum_index: int = 1
) -> None:
    key = mask_key(dropped, sum_index)
    removal = masks_with(question(), dropped=dropped, mask_key=key, survivors=survivors)
    take_off(residues, [removal], salt=b"s" * 32)


def masked_zeros(position: int) -> tuple[Residues, ...]:
    residues = question().encoding.zeros()
    put_on(
        residues,
        question(),
        position=position,
        mask_key=mask_key(position),
        self_mask=self_mask(position),
    )
    return residues


def total(positions: tuple[int, ...]) -> tuple[Residues, ...]:
    accumulator = question().encoding.zeros()
    for position in positions:
        for into, part in zip(accumulator, masked_zeros(position), strict=True):
            into += part
    return accumulator


def test_a_client_adds_its_own_mask_and_one_per_peer() -> None:
    """Plus for peers with lower ids, minus for those with higher ones, nothing for who was not asked."""
    position, asked = 3, question()
    expected = asked.encoding.zeros()
    context, session = asked.mask_context, asked.cohort.session
    apply_masks(expected, plus=[self_mask_seed(self_mask(3), session=session, context=context, owner=11)])
    for peer in (0, 1, 4):
        info = pair_info(context, 11, IDS[peer])
        key = public_key(mask_key(peer))
        seed = Agreement(mask_key(3)).derive(key, salt=session, info=info)
        apply_masks(expected, plus=[seed] if peer < 3 else [], minus=[seed] if peer > 3 else [])
    assert all((a == b).all() for a, b in zip(masked_zeros(position), expected, strict=True))


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_mask_comes_off_for_any_survivors(count: int) -> None:
    for survivors in combinations(ROSTER, count):
        accumulator = total(survivors)
        assert all(part.any() for part in accumulator)
        for position in ROSTER:
            if position in survivors:
                take_off_self(accumulator, position)
            else:
                take_off_pairs(accumulator, position, survivors)
        assert not any(part.any() for part in accumulator)


@pytest.mark.parametrize("kept", ROSTER)
def test_one_mask_left_on_hides_the_total(kept: int) -> None:
    """Without one secret, what remains is a keystream: no zero among its elements, count included."""
    survivors = (0, 1, 4)
    accumulator = total(survivors)
    for position in ROSTER:
        if position == kept:
            continue
        if position in survivors:
            take_off_self(accumulator, position)
        else:
            take_off_pairs(accumulator, position, survivors)
    assert np.concatenate([part.astype(np.uint64) for part in accumulator]).all()


def test_the_key_of_another_sum_takes_nothing_off() -> None:
    accumulator = total((0, 1, 4))
    for position in (0, 1, 4):
        take_off_self(accumulator, position)
    take_off_pairs(accumulator, 3, (0, 1, 4), sum_index=0)
    assert all(part.any() for part in accumulator)


def test_on_a_ring_a_client_has_masks_with_its_neighbours_only() -> None:
    """Position 3 knows positions 1 and 4: with the others in the roster it shares nothing."""
    asked = question()
    known = {position: asked.cohort.adverts[position] for position in (1, 3, 4)}
    ring = replace(asked, cohort=Neighbourhood(b"s" * 32, 2, len(IDS), b"r" * 32, known))
    residues = ring.encoding.zeros()
    put_on(residues, ring, position=3, mask_key=mask_key(3), self_mask=self_mask(3))
    assert ring.mask_context != asked.mask_context  # the digest of a ring is of its keys
    expected = ring.encoding.zeros()
    session = b"s" * 32
    apply_masks(
        expected, plus=[self_mask_seed(self_mask(3), session=session, context=ring.mask_context, owner=11)]
    )
    for peer in (1, 4):
        info = pair_info(ring.mask_context, 11, IDS[peer])
        seed = Agreement(mask_key(3)).derive(public_key(mask_key(peer)), salt=session, info=info)
        apply_masks(expected, plus=[seed] if peer < 3 else [], minus=[seed] if peer > 3 else [])
    assert all((a == b).all() for a, b in zip(residues, expected, strict=True))


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 700])
def test_any_number_of_masks_comes_off(count: int) -> None:
    """However many key streams are worked off at a time."""
    residues = question().encoding.zeros()
    masks = [SelfMask(SeededRandom(b"many", b"%d" % k)(32), b"info %d" % k) for k in range(count)]
    for mask in masks:
        apply_masks(residues, plus=[hkdf(mask.secret, salt=b"salt", info=mask.info)])
    assert all(bool(part.any()) == bool(count) for part in residues)
    take_off(residues, masks, salt=b"salt")
    assert not any(part.any() for part in residues)
