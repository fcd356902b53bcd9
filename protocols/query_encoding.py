"""Encodes queries, together with the round's number and history, as bytes; decodes and checks them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from protocols.rounds import Query, RoundInfo
from protocols.serialisation import RecordError, largest_of, pack, unpack, vectors_of
from secagg.errors import SERVER, LocalError, MalformedMessage, ParameterError

# The largest number in a query; queries with larger ones are refused. Local steps from such a model may
# overflow depending on a client's data, and a client that then declines to answer would reveal something
# about its data.
LARGEST: Final = 2.0**40


@dataclass(frozen=True)
class _QueryPayload:
    """The content of a query's payload: the round's information and the packed query."""

    round_info: RoundInfo
    query: bytes


def encode_query(round_info: RoundInfo, query: Query) -> bytes:
    """Return `round_info` and `query` as bytes. These contain the round's number, so they differ by round."""
    return pack(_QueryPayload(round_info, pack(query)))


def query_content(_kind: str, payload: bytes) -> bytes:
    """Return the packed query in a payload, without the `RoundInfo`, to compare queries of different rounds.
    If the payload cannot be decoded, return all of it; clients refuse it later, when they decode it."""
    try:
        return unpack(_QueryPayload, payload).query
    except RecordError:
        return payload


class QueryDecoder:
    """Decodes the queries of an algorithm, and checks their vectors' lengths and the size of their numbers.

    `queries`  the classes of queries. The constructor raises `ParameterError` if two have the same kind.
    `dim`      length of every vector that `lengths` does not name.
    `lengths`  lengths of other vectors, by the kind of the query and the name of the field.
    """

    def __init__(
        self,
        queries: tuple[type[Query], ...],
        dim: int,
        lengths: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
    ) -> None:
        kinds = [query.kind for query in queries]
        if len(set(kinds)) != len(kinds):
            raise ParameterError("two queries of an algorithm have the same kind")
        self._queries: Mapping[str, type[Query]] = MappingProxyType(dict(zip(kinds, queries, strict=True)))
        self._dim = dim
        self._lengths = lengths

    def decode(self, kind: str, payload: bytes) -> tuple[RoundInfo, Query]:
        """Return the round's information and the query in a server's payload, or raise `MalformedMessage`."""
        try:
            letter = unpack(_QueryPayload, payload)
            query = unpack(self._queries[kind], letter.query)
            if encode_query(letter.round_info, query) != payload:
                raise RecordError("the same could be written shorter")
        except (KeyError, LocalError) as error:  # a dataclass may reject its values with any `LocalError`
            raise MalformedMessage(SERVER, f"a query that cannot be read: {error}") from None
        for name, vector in vectors_of(query).items():
            length = self._lengths.get(kind, {}).get(name, self._dim)
            if len(vector) != length:
                raise MalformedMessage(SERVER, f"{name} has {len(vector)} elements, not {length}")
        if largest_of(query) > LARGEST:
            raise MalformedMessage(SERVER, f"numbers beyond {LARGEST:g}")
        return letter.round_info, query
