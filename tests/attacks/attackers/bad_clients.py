"""Bad clients: real machines that lie in one message, to forge a total or to stop everybody's sum.

A client can always add what it likes to a sum: masked inputs cannot be checked, and that is no attack on the
protocol. These try what they must not be able to do: to make the server release a total that is not the sum
of the inputs it accepted, to crash it, to stop the others for good, or to have them blamed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from numpy.typing import ArrayLike

from secagg import messages as m
from secagg import shamir
from secagg.bitmap import pack_positions, unpack_positions
from secagg.client import ClientMachine
from secagg.events import Answer, ClientStep
from secagg.keys import self_mask_seed
from secagg.mask_keystream import apply_masks
from secagg.message_records import Advert
from secagg.query_context import Question
from secagg.residue_packing import Residues
from secagg.session_secrets import Vault
from secagg.shamir import SHARE_BYTES
from secagg.share_envelopes import envelope_bytes


class MisfitClient(ClientMachine):
    """Sends a masked input that `reshape` has changed."""

    reshape: Callable[[bytes], bytes]

    def answer(self, sum_index: int, values: Mapping[str, ArrayLike]) -> Answer:
        answer = super().answer(sum_index, values)
        message = m.decode(answer.frame, sender=self.member, limit=1 << 30)
        assert isinstance(message, m.MaskedInput)
        return Answer(m.MaskedInput(message.context, sum_index, self.reshape(message.data)).encode(), {})


class LyingHolder(ClientMachine):
    """Reveals every share of others, and its own, off by one."""

    def receive(self, frame: bytes, *, now: int | None = None) -> ClientStep:
        step = super().receive(frame, now=now)
        return ClientStep(tuple(map(self._spoil, step.frames)), step.events)

    def _spoil(self, frame: bytes) -> bytes:
        message = m.decode(frame, sender=self.member, limit=1 << 30)
        if not isinstance(message, m.Reveal):
            return frame
        wrong = b""
        for start in range(0, len(message.shares), SHARE_BYTES):
            share = int.from_bytes(message.shares[start : start + SHARE_BYTES], "big")
            wrong += shamir.shares_to_bytes([(share + 1) % shamir.PRIME])
        return m.Reveal(message.context, message.sum_index, message.dealers, wrong).encode()


class WithholdingHolder(ClientMachine):
    """Reveals its share of its own secret and says that it has none of anybody else's."""

    def receive(self, frame: bytes, *, now: int | None = None) -> ClientStep:
        step = super().receive(frame, now=now)
        return ClientStep(tuple(map(self._withhold, step.frames)), step.events)

    def _withhold(self, frame: bytes) -> bytes:
        message = m.decode(frame, sender=self.member, limit=1 << 30)
        if not isinstance(message, m.Reveal):
            return frame
        dealers = unpack_positions(message.dealers, self._cohort.size, sender=self.member)
        start = dealers.index(self._position) * SHARE_BYTES
        own = pack_positions([self._position], self._cohort.size)
        share = message.shares[start : start + SHARE_BYTES]
        return m.Reveal(message.context, message.sum_index, own, share).encode()


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
        stop = self.spoiled * envelope_bytes(self._form.sums)
        envelopes = bytes(stop) + message.envelopes[stop:]
        return m.Shares(message.context, envelopes, message.signature).encode()


class _ForgingVault(Vault):
    """A vault that deals shares of `decoys` instead of the self masks it published commitments to."""

    decoys: dict[int, bytes]

    @classmethod
    def over(cls, vault: Vault, decoys: dict[int, bytes]) -> _ForgingVault:
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
