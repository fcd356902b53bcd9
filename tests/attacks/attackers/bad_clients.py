"""Bad clients: real machines that lie in one message, to forge a total or to stop everybody's sum. What they
send is signed: each of them owns its identity.

A client can always add what it likes to a sum: masked inputs cannot be checked, and that is no attack on the
protocol. These try what they must not be able to do: to make the server release a total that is not the sum
of the inputs it accepted, to crash it, to stop the others for good, or to have them blamed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Self

from numpy.typing import ArrayLike

from secagg import messages as m
from secagg import shamir
from secagg.bitmap import pack_positions, unpack_positions
from secagg.client import ClientMachine
from secagg.cohort_members import CohortView
from secagg.events import Answer, ClientStep
from secagg.keys import self_mask_seed
from secagg.mask_keystream import apply_masks
from secagg.message_records import Advert
from secagg.query_context import Question
from secagg.residue_packing import Residues
from secagg.session_secrets import Vault
from secagg.shamir import SHARE_BYTES
from secagg.share_tags import TAG_BYTES


class MisfitClient(ClientMachine):
    """Sends a masked input that `reshape` has changed."""

    reshape: Callable[[bytes], bytes]

    def answer(self, sum_index: int, values: Mapping[str, ArrayLike]) -> Answer:
        question = self._require_asked(sum_index)
        answer = super().answer(sum_index, values)
        message = m.decode(answer.frame, sender=self.member, limit=1 << 30)
        assert isinstance(message, m.MaskedInput)
        data = self.reshape(message.data)
        signature = self._sign("masked input", *question.input_fields(self._receipt, data, message.words))
        return Answer(replace(message, data=data, signature=signature).encode(), {})


class RevealingClient(ClientMachine):
    """Reveals what `change` makes of what it should reveal, and signs it."""

    def change(self, reveal: m.Reveal) -> m.Reveal:
        return reveal

    def _reveal(self, question: Question) -> ClientStep:
        step = super()._reveal(question)
        message = m.decode(step.frames[0], sender=self.member, limit=1 << 30)
        assert isinstance(message, m.Reveal)
        changed = self.change(message)
        revealed = (changed.dealers, changed.shares, changed.hidden)
        fields = question.reveal_fields(self._survivors, self._receipt, *revealed)
        return ClientStep((replace(changed, signature=self._sign("reveal", *fields)).encode(),), step.events)


class LyingHolder(RevealingClient):
    """Reveals every share of others, and its own, off by one."""

    def change(self, reveal: m.Reveal) -> m.Reveal:
        return replace(reveal, shares=off_by_one(reveal.shares))


class OutsideHolder(RevealingClient):
    """Reveals numbers outside the field instead of all shares that it holds."""

    def change(self, reveal: m.Reveal) -> m.Reveal:
        return replace(reveal, shares=b"\xff" * len(reveal.shares))


def off_by_one(shares: bytes) -> bytes:
    values = shamir.shares_from_bytes(shares)
    assert values is not None  # they were dealt by honest clients
    return shamir.shares_to_bytes([(value + 1) % shamir.PRIME for value in values])


class WithholdingHolder(RevealingClient):
    """Reveals its share of its own secret and says that it has none of anybody else's."""

    def change(self, reveal: m.Reveal) -> m.Reveal:
        dealers = unpack_positions(reveal.dealers, self._cohort.size, sender=self.member)
        at = dealers.index(self._position)
        return replace(
            reveal,
            dealers=pack_positions([self._position], self._cohort.size),
            shares=reveal.shares[at * SHARE_BYTES : (at + 1) * SHARE_BYTES],
            hidden=reveal.hidden[at * TAG_BYTES : (at + 1) * TAG_BYTES],
        )


class UnreadableDealer(ClientMachine):
    """Seals envelopes that do not open, for the first `spoiled` of its peers."""

    spoiled: int

    def receive(self, frame: bytes, *, now: int | None = None) -> ClientStep:
        step = super().receive(frame, now=now)
        return ClientStep(tuple(map(self._spoil, step.frames)), step.events)

    def _spoil(self, frame: bytes) -> bytes:
        message = m.decode(frame, sender=self.member, limit=1 << 30)
        if not isinstance(message, m.Shares):
            return frame
        stop = self.spoiled * self._form.envelope_bytes
        return replace(message, envelopes=bytes(stop) + message.envelopes[stop:]).encode()


