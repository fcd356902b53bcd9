"""Negative vectors of the server: what turns one client away, while the session goes on.

A start is a list of calls on a seeded server; in a case, one more call excludes `peer` with an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np

from scripts.vectors.describe import chained, describe_registry, describe_table
from secagg import messages as m
from secagg.client import ClientMachine
from secagg.client_memory import VolatileMemory
from secagg.cohort_members import invitation_digest
from secagg.events import Asked
from secagg.insecure_seeds import seeded_identity, seeded_registry
from secagg.message_records import Advert, Format, parse_advert
from secagg.policy import Policy
from secagg.session_params import SessionParams
from secagg.shamir import SHARE_BYTES
from secagg.sum_spec import Part, Residue, SumSpec, Table
from secagg.testing import InsecureSeededClient, InsecureSeededServer
from secagg.trust_levels import Trust

SEED: Final = b"server refusals"
SUMS: Final = 2
CORRUPT: Final = 1
CORRUPT_DEALER: Final = 2
TABLE: Final = Table({"vector": SumSpec(parts=(Part(name="x", size=3, bits=11, bound=Residue()),))})
REGISTRY: Final = seeded_registry(SEED, [0, 1, 2, 3, 4, 5])
SETTINGS: Final[Mapping[str, Any]] = {
    "sums": SUMS,
    "corrupt": CORRUPT,
    "dropout": 0.25,
    "min_cohort": 3,
    "max_cohort": 5,
    "min_contributors": 3,
}
FORM: Final = Format(SUMS, signed=True)


class Play:
    """An honest session with a server, stage by stage; `steps` is what its server was told to do."""

    MEMBERS: ClassVar[tuple[int, ...]] = (0, 1, 2, 3)
    SUMMED: ClassVar[Table] = TABLE

    def __init__(self, *, corrupt_dealer: int | None = None) -> None:
        self.server = self.new_server()
        self.clients = {member: self.new_client(member) for member in self.MEMBERS}
        self.steps: list[dict[str, Any]] = []
        self.replies = self._turns(dict.fromkeys(self.MEMBERS, self.server.invitation))
        if corrupt_dealer is not None:  # it will deal shares of something that it did not commit to
            self.clients[corrupt_dealer]._vault._self_masks[0] = bytes(32)

    def new_server(self) -> InsecureSeededServer:
        return InsecureSeededServer(
            seed=SEED,
            table=self.SUMMED,
            registry=REGISTRY,
            params=SessionParams(trust=Trust.MALICIOUS, **SETTINGS),
        )

    def new_client(self, member: int) -> ClientMachine:
        policy = Policy(
            trust=Trust.MALICIOUS,
            corrupt=CORRUPT,
            min_cohort=3,
            max_cohort=5,
            min_contributors=3,
            max_sums=SUMS,
            unnoised_sums=SUMS,
        )
        return InsecureSeededClient(
            seed=SEED,
            member=member,
            table=self.SUMMED,
            policy=policy,
            memory=VolatileMemory(),
            identity=seeded_identity(SEED, member),
            registry=REGISTRY,
        )

    def _turns(self, frames: Mapping[int, bytes]) -> dict[int, bytes]:
        """Each client's reply to its frame."""
        replies = {}
        for member, frame in frames.items():
            step = self.clients[member].receive(frame)
            if step.frames:
                (replies[member],) = step.frames
            for event in step.events:
                if isinstance(event, Asked):
                    values = {"x": np.array(self.values(member), np.uint16)}
                    replies[member] = self.clients[member].answer(event.sum_index, values).frame
        return replies

    def values(self, member: int) -> list[int]:
        return [member, 1, 2047]

    def receive(self) -> Play:
        """The server takes all replies."""
        for member, frame in self.replies.items():
            self.steps.append({"from": member, "frame": frame.hex()})
            self.server.receive(member, frame)
        return self

    def advance(self) -> Play:
        """The server takes all replies, closes the stage, and everybody answers."""
        self.receive()
        self.steps.append({"close_stage": True})
        step = self.server.close_stage()
        self.replies = self._turns({k: packet.frame for packet in step.outgoing for k in packet.receivers})
        return self

    @property
    def invited(self) -> bytes:
        return invitation_digest(self.server.invitation)

    @property
    def session(self) -> bytes:
        return self.clients[0]._cohort.session

    def advertisement(self, advert: Advert) -> m.Advertisement:
        return m.Advertisement(self.invited, advert.encode())

    def signed(self, advert: Advert, member: int, *, signer: int | None = None) -> m.Advertisement:
        """The keys of `advert` as those of `member`, signed by it or by another `signer`."""
        keys = (advert.channel_key, advert.mask_keys, advert.commitments)
        identity = seeded_identity(SEED, member if signer is None else signer)
        signature = identity.sign("advert", self.invited, Advert(member, *keys).body)
        return self.advertisement(Advert(member, *keys, signature))

    def ask(self) -> Play:
        self.steps.append({"ask": "vector", "payload": "", "round": 0})
        step = self.server.ask("vector", b"", round_number=0)
        self.replies = self._turns({k: packet.frame for packet in step.outgoing for k in packet.receivers})
        return self

    def ready(self) -> Play:
        return self.advance().advance()

    def masking(self) -> Play:
        return self.ready().ask()


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

    def blame(self, name: str, start: str, step: dict[str, Any], peer: int, error: str) -> None:
        self.cases.append({"name": name, "start": start, "step": step, "peer": peer, "error": error})


