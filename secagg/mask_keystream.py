"""Masks: an AES-128-CTR key stream that is added to residues.

A seed has 32 bytes: the AES key, then the initial counter block. The key stream is used for one part of a
vector after another, without gaps. Each element takes one little-endian word of the part's numpy type.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, islice, repeat
from typing import Final, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from secagg.residue_packing import Residues

SEED_BYTES: Final = 32
_AES_BLOCK: Final = 16
# Bytes of key stream made at a time: small enough for the second-level cache, large enough to hide overhead.
_BLOCK: Final = 1 << 17
_ZEROS: Final = memoryview(bytes(_BLOCK))
# Masks applied to a window while it is in the cache. Each of them needs a cipher, which takes memory.
_BATCH: Final = 64


class KeyStream:
    """The key stream of a 32-byte seed from byte `skip` on, to read once. Other seeds raise `ValueError`."""

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
        """Return the next `count` little-endian 64-bit words of the stream."""
        out = np.empty(count * 8, np.uint8)
        for start in range(0, len(out), _BLOCK):
            self.fill(out[start : start + _BLOCK])
        return out.view("<u8")


def _advanced(counter: bytes, blocks: int) -> bytes:
    value = int.from_bytes(counter, "big") + blocks
    return (value % (1 << (8 * _AES_BLOCK))).to_bytes(_AES_BLOCK, "big")


_Mask: TypeAlias = tuple[np.ufunc, KeyStream]  # np.add or np.subtract, and the key stream


def apply_masks(
    residues: Sequence[Residues], *, plus: Iterable[bytes] = (), minus: Iterable[bytes] = (), skip: int = 0
) -> None:
    """Add to `residues` the masks of all seeds in `plus`, and subtract those of `minus`, in place. One call
    for many masks is faster than many calls. If `residues` are a section of a longer vector, `skip` is the
    number of bytes of each key stream that belong to the elements before the section."""
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
