"""Negative vectors of the server: what turns one client away, while the session goes on.

A start is a list of calls on a seeded server; in a case, one more call excludes `peer` with an error.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from scripts.vectors.describe import chained, describe_registry, describe_table
from scripts.vectors.server_play import BARRED, REGISTRY, SEED, SETTINGS, SUMS, TABLE, Play
from secagg import messages as m
from secagg.message_records import Advert, Format
from secagg.shamir import SHARE_BYTES
from secagg.share_tags import TAG_BYTES
from secagg.sum_spec import COUNT_BYTES, Table
from secagg.trust_levels import Trust
from tests.attacks.attackers.bad_clients import ForgingDealer, off_by_one
from tests.attacks.attackers.liars import CountLiar, WordLiar

LIAR: Final = 2
FORM: Final = Format(SUMS, signed=True)


class Book:
    """Collects starts and cases."""

    def __init__(self) -> None:
        self.starts: dict[str, list[Any]] = {}
        self.cases: list[dict[str, Any]] = []

    def start(self, name: str, play: Play) -> str:
        """The server of `play` as it stands now, under a name."""
        assert self.starts.setdefault(name, list(play.steps)) == play.steps
        return name

    def case(self, name: str, start: str, sender: int, message: m.Message | bytes, error: str) -> None:
        """The server excludes the sender of a message."""
        frame = message if isinstance(message, bytes) else message.encode()
        self.blame(name, start, {"from": sender, "frame": frame.hex()}, sender, error)

    def blame(
        self, name: str, start: str, step: dict[str, Any], peer: int, error: str, *, other: int | None = None
    ) -> None:
        """A call excludes `peer` or, in a dispute, also the `other` client."""
        row = {"name": name, "start": start, "step": step, "peer": peer, "error": error}
        self.cases.append(row if other is None else {**row, "other": other})


def server_refusals() -> dict[str, Any]:
    """The server's half of the file."""
    book = Book()
    _frames(book)
    _adverts(book)
    _full_cohort(book)
    _shares(book)
    _reports(book)
    _inputs(book)
    _words(book)
    _confirmations(book)
    _reveals(book)
    _lies(book)
    return {
        "server": describe_server(TABLE),
        "server_starts": chained(book.starts),
        "server_cases": book.cases,
    }


def describe_server(table: Table) -> dict[str, Any]:
    return {
        "seed": SEED.hex(),
        "trust": str(Trust.MALICIOUS),
        "table": describe_table(table),
        "registry": describe_registry(REGISTRY),
        "barred": [BARRED],
        **SETTINGS,
    }


# --- set-up ---------------------------------------------------------------------------------------


def _frames(book: Book) -> None:
    """What is refused before anyone looks at the content."""
    start, most = book.start("nobody has advertised", Play()), SETTINGS["max_cohort"]
    shares = most * (FORM.envelope_bytes + FORM.tags_bytes)
    limit = max(FORM.advert_bytes, shares, most * FORM.deposit_bytes) + 256
    book.case("frame: nothing", start, 3, b"", "MalformedMessage")
    book.case("frame: above the limit", start, 3, bytes(limit + 1), "OversizeMessage")
    book.case("frame: zeros, as many as the limit allows", start, 3, bytes(limit), "MalformedMessage")
    book.case("frame: of another version", start, 3, b"\x93\x01\x16\xc4\x00", "WrongVersion")
    book.case("frame: of another session", start, 3, m.Advertisement(bytes(32), b"advert"), "WrongSession")
    book.case("leave", start, 3, m.Leave(b""), "Departed")


def _adverts(book: Book) -> None:
    play = Play()
    start, own = book.start("nobody has advertised", play), play.advert()
    small = replace(own, channel_key=bytes(32))
    short = m.Advertisement(play.invited, own.encode()[:-1])
    book.case("advert: of another length", start, 3, short, "MalformedMessage")
    book.case("advert: of another client", start, 4, play.advertisement(own), "UnknownPeer")
    book.case("advert: outside the registry", start, 9, play.signed(own, 9), "UnknownPeer")
    book.case("advert: under another signature", start, 3, play.signed(own, 3, signer=4), "BadSignature")
    book.case("advert: a key of small order", start, 3, play.signed(small, 3), "BadKey")
    book.case("advert: of a client that lied before", start, BARRED, play.signed(own, BARRED), "Barred")
    play.receive()
    start = book.start("four have advertised", play)
    book.case("advert: a key in use", start, 4, play.signed(own, 4), "BadKey")
    book.case("advert: a second time", start, 3, play.advertisement(own), "OutOfOrder")