def server_refusals() -> dict[str, Any]:
    """The server's half of the file."""
    book = Book()
    _frames(book)
    _adverts(book)
    _full_cohort(book)
    _shares(book)
    _reports(book)
    _inputs(book)
    _confirmations(book)
    _reveals(book)
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
        **SETTINGS,
    }


# --- set-up ---------------------------------------------------------------------------------------


def _frames(book: Book) -> None:
    """What is refused before anyone looks at the content."""
    start = book.start("nobody has advertised", Play())
    limit = max(FORM.advert_bytes, SETTINGS["max_cohort"] * FORM.envelope_bytes) + 256
    book.case("frame: nothing", start, 3, b"", "MalformedMessage")
    book.case("frame: above the limit", start, 3, bytes(limit + 1), "OversizeMessage")
    book.case("frame: zeros, as many as the limit allows", start, 3, bytes(limit), "MalformedMessage")
    book.case("frame: of another version", start, 3, b"\x93\x02\x16\xc4\x00", "WrongVersion")
    book.case("frame: of another session", start, 3, m.Advertisement(bytes(32), b"advert"), "WrongSession")
    book.case("leave", start, 3, m.Leave(b""), "Departed")


def _adverts(book: Book) -> None:
    play = Play()
    start, own = book.start("nobody has advertised", play), _advert_in(play.replies[3])
    small = Advert(3, bytes(32), own.mask_keys, own.commitments)
    short = m.Advertisement(play.invited, own.encode()[:-1])
    book.case("advert: of another length", start, 3, short, "MalformedMessage")
    book.case("advert: of another client", start, 4, play.advertisement(own), "UnknownPeer")
    book.case("advert: outside the registry", start, 9, play.signed(own, 9), "UnknownPeer")
    book.case("advert: under another signature", start, 3, play.signed(own, 3, signer=4), "BadSignature")
    book.case("advert: a key of small order", start, 3, play.signed(small, 3), "BadKey")
    play.receive()
    start = book.start("four have advertised", play)
    book.case("advert: a key in use", start, 4, play.signed(own, 4), "BadKey")
    book.case("advert: a second time", start, 3, play.advertisement(own), "OutOfOrder")


def _advert_in(frame: bytes) -> Advert:
    message = m.decode(frame, sender=3, limit=1 << 20)
    assert isinstance(message, m.Advertisement)
    return parse_advert(message.advert, FORM, sender=3)


