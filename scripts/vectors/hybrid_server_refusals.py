"""Negative vectors of a server of hybrid sessions: KEM keys, deposits, and what they give away.

Four clients, of whom one may lie. Encapsulations are random, so that the file has those of its clients, which
are used again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from scripts.vectors.describe import chained
from scripts.vectors.hybrid_refusals import NOT_REDUCED
from scripts.vectors.recording_client import Encapsulations, recorded_encapsulations
from scripts.vectors.server_play import TABLE, Play
from scripts.vectors.server_refusals import LIAR, Book, describe_server
from secagg import messages as m
from secagg.client import ClientMachine
from secagg.hybrid_keys import KeyAgreement
from tests.attacks.attackers.liars import DepositLiar

Recorded = Mapping[str, Any]  # the clients in the file
_CLOSE: Final = {"close_stage": True}


class HybridPlay(Play):
    """The same with hybrid keys: a stage more, in which clients make deposits."""

    AGREEMENT = KeyAgreement.HYBRID

    def __init__(self, recorded: Recorded, *, liar: dict[str, Any] | None = None) -> None:
        self._recorded = recorded
        super().__init__({LIAR: (DepositLiar, liar)} if liar else None)

    def new_client(self, member: int) -> ClientMachine:
        client = super().new_client(member)
        known = recorded_encapsulations(self._recorded, member)
        client._hooks = replace(client._hooks, encapsulate=Encapsulations(known))
        return client

    def ready(self) -> Play:
        return self.advance().advance().advance()

    def describe_clients(self) -> dict[str, Any]:
        """What the file has of the clients, to use it again. It exists while they share."""
        members = {client._vault.kem_key(): str(member) for member, client in self.clients.items()}
        rows = {}
        for member, client in self.clients.items():
            made, kem = client._hooks.encapsulate, client._vault._kem
            assert isinstance(made, Encapsulations)
            assert kem is not None
            rows[str(member)] = {
                "kem_seed": kem._private.private_bytes_raw().hex(),
                "encapsulations": {
                    members[key]: {"secret": each.secret.hex(), "ciphertext": each.ciphertext.hex()}
                    for key, each in made.given.items()
                },
            }
        return rows


def hybrid_server_refusals(recorded: Recorded) -> dict[str, Any]:
    """What the file has of a server of hybrid sessions. `recorded` are the clients of the file before."""
    book, play = Book(), HybridPlay(recorded)
    _adverts(book, play)
    play.advance()
    clients = play.describe_clients()  # from here on, every session has the same encapsulations
    _deposits(book, play)
    _lies(book, clients)
    server = {**describe_server(TABLE), "key_agreement": str(KeyAgreement.HYBRID)}
    return {
        "hybrid_server": server,
        "hybrid_server_clients": clients,
        "hybrid_server_starts": chained(book.starts),
        "hybrid_server_cases": book.cases,
    }


def _adverts(book: Book, play: HybridPlay) -> None:
    start, own = book.start("nobody has advertised, hybrid", play), play.advert()
    bad, none = replace(own, kem_key=NOT_REDUCED), replace(own, kem_key=b"")
    book.case("hybrid: a KEM key that is not reduced", start, 3, play.signed(bad, 3), "BadKey")
    book.case("hybrid: an advert without a KEM key", start, 3, play.signed(none, 3), "MalformedMessage")


def _deposits(book: Book, play: HybridPlay) -> None:
    early = m.Deposit(play.session, b"deposits", bytes(64))
    start = book.start("sharing, hybrid", play)
    book.case("hybrid: deposits before the shares are delivered", start, 3, early, "OutOfOrder")
    play.advance()
    start, given = book.start("depositing", play), play.reply(m.Deposit)
    size = len(given.deposits) // 3
    for name, deposits in (
        ("for one neighbour fewer", given.deposits[size:]),
        ("for one neighbour more", given.deposits + bytes(size)),
        ("of another length", given.deposits[:-1]),
    ):
        book.case(f"hybrid: deposits {name}", start, 3, play.deposit(deposits=deposits), "MalformedMessage")
    for name, changes in (
        ("without a signature", {"signature": b""}),
        ("under another signature", {"signature": bytes(64)}),
        ("other than were signed", {"deposits": bytes(3 * size)}),
    ):
        book.case(f"hybrid: deposits {name}", start, 3, replace(given, **changes), "BadSignature")
    report = m.Lost(play.session, b"\x04")
    book.case("hybrid: a report on itself", start, 2, report, "MalformedMessage")
    play.receive()
    start = book.start("all have made deposits", play)
    book.case("hybrid: deposits a second time", start, 3, given, "OutOfOrder")
    book.case("hybrid: a report after the deposits", start, 3, report, "OutOfOrder")


def _lies(book: Book, clients: Recorded) -> None:
    play = HybridPlay(clients, liar={"targets": [0], "in_tag": True})
    play.advance().advance().receive()
    start = book.start("all have made deposits, one has a false tag", play)
    name = "hybrid: a tag contradicts another's"
    book.blame(name, start, _CLOSE, 0, "Dispute", other=LIAR)
    play = HybridPlay(clients, liar={"targets": [0, 1], "in_tag": True})
    play.advance().advance().receive()
    start = book.start("all have made deposits, one has two false tags", play)
    book.blame("hybrid: tags contradict more clients than lie", start, _CLOSE, LIAR, "ManyDisputes")
    play = HybridPlay(clients, liar={"targets": [3], "in_tag": False})
    play.unmasking(LIAR).receive()
    start = book.start("all have revealed, one made a false deposit", play)
    book.blame("hybrid: a deposit that does not open", start, _CLOSE, LIAR, "FalseDeposit")
