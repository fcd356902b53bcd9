"""Versions of the transport and of the protocol: which ones each side speaks, and which one both use.

A client offers a range of versions in its greeting. The server chooses the highest version that both speak,
or refuses and says which ones it speaks. A client never uses a version that it did not offer, so a server
that lies about its versions gains nothing beyond the versions that the client itself accepts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from secagg.errors import SERVER, ParameterError, Peer, WrongVersion
from secagg.hashing import VERSION as PROTOCOL_VERSION

TRANSPORT_VERSION: Final = 3
FIRST_NEGOTIATED: Final = 3  # the transport version with which clients began to offer their versions
MAX_VERSION: Final = 255


@dataclass(frozen=True)
class VersionRange:
    """All versions from `lowest` to `highest`. Raises `ParameterError` unless both are from 1 to 255, and
    `lowest` is not above `highest`.

    >>> VersionRange(2, 4).highest_common(VersionRange(3, 9))
    4
    """

    lowest: int
    highest: int

    def __post_init__(self) -> None:
        if not 1 <= self.lowest <= self.highest <= MAX_VERSION:
            raise ParameterError(f"versions are a range from 1 to {MAX_VERSION}")

    def __contains__(self, version: int) -> bool:
        return self.lowest <= version <= self.highest

    def highest_common(self, other: VersionRange) -> int | None:
        """Return the highest version in both ranges; None if there is none."""
        highest = min(self.highest, other.highest)
        return highest if highest in self and highest in other else None

    def __str__(self) -> str:
        return str(self.lowest) if self.lowest == self.highest else f"{self.lowest} to {self.highest}"


@dataclass(frozen=True)
class AgreedVersions:
    """The versions that both sides of a connection use."""

    transport: int
    protocol: int

    def __str__(self) -> str:
        return f"transport version {self.transport}, protocol version {self.protocol}"


@dataclass(frozen=True)
class SpokenVersions:
    """The versions that one side speaks. `protocol` is None if it did not say: a client whose transport
    version is below `FIRST_NEGOTIATED` does not."""

    transport: VersionRange
    protocol: VersionRange | None

    def agree(self, other: SpokenVersions) -> AgreedVersions | None:
        """Return the highest versions that both sides speak; None if they have none in common."""
        if self.protocol is None or other.protocol is None:
            return None
        transport = self.transport.highest_common(other.transport)
        protocol = self.protocol.highest_common(other.protocol)
        return None if transport is None or protocol is None else AgreedVersions(transport, protocol)

    def includes(self, agreed: AgreedVersions) -> bool:
        return (
            agreed.transport in self.transport
            and self.protocol is not None
            and agreed.protocol in self.protocol
        )

    def __str__(self) -> str:
        protocol = "" if self.protocol is None else f", protocol version {self.protocol}"
        return f"transport version {self.transport}{protocol}"


OWN_VERSIONS: Final = SpokenVersions(
    transport=VersionRange(TRANSPORT_VERSION, TRANSPORT_VERSION),
    protocol=VersionRange(PROTOCOL_VERSION, PROTOCOL_VERSION),
)
NEWEST: Final = AgreedVersions(TRANSPORT_VERSION, PROTOCOL_VERSION)


class Side(Enum):
    """One side of a connection."""

    CLIENT = "client"
    SERVER = "server"


class NoCommonVersion(WrongVersion):
    """The two sides have no version in common. `own` are the versions of this side, `theirs` those of `peer`,
    and `outdated` is the side that must be upgraded."""

    def __init__(self, peer: Peer, *, own: SpokenVersions, theirs: SpokenVersions) -> None:
        here, there = (Side.CLIENT, Side.SERVER) if peer == SERVER else (Side.SERVER, Side.CLIENT)
        self.own = own
        self.theirs = theirs
        self.outdated = there if _is_older(theirs, own) else here
        super().__init__(
            peer,
            f"the {there.value} speaks {theirs}; this {here.value} speaks {own}: upgrade the "
            f"{self.outdated.value}",
        )


def _is_older(one: SpokenVersions, other: SpokenVersions) -> bool:
    """Return whether `one`, which has no version in common with `other`, is the older side."""
    if one.transport.highest_common(other.transport) is None or one.protocol is None:
        return one.transport.highest < other.transport.highest
    return other.protocol is not None and one.protocol.highest < other.protocol.highest