def _full_cohort(book: Book) -> None:
    play = Play().receive()
    own = _advert_in(play.replies[3])
    fresh = [bytes([16, k + 1]) + bytes(30) for k in range(SUMS + 1)]
    fifth = play.signed(Advert(4, fresh[0], tuple(fresh[1:]), own.commitments), 4)
    play.steps.append({"from": 4, "frame": fifth.encode().hex()})
    start = book.start("five have advertised", play)
    book.case("advert: of one too many", start, 5, play.signed(own, 5), "LargeCohort")


def _shares(book: Book) -> None:
    play = Play().advance()
    start, given = book.start("sharing", play), m.decode(play.replies[3], sender=3, limit=1 << 20)
    assert isinstance(given, m.Shares)
    short = m.Shares(given.context, given.envelopes[1:], given.signature)
    unsigned = m.Shares(given.context, given.envelopes, b"")
    forged = m.Shares(given.context, given.envelopes, bytes(64))
    book.case("shares: of another length", start, 3, short, "MalformedMessage")
    book.case("shares: without a signature", start, 3, unsigned, "MalformedMessage")
    book.case("shares: under another signature", start, 3, forged, "BadSignature")
    book.case("shares: of somebody who was not asked", start, 4, given, "OutOfOrder")


def _reports(book: Book) -> None:
    """Clients say whose envelope did not open: the dealer is out when they cannot all be lying."""
    play = Play().ready()
    start, lost = book.start("ready", play), m.Lost(play.session, b"\x04")
    book.case("lost: bits beyond the cohort", start, 3, m.Lost(play.session, b"\x1f"), "MalformedMessage")
    book.case("lost: of somebody who did not deal", start, 4, lost, "OutOfOrder")
    play.steps.append({"from": 3, "frame": lost.encode().hex()})
    start = book.start("ready, after a report", play)
    book.case("lost: a second time", start, 3, lost, "OutOfOrder")
    second = {"from": 0, "frame": lost.encode().hex()}
    book.blame("lost: more reports than liars", start, second, CORRUPT_DEALER, "CorruptDealer")


# --- one sum --------------------------------------------------------------------------------------


def _inputs(book: Book) -> None:
    play = Play().masking()
    start, given = book.start("masking", play), m.decode(play.replies[3], sender=3, limit=1 << 20)
    assert isinstance(given, m.MaskedInput)
    data = given.data
    padded = data[:4] + bytes([data[4] | 0x80]) + data[5:]  # 3 elements of 11 bits leave 7 bits in 5 bytes
    for name, other in (
        ("too short", data[:-1]),
        ("too long", data + b"\x00"),
        ("a padding bit set", padded),
    ):
        message = m.MaskedInput(play.session, 0, other)
        book.case(f"masked input: {name}", start, 3, message, "BadVector")
    later, early = m.MaskedInput(play.session, 1, data), m.Reveal(play.session, 0, b"\x0f", bytes(132))
    book.case("masked input: of a sum to come", start, 3, later, "OutOfOrder")
    book.case("reveal: before the survivors are known", start, 3, early, "OutOfOrder")


def _confirmations(book: Book) -> None:
    play = Play().masking().advance()
    start, forged = book.start("confirming", play), m.Confirmation(play.session, 0, bytes(64))
    book.case("confirmation: under another signature", start, 3, forged, "BadSignature")


def _reveals(book: Book) -> None:
    play = Play().masking().advance().advance()
    start, outside = book.start("unmasking", play), b"\x01" + b"\xff" * 32 + bytes(3 * SHARE_BYTES)
    for name, holders, shares, error in (
        ("of another length", b"\x0f", bytes(3 * SHARE_BYTES), "MalformedMessage"),
        ("bits beyond the cohort", b"\x1f", bytes(5 * SHARE_BYTES), "MalformedMessage"),
        ("a share outside the field", b"\x0f", outside, "BadShare"),
    ):
        book.case(f"reveal: {name}", start, 3, m.Reveal(play.session, 0, holders, shares), error)
    corrupt = Play(corrupt_dealer=CORRUPT_DEALER).masking().advance().advance().receive()
    start = book.start("all have revealed", corrupt)
    name = "reveal: no shares open the dealer's commitment"
    book.blame(name, start, {"close_stage": True}, CORRUPT_DEALER, "CorruptDealer")
