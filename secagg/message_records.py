"""The fixed-size records inside messages: adverts, neighbours, parcels, signatures of members.

All multi-byte integers are big-endian. Lists of records are ordered by member id, each id once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Final

from secagg.errors import SERVER, LargeCohort, MalformedMessage, Peer
from secagg.hashing import DIGEST_BYTES
from secagg.keys import KEY_BYTES, SIGNATURE_BYTES, envelope_bytes

ID_BYTES: Final = 4
_POSITION_BYTES: Final = 4


@dataclass(frozen=True)
class Format:
    """What the lengths of records depend on."""

    sums: int
    signed: bool
    seeds: int = 0  # of removable noise, for each sum

    @property
    def signature_bytes(self) -> int:
        return SIGNATURE_BYTES if self.signed else 0

    @property
    def advert_bytes(self) -> int:
        body = ID_BYTES + KEY_BYTES + self.sums * (KEY_BYTES + (1 + self.seeds) * DIGEST_BYTES)
        return body + self.signature_bytes

    @property
    def neighbour_bytes(self) -> int:
        return _POSITION_BYTES + self.advert_bytes

    @property
    def envelope_bytes(self) -> int:
        return envelope_bytes(self.sums, self.seeds)

    @property
    def parcel_bytes(self) -> int:
        return ID_BYTES + self.envelope_bytes + self.signature_bytes


@dataclass(frozen=True)
class Advert:
    """A member's id, channel key, one mask key and one commitment per sum, and its signature.

    Where noise is removable, commitments to all its seeds follow, sum by sum.
    """

    member: int
    channel_key: bytes
    mask_keys: tuple[bytes, ...]
    commitments: tuple[bytes, ...]
    signature: bytes = b""

    @cached_property
    def body(self) -> bytes:
        """What the member signs. On a ring, a server sends it to every neighbour."""
        head = self.member.to_bytes(ID_BYTES, "big") + self.channel_key
        return head + b"".join(self.mask_keys) + b"".join(self.commitments)

    def encode(self) -> bytes:
        return self.body + self.signature

    def noise_commitment(self, sum_index: int, layer: int) -> bytes:
        """Of the seed of removable component `layer`, from 1 on."""
        sums = len(self.mask_keys)
        seeds = len(self.commitments) // sums - 1
        return self.commitments[sums + sum_index * seeds + layer - 1]


@dataclass(frozen=True)
class Parcel:
    """An envelope on its way to the receiver, with its sender's signature on the session."""

    sender: int
    envelope: bytes = field(repr=False)
    signature: bytes = field(repr=False)

    def encode(self) -> bytes:
        return self.sender.to_bytes(ID_BYTES, "big") + self.envelope + self.signature


def parse_advert(record: bytes, form: Format, *, sender: Peer) -> Advert:
    """The one advert in `record`."""
    if len(record) != form.advert_bytes:
        raise MalformedMessage(sender, "an advert of the wrong length")
    return _advert(record, form)


def parse_adverts(blob: bytes, form: Format, *, most: int) -> tuple[Advert, ...]:
    """All adverts in `blob`, in strictly ascending order of id."""
    return tuple(_advert(row, form) for row in _rows(blob, form.advert_bytes, most))


def encode_neighbours(neighbours: Iterable[tuple[int, Advert]]) -> bytes:
    """(position, advert) pairs in ascending order of both."""
    return b"".join(
        position.to_bytes(_POSITION_BYTES, "big") + advert.encode() for position, advert in neighbours
    )


def parse_neighbours(blob: bytes, form: Format, *, size: int, most: int) -> dict[int, Advert]:
    """Position -> advert, in strictly ascending order of position and of id."""
    found: dict[int, Advert] = {}
    for row in _rows(blob, form.neighbour_bytes, most):
        position = int.from_bytes(row[:_POSITION_BYTES], "big")
        found[position] = _advert(row[_POSITION_BYTES:], form)
    ids = [advert.member for advert in found.values()]
    if max(found) >= size or any(one >= other for one, other in pairwise(ids)):
        raise MalformedMessage(SERVER, "neighbours that repeat an id, or are out of order or of the cohort")
    return found


def _advert(row: bytes, form: Format) -> Advert:
    keys_at = ID_BYTES + KEY_BYTES
    commitments_at = keys_at + form.sums * KEY_BYTES
    signature_at = commitments_at + form.sums * (1 + form.seeds) * DIGEST_BYTES
    return Advert(
        member=int.from_bytes(row[:ID_BYTES], "big"),
        channel_key=row[ID_BYTES:keys_at],
        mask_keys=_cut(row[keys_at:commitments_at], KEY_BYTES),
        commitments=_cut(row[commitments_at:signature_at], DIGEST_BYTES),
        signature=row[signature_at:],
    )


def parse_parcels(blob: bytes, form: Format, *, most: int) -> tuple[Parcel, ...]:
    """All parcels in `blob`, in strictly ascending order of sender."""
    stop = ID_BYTES + form.envelope_bytes
    return tuple(
        Parcel(int.from_bytes(row[:ID_BYTES], "big"), row[ID_BYTES:stop], row[stop:])
        for row in _rows(blob, form.parcel_bytes, most)
    )


def parse_envelopes(blob: bytes, form: Format, count: int, *, sender: Peer) -> tuple[bytes, ...]:
    """Exactly `count` envelopes."""
    if len(blob) != count * form.envelope_bytes:
        raise MalformedMessage(sender, f"not {count} envelopes")
    return _cut(blob, form.envelope_bytes)


def encode_signatures(signatures: Sequence[tuple[int, bytes]]) -> bytes:
    return b"".join(member.to_bytes(ID_BYTES, "big") + sig for member, sig in signatures)


def parse_signatures(blob: bytes, *, most: int) -> tuple[tuple[int, bytes], ...]:
    """(member, signature) pairs in strictly ascending order of member."""
    rows = _rows(blob, ID_BYTES + SIGNATURE_BYTES, most)
    return tuple((int.from_bytes(row[:ID_BYTES], "big"), row[ID_BYTES:]) for row in rows)


def _cut(blob: bytes, size: int) -> tuple[bytes, ...]:
    return tuple(blob[start : start + size] for start in range(0, len(blob), size))


def _rows(blob: bytes, size: int, most: int) -> Iterator[bytes]:
    """At most `most` records of `size` bytes, from the server, with ids in strictly ascending order.

    They are counted before they are cut, and cut one at a time: many small objects outgrow their frame.
    """
    if len(blob) > most * size:
        raise LargeCohort(SERVER, f"a list of more than {most} records")
    if len(blob) % size:
        raise MalformedMessage(SERVER, "records of the wrong length")
    starts = range(0, len(blob), size)
    if any(blob[one : one + ID_BYTES] >= blob[other : other + ID_BYTES] for one, other in pairwise(starts)):
        raise MalformedMessage(SERVER, "records that repeat an id or are out of order")
    return (blob[start : start + size] for start in starts)
