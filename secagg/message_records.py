"""The fixed-size records inside messages: adverts, neighbours' adverts, parcels, signatures of members.

All multi-byte integers are big-endian. Records in a list are sorted by member id, and no id repeats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Final

from secagg.errors import SERVER, LargeCohort, MalformedMessage, Peer
from secagg.hashing import DIGEST_BYTES
from secagg.hybrid_keys import CIPHERTEXT_BYTES, DEPOSIT_BYTES, KEM_KEY_BYTES, KeyAgreement
from secagg.keys import KEY_BYTES, SIGNATURE_BYTES
from secagg.share_envelopes import envelope_bytes
from secagg.share_tags import TAG_BYTES

ID_BYTES: Final = 4
_POSITION_BYTES: Final = 4


@dataclass(frozen=True)
class Format:
    """The parameters of a session that determine the lengths of its records. All lengths are in bytes."""

    sums: int
    signed: bool
    seeds: int = 0  # the number of seeds of removable noise for each sum
    agreement: KeyAgreement = KeyAgreement.X25519

    @property
    def is_hybrid(self) -> bool:
        return self.agreement is KeyAgreement.HYBRID

    @property
    def kem_key_bytes(self) -> int:
        return KEM_KEY_BYTES if self.is_hybrid else 0

    @property
    def deposit_bytes(self) -> int:
        """The deposits of one client for one neighbour."""
        return DEPOSIT_BYTES * self.sums

    @property
    def signature_bytes(self) -> int:
        return SIGNATURE_BYTES if self.signed else 0

    @property
    def advert_bytes(self) -> int:
        body = ID_BYTES + KEY_BYTES + self.sums * (KEY_BYTES + (1 + self.seeds) * DIGEST_BYTES)
        return body + self.kem_key_bytes + self.signature_bytes

    @property
    def neighbour_bytes(self) -> int:
        return _POSITION_BYTES + self.advert_bytes

    @property
    def envelope_bytes(self) -> int:
        return envelope_bytes(self.sums, self.seeds) + (CIPHERTEXT_BYTES if self.is_hybrid else 0)

    @property
    def tags_bytes(self) -> int:
        """The tags of the shares that one client deals to one other."""
        return TAG_BYTES * self.sums

    def largest_record(self, holders: int) -> int:
        """Return the most that a client sends at once in set-up, signatures and lengths aside, with `holders`
        holders of its shares."""
        shares = holders * (self.envelope_bytes + self.tags_bytes)
        return max(self.advert_bytes, shares, holders * self.deposit_bytes)

    @property
    def parcel_bytes(self) -> int:
        return ID_BYTES + DIGEST_BYTES + self.envelope_bytes + self.signature_bytes


@dataclass(frozen=True)
class Advert:
    """What a member publishes: its id, public keys for envelopes (`channel_key`, and `kem_key` if the key
    agreement is hybrid) and a mask key per sum.
    `commitments` has a commitment to the self-mask secret of each sum. If noise is removable, commitments to
    all noise seeds of the first sum follow, then those of the second sum, and so on."""

    member: int
    channel_key: bytes
    kem_key: bytes
    mask_keys: tuple[bytes, ...]
    commitments: tuple[bytes, ...]
    signature: bytes = b""

    @cached_property
    def body(self) -> bytes:
        """The encoded advert without its signature. The member signs these bytes."""
        head = self.member.to_bytes(ID_BYTES, "big") + self.channel_key + self.kem_key
        return head + b"".join(self.mask_keys) + b"".join(self.commitments)

    def encode(self) -> bytes:
        return self.body + self.signature

    def noise_commitment(self, sum_index: int, layer: int) -> bytes:
        """Return the commitment to the seed of noise component `layer` (from 1 on) of sum `sum_index`."""
        sums = len(self.mask_keys)
        seeds = len(self.commitments) // sums - 1
        return self.commitments[sums + sum_index * seeds + layer - 1]


@dataclass(frozen=True)
class Parcel:
    """An envelope (encrypted shares) as delivered, with its sender's id and signature on the session id.
    `tags` is the digest of the tags that the sender published for these shares."""

    sender: int
    tags: bytes
    envelope: bytes = field(repr=False)
    signature: bytes = field(repr=False)

    def encode(self) -> bytes:
        return self.sender.to_bytes(ID_BYTES, "big") + self.tags + self.envelope + self.signature


def parse_advert(record: bytes, form: Format, *, sender: Peer) -> Advert:
    """Return the advert in `record`. Raises `MalformedMessage` if its length is wrong."""
    if len(record) != form.advert_bytes:
        raise MalformedMessage(sender, "an advert of the wrong length")
    return _advert(record, form)


def parse_adverts(blob: bytes, form: Format, *, most: int) -> tuple[Advert, ...]:
    """Return the adverts in `blob`. Raises `PeerError` if it is malformed, unsorted, or has over `most`."""
    return tuple(_advert(row, form) for row in _rows(blob, form.advert_bytes, most))


def encode_neighbours(neighbours: Iterable[tuple[int, Advert]]) -> bytes:
    """Encode (position in the cohort, advert) pairs, which must ascend by position and by member id."""
    return b"".join(
        position.to_bytes(_POSITION_BYTES, "big") + advert.encode() for position, advert in neighbours
    )


def encode_ids(members: Iterable[int]) -> bytes:
    return b"".join(member.to_bytes(ID_BYTES, "big") for member in members)


def parse_ids(blob: bytes, *, size: int, known: Mapping[int, Advert]) -> tuple[int, ...]:
    """Return the ids of all `size` members of a cohort that are in `blob`, or () if it is empty. Raises
    `MalformedMessage` unless they ascend and fit the adverts of the `known` members, by position."""
    ids = tuple(int.from_bytes(blob[at : at + ID_BYTES], "big") for at in range(0, len(blob), ID_BYTES))
    if blob and (
        len(blob) != size * ID_BYTES
        or any(one >= other for one, other in pairwise(ids))
        or any(ids[position] != advert.member for position, advert in known.items())
    ):
        raise MalformedMessage(SERVER, "the ids of the members are not in order, or not those of all")
    return ids


def parse_neighbours(blob: bytes, form: Format, *, size: int, most: int) -> dict[int, Advert]:
    """Return the adverts in `blob` by their positions in a cohort of `size` members. Raises `PeerError` if
    there are more than `most`, a position is not below `size`, or positions or ids do not strictly ascend."""
    found: dict[int, Advert] = {}
    for row in _rows(blob, form.neighbour_bytes, most):
        position = int.from_bytes(row[:_POSITION_BYTES], "big")
        found[position] = _advert(row[_POSITION_BYTES:], form)
    ids = [advert.member for advert in found.values()]
    if max(found) >= size or any(one >= other for one, other in pairwise(ids)):
        raise MalformedMessage(SERVER, "neighbours that repeat an id, or are out of order or of the cohort")
    return found


def _advert(row: bytes, form: Format) -> Advert:
    kem_at = ID_BYTES + KEY_BYTES
    keys_at = kem_at + form.kem_key_bytes
    commitments_at = keys_at + form.sums * KEY_BYTES
    signature_at = commitments_at + form.sums * (1 + form.seeds) * DIGEST_BYTES
    return Advert(
        member=int.from_bytes(row[:ID_BYTES], "big"),
        channel_key=row[ID_BYTES:kem_at],
        kem_key=row[kem_at:keys_at],
        mask_keys=_cut(row[keys_at:commitments_at], KEY_BYTES),
        commitments=_cut(row[commitments_at:signature_at], DIGEST_BYTES),
        signature=row[signature_at:],
    )


def parse_parcels(blob: bytes, form: Format, *, most: int) -> tuple[Parcel, ...]:
    """Return the parcels in `blob`. Raises `PeerError` if it is malformed, unsorted, or has over `most`."""
    start = ID_BYTES + DIGEST_BYTES
    stop = start + form.envelope_bytes
    return tuple(
        Parcel(int.from_bytes(row[:ID_BYTES], "big"), row[ID_BYTES:start], row[start:stop], row[stop:])
        for row in _rows(blob, form.parcel_bytes, most)
    )


def parse_envelopes(blob: bytes, form: Format, count: int, *, sender: Peer) -> tuple[bytes, ...]:
    """Return the envelopes in `blob`. Raises `MalformedMessage` unless there are exactly `count`."""
    if len(blob) != count * form.envelope_bytes:
        raise MalformedMessage(sender, f"not {count} envelopes")
    return _cut(blob, form.envelope_bytes)


def encode_signatures(signatures: Sequence[tuple[int, bytes]]) -> bytes:
    return b"".join(member.to_bytes(ID_BYTES, "big") + sig for member, sig in signatures)


def parse_signatures(blob: bytes, *, most: int) -> tuple[tuple[int, bytes], ...]:
    """Return the (member, signature) pairs. Raises `PeerError` if malformed, unsorted or more than `most`."""
    rows = _rows(blob, ID_BYTES + SIGNATURE_BYTES, most)
    return tuple((int.from_bytes(row[:ID_BYTES], "big"), row[ID_BYTES:]) for row in rows)


def _cut(blob: bytes, size: int) -> tuple[bytes, ...]:
    return tuple(blob[start : start + size] for start in range(0, len(blob), size))


def _rows(blob: bytes, size: int, most: int) -> Iterator[bytes]:
    """Check `blob`, which the server sent, at once. Return an iterator over its records of `size` bytes,
    which takes less memory than a list. Raises `PeerError` if there are more than `most` records, if the last
    is incomplete, or if the integers at their start (member ids or positions) do not strictly ascend."""
    if len(blob) > most * size:
        raise LargeCohort(SERVER, f"a list of more than {most} records")
    if len(blob) % size:
        raise MalformedMessage(SERVER, "records of the wrong length")
    starts = range(0, len(blob), size)
    if any(blob[one : one + ID_BYTES] >= blob[other : other + ID_BYTES] for one, other in pairwise(starts)):
        raise MalformedMessage(SERVER, "records that repeat an id or are out of order")
    return (blob[start : start + size] for start in starts)
