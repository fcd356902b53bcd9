"""`Question`: one query with its cohort and spec, and the values that client and server derive from it."""

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
    """Return a digest of a query's kind and payload, to recognise the same query in any round or session."""
    return digest("query content", kind.encode("ascii"), payload)


def query_digest(frame: bytes) -> bytes:
    """Return the digest of an encoded `Query`, payload and all. Masks depend on it: if a server sends clients
    different queries, their masks do not cancel."""
    return digest("query", frame)


@dataclass(frozen=True, eq=False)
class Question:
    """A query with its cohort and spec. `roster` has the positions in the cohort of the clients asked.

    `digest` is the `query_digest`. `later_in_group`: the same private vector was summed before in this round.
    """

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
        """A unique id of the sum: its session id and its index in the session."""
        return self.cohort.session, self.sum_index

    def member_ids(self, positions: Iterable[int]) -> tuple[int, ...]:
        """Return the ids of the clients at `positions`. A client on a ring knows those of neighbours only."""
        return tuple(self.cohort.ids[position] for position in positions)

    @cached_property
    def encoding(self) -> Encoding:
        """The encoding of vectors as residues. Client and server derive the same rotations, new every sum."""
        fields = (self.cohort.session, self.sum_index.to_bytes(4, "big"), self.spec.digest)
        return Encoding(
            self.spec,
            cohort=self.cohort.size,
            roster=len(self.roster),
            rotation=digest("rotation seed", *fields),
        )

    @cached_property
    def mask_context(self) -> bytes:
        """The digest of all that two clients must agree on: if it differs, their masks do not cancel."""
        return mask_context(
            session=self.cohort.session,
            sum_index=self.sum_index,
            query=self.digest,
            spec=self.spec.digest,
            cohort=self.cohort.digest,
            roster=self.query.roster,
        )

    def noise_seed(self, secret: bytes, position: int, layer: int) -> bytes:
        """Return the key-stream seed of noise component `layer` of one client, derived from its `secret`."""
        info = noise_info(self.mask_context, self.cohort.ids[position], layer)
        return hkdf(secret, salt=self.cohort.session, info=info)

    def noise_streams(self, secrets: Sequence[bytes], position: int) -> list[KeyStream]:
        """Return a key stream, from `secrets`, per removable noise component of the client at `position`."""
        layers = enumerate(secrets[: self.spec.seeds], start=1)
        return [KeyStream(self.noise_seed(secret, position, layer)) for layer, secret in layers]

    @property
    def least_survivors(self) -> int:
        """The fewest survivors with which the total has the planned noise; 0 for a sum without noise."""
        promise = self.spec.promise
        return len(self.roster) - promise.dropouts if promise is not None else 0

    def surplus(self, survivors: int) -> tuple[int, ...]:
        """Return the numbers of the noise components to remove, from each of `survivors` contributors."""
        promise = self.spec.promise
        return promise.surplus(len(self.roster), survivors) if promise is not None else ()

    def confirmed_fields(self, survivors: Iterable[int]) -> tuple[bytes, ...]:
        """Return the fields that a survivor signs to confirm the survivor set, before it reveals shares."""
        return (
            self.cohort.session,
            self.sum_index.to_bytes(4, "big"),
            self.digest,
            self.spec.digest,
            self.query.roster,
            pack_positions(survivors, self.cohort.size),
        )
