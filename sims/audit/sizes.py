"""How long every message of the protocol is: section 15 of docs/protocol.md, as arithmetic.

Nothing here encodes a message. Whoever compares these lengths with bytes that were counted on their way tests
both, the documentation and the program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from secagg.noise.promise import Promise

_HEADER: Final = 37  # array header, version, type, a context of 32 bytes
_SIGNATURE: Final = 64
_ID: Final = 4
_POSITION: Final = 4
_SHARE: Final = 33
_TAG: Final = 16
_HIDDEN_COUNT: Final = 8


def blob(length: int) -> int:
    """A byte string with its header."""
    return length + (2 if length < 1 << 8 else 3 if length < 1 << 16 else 5)


def number(value: int) -> int:
    """An unsigned integer."""
    for most, length in ((7, 1), (8, 2), (16, 3), (32, 5)):
        if value < 1 << most:
            return length
    return 9


def bitmap(members: int) -> int:
    return (members + 7) // 8


def packed(parts: Iterable[Mapping[str, Any]]) -> int:
    """The vector of a masked input, from the parts as a ledger describes them."""
    return sum((_width(part) * int(part["bits"]) + 7) // 8 for part in parts) + _HIDDEN_COUNT


def _width(part: Mapping[str, Any]) -> int:
    """Noisy vectors of a bounded norm are rotated, for which they are padded to a power of two."""
    size: int = part["size"]
    rotated = part["noise"] is not None and part["bound"]["type"] == "L2"
    return 1 << (size - 1).bit_length() if rotated else size


def promise_of(described: Mapping[str, Any] | None) -> Promise | None:
    """The promise of a sum's noise, from its description in a ledger."""
    return None if described is None else Promise(**described)


def variance_of(part: Mapping[str, Any]) -> Fraction | None:
    """Of the noise of a part as a ledger describes it, in grid points squared."""
    return None if part["noise"] is None else Fraction(part["noise"]["variance"])


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Lengths of the frames of one session.

    `members`     n, clients that advertised keys.
    `neighbours`  d, of each of them; n - 1 on the complete graph.
    `sums`        L, most sums of the session.
    `seeds`       R, removable components of noise of any of its sums.
    """

    trust: str
    signed: bool
    members: int
    neighbours: int
    threshold: int
    sums: int
    seeds: int = 0

    # --- records ---

    @property
    def _sig(self) -> int:
        return _SIGNATURE if self.signed else 0

    @property
    def _advert(self) -> int:
        return 36 + (64 + 32 * self.seeds) * self.sums + self._sig

    @property
    def _envelope(self) -> int:
        return (66 + 33 * self.seeds) * self.sums + _TAG

    @property
    def _parcel(self) -> int:
        return _ID + self._envelope + self._sig

    @property
    def is_ring(self) -> bool:
        return self.neighbours != self.members - 1

    # --- set-up ---

    @property
    def invitation(self) -> int:
        return 5 + 1 + len(self.trust) + number(self.sums) + 34 + blob(32 if self.signed else 0) + 34

    @property
    def advertisement(self) -> int:
        return _HEADER + blob(self._advert)

    @property
    def keys(self) -> int:
        """`KeyList`, or `Neighbours` on a ring."""
        if not self.is_ring:
            return _HEADER + number(self.threshold) + blob(self.members * self._advert)
        records = (self.neighbours + 1) * (self._advert + _POSITION)
        return _HEADER + number(self.members) + number(self.threshold) + 34 + blob(records)

    @property
    def shares(self) -> int:
        return _HEADER + blob(self.neighbours * self._envelope) + blob(self._sig)

    def delivery(self, dealt: int) -> int:
        """With the envelopes of so many neighbours."""
        return _HEADER + blob(dealt * self._parcel)

    # --- a sum ---

    def query(self, index: int, round_number: int, kind: str, payload: int) -> int:
        name = len(kind) + (1 if len(kind) < 32 else 2)
        fixed = _HEADER + number(index) + number(round_number) + name
        return fixed + blob(bitmap(self.members)) + blob(payload)

    def masked(self, index: int, vector: int) -> int:
        return _HEADER + number(index) + blob(vector)

    def survivors(self, index: int) -> int:
        return _HEADER + number(index) + blob(bitmap(self.members))

    def confirmation(self, index: int) -> int:
        return _HEADER + number(index) + blob(_SIGNATURE)

    def confirmations(self, index: int, signers: int) -> int:
        return _HEADER + number(index) + blob((_ID + _SIGNATURE) * signers)

    def reveal(self, index: int, roster: int, survivors: int, surplus: int) -> int:
        """By a client around which so many are asked, and survive; with `surplus` seeds of each of those."""
        dealers = blob(bitmap(self.neighbours + 1))
        return _HEADER + number(index) + dealers + blob(_SHARE * (roster + surplus * survivors))

    def short(self, index: int) -> int:
        """`Decline` and `GroupClosed`."""
        return _HEADER + number(index)

    @property
    def leave(self) -> int:
        return _HEADER