def _full_cohort(book: Book) -> None:
    play = Play().receive()
    own = play.advert()
    fresh = [bytes([16, k + 1]) + bytes(30) for k in range(SUMS + 1)]
    fifth = play.signed(Advert(4, fresh[0], b"", tuple(fresh[1:]), own.commitments), 4)
    play.steps.append({"from": 4, "frame": fifth.encode().hex()})
    start = book.start("five have advertised", play)
    book.case("advert: of one too many", start, 5, play.signed(own, 5), "LargeCohort")


def _shares(book: Book) -> None:
    play = Play().advance()
    start, given = book.start("sharing", play), play.reply(m.Shares)
    for name, changes, error in (
        ("of another length", {"envelopes": given.envelopes[1:]}, "MalformedMessage"),
        ("without a signature", {"signature": b""}, "MalformedMessage"),
        ("under another signature", {"signature": bytes(64)}, "BadSignature"),
        ("with tags of one client fewer", {"tags": given.tags[FORM.tags_bytes :]}, "MalformedMessage"),
        ("with tags of another length", {"tags": given.tags + b"\0"}, "MalformedMessage"),
        ("without a signature on the tags", {"tags_signature": b""}, "MalformedMessage"),
        ("with tags under another signature", {"tags_signature": given.signature}, "BadSignature"),
        ("with other tags", {"tags": bytes(len(given.tags))}, "BadSignature"),
    ):
        book.case(f"shares: {name}", start, 3, replace(given, **changes), error)
    book.case("shares: of somebody who was not asked", start, 4, given, "OutOfOrder")
    early = m.Lost(play.session, b"\x04")
    book.case("lost: before anything was delivered", start, 3, early, "OutOfOrder")
    deposit = m.Deposit(play.session, b"deposits", bytes(64))
    book.case("deposit: in a session without hybrid keys", start, 3, deposit, "OutOfOrder")


def _reports(book: Book) -> None:
    """Clients say whose envelope did not open. Whoever is in more reports than there are liars is out."""
    play = Play().ready()
    start, lost = book.start("ready", play), m.Lost(play.session, b"\x04")
    book.case("lost: bits beyond the cohort", start, 3, m.Lost(play.session, b"\x1f"), "MalformedMessage")
    book.case("lost: of another length", start, 3, m.Lost(play.session, b"\x04\x00"), "MalformedMessage")
    book.case("lost: about itself", start, 3, m.Lost(play.session, b"\x08"), "MalformedMessage")
    book.case("lost: of somebody who did not deal", start, 4, lost, "OutOfOrder")
    book.case("lost: of more dealers than liars", start, 3, m.Lost(play.session, b"\x06"), "FalseReport")
    play.steps.append({"from": 3, "frame": lost.encode().hex()})
    start = book.start("ready, after a report", play)
    book.case("lost: a second time", start, 3, lost, "OutOfOrder")
    second = {"from": 0, "frame": lost.encode().hex()}
    book.blame("lost: more reports than liars", start, second, LIAR, "UnreadableShares")


# --- one sum --------------------------------------------------------------------------------------


def _inputs(book: Book) -> None:
    play = Play().masking()
    start, given = book.start("masking", play), play.reply(m.MaskedInput)
    data = given.data
    padded = data[:4] + bytes([data[4] | 0x80]) + data[5:]  # 3 elements of 11 bits leave 7 bits in 5 bytes
    for name, other in (
        ("too short", data[:-1]),
        ("too long", data + b"\x00"),
        ("a padding bit set", padded),
    ):
        book.case(f"masked input: {name}", start, 3, play.masked(data=other), "BadVector")
    for name, message in (
        ("under another signature", replace(given, signature=bytes(64))),
        ("without a signature", replace(given, signature=b"")),
        ("with another vector than was signed", replace(given, data=bytes(len(data)))),
        ("with other words than were signed", replace(given, words=bytes(len(given.words)))),
    ):
        book.case(f"masked input: {name}", start, 3, message, "BadSignature")
    early = m.Reveal(play.session, 0, b"\x0f", bytes(132), bytes(64), bytes(64))
    book.case("masked input: of a sum to come", start, 3, replace(given, sum_index=1), "OutOfOrder")
    book.case("reveal: before the survivors are known", start, 3, early, "OutOfOrder")
    play.receive()
    start, lost = book.start("all have sent inputs", play), m.Lost(play.session, b"\x04")
    book.case("lost: after the first input", start, 3, lost, "OutOfOrder")


