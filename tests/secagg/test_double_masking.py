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
from secagg.self_and_pair_masks import (
    SelfMask,
    count_word,
    masks_with,
    own_count_word,
    own_mask,
    pair_count_words,
    put_on,
    take_off,
)
from secagg.session_secrets import MaskSecrets
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
            member,
            bytes(32),
            b"",
            tuple(public_key(mask_key(position, k)) for k in range(2)),
            (bytes(32),) * 2,
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
    removal = masks_with(question(), dropped=dropped, mask_key=key, survivors=survivors, secrets={})
    take_off(residues, [removal], salt=b"s" * 32)


def secrets_of(position: int) -> MaskSecrets:
    return MaskSecrets(mask_key(position), self_mask(position), {})


def masked_zeros(position: int) -> tuple[Residues, ...]:
    residues = question().encoding.zeros()
    put_on(residues, question(), position=position, secrets=secrets_of(position))
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
    words = put_on(residues, ring, position=3, secrets=secrets_of(3))
    assert ring.mask_context != asked.mask_context  # the digest of a ring is of its keys
    expected = ring.encoding.zeros()
    session = b"s" * 32
    apply_masks(
        expected, plus=[self_mask_seed(self_mask(3), session=session, context=ring.mask_context, owner=11)]
    )
    expected_words = b""
    for peer in (1, 4):
        info = pair_info(ring.mask_context, 11, IDS[peer])
        seed = Agreement(mask_key(3)).derive(public_key(mask_key(peer)), salt=session, info=info)
        apply_masks(expected, plus=[seed] if peer < 3 else [], minus=[seed] if peer > 3 else [])
        expected_words += count_word(seed, ring)
    assert all((a == b).all() for a, b in zip(residues, expected, strict=True))
    assert words == expected_words


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


# --- words: what masks add to the hidden count -------------------------------------------------------


def words_of(position: int, secrets: MaskSecrets | None = None) -> dict[int, int]:
    """The words of one client, by the position of its peer."""
    asked = question()
    words = put_on(asked.encoding.zeros(), asked, position=position, secrets=secrets or secrets_of(position))
    peers = [peer for peer in ROSTER if peer != position]
    assert len(words) == 8 * len(peers)
    return {peer: int.from_bytes(words[8 * at : 8 * at + 8], "little") for at, peer in enumerate(peers)}


def test_both_ends_of_a_pair_have_the_same_word() -> None:
    words = {position: words_of(position) for position in ROSTER}
    for one, other in combinations(ROSTER, 2):
        assert words[one][other] == words[other][one]
    assert len({word for row in words.values() for word in row.values()}) == 6


@pytest.mark.parametrize("position", ROSTER)
def test_words_are_what_the_masks_add_to_the_count(position: int) -> None:
    own = own_count_word(question(), position=position, secret=self_mask(position))
    pairs = sum(word if peer < position else -word for peer, word in words_of(position).items())
    assert int(masked_zeros(position)[-1][0]) == (own + pairs) % 2**64


@pytest.mark.parametrize("dropped", ROSTER)
def test_the_key_of_a_drop_out_gives_the_words_of_all_survivors(dropped: int) -> None:
    survivors = [peer for peer in ROSTER if peer != dropped]
    masks = masks_with(
        question(), dropped=dropped, mask_key=mask_key(dropped), survivors=survivors, secrets={}
    )
    assert pair_count_words(masks, question()) == [words_of(peer)[dropped] for peer in survivors]


# --- hybrid key agreement ----------------------------------------------------------------------------


def pair_secret(one: int, other: int) -> bytes:
    return SeededRandom(b"pair secret", bytes(sorted((one, other))))(32)


def hybrid_secrets(position: int) -> MaskSecrets:
    pairs = {peer: pair_secret(position, peer) for peer in ROSTER if peer != position}
    return MaskSecrets(mask_key(position), self_mask(position), pairs)


def test_a_pair_secret_changes_the_masks_of_its_pair() -> None:
    """Whoever breaks X25519 alone cannot compute them."""
    for position in ROSTER:
        plain, hybrid = words_of(position), words_of(position, hybrid_secrets(position))
        assert all(plain[peer] != hybrid[peer] for peer in plain)
    one, other = words_of(0, hybrid_secrets(0)), words_of(1, hybrid_secrets(1))
    assert one[1] == other[0]


def hybrid_total(survivors: tuple[int, ...]) -> tuple[Residues, ...]:
    """The sum of hybrid masks, with self masks already taken off."""
    asked = question()
    accumulator = asked.encoding.zeros()
    for position in survivors:
        residues = asked.encoding.zeros()
        put_on(residues, asked, position=position, secrets=hybrid_secrets(position))
        for into, part in zip(accumulator, residues, strict=True):
            into += part
        take_off_self(accumulator, position)
    return accumulator


def test_hybrid_masks_come_off_with_the_pair_secrets_and_not_without() -> None:
    survivors = (0, 1, 4)
    secrets = {peer: pair_secret(3, peer) for peer in survivors}
    for given, removed in ((secrets, True), ({}, False), ({**secrets, 0: bytes(32)}, False)):
        accumulator = hybrid_total(survivors)
        masks = masks_with(question(), dropped=3, mask_key=mask_key(3), survivors=survivors, secrets=given)
        take_off(accumulator, [masks], salt=b"s" * 32)
        assert any(part.any() for part in accumulator) != removed
