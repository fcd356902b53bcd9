"""Masks: an AES-128-CTR keystream added to residues.

A seed is 32 bytes: the key, then the initial counter block. Its keystream is consumed part by part, in
order, `size` little-endian words of the part's own type each; nothing is skipped between parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, islice, repeat
from typing import Final, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from secagg.ring import Residues

SEED_BYTES: Final = 32
_AES_BLOCK: Final = 16
# Keystream made at a time: small enough for the second-level cache, large enough to hide call overhead.
_BLOCK: Final = 1 << 17
_ZEROS: Final = memoryview(bytes(_BLOCK))
# Masks applied to a window before the next one: the window stays in the cache, and ciphers take memory.
_BATCH: Final = 64


class KeyStream:
    """The AES-CTR stream of one seed, from byte `skip` on. It can be read once."""

    def __init__(self, seed: bytes, *, skip: int = 0) -> None:
        if len(seed) != SEED_BYTES:
            raise ValueError("a seed has 32 bytes")
        counter = seed[16:] if skip < _AES_BLOCK else _advanced(seed[16:], skip // _AES_BLOCK)
        self._encryptor = Cipher(algorithms.AES128(seed[:16]), modes.CTR(counter)).encryptor()
        self._encryptor.update(_ZEROS[: skip % _AES_BLOCK])

    def fill(self, buffer: NDArray[np.uint8]) -> None:
        """Overwrite `buffer`, of at most `_BLOCK` bytes, with the next bytes of the stream."""
        self._encryptor.update_into(_ZEROS[: len(buffer)], buffer.data)

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return the next `count` little-endian 64-bit words."""
        out = np.empty(count * 8, np.uint8)
        for start in range(0, len(out), _BLOCK):
            self.fill(out[start : start + _BLOCK])
        return out.view("<u8")


def _advanced(counter: bytes, blocks: int) -> bytes:
    value = int.from_bytes(counter, "big") + blocks
    return (value % (1 << (8 * _AES_BLOCK))).to_bytes(_AES_BLOCK, "big")


_Mask: TypeAlias = tuple[np.ufunc, KeyStream]  # addition or subtraction, and the keystream


def apply_masks(
    residues: Sequence[Residues], *, plus: Iterable[bytes] = (), minus: Iterable[bytes] = (), skip: int = 0
) -> None:
    """Add the masks of the seeds in `plus` and subtract those in `minus`, in place and without reducing.

    If `residues` are a slice of a longer vector, the first `skip` bytes of each keystream are passed over.
    """
    signed = chain(zip(repeat(np.add), plus), zip(repeat(np.subtract), minus))
    while masks := [(operation, KeyStream(seed, skip=skip)) for operation, seed in islice(signed, _BATCH)]:
        _apply(residues, masks)


def _apply(residues: Iterable[Residues], masks: Sequence[_Mask]) -> None:
    buffer = np.empty(_BLOCK, np.uint8)
    for part in residues:
        step = _BLOCK // part.itemsize
        for start in range(0, len(part), step):
            window = part[start : start + step]
            block = buffer[: window.nbytes]
            words = block.view(part.dtype)
            for operation, stream in masks:
                stream.fill(block)
                operation(window, words, out=window)
