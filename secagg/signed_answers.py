"""`SignedAnswers`: the server's checks of what clients sign, deposit and report.

Signatures exist only under `malicious_server`; otherwise they must be empty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from secagg import messages as m
from secagg.bitmap import unpack_positions
from secagg.cohort_members import Cohort
from secagg.dealt_shares import DealtShares
from secagg.errors import MalformedMessage
from secagg.evidence import Signed
from secagg.identity_registry import Registry
from secagg.keys import verify
from secagg.message_records import Format
from secagg.sum_unmasking import Tally


@dataclass(frozen=True)
class SignedAnswers:
    """Checks answers of the members of one session, and passes them to the record of shares or to the tally
    of a sum. Every method raises `PeerError`, which names `sender`, if an answer is not valid."""

    registry: Registry | None
    cohort: Cohort
    dealt: DealtShares
    form: Format

    def _verify(
        self, sender: int, signature: bytes, purpose: str, fields: Callable[[], tuple[bytes, ...]]
    ) -> Signed:
        """Return what `sender` signed. `fields` takes long, and is called only if there are signatures."""
        if self.registry is None:
            if signature:
                raise MalformedMessage(sender, "a signature of the wrong length")
            return Signed((), b"")
        signed = Signed(fields(), signature)
        verify(self.registry.members[sender], signature, purpose, *signed.fields, peer=sender)
        return signed

    def add_deposit(self, sender: int, message: m.Deposit) -> None:
        position = self.cohort.position[sender]
        peers = [dealer for dealer, _ in self.dealt.held_by(position) if dealer != position]
        size = self.form.deposit_bytes
        if len(message.deposits) != size * len(peers):
            raise MalformedMessage(sender, f"not deposits for {len(peers)} neighbours")
        self.dealt.went_on.add(position)
        signed = self._verify(
            sender,
            message.signature,
            "deposit",
            lambda: (self.cohort.session, self.dealt.receipt(position), message.deposits),
        )
        chunks = {peer: message.deposits[k * size : (k + 1) * size] for k, peer in enumerate(peers)}
        self.dealt.deposits.add(position, chunks, signed)

    def add(self, sender: int, message: m.MaskedInput | m.Confirmation | m.Reveal, tally: Tally) -> None:
        match message:
            case m.MaskedInput():
                self.add_input(sender, message, tally)
            case m.Confirmation():
                self.add_confirmation(sender, message, tally)
            case _:
                self.add_reveal(sender, message, tally)

    def add_input(self, sender: int, message: m.MaskedInput, tally: Tally) -> None:
        position = self.cohort.position[sender]
        self.dealt.went_on.add(position)
        signed = self._verify(
            sender,
            message.signature,
            "masked input",
            lambda: tally.question.input_fields(self.dealt.receipt(position), message.data, message.words),
        )
        tally.add_input(position, message, signed)

    def add_confirmation(self, sender: int, message: m.Confirmation, tally: Tally) -> None:
        fields = partial(tally.question.confirmed_fields, tally.survivors)
        self._verify(sender, message.signature, "survivors", fields)
        tally.confirmations[self.cohort.position[sender]] = message.signature

    def add_reveal(self, sender: int, message: m.Reveal, tally: Tally) -> None:
        position = self.cohort.position[sender]
        revealed = (message.dealers, message.shares, message.hidden)
        signed = self._verify(
            sender,
            message.signature,
            "reveal",
            lambda: tally.question.reveal_fields(tally.survivors, self.dealt.receipt(position), *revealed),
        )
        tally.add_reveal(position, message, signed)

    def reported(self, sender: int, message: m.Lost) -> list[int]:
        """Return the positions of the dealers whose shares `sender` says that it could not open."""
        position = self.cohort.position[sender]
        around = self.dealt.around(position)
        places = unpack_positions(message.dealers, len(around), sender=sender)
        dealers = [around[place] for place in places]
        delivered = {dealer for dealer, _ in self.dealt.held_by(position)} - {position}
        if not delivered.issuperset(dealers):
            raise MalformedMessage(sender, "reports shares that were not delivered to it")
        return dealers
