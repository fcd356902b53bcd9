"""Negative vectors of a server on a ring: bitmaps and envelopes are over a client's neighbourhood.

Seven clients, four neighbours each, a threshold of three, of whom two may lie.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from scripts.vectors.describe import chained, describe_table
from scripts.vectors.server_play import SEED, TABLE, Play
from scripts.vectors.server_refusals import Book
from secagg import messages as m
from secagg.bitmap import pack_positions
from secagg.client import ClientMachine
from secagg.client_memory import VolatileMemory
from secagg.policy import Policy
from secagg.session_params import SessionParams
from secagg.shamir import SHARE_BYTES
from secagg.share_tags import TAG_BYTES
from secagg.sum_spec import COUNT_BYTES
from secagg.testing import InsecureSeededClient, InsecureSeededServer
from secagg.trust_levels import Trust

SUMS: Final = 1
LIMITS: Final[dict[str, Any]] = {"corrupt": 2, "min_cohort": 4, "max_cohort": 8, "min_contributors": 4}
SETTINGS: Final[dict[str, Any]] = {"sums": SUMS, "dropout": 0.15, "graph": "ring", **LIMITS}


class RingPlay(Play):
    """The same on a ring, without signatures."""

    MEMBERS = tuple(range(7))

    def new_server(self) -> InsecureSeededServer:
        return InsecureSeededServer(
            seed=SEED, table=TABLE, params=SessionParams(trust=Trust.CURIOUS, **SETTINGS)
        )

    def new_client(self, member: int) -> ClientMachine:
        policy = Policy(trust=Trust.CURIOUS, max_sums=SUMS, unnoised_sums=SUMS, **LIMITS)
        return InsecureSeededClient(
            seed=SEED, member=member, table=TABLE, policy=policy, memory=VolatileMemory()
        )

    def around(self, member: int) -> list[int]:
        return list(self.clients[member]._cohort.neighbourhood)

    def lost(self, member: int, *dealers: int) -> m.Lost:
        """What `member` reports of some dealers."""
        around = self.around(member)
        return m.Lost(self.session, pack_positions([around.index(k) for k in dealers], len(around)))


def ring_server_refusals() -> dict[str, Any]:
    """What the file has of a server on a ring."""
    book = Book()
    _shares(book)
    _reports(book)
    _inputs(book)
    _reveals(book)
    server = {
        "seed": SEED.hex(),
        "trust": str(Trust.CURIOUS),
        "table": describe_table(TABLE),
        "registry": None,
        **SETTINGS,
    }
    return {
        "ring_server": server,
        "ring_server_starts": chained(book.starts),
        "ring_server_cases": book.cases,
    }


def _shares(book: Book) -> None:
    play = RingPlay()
    play.advance()
    start, given = book.start("sharing on a ring", play), play.reply(m.Shares)
    size, tags = len(given.envelopes) // 4, len(given.tags) // 5
    for name, changes in (
        ("for everybody", {"envelopes": given.envelopes + given.envelopes[: 2 * size]}),
        ("for one neighbour fewer", {"envelopes": given.envelopes[size:]}),
        ("with tags for everybody", {"tags": given.tags + given.tags[: 2 * tags]}),
        ("with tags for all but itself", {"tags": given.tags[tags:]}),
        ("with a signature", {"signature": bytes(64)}),
        ("with a signature on the tags", {"tags_signature": bytes(64)}),
    ):
        book.case(f"ring: shares {name}", start, 3, replace(given, **changes), "MalformedMessage")


def _reports(book: Book) -> None:
    play = RingPlay()
    play.ready()
    start, dealer = book.start("ready on a ring", play), 3
    holders = [member for member in play.around(dealer) if member != dealer]
    wide = m.Lost(play.session, b"\x20")
    book.case("ring: a report on a client beyond the neighbourhood", start, 3, wide, "MalformedMessage")
    book.case("ring: a report on itself", start, 3, play.lost(3, 3), "MalformedMessage")
    book.case("ring: reports on more dealers than liars", start, 3, play.lost(3, *holders[:3]), "FalseReport")
    for member in holders[:2]:
        play.steps.append({"from": member, "frame": play.lost(member, dealer).encode().hex()})
    start = book.start("ready on a ring, after two reports", play)
    third = {"from": holders[2], "frame": play.lost(holders[2], dealer).encode().hex()}
    book.blame("ring: more reports than liars", start, third, dealer, "UnreadableShares")


def _inputs(book: Book) -> None:
    play = RingPlay()
    play.masking()
    start, given = book.start("masking on a ring", play), play.reply(m.MaskedInput)
    words = given.words + given.words[: 2 * COUNT_BYTES]
    book.case("ring: words for everybody", start, 3, replace(given, words=words), "BadVector")
    signed = replace(given, signature=bytes(64))
    book.case("ring: a masked input with a signature", start, 3, signed, "MalformedMessage")


def _reveals(book: Book) -> None:
    play = RingPlay()
    play.masking().advance()
    start, given = book.start("unmasking on a ring", play), play.reply(m.Reveal)
    cases: list[tuple[str, dict[str, Any]]] = [
        (
            "of everybody",
            {"dealers": b"\x7f", "shares": bytes(7 * SHARE_BYTES), "hidden": bytes(7 * TAG_BYTES)},
        ),
        ("of one neighbour fewer than it says", {"shares": given.shares[SHARE_BYTES:]}),
        ("of one neighbour fewer than it holds", {"dealers": b"\x1e", "shares": given.shares[SHARE_BYTES:]}),
        ("with a signature", {"signature": bytes(64)}),
    ]
    for name, changes in cases:
        book.case(f"ring: revealed shares {name}", start, 3, replace(given, **changes), "MalformedMessage")
    wrong = replace(given, shares=given.shares[SHARE_BYTES:] + given.shares[:SHARE_BYTES])
    book.case("ring: revealed shares in another order", start, 3, wrong, "WrongShare")
