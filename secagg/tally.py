"""The server's side of one sum: one accumulator, who is in it, and how it is unmasked.

A masked vector is added and forgotten; memory is that of one vector, however many clients there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TypeAlias

from secagg.bitmap import PositionSet, unpack_positions
from secagg.errors import (
    BadShare,
    BadVector,
    CorruptDealer,
    CorruptTotal,
    MalformedMessage,
    TooFewClients,
    Unrecoverable,
)
from secagg.events import WrongShares
from secagg.expansion import Expander
from secagg.graph import Graph
from secagg.keys import noise_commitment, public_key, seed_commitment
from secagg.masking import Removal, masks_with, own_mask
from secagg.masks import KeyStream
from secagg.messages import Reveal
from secagg.question import Question
from secagg.reconstruction import Reconstruction
from secagg.shamir import SHARE_BYTES, shares_from_bytes
from secagg.spec import Total, Values
from secagg.thresholds import liars_around

_Secret: TypeAlias = tuple[int, int]  # whose, and which


class Tally:
    """What the server knows of one sum. Positions are those of the cohort."""

    def __init__(self, question: Question, graph: Graph, *, corrupt: int, expander: Expander) -> None:
        self.question = question
        self._graph = graph
        self._corrupt = corrupt
        self._expander = expander
        self._accumulator = question.encoding.zeros()
        self._room: list[Values] = []
        self._spoiled = False  # something was begun on it and not finished
        self.contributors: set[int] = set()
        self.survivors = PositionSet()
        self.confirmations: dict[int, bytes] = {}
        self.revealed: set[int] = set()
        self._surplus: tuple[int, ...] = ()
        # dealer -> shares by point, of each of its layers; the first is what its masks need
        self._shares: dict[int, list[dict[int, int]]] = {}

    # --- collecting ---

    def add_input(self, position: int, data: bytes) -> None:
        """Add a masked input to the accumulator; it is not kept."""
        encoding = self.question.encoding
        if not encoding.accepts(data):
            raise BadVector(self._id(position), "a masked input that does not fit the spec")
        self._spoiled = True
        encoding.add(self._accumulator, data)
        self._spoiled = False
        self.contributors.add(position)

    def fix_survivors(self) -> PositionSet:
        """From here on, nobody else is in the sum. While shares are on their way, room is made for it."""
        self._room = self.question.encoding.room()
        self.survivors = PositionSet(self.contributors)
        self._surplus = self.question.surplus(len(self.survivors))
        self._shares = {position: [{} for _ in self._layers(position)] for position in self.question.roster}
        return self.survivors

    def _layers(self, position: int) -> tuple[int, ...]:
        """Of which everybody around reveals a share."""
        return (0, *self._surplus) if position in self.contributors else (0,)

    def add_reveal(self, position: int, reveal: Reveal) -> None:
        """Keep the shares that one survivor released."""
        sender, around = self._id(position), self._graph.neighbourhood(position)
        places = unpack_positions(reveal.dealers, len(around), sender=sender)
        dealers = [around[place] for place in places]
        own_places = self._graph.places(position)
        points = [own_places[place] + 1 for place in places]
        if not self._shares.keys() >= set(dealers):
            raise MalformedMessage(sender, "shares that do not match the roster")
        owed = [
            (kept, point)
            for dealer, point in zip(dealers, points, strict=True)
            for kept in self._shares[dealer]
        ]
        if len(reveal.shares) != SHARE_BYTES * len(owed):
            raise MalformedMessage(sender, "shares that do not match the roster")
        shares = shares_from_bytes(reveal.shares)
        if shares is None:
            raise BadShare(sender, "a share outside the field")
        for (kept, point), share in zip(owed, shares, strict=True):
            kept[point] = share
        self.revealed.add(position)

    # --- unmasking ---

    def check_reach(self, present: PositionSet | set[int], threshold: int) -> None:
        """Raise `TooFewClients` unless a threshold of everybody's holders are in `present`."""
        around = self._graph.present_around(present)
        worst = min(self.question.roster, key=around.__getitem__)
        if around[worst] < threshold:
            raise TooFewClients(
                f"only {around[worst]} of client {self._id(worst)}'s neighbours are left; "
                f"{threshold} are needed to remove its masks",
                present=around[worst],
                needed=threshold,
            )

    def unmask(self) -> tuple[Total, tuple[WrongShares, ...]]:
        """The total, and which shares were wrong. Raises `SumFailed`; then nothing is released."""
        cohort = self.question.cohort
        self.check_reach(self.revealed, cohort.threshold)
        self._expander.get_ready()
        liars = liars_around(self._corrupt, cohort.threshold)
        reconstruction = Reconstruction(cohort.threshold, corrupt=liars)
        secrets, blamed = self._reconstruct(reconstruction)
        if blamed:
            raise Unrecoverable(blamed)
        if self._spoiled:
            # The hidden count is the last element: it may be right where the rest is not.
            raise CorruptTotal("adding or unmasking inputs was interrupted before")
        self._spoiled = True
        self._expander.take_off(self._accumulator, list(self._removals(secrets)), salt=cohort.session)
        self._remove_noise(secrets)
        total = self.question.encoding.decode(
            self._accumulator,
            contributors=len(self.survivors),
            invited=len(self.question.roster),
            room=self._room,
        )
        return total, self._wrong_shares(reconstruction)

    def _removals(self, secrets: Mapping[_Secret, bytes]) -> Iterator[Removal]:
        question = self.question
        for (position, layer), secret in secrets.items():
            if layer:
                continue
            if position in self.contributors:
                yield own_mask(question, position=position, secret=secret)
            else:
                around = self._graph.neighbourhood(position)
                survivors = [peer for peer in around if peer in self.contributors]
                yield masks_with(question, dropped=position, mask_key=secret, survivors=survivors)

    def _remove_noise(self, secrets: Mapping[_Secret, bytes]) -> None:
        """What survivors added for others who might have dropped out."""
        layers = self.question.encoding.noise()
        for (position, layer), secret in secrets.items():
            if layer:
                seed = self.question.noise_seed(secret, position, layer)
                layers.remove(layer, self._accumulator, KeyStream(seed))

    def _reconstruct(
        self, reconstruction: Reconstruction
    ) -> tuple[dict[_Secret, bytes], list[CorruptDealer]]:
        """Everybody's secrets, or all the dealers whose secrets cannot be had."""
        secrets: dict[_Secret, bytes] = {}
        blamed: list[CorruptDealer] = []
        answered = self._graph.present_around(self.revealed)
        for position, rows in self._shares.items():
            try:
                for layer, shares in zip(self._layers(position), rows, strict=True):
                    secrets[position, layer] = reconstruction.secret(
                        self._id(position),
                        shares,
                        partial(self._matches, position, layer),
                        holders=self._graph.neighbourhood(position),
                        answered=answered[position],
                    )
            except CorruptDealer as error:
                blamed.append(error)
                if len(blamed) > self._corrupt and not error.proven:
                    break  # holders lie; the sum is lost, and finding more of their victims helps nobody
        return secrets, blamed

    def _matches(self, position: int, layer: int, secret: bytes) -> bool:
        """Whether `secret` is what the dealer published a commitment or public key of."""
        advert, index = self.question.cohort.adverts[position], self.question.sum_index
        if layer:
            commitment = noise_commitment(secret, owner=advert.member, sum_index=index, layer=layer)
            return commitment == advert.noise_commitment(index, layer)
        if position in self.contributors:
            commitment = seed_commitment(secret, owner=advert.member, sum_index=index)
            return commitment == advert.commitments[index]
        return public_key(secret) == advert.mask_keys[index]

    def _wrong_shares(self, reconstruction: Reconstruction) -> tuple[WrongShares, ...]:
        return tuple(
            WrongShares(dealer, tuple(self._id(holder) for holder in sorted(holders)))
            for dealer, holders in reconstruction.wrong.items()
        )

    def _id(self, position: int) -> int:
        return self.question.cohort.ids[position]
