"""Disputes, and whom a server convicts or excludes (section 13.4)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

# Two clients of which one must lie, the lower id first.
Pair = tuple[int, int]


@dataclass(frozen=True)
class Conviction:
    """A client that takes no further part, and its offence; `dispute` excludes without a conviction.

    The rest is what evidence needs: the others that the lie was about, a column, and a reconstructed secret.
    """

    client: int
    offence: str
    others: tuple[int, ...] = ()
    column: int = 0
    secret: bytes = b""


def pair(one: int, other: int) -> Pair:
    """Two ids in order."""
    return (min(one, other), max(one, other))


def word_disputes(words: Mapping[int, Mapping[int, int]]) -> set[Pair]:
    """The contributors whose words for each other differ: by sender, the word for each neighbour."""
    return {
        pair(one, other)
        for one, sent in words.items()
        for other, word in sent.items()
        if other in words and words[other][one] != word
    }


def deposit_disputes(deposits: Mapping[int, Mapping[int, list[bytes]]]) -> set[Pair]:
    """The neighbours whose tags of a pair secret differ, or of which one reported the other."""
    disputes = set()
    for owner, records in deposits.items():
        for peer in deposits:
            if peer in records and _tags(records[peer]) != _tags(deposits[peer].get(owner, [])):
                disputes.add(pair(owner, peer))
    return disputes


def _tags(records: list[bytes]) -> list[bytes]:
    return [record[32:] for record in records]


def report_disputes(lost: Mapping[int, Collection[int]]) -> set[Pair]:
    """The reporters and the dealers that they reported."""
    return {pair(holder, dealer) for holder, dealers in lost.items() for dealer in dealers}


def others_of(client: int, disputes: Collection[Pair]) -> tuple[int, ...]:
    """The clients that one client is in dispute with."""
    return tuple(sorted(sum(dispute) - client for dispute in disputes if client in dispute))


def settle(disputes: Collection[Pair], liars: int) -> list[Conviction]:
    """Convict who is in dispute with more than `liars` others, and exclude a matching of the rest."""
    clients = sorted({client for dispute in disputes for client in dispute})
    against = {c: others_of(c, disputes) for c in clients}
    gone = [client for client in clients if len(against[client]) > liars]
    found = [Conviction(client, "many disputes", against[client]) for client in gone]
    for one, other in sorted(disputes):
        if one not in gone and other not in gone:
            gone += [one, other]
            found += [Conviction(one, "dispute"), Conviction(other, "dispute")]
    return found
