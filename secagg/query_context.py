"""`Question`: the query for one sum, and the values that client and server both derive from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from secagg.bitmap import PositionSet, pack_positions
from secagg.cohort_members import CohortView
from secagg.hashing import digest
from secagg.input_encoding import Encoding
from secagg.keys import hkdf, mask_context, noise_info
from secagg.mask_keystream import KeyStream
from secagg.messages import Query
from secagg.share_tags import DealtRow
from secagg.sum_spec import COUNT_BYTES, SumSpec


def content_digest(kind: str, payload: bytes, terms: bytes = b"") -> bytes:
    """Return a digest of a query's kind and payload, to recognise the same query in any round or session. If
    the table has `terms`, only queries under the same terms are the same."""
    if terms:
        return digest("query content with terms", terms, kind.encode("ascii"), payload)
    return digest("query content", kind.encode("ascii"), payload)


def query_digest(frame: bytes) -> bytes:
    """Return the digest of an encoded `Query`, payload and all. Masks depend on it: if a server sends clients
    different queries, their masks do not cancel."""
    return digest("query", frame)


@dataclass(frozen=True, eq=False)
class Question:
    """The `query` for one sum, with the `cohort` of the session and the `spec` of the sum. `roster` has the
    positions in the cohort of the clients asked, and `digest` is the `query_digest`. `later_in_group` is true
    if the same private vector was summed before in this round."""

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
        """Return the ids of the clients at `positions` in the cohort. On a ring, a client knows only the ids
        of its neighbours; for others, this raises `KeyError`."""
        return tuple(self.cohort.ids[position] for position in positions)

    @cached_property
    def encoding(self) -> Encoding:
        """The encoding of this sum's inputs as residues. Client and server derive the same random rotation of
        parts with noise, a new one for every sum."""
        fields = (self.cohort.session, self.sum_index.to_bytes(4, "big"), self.spec.digest)
        return Encoding(
            self.spec,
            cohort=self.cohort.size,
            roster=len(self.roster),
            rotation=digest("rotation seed", *fields),
        )

    @cached_property
    def mask_context(self) -> bytes:
        """The digest of session, sum, query, spec, cohort and roster. Masks depend on it: if two clients do
        not agree on all of these, their masks do not cancel."""
        return mask_context(
            session=self.cohort.session,
            sum_index=self.sum_index,
            query=self.digest,
            spec=self.spec.digest,
            cohort=self.cohort.digest,
            roster=self.query.roster,
        )

    def noise_seed(self, secret: bytes, position: int, layer: int) -> bytes:
        """Derive the key-stream seed of noise component `layer` of the client at `position` from `secret`."""
        info = noise_info(self.mask_context, self.cohort.ids[position], layer)
        return hkdf(secret, salt=self.cohort.session, info=info)

    def noise_streams(self, secrets: Sequence[bytes], position: int) -> list[KeyStream]:
        """Return a key stream for each removable noise component of the client at `position`."""
        layers = enumerate(secrets[: self.spec.seeds], start=1)
        return [KeyStream(self.noise_seed(secret, position, layer)) for layer, secret in layers]

    @property
    def least_survivors(self) -> int:
        """The fewest clients with which a total has the planned noise; 0 for a sum without noise."""
        promise = self.spec.promise
        return len(self.roster) - promise.dropouts if promise is not None else 0

    def surplus(self, survivors: int) -> tuple[int, ...]:
        """Return the indices of the noise components, of each client, that the server removes from a total
        over `survivors` clients. The fewer clients dropped out, the more noise is surplus."""
        promise = self.spec.promise
        return promise.surplus(len(self.roster), survivors) if promise is not None else ()

    def dealt_row(self, dealer: int, holder: int) -> DealtRow:
        """Return the name of the row of shares that one client dealt to another for this sum (positions)."""
        ids = self.cohort.ids
        return DealtRow(self.cohort.session, ids[dealer], ids[holder], self.sum_index)

    def input_fields(self, receipt: bytes, data: bytes, words: bytes) -> tuple[bytes, ...]:
        """Return the fields that a client signs with its masked input: a digest of the parts, the masked
        count, and the masks that each pair put on it. `receipt` is the digest of the tags it accepted."""
        parts, count = memoryview(data)[:-COUNT_BYTES], data[-COUNT_BYTES:]
        return *self._asked_fields, receipt, digest("masked parts", parts), count, words

    def reveal_fields(
        self, survivors: PositionSet, receipt: bytes, dealers: bytes, shares: bytes, hidden: bytes
    ) -> tuple[bytes, ...]:
        """Return the fields that a client signs when it reveals shares."""
        surplus = bytes(self.surplus(len(survivors)))
        return *self.confirmed_fields(survivors), surplus, receipt, dealers, shares, hidden

    def confirmed_fields(self, survivors: Iterable[int]) -> tuple[bytes, ...]:
        """Return the fields that a survivor signs to confirm the survivor set, before it reveals shares."""
        return *self._asked_fields, pack_positions(survivors, self.cohort.size)

    @property
    def _asked_fields(self) -> tuple[bytes, ...]:
        index = self.sum_index.to_bytes(4, "big")
        return self.cohort.session, index, self.digest, self.spec.digest, self.query.roster
