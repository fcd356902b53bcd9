"""Share tags: hashes by which anybody can check a revealed share against what its dealer published.

A dealer deals each holder a row of shares for every sum: of the self-mask secret, of the mask key, and of
each noise seed. It publishes a tag of every row: a hash of the hashes of the shares in it. A holder that
reveals some shares of a row sends the hashes of the others, so the server can compute the tag. A share that
does not fit the tag convicts its holder, who accepted the tag. Shares that fit their tags, but lie on no
polynomial with the published secret, convict the dealer.

A tag has 16 bytes. To lie unnoticed, a holder needs a second share with the same hash (2^128 attempts). A
dealer may choose two shares with one hash (2^64 attempts), but only a wrong one of its own would fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from struct import Struct
from typing import Final, NamedTuple

from secagg.hashing import digest, framed
from secagg.shamir import SHARE_BYTES

TAG_BYTES: Final = 16
# What `framed` writes, prepared: there are too many shares to call it for each of them.
_NAMES: Final = Struct(">QIQIQI")  # the lengths and numbers of dealer, holder and sum
_COLUMNS: Final = [column.to_bytes(4, "big") for column in range(256)]
_SIXTEEN: Final = TAG_BYTES.to_bytes(8, "big")
_ROW: Final = framed("share row") + _SIXTEEN


class RevealedRow(NamedTuple):
    """What a holder reveals of a row of shares: some `shares`, and the hashes of the others."""

    shares: bytes
    hidden: bytes

    def __repr__(self) -> str:
        return "RevealedRow()"  # no shares


def revealed_columns(surplus: Iterable[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the columns of a row of shares that are revealed of a drop-out, and those of a survivor, of
    whose noise seeds those in `surplus` (counted from 1) are revealed."""
    return (1,), (0, *(1 + layer for layer in surplus))


class DealtRow(NamedTuple):
    """Names a row of shares: those that client `dealer` dealt to client `holder` for one sum."""

    session: bytes
    dealer: int
    holder: int
    sum_index: int

    def hashes(self, shares: bytes) -> list[bytes]:
        """Return the hash of each share in `shares`, which are all of the row."""
        prefix = self._prefix()
        return [
            sha256(prefix + _COLUMNS[column] + shares[at : at + SHARE_BYTES]).digest()[:TAG_BYTES]
            for column, at in enumerate(range(0, len(shares), SHARE_BYTES))
        ]

    def _prefix(self) -> bytes:
        session, dealer, holder, sum_index = self
        return _framed_session(session) + _NAMES.pack(4, dealer, 4, holder, 4, sum_index)

    def tag(self, shares: bytes) -> bytes:
        """Return the tag of the row with these `shares`."""
        return _tag(self.hashes(shares))

    def all_hashes(self, revealed: RevealedRow, columns: Sequence[int]) -> list[bytes]:
        """Return the hashes of all shares of the row, of which those in `columns` are `revealed`."""
        shares, hidden = revealed
        hashes = [hidden[at : at + TAG_BYTES] for at in range(0, len(hidden), TAG_BYTES)]
        prefix, start = self._prefix(), 0
        for column in columns:  # they ascend
            share = shares[start : start + SHARE_BYTES]
            hashes.insert(column, sha256(prefix + _COLUMNS[column] + share).digest()[:TAG_BYTES])
            start += SHARE_BYTES
        return hashes

    def tag_of(self, revealed: RevealedRow, columns: Sequence[int]) -> bytes:
        """Return the tag of the row, of which the shares in `columns` are `revealed`."""
        return _tag(self.all_hashes(revealed, columns))

    def single(self, revealed: RevealedRow, columns: Sequence[int], column: int) -> RevealedRow:
        """Return the row with the share in `column` alone: the hashes of the others stand for them."""
        at = columns.index(column) * SHARE_BYTES
        others = [each for k, each in enumerate(self.all_hashes(revealed, columns)) if k != column]
        return RevealedRow(revealed.shares[at : at + SHARE_BYTES], b"".join(others))


def _tag(hashes: Iterable[bytes]) -> bytes:
    """Return the first bytes of `digest("share row", *hashes)`."""
    return sha256(_ROW + _SIXTEEN.join(hashes)).digest()[:TAG_BYTES]


@lru_cache(maxsize=16)
def _framed_session(session: bytes) -> bytes:
    return framed("share", session)


def _u32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def cut_rows(
    shares: bytes, hidden: bytes, columns: Sequence[Sequence[int]], *, width: int
) -> list[RevealedRow] | None:
    """Return the rows whose revealed shares, in `columns` of each row, are joined in `shares`. `width` is the
    number of all columns. Return None if the lengths do not fit."""
    revealed = sum(map(len, columns))
    if len(shares) != SHARE_BYTES * revealed or len(hidden) != TAG_BYTES * (width * len(columns) - revealed):
        return None
    rows, at, hidden_at = [], 0, 0
    for each in columns:
        stop, hidden_stop = at + SHARE_BYTES * len(each), hidden_at + TAG_BYTES * (width - len(each))
        rows.append(RevealedRow(shares[at:stop], hidden[hidden_at:hidden_stop]))
        at, hidden_at = stop, hidden_stop
    return rows


def tags_of(plaintext: bytes, *, session: bytes, dealer: int, holder: int, sums: int) -> bytes:
    """Return the tags of the rows of all sums in `plaintext`, which `dealer` deals to `holder`, joined."""
    size = len(plaintext) // sums
    rows = (plaintext[k * size : (k + 1) * size] for k in range(sums))
    return b"".join(DealtRow(session, dealer, holder, k).tag(row) for k, row in enumerate(rows))


def tags_digest(tags: bytes) -> bytes:
    """Return the digest of the tags that one dealer published for one holder."""
    return digest("share tags", tags)


def receipt(accepted: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the digest of what a holder accepted: (dealer, digest of the dealer's tags for this holder)."""
    return digest("receipt", *(_u32(dealer) + tags for dealer, tags in accepted))
