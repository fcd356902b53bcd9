"""A session of fresh clients under `malicious_server`, to try lies that no transcript contains."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from fractions import Fraction

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey

from tests.second_implementation import crypto
from tests.second_implementation.client import Client, Secrets
from tests.second_implementation.evidence import Court
from tests.second_implementation.graph import Policy, complete_threshold
from tests.second_implementation.records import registry_digest
from tests.second_implementation.server import Sent, Server, Setting
from tests.second_implementation.specs import Part, Spec

IDS = (3, 7, 40, 300, 70000)
POLICY = Policy(signed=True, corrupt=1, min_cohort=3, min_contributors=3, security_bits=40, dropout=0.2)
TABLE = {"count": Spec((Part("x", 2, 12, "Count", 100, None, 0.0, Fraction(0)),), 1, None, None)}


class WrongMask(Client):
    """A client that uses other pair masks than agreed with some neighbours."""

    cheated: Collection[int] = ()

    def seeds(self) -> dict[int, bytes]:
        """The agreed seeds, with one byte changed for the cheated neighbours."""
        agreed = super().seeds()
        return {i: bytes([seed[0] ^ (i in self.cheated)]) + seed[1:] for i, seed in agreed.items()}


class WrongDeposit(Client):
    """A client whose deposits do not open to what their tags promise."""

    def _padded(self, peer: int, k: int) -> bytes:
        honest = super()._padded(peer, k)
        return bytes([honest[0] ^ 1]) + honest[1:]


class Play:
    """A session with one sum; one client may lie and one may drop out."""

    def __init__(self, agreement: str, liar: int, kind: type[Client], cheated: Collection[int] = ()) -> None:
        identities = {client: Ed25519PrivateKey.generate() for client in IDS}
        kems = {client: MLKEM768PrivateKey.generate() for client in IDS}
        self.keys = {client: key.public_key().public_bytes_raw() for client, key in identities.items()}
        registry = registry_digest(1, 0, self.keys)
        nonce = secrets.token_bytes(32)
        trust = "malicious_server"
        self.server = Server(
            Setting(trust, agreement, 1, POLICY, TABLE, registry, nonce, False, (), False), IDS
        )
        self.court = Court(self.keys, registry, TABLE, 1)
        self.clients = {}
        for client in IDS:
            machine = kind if client == liar else Client
            signer = crypto.signer(identities[client].private_bytes_raw())
            self.clients[client] = machine(client, draw_secrets(kems, client), TABLE, signer, self.keys)
        wrong = self.clients[liar]
        if isinstance(wrong, WrongMask):
            wrong.cheated = cheated

    def run(self, absent: Collection[int]) -> None:
        """Play the session up to the end of its sum."""
        self._deliver(self.server.invite(), lambda client: client.invited)
        self._deliver(self.server.close(), lambda client: client.key_list)
        self._deliver(self.server.close(), lambda client: client.delivered)
        if self.server.layout.hybrid:
            assert self.server.close() == []
        for sent in self.server.ask("count", 0, b""):
            for receiver in set(sent.receivers) - set(absent):
                for data in self.clients[receiver].asked(sent.frame, {"x": [1, 2]}, False):
                    self.server.receive(receiver, data)
        frames = self.server.close()
        if self.server.stage == "confirming":
            self._deliver(frames, lambda client: client.survived)
            self._deliver(self.server.close(), lambda client: client.confirmed)
            self.server.close()

    def _deliver(
        self, frames: list[Sent], handler: Callable[[Client], Callable[[bytes], list[bytes]]]
    ) -> None:
        for sent in frames:
            for receiver in sent.receivers:
                for data in handler(self.clients[receiver])(sent.frame):
                    self.server.receive(receiver, data)


def draw_secrets(kems: dict[int, MLKEM768PrivateKey], client: int) -> Secrets:
    """Random one-time secrets for one sum without noise."""
    own, dealt = secrets.token_bytes(32), secrets.token_bytes(32)
    columns = [deal(own), deal(dealt)]
    sent = {peer: kem.public_key().encapsulate() for peer, kem in kems.items() if peer != client}
    return Secrets(
        channel=secrets.token_bytes(32),
        dealt=[dealt],
        self_masks=[own],
        seeds=[[]],
        rows=[[[column[place] for column in columns]] for place in range(len(IDS))],
        kem_seed=kems[client].private_bytes_raw(),
        encapsulations=sent,
    )


def deal(secret: bytes) -> list[bytes]:
    """Shares of a secret for all clients: the polynomial through it and random points (4.4)."""
    threshold = complete_threshold(POLICY, len(IDS))
    points = {0: int.from_bytes(secret, "big")}
    points |= {x: secrets.randbelow(crypto.PRIME) for x in range(1, threshold)}
    shares = [crypto.interpolate(points, place + 1) for place in range(len(IDS))]
    return [share.to_bytes(crypto.SHARE, "big") for share in shares]
