"""A session with a server, stage by stage, for the negative vectors of the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final, TypeVar

import numpy as np

from secagg import messages as m
from secagg.client import ClientMachine
from secagg.client_memory import VolatileMemory
from secagg.cohort_members import invitation_digest
from secagg.events import Asked
from secagg.hybrid_keys import KeyAgreement
from secagg.insecure_seeds import insecure_client_hooks, seeded_identity, seeded_registry
from secagg.message_records import Advert, parse_advert
from secagg.policy import Policy
from secagg.session_params import SessionParams
from secagg.sum_spec import Part, Residue, SumSpec, Table
from secagg.testing import InsecureSeededClient, InsecureSeededServer
from secagg.trust_levels import Trust
from tests.attacks.attackers.liars import corrupted

SEED: Final = b"server refusals"
SUMS: Final = 2
CORRUPT: Final = 1
BARRED: Final = 6
TABLE: Final = Table({"vector": SumSpec(parts=(Part(name="x", size=3, bits=11, bound=Residue()),))})
REGISTRY: Final = seeded_registry(SEED, range(7))
SETTINGS: Final[Mapping[str, Any]] = {
    "sums": SUMS,
    "corrupt": CORRUPT,
    "dropout": 0.25,
    "min_cohort": 3,
    "max_cohort": 5,
    "min_contributors": 3,
}
Liars = Mapping[int, tuple[type[ClientMachine], dict[str, Any]]]  # their classes, and attributes of them
_M = TypeVar("_M", bound=m.Message)
_LIMIT: Final = 1 << 20


def _fresh(client: ClientMachine) -> ClientMachine:
    """The same client with its randomness from the start: a liar in its place has the same secrets."""
    random = insecure_client_hooks(SEED, client.member).random
    client._hooks = replace(client._hooks, random=random)
    return client


class Play:
    """An honest session with a server, stage by stage; `steps` is what its server was told to do. Clients in
    `liars` are not honest."""

    MEMBERS: ClassVar[tuple[int, ...]] = (0, 1, 2, 3)
    SUMMED: ClassVar[Table] = TABLE
    AGREEMENT: ClassVar[KeyAgreement] = KeyAgreement.X25519

    def __init__(self, liars: Liars | None = None) -> None:
        self.server = self.new_server()
        self.clients = {member: self.new_client(member) for member in self.MEMBERS}
        for member, (kind, lie) in (liars or {}).items():
            self.clients[member] = corrupted(_fresh(self.clients[member]), kind, **lie)
        self.steps: list[dict[str, Any]] = []
        self.replies = self._turns(dict.fromkeys(self.MEMBERS, self.server.invitation))

    def new_server(self) -> InsecureSeededServer:
        return InsecureSeededServer(
            seed=SEED,
            table=self.SUMMED,
            registry=REGISTRY,
            params=SessionParams(trust=Trust.MALICIOUS, key_agreement=self.AGREEMENT, **SETTINGS),
            barred=(BARRED,),
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
            key_agreement=self.AGREEMENT,
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

    # --- stages ---

    def receive(self, *without: int) -> Play:
        """The server takes all replies but those of some clients."""
        for member, frame in self.replies.items():
            if member not in without:
                self.steps.append({"from": member, "frame": frame.hex()})
                self.server.receive(member, frame)
        return self

    def advance(self, *without: int) -> Play:
        """The server takes all replies but those of some clients, closes the stage, and everybody answers."""
        self.receive(*without)
        self.steps.append({"close_stage": True})
        step = self.server.close_stage()
        self.replies = self._turns({k: packet.frame for packet in step.outgoing for k in packet.receivers})
        return self

    def ask(self) -> Play:
        self.steps.append({"ask": "vector", "payload": "", "round": 0})
        step = self.server.ask("vector", b"", round_number=0)
        self.replies = self._turns({k: packet.frame for packet in step.outgoing for k in packet.receivers})
        return self

    def ready(self) -> Play:
        return self.advance().advance()

    def masking(self) -> Play:
        return self.ready().ask()

    def unmasking(self, *missing: int) -> Play:
        """All but the `missing` send inputs; those who reveal are about to."""
        return self.masking().advance(*missing).advance()

    # --- messages ---

    @property
    def invited(self) -> bytes:
        return invitation_digest(self.server.invitation)

    @property
    def session(self) -> bytes:
        return self.clients[0]._cohort.session

    def reply(self, kind: type[_M], member: int = 3) -> _M:
        """What a client is about to send."""
        message = m.decode(self.replies[member], sender=member, limit=_LIMIT)
        assert isinstance(message, kind)
        return message

    def advert(self, member: int = 3) -> Advert:
        form, given = self.clients[member]._form, self.reply(m.Advertisement, member)
        return parse_advert(given.advert, form, sender=member)

    def advertisement(self, advert: Advert) -> m.Advertisement:
        return m.Advertisement(self.invited, advert.encode())

    def signed(self, advert: Advert, member: int, *, signer: int | None = None) -> m.Advertisement:
        """The keys of `advert` as those of `member`, signed by it or by another `signer`."""
        unsigned = replace(advert, member=member, signature=b"")
        identity = seeded_identity(SEED, member if signer is None else signer)
        return self.advertisement(
            replace(unsigned, signature=identity.sign("advert", self.invited, unsigned.body))
        )

    def deposit(self, member: int = 3, **changes: Any) -> m.Deposit:
        """The deposits of a client, changed and signed again."""
        changed = replace(self.reply(m.Deposit, member), **changes)
        fields = (self.session, self._receipt(member), changed.deposits)
        return replace(changed, signature=self._sign(member, "deposit", fields))

    def masked(self, member: int = 3, **changes: Any) -> m.MaskedInput:
        """The masked input of a client, changed and signed again."""
        changed = replace(self.reply(m.MaskedInput, member), **changes)
        question = self.server._tally.question
        fields = question.input_fields(self._receipt(member), changed.data, changed.words)
        return replace(changed, signature=self._sign(member, "masked input", fields))

    def reveal(self, member: int = 3, **changes: Any) -> m.Reveal:
        """What a client reveals, changed and signed again."""
        changed = replace(self.reply(m.Reveal, member), **changes)
        tally, revealed = self.server._tally, (changed.dealers, changed.shares, changed.hidden)
        fields = tally.question.reveal_fields(tally.survivors, self._receipt(member), *revealed)
        return replace(changed, signature=self._sign(member, "reveal", fields))

    def _receipt(self, member: int) -> bytes:
        return self.clients[member]._receipt

    def _sign(self, member: int, purpose: str, fields: tuple[bytes, ...]) -> bytes:
        return self.clients[member]._sign(purpose, *fields)
