"""A question: one query as both sides saw it, and what they derive from it for its sum."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from secagg.bitmap import PositionSet, pack_positions
from secagg.cohort import CohortView
from secagg.hashing import digest
from secagg.input_encoding import Encoding
from secagg.keys import hkdf, mask_context, noise_info
from secagg.mask_keystream import KeyStream
from secagg.messages import Query
from secagg.sum_spec import SumSpec


def content_digest(kind: str, payload: bytes) -> bytes:
    """Return what a client remembers of a question: its content, not when or by whom it was asked."""
    return digest("query content", kind.encode("ascii"), payload)


def query_digest(frame: bytes) -> bytes:
    """Return the digest of the query's bytes exactly as sent and received, the broadcast included."""
    return digest("query", frame)


@dataclass(frozen=True, eq=False)
class Question:
    """A query to a cohort, and the digest of its frame."""

    cohort: CohortView
    spec: SumSpec
    query: Query
    digest: bytes
    roster: PositionSet
    later_in_group: bool

    @property
    def sum_index(self) -> int:
        return self.query.sum_index

    @property
    def sum_id(self) -> tuple[bytes, int]:
        """The name of the sum among all sums of all sessions."""
        return self.cohort.session, self.sum_index

    def member_ids(self, positions: Iterable[int]) -> tuple[int, ...]:
        """Return the ids of the clients at these positions. They are known on the complete graph."""
        return tuple(self.cohort.ids[position] for position in positions)

    @cached_property
    def encoding(self) -> Encoding:
        """The encoding. Its rotations derive from what both sides know for sure, and are never repeated."""
        fields = (self.cohort.session, self.sum_index.to_bytes(4, "big"), self.spec.digest)
        return Encoding(
            self.spec,
            cohort=self.cohort.size,
            roster=len(self.roster),
            rotation=digest("rotation seed", *fields),
        )

    @cached_property
    def mask_context(self) -> bytes:
        """Two clients with different contexts derive masks that do not cancel."""
        return mask_context(
            session=self.cohort.session,
            sum_index=self.sum_index,
            query=self.digest,
            spec=self.spec.digest,
            cohort=self.cohort.digest,
            roster=self.query.roster,
        )

    def noise_seed(self, secret: bytes, position: int, layer: int) -> bytes:
        """Return the seed of the key stream of one removable component."""
        info = noise_info(self.mask_context, self.cohort.ids[position], layer)
        return hkdf(secret, salt=self.cohort.session, info=info)

    def noise_streams(self, secrets: Sequence[bytes], position: int) -> list[KeyStream]:
        """Return a key stream for each removable component of the noise of the client at `position`."""
        layers = enumerate(secrets[: self.spec.seeds], start=1)
        return [KeyStream(self.noise_seed(secret, position, layer)) for layer, secret in layers]

    @property
    def least_survivors(self) -> int:
        """The fewest survivors with which the total holds the noise that was planned."""
        promise = self.spec.promise
        return len(self.roster) - promise.dropouts if promise is not None else 0

    def surplus(self, survivors: int) -> tuple[int, ...]:
        """Return the layers of noise that are removed if `survivors` of the roster contribute."""
        promise = self.spec.promise
        return promise.surplus(len(self.roster), survivors) if promise is not None else ()

    def confirmed_fields(self, survivors: Iterable[int]) -> tuple[bytes, ...]:
        """Return what a survivor signs before any client reveals shares."""
        return (
            self.cohort.session,
            self.sum_index.to_bytes(4, "big"),
            self.digest,
            self.spec.digest,
            self.query.roster,
            pack_positions(survivors, self.cohort.size),
        )