class _ForgingVault(Vault):
    """A vault that deals shares of `decoys` instead of the self masks it published commitments to."""

    decoys: dict[int, bytes]

    @classmethod
    def over(cls, vault: Vault, decoys: dict[int, bytes]) -> Self:
        """The same vault, secrets and all, but for what it deals."""
        forging = cls.__new__(cls)
        forging.__dict__ = vault.__dict__
        forging.decoys = decoys
        return forging

    def deal(self, *, threshold: int, holders: int) -> list[bytes]:
        published, self._self_masks = self._self_masks, self.decoys
        texts = super().deal(threshold=threshold, holders=holders)
        self._self_masks = published
        return texts


class ForgingDealer(ClientMachine):
    """Deals proper shares of improper secrets. `shift` is what believing them adds to a total."""

    def _make_advert(self) -> Advert:
        decoys = {k: self._hooks.random(shamir.SECRET_BYTES) for k in range(self._form.sums)}
        self._vault = self._forging = _ForgingVault.over(self._vault, decoys)
        self.shift: tuple[Residues, ...] = ()
        return super()._make_advert()

    def answer(self, sum_index: int, values: Mapping[str, ArrayLike]) -> Answer:
        question = self._require_asked(sum_index)
        published = self._vault._self_masks[sum_index]
        self.shift = question.encoding.zeros()
        apply_masks(self.shift, plus=[self._seed(question, published)])
        apply_masks(self.shift, minus=[self._seed(question, self._forging.decoys[sum_index])])
        return super().answer(sum_index, values)

    def _seed(self, question: Question, secret: bytes) -> bytes:
        return self_mask_seed(
            secret, session=self._cohort.session, context=question.mask_context, owner=self.member
        )


class OverflowingDealer(ClientMachine):
    """Deals proper shares of numbers that no secret of 32 bytes has, instead of its self-mask secrets."""

    def _make_advert(self) -> Advert:
        self._vault = _OverflowingVault.over(self._vault, {})
        return super()._make_advert()


class _OverflowingVault(_ForgingVault):
    """A vault that adds a constant to all shares of a self-mask secret, and so to what they open."""

    def deal(self, *, threshold: int, holders: int) -> list[bytes]:
        texts = Vault.deal(self, threshold=threshold, holders=holders)
        more = {k: (1 << 256) - int.from_bytes(secret, "big") for k, secret in self._self_masks.items()}
        return [self._shifted(text, more) for text in texts]

    def _shifted(self, text: bytes, more: Mapping[int, int]) -> bytes:
        values = shamir.shares_from_bytes(text)
        assert values is not None
        for k, each in more.items():
            at = k * self._row_bytes // SHARE_BYTES
            values[at] = (values[at] + each) % shamir.PRIME
        return shamir.shares_to_bytes(values)


class ScatteringDealer(ClientMachine):
    """Deals random shares: no two thresholds of holders agree on what its secrets are."""

    def _make_advert(self) -> Advert:
        self._vault = _ScatteringVault.over(self._vault, {})
        return super()._make_advert()


class _ScatteringVault(_ForgingVault):
    """A vault whose shares lie on no polynomial."""

    def deal(self, *, threshold: int, holders: int) -> list[bytes]:
        size = len(self._mask_keys) * 2
        return [self._row(size) for _ in range(holders)]

    def _row(self, size: int) -> bytes:
        values = (int.from_bytes(self._random(32), "big") for _ in range(size))
        return shamir.shares_to_bytes(values)


class OutsideDealer(ClientMachine):
    """Has dealt itself numbers outside the field. They fit the tags that it published, and nobody else saw
    them before it reveals them."""

    def _enter_cohort(self, cohort: CohortView) -> ClientStep:
        vault = _OutsideVault.over(self._vault, {})
        vault.place = cohort.neighbourhood.index(cohort.position[self.member])
        self._vault = vault
        return super()._enter_cohort(cohort)


class _OutsideVault(_ForgingVault):
    """A vault whose shares for the holder at `place` are outside the field."""

    place: int

    def deal(self, *, threshold: int, holders: int) -> list[bytes]:
        texts = Vault.deal(self, threshold=threshold, holders=holders)
        texts[self.place] = b"\xff" * len(texts[self.place])
        return texts
