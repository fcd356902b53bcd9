"""Negative vectors of a server with removable noise: adverts, envelopes and reveals hold that of its seeds.

Four clients, of whom one may drop out. If none does, all three removable components are surplus, and every
survivor's share of its self mask is followed by three of noise. If one does, nothing is.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

from scripts.vectors.describe import chained
from scripts.vectors.server_play import Play
from scripts.vectors.server_refusals import LIAR, Book, describe_server
from secagg import messages as m
from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.shamir import SHARE_BYTES
from secagg.share_tags import TAG_BYTES
from secagg.sum_spec import Count, Part, SumSpec, Table

PROMISE: Final = NoiseAssumptions(clients=64, dropouts=1, colluders=1, removable=True)
_PART: Final = Part(
    name="x", size=2, bits=16, bound=Count(3), noise=Noise(scale=32, variance=Fraction(16_000))
)
TABLE: Final = Table({"vector": SumSpec(parts=(_PART,), promise=PROMISE)})
EVERYBODY: Final = b"\x0f"
SHARES: Final = 4 * (1 + PROMISE.seeds)  # that a reveal holds if nobody is missing


class NoisePlay(Play):
    """The same with noise. A corrupt dealer deals shares of a seed that it did not commit to."""

    SUMMED = TABLE

    def __init__(self, *, corrupt_dealer: int | None = None) -> None:
        super().__init__()
        if corrupt_dealer is not None:
            noise = self.clients[corrupt_dealer]._vault._noise
            noise[0] = (*noise[0][:-1], bytes(32))

    def values(self, member: int) -> list[int]:
        return [member, 3]


def noise_server_refusals() -> dict[str, Any]:
    """What the file has of a server with noise."""
    book = Book()
    _set_up(book)
    _reveals(book)
    _drop_out(book)
    _corrupt_dealer(book)
    return {
        "noise_server": describe_server(TABLE),
        "noise_server_starts": chained(book.starts),
        "noise_server_cases": book.cases,
    }


def _set_up(book: Book) -> None:
    play = NoisePlay()
    start, given = book.start("nobody has advertised, with noise", play), play.reply(m.Advertisement)
    seeds = PROMISE.seeds * 2 * 32
    short = replace(given, advert=given.advert[: -seeds - 64] + given.advert[-64:])
    book.case("noise: an advert without commitments to seeds", start, 3, short, "MalformedMessage")
    play.advance()
    start, dealt = book.start("sharing, with noise", play), play.reply(m.Shares)
    size, row = len(dealt.envelopes) // 3, PROMISE.seeds * 2 * SHARE_BYTES
    cut = b"".join(dealt.envelopes[at : at + size - row] for at in range(0, 3 * size, size))
    bare = replace(dealt, envelopes=cut)
    book.case("noise: envelopes without room for its shares", start, 3, bare, "MalformedMessage")


def _reveals(book: Book) -> None:
    play = NoisePlay()
    play.unmasking()
    start, given = book.start("unmasking, with noise", play), play.reply(m.Reveal)
    shares, hidden = given.shares, given.hidden
    assert len(shares) == SHARES * SHARE_BYTES
    assert len(hidden) == 4 * TAG_BYTES  # of the shares of mask keys
    swapped = shares[:SHARE_BYTES] + shares[2 * SHARE_BYTES : 3 * SHARE_BYTES]
    swapped += shares[SHARE_BYTES : 2 * SHARE_BYTES] + shares[3 * SHARE_BYTES :]
    outside = shares[:-SHARE_BYTES] + b"\x01" + b"\xff" * 32
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("no share of noise", {"shares": shares[: 4 * SHARE_BYTES]}, "MalformedMessage"),
        ("one share of noise fewer", {"shares": shares[:-SHARE_BYTES]}, "MalformedMessage"),
        ("one share of noise more", {"shares": shares + bytes(SHARE_BYTES)}, "MalformedMessage"),
        (
            "hashes of shares that are revealed",
            {"hidden": hidden + bytes(12 * TAG_BYTES)},
            "MalformedMessage",
        ),
        ("a share outside the field", {"shares": outside}, "WrongShare"),
        ("shares of noise in another order", {"shares": swapped}, "WrongShare"),
    ]
    for name, changes, error in cases:
        book.case(f"noise: {name}", start, 3, play.reveal(**changes), error)


def _drop_out(book: Book) -> None:
    """All noise of the others has to stay, and nobody may show any of it."""
    play = NoisePlay()
    play.unmasking(0)
    start, given = book.start("unmasking, with noise, one is missing", play), play.reply(m.Reveal)
    assert (given.dealers, len(given.shares)) == (EVERYBODY, 4 * SHARE_BYTES)
    surplus = play.reveal(shares=given.shares + bytes(3 * PROMISE.seeds * SHARE_BYTES))
    book.case("noise: shares of noise that has to stay", start, 3, surplus, "MalformedMessage")


def _corrupt_dealer(book: Book) -> None:
    play = NoisePlay(corrupt_dealer=LIAR)
    play.unmasking().receive()
    start = book.start("all have revealed, with noise", play)
    name = "noise: no shares open the dealer's commitment"
    book.blame(name, start, {"close_stage": True}, LIAR, "FalseDealing")
