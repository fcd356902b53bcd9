"""One sum in the making: the query as both sides saw it, and everything they derive from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from secagg.bitmap import PositionSet, pack_positions
from secagg.cohort import Circle
from secagg.encoding import Encoding
from secagg.hashing import digest
from secagg.keys import mask_context
from secagg.messages import Query
from secagg.spec import SumSpec


def content_digest(kind: str, payload: bytes) -> bytes:
    """What a client remembers of a question: not when or by whom it was asked, but what."""
    return digest("query content", kind.encode("ascii"), payload)


def query_digest(frame: bytes) -> bytes:
    """Of the query's bytes exactly as sent and received, the broadcast included."""
    return digest("query", frame)


@dataclass(frozen=True, eq=False)
class Question:
    """A query to a cohort, and the digest of its frame."""

    cohort: Circle
    spec: SumSpec
    query: Query
    digest: bytes
    roster: PositionSet
    later_in_group: bool

    @property
    def sum_index(self) -> int:
        return self.query.sum_index

    @cached_property
    def encoding(self) -> Encoding:
        return Encoding(self.spec, cohort=self.cohort.size)

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

    def confirmed_fields(self, survivors: Iterable[int]) -> tuple[bytes, ...]:
        """What a survivor signs before anyone unmasks."""
        return (
            self.cohort.session,
            self.sum_index.to_bytes(4, "big"),
            self.digest,
            self.spec.digest,
            self.query.roster,
            pack_positions(survivors, self.cohort.size),
        )
