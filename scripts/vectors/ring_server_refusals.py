"""Negative vectors of a server on a ring: bitmaps and envelopes are over a client's neighbourhood.

Seven clients, four neighbours each, a threshold of three, of whom two may lie.
"""

from __future__ import annotations

from typing import Any, Final

from scripts.vectors.describe import chained, describe_table
from scripts.vectors.server_refusals import SEED, TABLE, Book, Play
from secagg import messages as m
from secagg.bitmap import pack_positions
from secagg.client import ClientMachine
from secagg.client_memory import VolatileMemory
from secagg.policy import Policy
from secagg.session_params import SessionParams
from secagg.shamir import SHARE_BYTES
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

    def lost(self, member: int, dealer: int) -> bytes:
        """What `member` reports of one dealer."""
        around = self.around(member)
        return m.Lost(self.session, pack_positions([around.index(dealer)], len(around))).encode()


def ring_server_refusals() -> dict[str, Any]:
    """What the file has of a server on a ring."""
    book = Book()
    _shares(book)
    _reports(book)
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
    start, given = book.start("sharing on a ring", play), m.decode(play.replies[3], sender=3, limit=1 << 20)
    assert isinstance(given, m.Shares)
    size = len(given.envelopes) // 4
    for name, envelopes in (
        ("for everybody", given.envelopes + given.envelopes[: 2 * size]),
        ("for one neighbour fewer", given.envelopes[size:]),
    ):
        message = m.Shares(given.context, envelopes, b"")
        book.case(f"ring: shares {name}", start, 3, message, "MalformedMessage")


def _reports(book: Book) -> None:
    play = RingPlay()
    play.ready()
    start, dealer = book.start("ready on a ring", play), 3
    reporters = [member for member in play.around(dealer) if member != dealer]
    wide = m.Lost(play.session, b"\x20")
    book.case("ring: a report on a client beyond the neighbourhood", start, 3, wide, "MalformedMessage")
    for member in reporters[:2]:
        play.steps.append({"from": member, "frame": play.lost(member, dealer).hex()})
    start = book.start("ready on a ring, after two reports", play)
    third = {"from": reporters[2], "frame": play.lost(reporters[2], dealer).hex()}
    book.blame("ring: more reports than liars", start, third, dealer, "CorruptDealer")


def _reveals(book: Book) -> None:
    play = RingPlay()
    play.masking().advance()
    start = book.start("unmasking on a ring", play)
    for name, dealers, count in (
        ("of everybody", b"\x7f", 7),
        ("of one neighbour fewer than it says", b"\x1f", 4),
    ):
        message = m.Reveal(play.session, 0, dealers, bytes(count * SHARE_BYTES))
        book.case(f"ring: shares {name}", start, 3, message, "MalformedMessage")
