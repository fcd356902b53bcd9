"""The server's side of one sum: one accumulator, who is in it, and how it is unmasked.

A masked vector is added and forgotten; memory is that of one vector, however many clients there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from secagg.bitmap import unpack_positions
from secagg.errors import (
    BadShare,
    BadVector,
    CorruptDealer,
    MalformedMessage,
    Unrecoverable,
)
from secagg.events import WrongShares
from secagg.keys import public_key, seed_commitment
from secagg.masking import take_off_pairs, take_off_self
from secagg.messages import Reveal
from secagg.question import Question
from secagg.reconstruction import Reconstruction
from secagg.shamir import SHARE_BYTES, share_from_bytes
from secagg.spec import Total


class Tally:
    """What the server knows of one sum. Positions are those of the cohort."""

    def __init__(self, question: Question, *, corrupt: int) -> None:
        self.question = question
        self._corrupt = corrupt
        self._accumulator = question.encoding.zeros()
        self.contributors: set[int] = set()
        self.survivors: tuple[int, ...] = ()
        self.confirmations: dict[int, bytes] = {}
        self.revealed: set[int] = set()
        self._shares: dict[int, dict[int, int]] = {position: {} for position in question.roster}

    # --- collecting ---

    def add_input(self, position: int, data: bytes) -> None:
        """Add a masked input to the accumulator; it is not kept."""
        encoding = self.question.encoding
        if not encoding.accepts(data):
            raise BadVector(self._id(position), "a masked input that does not fit the spec")
        encoding.add(self._accumulator, data)
        self.contributors.add(position)

    def fix_survivors(self) -> tuple[int, ...]:
        """From here on, nobody else is in the sum."""
        self.survivors = tuple(sorted(self.contributors))
        return self.survivors

    def add_reveal(self, position: int, reveal: Reveal) -> None:
        """Keep the shares that one survivor released."""
        size, sender = self.question.cohort.size, self._id(position)
        dealers = unpack_positions(reveal.dealers, size, sender=sender)
        if len(reveal.shares) != SHARE_BYTES * len(dealers) or not set(dealers) <= set(self._shares):
            raise MalformedMessage(sender, "shares that do not match the roster")
        starts = range(0, len(reveal.shares), SHARE_BYTES)
        shares = [_share(reveal.shares[start : start + SHARE_BYTES], sender) for start in starts]
        for dealer, share in zip(dealers, shares, strict=True):
            self._shares[dealer][position + 1] = share
        self.revealed.add(position)

    # --- unmasking ---

    def unmask(self) -> tuple[Total, tuple[WrongShares, ...]]:
        """The total, and which shares were wrong. Raises `SumFailed`; then nothing is released."""
        threshold, revealed = self.question.cohort.threshold, len(self.revealed)
        reconstruction = Reconstruction(threshold, corrupt=self._corrupt, revealed=revealed)
        secrets, blamed = self._reconstruct(reconstruction)
        if blamed:
            raise Unrecoverable(blamed)
        self._unmask(secrets)
        total = self.question.encoding.decode(
            self._accumulator,
            contributors=len(self.survivors),
            invited=len(self.question.roster),
        )
        return total, self._wrong_shares(reconstruction)

    def _unmask(self, secrets: Mapping[int, bytes]) -> None:
        accumulator, question = self._accumulator, self.question
        for position, secret in secrets.items():
            if position in self.contributors:
                take_off_self(accumulator, question, position=position, secret=secret)
            else:
                take_off_pairs(
                    accumulator, question, dropped=position, mask_key=secret, survivors=self.survivors
                )

    def _reconstruct(self, reconstruction: Reconstruction) -> tuple[dict[int, bytes], list[CorruptDealer]]:
        """Everybody's secret, or all the dealers whose secret cannot be had."""
        secrets: dict[int, bytes] = {}
        blamed: list[CorruptDealer] = []
        for position, shares in self._shares.items():
            try:
                matches = partial(self._matches, position)
                secrets[position] = reconstruction.secret(self._id(position), shares, matches)
            except CorruptDealer as error:
                blamed.append(error)
                if len(blamed) > self._corrupt and not error.proven:
                    break  # holders lie; the sum is lost, and finding more of their victims helps nobody
        return secrets, blamed

    def _matches(self, position: int, secret: bytes) -> bool:
        """Whether `secret` is what the dealer published a commitment or public key of."""
        advert, index = self.question.cohort.adverts[position], self.question.sum_index
        if position in self.contributors:
            commitment = seed_commitment(secret, owner=advert.member, sum_index=index)
            return commitment == advert.commitments[index]
        return public_key(secret) == advert.mask_keys[index]

    def _wrong_shares(self, reconstruction: Reconstruction) -> tuple[WrongShares, ...]:
        return tuple(
            WrongShares(dealer, tuple(self._id(point - 1) for point in sorted(points)))
            for dealer, points in reconstruction.wrong.items()
        )

    def _id(self, position: int) -> int:
        return self.question.cohort.ids[position]


def _share(data: bytes, sender: int) -> int:
    share = share_from_bytes(data)
    if share is None:
        raise BadShare(sender, "a share outside the field")
    return share
