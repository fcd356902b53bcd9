"""Masks against AES itself: the keystream, its order over parts, and that it comes off again."""

from __future__ import annotations

import random

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.mask_keystream import KeyStream, apply_masks
from secagg.residue_packing import Residues

BLOCK = 1 << 17  # bytes of keystream made at a time
BATCH = 64  # masks applied to a window at a time
SEED = bytes(range(32))


def keystream_by_oracle(seed: bytes, count: int) -> bytes:
    """AES of the counter block, then of the counter block plus one, ...: no mode of operation at all."""
    start = int.from_bytes(seed[16:], "big")
    blocks = -(-count // 16)
    counters = b"".join(((start + i) % (1 << 128)).to_bytes(16, "big") for i in range(blocks))
    encryptor = Cipher(algorithms.AES(seed[:16]), modes.ECB()).encryptor()  # noqa: S305 - the oracle is raw AES
    return encryptor.update(counters)[:count]


def zeros(*layout: tuple[int, str]) -> tuple[Residues, ...]:
    return tuple(np.zeros(size, dtype) for size, dtype in layout)


def mask_bytes(parts: tuple[Residues, ...]) -> bytes:
    return b"".join(part.tobytes() for part in parts)


@pytest.mark.parametrize("seed", [SEED, bytes(32), b"\xff" * 32, bytes(16) + b"\xff" * 16])
def test_the_keystream_is_that_of_aes_in_counter_mode(seed: bytes) -> None:
    words = KeyStream(seed).words(1001)
    assert words.tobytes() == keystream_by_oracle(seed, 8008)


def test_a_published_vector() -> None:
    """NIST SP 800-38A, F.5.1 CTR-AES128.Encrypt: ciphertext XOR plaintext of the four blocks."""
    key = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c")
    counter = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    plain = bytes.fromhex(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    cipher = bytes.fromhex(
        "874d6191b620e3261bef6864990db6ce9806f66b7970fdff8617187bb9fffdff"
        "5ae4df3edbd5d35e5b4f09020db03eab1e031dda2fbe03d1792170a0f3009cee"
    )
    expected = bytes(a ^ b for a, b in zip(plain, cipher, strict=True))
    assert KeyStream(key + counter).words(8).tobytes() == expected


@pytest.mark.parametrize("count", [1, BLOCK // 8 - 1, BLOCK // 8, BLOCK // 8 + 1, 3 * BLOCK // 8 + 5])
def test_words_run_on_across_blocks_and_calls(count: int) -> None:
    stream = KeyStream(SEED)
    got = stream.words(count).tobytes() + stream.words(3).tobytes()
    assert got == keystream_by_oracle(SEED, 8 * count + 24)


@pytest.mark.parametrize("size", [0, 16, 31, 33, 64])
def test_a_seed_has_32_bytes(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        KeyStream(bytes(size))


LAYOUTS = [
    [(1, "<u1")],
    [(3, "<u1"), (5, "<u2"), (1, "<u8"), (7, "<u4")],  # odd sizes: nothing is skipped or aligned
    [(BLOCK - 1, "<u1"), (3, "<u2")],
    [(BLOCK, "<u1"), (1, "<u8")],
    [(BLOCK + 1, "<u1"), (1, "<u8")],
    [(BLOCK // 2 + 1, "<u2"), (BLOCK // 4 + 3, "<u4"), (1, "<u8")],
    [(BLOCK // 8 + 1, "<u8"), (2 * BLOCK + 13, "<u1"), (1, "<u8")],
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_mask_is_the_keystream_part_by_part(layout: list[tuple[int, str]]) -> None:
    parts = zeros(*layout)
    apply_masks(parts, plus=[SEED])
    data = mask_bytes(parts)
    assert data == keystream_by_oracle(SEED, len(data))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_subtracting_undoes_adding(layout: list[tuple[int, str]]) -> None:
    parts = zeros(*layout)
    for part in parts:
        part += np.arange(len(part)).astype(part.dtype)
    before = mask_bytes(parts)
    apply_masks(parts, plus=[SEED])
    assert mask_bytes(parts) != before
    apply_masks(parts, minus=[SEED])
    assert mask_bytes(parts) == before


@given(
    st.lists(st.sampled_from([(1, "<u1"), (4, "<u2"), (9, "<u4"), (5, "<u8")]), min_size=1),
    st.binary(min_size=32, max_size=32),
)
@settings(deadline=None, max_examples=50)
def test_the_two_ends_of_a_pair_cancel(layout: list[tuple[int, str]], seed: bytes) -> None:
    one, other = zeros(*layout), zeros(*layout)
    apply_masks(one, plus=[seed])
    apply_masks(other, minus=[seed])
    for left, right in zip(one, other, strict=True):
        assert not (left + right).any()


def test_masks_are_added_and_not_merely_written() -> None:
    once, twice = zeros((5, "<u4")), zeros((5, "<u4"))
    apply_masks(once, plus=[SEED])
    apply_masks(twice, plus=[SEED])
    apply_masks(twice, plus=[SEED])
    assert (twice[0] == once[0] * 2).all()


# --- many masks at once ----------------------------------------------------------------------------


def seeds(count: int, kind: int = 0) -> list[bytes]:
    return [bytes([kind, k]) * 16 for k in range(count)]


def one_by_one(parts: tuple[Residues, ...], plus: list[bytes], minus: list[bytes]) -> bytes:
    for seed in plus:
        apply_masks(parts, plus=[seed])
    for seed in minus:
        apply_masks(parts, minus=[seed])
    return mask_bytes(parts)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_many_masks_are_those_of_their_seeds(layout: list[tuple[int, str]]) -> None:
    plus, minus = seeds(3), seeds(2, 1)
    parts = zeros(*layout)
    apply_masks(parts, plus=plus, minus=minus)
    assert mask_bytes(parts) == one_by_one(zeros(*layout), plus, minus)


@pytest.mark.parametrize("count", [0, 1, BATCH - 1, BATCH, BATCH + 1, 2 * BATCH + 3])
def test_any_number_of_masks_is_applied(count: int) -> None:
    layout = [(5, "<u1"), (1001, "<u4"), (1, "<u8")]
    for plus, minus in ((seeds(count), seeds(1, 1)), (seeds(2), seeds(count, 1))):
        parts = zeros(*layout)
        apply_masks(parts, plus=iter(plus), minus=iter(minus))
        assert mask_bytes(parts) == one_by_one(zeros(*layout), plus, minus)


def test_no_masks_change_nothing() -> None:
    parts = (np.arange(9, dtype=np.uint32),)
    apply_masks(parts)
    assert parts[0].tolist() == list(range(9))


@given(st.lists(st.binary(min_size=32, max_size=32), max_size=5), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=50)
def test_masks_come_off_in_any_order(chosen: list[bytes], order: random.Random) -> None:
    parts = (np.arange(50, dtype=np.uint16), np.arange(3, dtype=np.uint64))
    before = mask_bytes(parts)
    apply_masks(parts, plus=chosen)
    apply_masks(parts, minus=order.sample(chosen, len(chosen)))
    assert mask_bytes(parts) == before


def test_a_seed_among_many_has_32_bytes() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        apply_masks(zeros((3, "<u4")), plus=[SEED, SEED[:-1]])


@pytest.mark.parametrize("seed", [bytes(32), bytes(16) + b"\xff" * 16], ids=["start", "wrap"])
@given(skip=st.integers(0, 200))
def test_a_stream_may_be_joined_anywhere(seed: bytes, skip: int) -> None:
    """Also where the counter runs over."""
    whole = KeyStream(seed).words(64).tobytes()
    assert KeyStream(seed, skip=skip).words(8).tobytes() == whole[skip : skip + 64]
