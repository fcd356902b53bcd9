"""Liars: clients that want to stop sums unnoticed, or to have honest clients convicted or excluded.

Each is a real machine that lies in one place and signs what it says. What it says is consistent otherwise, so
that no check but the one for this lie finds it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from numpy.typing import ArrayLike

from secagg import messages as m
from secagg.bitmap import pack_positions
from secagg.client import ClientMachine
from secagg.events import Answer, ClientStep
from secagg.hybrid_keys import DEPOSIT_BYTES, PAIR_SECRET_BYTES
from secagg.message_records import Parcel, parse_parcels
from secagg.query_context import Question
from secagg.share_envelopes import EnvelopeCipher
from secagg.share_exchange import ShareExchange
from secagg.sum_spec import COUNT_BITS, COUNT_BYTES
from tests.attacks.attackers.bad_clients import (
    ForgingDealer,
    RevealingClient,
    UnreadableDealer,
    off_by_one,
)

_Liar = TypeVar("_Liar", bound=ClientMachine)


def corrupted(client: ClientMachine, kind: type[_Liar], **lie: Any) -> _Liar:
    """A liar in the place of `client`, before its session begins. `lie` are attributes of the liar."""
    liar = kind(
        member=client.member,
        table=client._table,
        policy=client._policy,
        memory=client._memory,
        identity=client._identity,
        registry=client._registry,
        hooks=client._hooks,
    )
    for name, value in lie.items():
        setattr(liar, name, value)
    return liar


class AnsweringClient(ClientMachine):
    """Sends what `change` makes of its masked input, and signs it."""

    def change(self, answer: m.MaskedInput, question: Question) -> m.MaskedInput:
        return answer

    def answer(self, sum_index: int, values: Mapping[str, ArrayLike]) -> Answer:
        question = self._require_asked(sum_index)
        answer = super().answer(sum_index, values)
        message = m.decode(answer.frame, sender=self.member, limit=1 << 30)
        assert isinstance(message, m.MaskedInput)
        changed = self.change(message, question)
        fields = question.input_fields(self._receipt, changed.data, changed.words)
        return Answer(replace(changed, signature=self._sign("masked input", *fields)).encode(), {})


def _added(number: bytes, more: int) -> bytes:
    changed = (int.from_bytes(number, "little") + more) % (1 << COUNT_BITS)
    return changed.to_bytes(COUNT_BYTES, "little")


class CountLiar(AnsweringClient):
    """Counts as five clients. Its words are right."""

    def change(self, answer: m.MaskedInput, question: Question) -> m.MaskedInput:
        count = _added(answer.data[-COUNT_BYTES:], 4)
        return replace(answer, data=answer.data[:-COUNT_BYTES] + count)


class WordLiar(AnsweringClient):
    """Puts other masks on its count than those it shares with `targets` (ids), or with the `first` of its
    neighbours, and says so in its words. By what it says, its own count is 1."""

    targets: Collection[int] = ()
    first: int = 0

    def change(self, answer: m.MaskedInput, question: Question) -> m.MaskedInput:
        around = [each for each in self._cohort.neighbourhood if each in question.roster]
        asked = [each for each in around if each != self._position]
        data, words = answer.data, answer.words
        for at, peer in enumerate(asked):
            if at < self.first or self._cohort.ids[peer] in self.targets:
                start, stop = at * COUNT_BYTES, (at + 1) * COUNT_BYTES
                words = words[:start] + _added(words[start:stop], 1) + words[stop:]
                sign = 1 if peer < self._position else -1
                data = data[:-COUNT_BYTES] + _added(data[-COUNT_BYTES:], sign)
        return replace(answer, data=data, words=words)


class ShareLiar(RevealingClient):
    """Reveals wrong shares of `dealers` (ids)."""

    dealers: Collection[int]

    def change(self, reveal: m.Reveal) -> m.Reveal:
        around = [each for each in self._cohort.neighbourhood if each in self._asked]
        size = len(reveal.shares) // len(around)
        shares = [reveal.shares[k * size : (k + 1) * size] for k in range(len(around))]
        return replace(
            reveal,
            shares=b"".join(
                off_by_one(each) if self._cohort.ids[peer] in self.dealers else each
                for peer, each in zip(around, shares, strict=True)
            ),
        )

    def _reveal(self, question: Question) -> ClientStep:
        self._asked = question.roster
        return super()._reveal(question)


class _DenyingExchange(ShareExchange):
    """An exchange that says it cannot open what `accused` sealed."""

    accused: Collection[int]

    def _open(self, parcel: Parcel, channel: EnvelopeCipher) -> bool:
        return parcel.sender not in self.accused and super()._open(parcel, channel)


class FalseReporter(ClientMachine):
    """Reports the shares of `accused` (ids), which are as good as all others."""

    accused: Collection[int]

    def _on_delivery(self, message: m.Delivery, frame: bytes) -> ClientStep:
        exchange = self._exchange
        self._exchange = denying = _DenyingExchange(
            exchange.member,
            exchange.cohort,
            exchange.vault,
            exchange.form,
            exchange.registry,
            exchange.accepted,
        )
        object.__setattr__(denying, "accused", self.accused)
        return super()._on_delivery(message, frame)


class MisfitDealer(ClientMachine):
    """Publishes false tags for `targets` (ids): they open envelopes, and find shares that do not fit."""

    targets: Collection[int]

    def receive(self, frame: bytes, *, now: int | None = None) -> ClientStep:
        step = super().receive(frame, now=now)
        return ClientStep(tuple(map(self._spoil, step.frames)), step.events)

    def _spoil(self, frame: bytes) -> bytes:
        message = m.decode(frame, sender=self.member, limit=1 << 30)
        if not isinstance(message, m.Shares):
            return frame
        size, tags = self._form.tags_bytes, bytearray(message.tags)
        for place, holder in enumerate(self._cohort.neighbourhood):
            if self._cohort.ids[holder] in self.targets:
                tags[place * size] ^= 1
        signature = self._sign("share tags", self._cohort.session, bytes(tags))
        return replace(message, tags=bytes(tags), tags_signature=signature).encode()


class DepositLiar(ClientMachine):
    """Makes false deposits for `targets` (ids): the pair secret is changed or, with `in_tag`, its tag."""

    targets: Collection[int]
    in_tag: bool

    def _on_delivery(self, message: m.Delivery, frame: bytes) -> ClientStep:
        step = super()._on_delivery(message, frame)
        sent = m.decode(step.frames[-1], sender=self.member, limit=1 << 30)
        assert isinstance(sent, m.Deposit)
        blob = bytearray(sent.deposits)
        peers = [each for each in sorted(self._sharers) if each != self._position]
        for at, peer in enumerate(peers):
            if self._cohort.ids[peer] in self.targets:
                start = at * self._form.deposit_bytes
                for k in range(self._form.sums):
                    blob[start + k * DEPOSIT_BYTES + (PAIR_SECRET_BYTES if self.in_tag else 0)] ^= 1
        signature = self._sign("deposit", self._context, self._receipt, bytes(blob))
        changed = replace(sent, deposits=bytes(blob), signature=signature)
        return ClientStep((*step.frames[:-1], changed.encode()), step.events)


class SpoiledClient(ClientMachine):
    """An honest client to whom a malicious server delivers garbage in the name of `senders` (ids)."""

    senders: Collection[int]

    def _on_delivery(self, message: m.Delivery, frame: bytes) -> ClientStep:
        parcels = parse_parcels(message.parcels, self._form, most=self._cohort.size)
        blob = b"".join(self._spoil(parcel).encode() for parcel in parcels)
        return super()._on_delivery(replace(message, parcels=blob), frame)

    def _spoil(self, parcel: Parcel) -> Parcel:
        garbage = bytes(len(parcel.envelope))
        return replace(parcel, envelope=garbage) if parcel.sender in self.senders else parcel


class DoubleLiar(FalseReporter, UnreadableDealer):
    """Reports the shares of `accused` (ids), and seals envelopes that do not open for its first peers."""


class SelfReporter(ClientMachine):
    """Reports its own shares of its own secrets."""

    def _on_delivery(self, message: m.Delivery, frame: bytes) -> ClientStep:
        step = super()._on_delivery(message, frame)
        self._exchange.accepted.pop(self._position)
        self._receipt = self._exchange.receipt()
        for held in self._vault._held.values():
            held.pop(self._position)
        dealers = pack_positions([self._position], self._cohort.size)
        report = m.Lost(self._context, dealers)
        return ClientStep((report.encode(), *step.frames), step.events)


class ReporterOfTheAbsent(ClientMachine):
    """Reports the shares of a client that has dealt none."""

    accused = 0

    def _on_delivery(self, message: m.Delivery, frame: bytes) -> ClientStep:
        step = super()._on_delivery(message, frame)
        dealers = pack_positions([self._cohort.position[self.accused]], self._cohort.size)
        return ClientStep((m.Lost(self._context, dealers).encode(), *step.frames), step.events)


class UnsignedClient(ClientMachine):
    """Signs all but one kind of message, so that nothing it says there can be proved."""

    purpose: str

    def _sign(self, purpose: str, *fields: bytes) -> bytes:
        signature = super()._sign(purpose, *fields)
        return bytes(len(signature)) if purpose == self.purpose else signature


class UnsignedCount(UnsignedClient, CountLiar):
    purpose = "masked input"


class UnsignedWords(UnsignedClient, WordLiar):
    purpose = "masked input"


class UnsignedShares(UnsignedClient, ShareLiar):
    purpose = "reveal"


class UnsignedDealing(UnsignedClient, ForgingDealer):
    purpose = "share tags"


class UnsignedDeposit(UnsignedClient, DepositLiar):
    purpose = "deposit"


class UnsignedConfirmation(UnsignedClient):
    purpose = "survivors"