def _words(book: Book) -> None:
    """The masks of each pair on the hidden count: one word for each other client that was asked."""
    play = Play().masking()
    start, words = book.start("masking", play), play.reply(m.MaskedInput).words
    for name, other in (
        ("one word fewer", words[:-COUNT_BYTES]),
        ("one word more", words + bytes(COUNT_BYTES)),
        ("words of another length", words[:-1]),
    ):
        book.case(f"masked input: {name}", start, 3, play.masked(words=other), "BadVector")


def _confirmations(book: Book) -> None:
    play = Play().masking().advance()
    start, forged = book.start("confirming", play), m.Confirmation(play.session, 0, bytes(64))
    book.case("confirmation: under another signature", start, 3, forged, "BadSignature")


def _reveals(book: Book) -> None:
    play = Play().unmasking()
    start, given = book.start("unmasking", play), play.reply(m.Reveal)
    shares, hidden = given.shares, given.hidden
    three = {"shares": shares[SHARE_BYTES:], "hidden": hidden[TAG_BYTES:]}
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("of another length", {"shares": shares[SHARE_BYTES:]}, "MalformedMessage"),
        ("bits beyond the cohort", {"dealers": b"\x1f"}, "MalformedMessage"),
        ("without the shares of a client", {"dealers": b"\x0e", **three}, "MalformedMessage"),
        ("one hidden hash fewer", {"hidden": hidden[TAG_BYTES:]}, "MalformedMessage"),
        ("one hidden hash more", {"hidden": hidden + bytes(TAG_BYTES)}, "MalformedMessage"),
        ("hidden hashes of another length", {"hidden": hidden[1:]}, "MalformedMessage"),
        ("a share outside the field", {"shares": _OUTSIDE + shares[SHARE_BYTES:]}, "WrongShare"),
        ("a share that does not fit its tag", {"shares": _first_changed(shares)}, "WrongShare"),
        ("another hidden hash", {"hidden": bytes(TAG_BYTES) + hidden[TAG_BYTES:]}, "WrongShare"),
    ]
    for name, changes, error in cases:
        book.case(f"reveal: {name}", start, 3, play.reveal(**changes), error)
    for name, signature in (("under another signature", bytes(64)), ("without a signature", b"")):
        book.case(f"reveal: {name}", start, 3, replace(given, signature=signature), "BadSignature")


_OUTSIDE: Final = b"\x01" + b"\xff" * 32


def _first_changed(shares: bytes) -> bytes:
    return off_by_one(shares[:SHARE_BYTES]) + shares[SHARE_BYTES:]


def _lies(book: Book) -> None:
    """What shows when a stage ends: lies in words, in the hidden count, and of dealers."""
    close = {"close_stage": True}
    play = Play({LIAR: (WordLiar, {"first": 1})}).masking().receive()
    start = book.start("all have sent inputs, one has a false word", play)
    book.blame("masked input: a word contradicts another's", start, close, 0, "Dispute", other=LIAR)
    play = Play({LIAR: (WordLiar, {"first": 2})}).masking().receive()
    start = book.start("all have sent inputs, one has two false words", play)
    name = "masked input: words contradict more clients than lie"
    book.blame(name, start, close, LIAR, "ManyDisputes")
    play = Play({LIAR: (CountLiar, {})}).unmasking().receive()
    start = book.start("all have revealed, one counts as five", play)
    book.blame("masked input: a count of five", start, close, LIAR, "FalseCount")
    play = Play({LIAR: (WordLiar, {"targets": [3]})}).unmasking(3).receive()
    start = book.start("all have revealed, one had a false word for a drop-out", play)
    book.blame("masked input: a false word for a drop-out", start, close, LIAR, "FalseWord")
    play = Play({LIAR: (ForgingDealer, {})}).unmasking().receive()
    start = book.start("all have revealed", play)
    name = "reveal: no shares open the dealer's commitment"
    book.blame(name, start, close, LIAR, "FalseDealing")
