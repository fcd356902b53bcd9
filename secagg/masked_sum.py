"""The server's side of one sum: it adds masked inputs, collects shares, and unmasks the total.

Each masked vector is added to a total and then discarded, so memory does not grow with the number of clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import combinations
from typing import Final, TypeAlias

from secagg import errors, shamir
from secagg.bitmap import PositionSet, unpack_positions
from secagg.double_masking import Removal, masks_with, own_mask
from secagg.errors import CorruptDealer
from secagg.events import WrongShares
from secagg.keys import noise_commitment, public_key, seed_commitment
from secagg.mask_keystream import KeyStream
from secagg.mask_removal import Expander
from secagg.messages import Reveal
from secagg.question import Question
from secagg.shamir import SHARE_BYTES, shares_from_bytes
from secagg.sum_spec import Total, Values
from secagg.topology import Graph
from secagg.trust_levels import liars_around

_Secret: TypeAlias = tuple[int, int]  # (position of its dealer, layer: 0 for masks, from 1 on for noise)


class Tally:
    """The state of one sum at the server. A client is named by its position in the cohort.

    A *layer* numbers the secrets of a client: 0 is its self-mask secret or, if it dropped out, its mask key;
    those from 1 on are the seeds of its removable noise. The *surplus* layers are removed from the total.
    """

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
        """Add the masked input `data` to the total. Raises `BadVector` if it does not fit the spec."""
        encoding = self.question.encoding
        if not encoding.accepts(data):
            raise errors.BadVector(self._id(position), "a masked input that does not fit the spec")
        self._spoiled = True
        encoding.add(self._accumulator, data)
        self._spoiled = False
        self.contributors.add(position)

    def fix_survivors(self) -> PositionSet:
        """Return the survivors: the positions whose inputs were added. Prepare to collect their shares."""
        self._buffer = self.question.encoding.buffer()
        self.survivors = PositionSet(self.contributors)
        self._surplus = self.question.surplus(len(self.survivors))
        self._shares = {position: [{} for _ in self._layers(position)] for position in self.question.roster}
        return self.survivors

    def _layers(self, position: int) -> tuple[int, ...]:
        """Return the layers of the client at `position` that its neighbours reveal shares of."""
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
        """Raise `TooFewClients` if `present` has fewer than `threshold` holders of some client's shares."""
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
        """Remove masks; return the total and who revealed wrong shares. Raises `SumFailed` if this fails."""
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
        """Subtract the surplus noise, which survivors added in case more clients dropped out than did."""
        layers = self.question.encoding.noise()
        for (position, layer), secret in secrets.items():
            if layer:
                seed = self.question.noise_seed(secret, position, layer)
                layers.remove(layer, self._accumulator, KeyStream(seed))

    def _reconstruct(
        self, reconstruction: Reconstruction
    ) -> tuple[dict[_Secret, bytes], list[CorruptDealer]]:
        """Return the secrets by (position, layer), and an error for each dealer whose secrets were lost."""
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
        """Return whether `secret` fits the commitment or public key that the dealer published."""
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


_MOST_SUBSETS: Final = 256


class Reconstruction:
    """Reconstructs the secrets of one sum from shares.

    If a holder has revealed a wrong share, its other shares are used only if there are too few from others.
    """

    def __init__(self, threshold: int, *, corrupt: int) -> None:
        self._threshold = threshold
        self._corrupt = corrupt  # the most corrupt clients among the holders of one dealer's shares
        self.wrong: dict[int, set[int]] = {}  # dealer -> holders whose shares are not on its polynomial
        self._doubts: Counter[int] = Counter()  # holder -> number of its wrong shares so far
        self._subsets_left = _MOST_SUBSETS
        self._weights = lru_cache(maxsize=64)(shamir.lagrange_weights)

    def secret(
        self,
        dealer: int,
        shares: Mapping[int, int],
        matches: Callable[[bytes], bool],
        *,
        holders: Sequence[int],
        answered: int,
    ) -> bytes:
        """Return the secret of `dealer` from `shares` (point -> value). `matches` must return True for it.

        `holders[x - 1]` is the holder at point x. `answered` is the number of holders that revealed shares of
        any dealer. Raises `CorruptDealer` if no matching secret is found.
        """
        if len(shares) < self._threshold:
            why = f"{len(shares)} of {self._threshold} shares are there"
            proven = answered - len(shares) > self._corrupt
            raise CorruptDealer(dealer, why, proven=proven)
        points = self._trusted_first(shares, holders)[: self._threshold]
        secret = shamir.interpolate(self._weights(tuple(points)), [shares[x] for x in points])
        if secret is not None and matches(secret):
            return secret
        secret, wrong = self._corrected(dealer, shares, matches)
        liars = {holders[point - 1] for point in wrong}
        self.wrong.setdefault(dealer, set()).update(liars)
        self._doubts.update(liars)
        return secret

    def _trusted_first(self, points: Iterable[int], holders: Sequence[int]) -> list[int]:
        if not self._doubts:
            return sorted(points)
        return sorted(points, key=lambda point: (self._doubts[holders[point - 1]], point))

    def _corrected(
        self, dealer: int, shares: Mapping[int, int], matches: Callable[[bytes], bool]
    ) -> tuple[bytes, set[int]]:
        """Return the secret although some shares are wrong, and the points of the wrong shares."""
        found = shamir.correct_errors(shares, self._threshold)
        if found is None or not matches(found[0]):
            found = self._other_subsets(shares, matches)
        if found is None:
            proven = self._no_lie_explains(len(shares), searched_all=self._subsets_left > 0)
            raise CorruptDealer(dealer, "its shares do not open its commitment", proven=proven)
        return found

    def _no_lie_explains(self, shares: int, *, searched_all: bool) -> bool:
        """Return whether the failure to find a secret from this many shares proves its dealer corrupt.

        If the dealer is honest, at most `corrupt` shares are wrong. Then the decoder succeeds with 2 *
        `corrupt` shares more than the threshold, and a search of all subsets with `corrupt` shares more.
        """
        return shares - self._threshold >= (self._corrupt if searched_all else 2 * self._corrupt)

    def _other_subsets(
        self, shares: Mapping[int, int], matches: Callable[[bytes], bool]
    ) -> tuple[bytes, set[int]] | None:
        """Look for the secret in subsets of the shares, if more are wrong than the decoder can correct.

        Return the secret and the points of the wrong shares, or None. The number of subsets is limited for
        the whole sum, so that corrupt clients cannot cause a long search for each dealer.
        """
        for points in combinations(shares, self._threshold):
            if self._subsets_left == 0:
                return None
            self._subsets_left -= 1
            secret = shamir.interpolate(shamir.lagrange_weights(points), [shares[x] for x in points])
            if secret is not None and matches(secret):
                agreed = {x: shares[x] for x in points}
                return secret, shamir.off_polynomial(agreed, shares)
        return None
