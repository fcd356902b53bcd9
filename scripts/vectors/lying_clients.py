"""Clients that lie in one place, and otherwise do and note all that `RecordingClient` does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from scripts.vectors.play import FalseCount, FalseDealing, WrongShare
from scripts.vectors.recording_client import RecordingClient
from secagg import messages as m
from secagg.cohort_members import CohortView
from secagg.events import ClientStep
from secagg.query_context import Question
from secagg.residue_packing import Residues
from secagg.shamir import PRIME, SHARE_BYTES

_LIMIT: Final = 1 << 20


class CountLiar(RecordingClient):
    """Puts another number than 1 on the hidden count."""

    def __init__(self, *, lie: FalseCount, **settings: Any) -> None:
        super().__init__(**settings)
        self._lie = lie
        self._hooks = replace(self._hooks, transform=self._transform)

    def _transform(self, question: Question, residues: tuple[Residues, ...]) -> tuple[Residues, ...]:
        *parts, count = residues
        false = question.sum_index == self._lie.index
        return (*parts, np.full_like(count, self._lie.count) if false else count)


class ShareLiar(RecordingClient):
    """Reveals a wrong share of the self mask of one dealer: the next number of the field."""

    def __init__(self, *, lie: WrongShare, **settings: Any) -> None:
        super().__init__(**settings)
        self._lie = lie
        self.wrong = b""  # the share that it revealed

    def _reveal(self, question: Question) -> ClientStep:
        if question.sum_index == self._lie.index:
            held = self._vault._held[question.sum_index]
            at = self._cohort.position[self._lie.dealer]
            share = (int.from_bytes(held[at][:SHARE_BYTES], "big") + 1) % PRIME
            self.wrong = share.to_bytes(SHARE_BYTES, "big")
            held[at] = self.wrong + held[at][SHARE_BYTES:]
        return super()._reveal(question)


class FalseDealer(RecordingClient):
    """Deals shares of a decoy, and seals one envelope that does not open: it has nothing but zeros."""

    def __init__(self, *, lie: FalseDealing, **settings: Any) -> None:
        super().__init__(**settings)
        self._lie = lie

    def lies(self) -> dict[str, Any]:
        decoys = {str(self._lie.index): self._lie.decoy.hex()}
        return {"decoys": decoys, "unreadable": [self._lie.unreadable]}

    def _enter_cohort(self, cohort: CohortView) -> ClientStep:
        masks, index = self._vault._self_masks, self._lie.index
        published, masks[index] = masks[index], self._lie.decoy
        (frame,) = super()._enter_cohort(cohort).frames
        masks[index] = published
        shares = m.decode(frame, sender=self.member, limit=_LIMIT)
        assert isinstance(shares, m.Shares)
        size = self._form.envelope_bytes
        others = [cohort.ids[each] for each in cohort.neighbourhood if cohort.ids[each] != self.member]
        at = others.index(self._lie.unreadable) * size
        envelopes = shares.envelopes[:at] + bytes(size) + shares.envelopes[at + size :]
        return ClientStep((replace(shares, envelopes=envelopes).encode(),))


def new_recording_client(lie: object, **settings: Any) -> RecordingClient:
    """A client that tells this lie, or none."""
    match lie:
        case FalseCount():
            return CountLiar(lie=lie, **settings)
        case WrongShare():
            return ShareLiar(lie=lie, **settings)
        case FalseDealing():
            return FalseDealer(lie=lie, **settings)
    return RecordingClient(**settings)
