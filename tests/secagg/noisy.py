"""A witness of noise: what every client encoded before it masked it, and which seeds and shares it had.

With that, a total can be computed without any of the machines' own code for removing noise: the residues of
the contributors, less the samples of the layers that are surplus.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from secagg import client, self_and_pair_masks
from secagg.client import ClientMachine
from secagg.keys import hkdf, noise_info
from secagg.mask_keystream import KeyStream
from secagg.noise.gaussian import discrete_gaussian
from secagg.query_context import Question
from secagg.residue_packing import Residues
from secagg.shamir import SHARE_BYTES
from secagg.sum_spec import Total, Values


class Witness:
    """Sees every input of the clients that are made after it, before it is masked."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.questions: dict[int, Question] = {}  # by sum
        self._inputs: dict[tuple[int, int], list[Residues]] = {}  # (member, sum) -> residues
        self._seeds: dict[tuple[int, int], tuple[bytes, ...]] = {}
        self._held: dict[tuple[int, int, int], bytes] = {}  # (holder, sum, position of the dealer) -> row
        patch.setattr(client, "put_on", self._put_on)

    def _put_on(self, residues: Sequence[Residues], question: Question, **secrets: Any) -> bytes:
        member = question.cohort.ids[secrets["position"]]
        self.questions[question.sum_index] = question
        self._inputs[member, question.sum_index] = [part.copy() for part in residues]
        return self_and_pair_masks.put_on(residues, question, **secrets)

    def look(self, clients: Mapping[int, ClientMachine]) -> None:
        """Copy the secrets of clients whose set-up is over."""
        for member, machine in clients.items():
            self._seeds |= {(member, k): seeds for k, seeds in machine._vault._noise.items()}
            for k, held in machine._vault._held.items():
                self._held |= {(member, k, dealer): row for dealer, row in held.items()}

    # --- totals ---

    def total(self, sum_index: int, contributors: Collection[int], layers: Collection[int]) -> Total:
        """What is left of the contributors' inputs without `layers` of anybody's noise."""
        question, residues = self.questions[sum_index], self.residues(sum_index, contributors, layers)
        return question.encoding.decode(
            residues, contributors=len(contributors), invited=len(question.roster)
        )

    def residues(
        self, sum_index: int, contributors: Iterable[int], layers: Collection[int]
    ) -> tuple[Residues, ...]:
        total = self.questions[sum_index].encoding.zeros()
        for member in contributors:
            seeds = self._seeds[member, sum_index]
            noises = [self.noise(sum_index, member, layer, seeds[layer - 1]) for layer in layers]
            for at, part in enumerate(total):
                part += self._inputs[member, sum_index][at]
                for noise in noises:
                    part -= noise[at].astype(part.dtype)
        return total

    def noise(self, sum_index: int, owner: int, layer: int, secret: bytes) -> list[NDArray[np.int64]]:
        """The samples of one layer by part, the hidden count included."""
        question = self.questions[sum_index]
        info = noise_info(question.mask_context, owner, layer)
        stream = KeyStream(hkdf(secret, salt=question.cohort.session, info=info))
        assert question.spec.promise is not None
        share = question.spec.promise.components(len(question.roster))[layer]
        samples = [
            np.zeros(part.width, np.int64)
            if part.noise is None
            else discrete_gaussian(part.noise.variance * share).sample(stream, part.width)
            for part in question.spec.parts
        ]
        return [*samples, np.zeros(1, np.int64)]

    # --- shares ---

    def column(self, holder: int, sum_index: int, dealer: int, share: bytes) -> int:
        """Of which of the dealer's secrets a share is: 0 the self mask, 1 the mask key, then the seeds.

        The dealer is given by its position in the cohort.
        """
        row = self._held[holder, sum_index, dealer]
        return [row[at : at + SHARE_BYTES] for at in range(0, len(row), SHARE_BYTES)].index(share)


def same(one: Mapping[str, Values], other: Mapping[str, Values]) -> bool:
    """Whether two totals are equal bit for bit."""
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)
