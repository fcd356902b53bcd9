"""Adverts, records, and what a client learns of its session (sections 3.4, 4.2 and 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.second_implementation.crypto import HYBRID, SHARE, TAG, tagged
from tests.second_implementation.encoding import chunks, u32, u64

KEM_KEY = 1184
KEM_CIPHERTEXT = 1088


@dataclass(frozen=True)
class Layout:
    """What decides the lengths of records: signatures, hybrid keys, the sums L and the shared seeds R."""

    signed: bool
    hybrid: bool
    sums: int
    seeds: int

    @property
    def signature(self) -> int:
        """Bytes of a signature."""
        return 64 if self.signed else 0

    @property
    def columns(self) -> int:
        """Shares in a row."""
        return 2 + self.seeds

    @property
    def advert(self) -> int:
        """`A`."""
        return 36 + (KEM_KEY if self.hybrid else 0) + (64 + 32 * self.seeds) * self.sums + self.signature

    @property
    def ciphertext(self) -> int:
        """`ct`."""
        return KEM_CIPHERTEXT if self.hybrid else 0

    @property
    def envelope(self) -> int:
        """`E`."""
        return self.ciphertext + SHARE * self.columns * self.sums + 16

    @property
    def parcel(self) -> int:
        """`P`."""
        return 36 + self.envelope + self.signature


def layout_of(trust: str, agreement: str, sums: int, seeds: int) -> Layout:
    """The layout of an invitation."""
    assert agreement in ("x25519", HYBRID)
    return Layout(trust == "malicious_server", agreement == HYBRID, sums, seeds)


@dataclass(frozen=True)
class Advert:
    """One advert, and the bytes it was read from."""

    raw: bytes
    id: int
    channel: bytes
    kem: bytes
    mask_keys: list[bytes]
    self_commitments: list[bytes]
    seed_commitments: list[list[bytes]]
    signature: bytes


def read_advert(raw: bytes, layout: Layout) -> Advert:
    """Take an advert apart."""
    assert len(raw) == layout.advert
    body = raw[: len(raw) - layout.signature]
    kem_end = 36 + (KEM_KEY if layout.hybrid else 0)
    keys = chunks(body[kem_end:], 32)
    sums, seeds = layout.sums, layout.seeds
    return Advert(
        raw=raw,
        id=int.from_bytes(raw[:4], "big"),
        channel=raw[4:36],
        kem=raw[36:kem_end],
        mask_keys=keys[:sums],
        self_commitments=keys[sums : 2 * sums],
        seed_commitments=[keys[2 * sums + k * seeds :][:seeds] for k in range(sums)],
        signature=raw[len(body) :],
    )


@dataclass(frozen=True)
class Network:
    """What a client knows of its session: its neighbourhood, the numbers, and the two digests."""

    session: bytes
    cohort_digest: bytes
    n: int
    t: int
    members: dict[int, Advert]
    positions: dict[int, int]

    @property
    def ids(self) -> list[int]:
        """The neighbourhood in order."""
        return list(self.members)


def complete_network(
    invitation: bytes, key_list: bytes, threshold: int, adverts: bytes, layout: Layout
) -> Network:
    """The network of a `KeyList`."""
    members = [read_advert(raw, layout) for raw in chunks(adverts, layout.advert)]
    ids = [member.id for member in members]
    return Network(
        session=tagged("session", invitation, key_list),
        cohort_digest=tagged("cohort", b"".join(map(u32, ids))),
        n=len(ids),
        t=threshold,
        members={member.id: member for member in members},
        positions={client: position for position, client in enumerate(ids)},
    )


def ring_network(
    invitation: bytes, n: int, threshold: int, digest: bytes, records: bytes, ids: bytes, layout: Layout
) -> Network:
    """The network of a `Neighbours`."""
    items = chunks(records, layout.advert + 4)
    members = [read_advert(item[4:], layout) for item in items]
    return Network(
        session=ring_session(invitation, n, len(items) - 1, threshold, digest, ids),
        cohort_digest=digest,
        n=n,
        t=threshold,
        members={member.id: member for member in members},
        positions={
            member.id: int.from_bytes(item[:4], "big") for member, item in zip(members, items, strict=True)
        },
    )


def ring_session(invitation: bytes, n: int, d: int, threshold: int, digest: bytes, ids: bytes) -> bytes:
    """The session id on a ring (4.2)."""
    return tagged("ring session", invitation, u32(n), u32(d), u32(threshold), digest, ids)


def registry_digest(version: int, expires: int, keys: Mapping[int, bytes]) -> bytes:
    """The registry digest (4.6)."""
    records = b"".join(u32(client) + keys[client] for client in sorted(keys))
    return tagged("registry", u64(version), u64(expires), records)


def place_tags(tags: bytes, place: int, sums: int) -> bytes:
    """A dealer's tags for the member at one place of its neighbourhood, all sums joined."""
    return tags[place * TAG * sums : (place + 1) * TAG * sums]


def sum_tag(tags: bytes, place: int, sums: int, k: int) -> bytes:
    """A dealer's tag of the row of sum k for one member."""
    return place_tags(tags, place, sums)[k * TAG : (k + 1) * TAG]


def revealed_columns(survived: bool, surplus: Sequence[int]) -> list[int]:
    """The columns of a row that a holder reveals, in order (9)."""
    return [0, *(1 + component for component in surplus)] if survived else [1]
