"""The server's side of one sum: it adds masked inputs, collects shares, and unmasks the total.

Each masked vector is added to a total and then discarded, so memory does not grow with the number of clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TypeAlias

from secagg import errors
from secagg.bitmap import PositionSet, unpack_positions
from secagg.errors import CorruptDealer
from secagg.events import WrongShares
from secagg.keys import noise_commitment, public_key, seed_commitment
from secagg.mask_keystream import KeyStream
from secagg.messages import Reveal
from secagg.query_context import Question
from secagg.secret_reconstruction import Reconstruction
from secagg.self_and_pair_masks import Expander, Removal, masks_with, own_mask
from secagg.shamir import SHARE_BYTES, shares_from_bytes
from secagg.sum_spec import Total, Values
from secagg.topology import Graph
from secagg.trust_levels import liars_around

_Secret: TypeAlias = tuple[int, int]  # (position of its dealer, layer: 0 for masks, from 1 on for noise)


class Tally:
    """The server's state of one sum. A client is named by its position in the cohort. *Layers* number the
    secrets of a client: layer 0 is its self-mask secret or, if it dropped out, its mask key. Layers from 1 on
    are seeds of its removable noise. Some of these are *surplus*: as fewer clients dropped out than planned,
    their noise is removed from the total."""

    def __init__(self, question: Question, graph: Graph, *, corrupt: int, expander: Expander) -> None:
        self.question = question
        self._graph = graph
        self._corrupt = corrupt
        self._expander = expander
        self._accumulator = question.encoding.zeros()
        self._buffer: list[Values] = []
        self._spoiled = False  # an addition or the unmasking was interrupted
        self.contributors: set[int] = set()
        self.survivors = PositionSet()
        self.confirmations: dict[int, bytes] = {}
        self.revealed: set[int] = set()
        self._surplus: tuple[int, ...] = ()
        # position of a dealer -> for each of its revealed layers, a mapping from point to share
        self._shares: dict[int, list[dict[int, int]]] = {}

    # --- collecting ---

    def add_input(self, position: int, data: bytes) -> None:
        """Add a client's masked input `data` to the total. Raises `BadVector` if it does not fit the spec."""
        encoding = self.question.encoding
        if not encoding.accepts(data):
            raise errors.BadVector(self._id(position), "a masked input that does not fit the spec")
        self._spoiled = True
        encoding.add(self._accumulator, data)
        self._spoiled = False
        self.contributors.add(position)

    def fix_survivors(self) -> PositionSet:
        """Return the survivors: the positions of the clients whose inputs were added. Call this once, after
        the last input: only then can `add_reveal` store shares."""
        self._buffer = self.question.encoding.buffer()
        self.survivors = PositionSet(self.contributors)
        self._surplus = self.question.surplus(len(self.survivors))
        self._shares = {position: [{} for _ in self._layers(position)] for position in self.question.roster}
        return self.survivors

    def _layers(self, position: int) -> tuple[int, ...]:
        """Return the numbers of those secrets of the client at `position` that the server reconstructs: 0,
        for its masks, and, if it is a survivor, those of the seeds of its surplus noise."""
        return (0, *self._surplus) if position in self.contributors else (0,)

    def add_reveal(self, position: int, reveal: Reveal) -> None:
        """Store the shares that the client at `position` revealed. Raises `PeerError` if they are invalid."""
        sender, around = self._id(position), self._graph.neighbourhood(position)
        places = unpack_positions(reveal.dealers, len(around), sender=sender)
        dealers = [around[place] for place in places]
        own_places = self._graph.places(position)
        points = [own_places[place] + 1 for place in places]
        if not self._shares.keys() >= set(dealers):
            raise errors.MalformedMessage(sender, "shares that do not match the roster")
        owed = [
            (kept, point)
            for dealer, point in zip(dealers, points, strict=True)
            for kept in self._shares[dealer]
        ]
        if len(reveal.shares) != SHARE_BYTES * len(owed):
            raise errors.MalformedMessage(sender, "shares that do not match the roster")
        shares = shares_from_bytes(reveal.shares)
        if shares is None:
            raise errors.BadShare(sender, "a share outside the field")
        for (kept, point), share in zip(owed, shares, strict=True):
            kept[point] = share
        self.revealed.add(position)

    # --- unmasking ---

    def check_reach(self, present: PositionSet | set[int], threshold: int) -> None:
        """Raise `TooFewClients` if fewer than `threshold` holders of some client's shares are `present`."""
        around = self._graph.present_around(present)
        worst = min(self.question.roster, key=around.__getitem__)
        if around[worst] < threshold:
            raise errors.TooFewClients(
                f"only {around[worst]} of client {self._id(worst)}'s neighbours are left; "
                f"{threshold} are needed to remove its masks",
                present=around[worst],
                needed=threshold,
            )

    def unmask(self) -> tuple[Total, tuple[WrongShares, ...]]:
        """Remove all masks and surplus noise. Return the total, and which clients revealed wrong shares of
        whose secrets. Raises `SumFailed` if a secret cannot be reconstructed or the total is corrupt."""
        cohort = self.question.cohort
        self.check_reach(self.revealed, cohort.threshold)
        self._expander.get_ready()
        liars = liars_around(self._corrupt, cohort.threshold)
        reconstruction = Reconstruction(cohort.threshold, corrupt=liars)
        secrets, blamed = self._reconstruct(reconstruction)
        if blamed:
            raise errors.Unrecoverable(blamed)
        if self._spoiled:
            # The hidden count cannot detect this: it is the last element, and may be right nevertheless.
            raise errors.CorruptTotal("adding or unmasking inputs was interrupted before")
        self._spoiled = True
        self._expander.take_off(self._accumulator, list(self._removals(secrets)), salt=cohort.session)
        self._remove_noise(secrets)
        total = self.question.encoding.decode(
            self._accumulator,
            contributors=len(self.survivors),
            invited=len(self.question.roster),
            buffer=self._buffer,
        )
        ids, wrong = self.question.member_ids, reconstruction.wrong.items()
        return total, tuple(WrongShares(dealer, ids(sorted(holders))) for dealer, holders in wrong)

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
        """Subtract survivors' surplus noise, which would be needed only if more clients had dropped out."""
        layers = self.question.encoding.noise()
        for (position, layer), secret in secrets.items():
            if layer:
                seed = self.question.noise_seed(secret, position, layer)
                layers.remove(layer, self._accumulator, KeyStream(seed))

    def _reconstruct(
        self, reconstruction: Reconstruction
    ) -> tuple[dict[_Secret, bytes], list[CorruptDealer]]:
        """Return the secrets by (position, layer), and an error for each client with a secret that cannot be
        reconstructed. Layer 0 is for masks, others for noise. Stop early if too many clients fail."""
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
                    break  # more failures than corrupt dealers: holders lied, and the sum is lost anyway
        return secrets, blamed

    def _matches(self, position: int, layer: int, secret: bytes) -> bool:
        """Return whether the client at `position` has published a commitment or public key of `secret`."""
        advert, index = self.question.cohort.adverts[position], self.question.sum_index
        if layer:
            commitment = noise_commitment(secret, owner=advert.member, sum_index=index, layer=layer)
            return commitment == advert.noise_commitment(index, layer)
        if position in self.contributors:
            commitment = seed_commitment(secret, owner=advert.member, sum_index=index)
            return commitment == advert.commitments[index]
        return public_key(secret) == advert.mask_keys[index]

    def _id(self, position: int) -> int:
        return self.question.cohort.ids[position]
