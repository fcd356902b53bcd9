"""Secrets from shares that strangers sent: verified against what the dealer published.

The first threshold of shares is tried with weights computed once per set of holders. If the result does not
match, the Reed-Solomon decoder looks for the polynomial most holders agree on, then a bounded number of
other subsets is tried. A share off the polynomial may be its holder's doing or its dealer's: both are named.
If nothing matches, the dealer is to blame. That is proven where the holders' possible lies cannot explain it:
more of them lack a share than may be corrupt, or the decoder (or a search of all subsets) would have
corrected as many lies as there may be corrupt holders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Final

from secagg import shamir
from secagg.errors import CorruptDealer

_MOST_SUBSETS: Final = 256


class Reconstruction:
    """Reconstructs the secrets of one sum. Remembers whose shares were wrong, and asks the others first."""

    def __init__(self, threshold: int, *, corrupt: int) -> None:
        self._threshold = threshold
        self._corrupt = corrupt  # of a dealer's holders
        self.wrong: dict[int, set[int]] = {}  # dealer -> holders off its polynomial
        self._doubts: Counter[int] = Counter()  # by holder
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
        """The secret of `dealer` from `shares` (point -> value), or `CorruptDealer`.

        `holders[x - 1]` is the holder at point x, and `answered` of them have revealed shares of anyone.
        """
        if len(shares) < self._threshold:
            why = f"{len(shares)} of {self._threshold} shares are there"
            proven = answered - len(shares) > self._corrupt
            raise CorruptDealer(dealer, why, proven=proven)
        secret = self._interpolate(self._trusted_first(shares, holders)[: self._threshold], shares)
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

    def _interpolate(self, points: list[int], shares: Mapping[int, int]) -> bytes | None:
        return shamir.interpolate(self._weights(tuple(points)), [shares[x] for x in points])

    def _corrected(
        self, dealer: int, shares: Mapping[int, int], matches: Callable[[bytes], bool]
    ) -> tuple[bytes, set[int]]:
        """The secret, and the points at which shares are wrong."""
        found = shamir.correct_errors(shares, self._threshold)
        if found is None or not matches(found[0]):
            found = self._other_subsets(shares, matches)
        if found is None:
            proven = self._no_lie_explains(len(shares), searched_all=self._subsets_left > 0)
            raise CorruptDealer(dealer, "its shares do not open its commitment", proven=proven)
        return found

    def _no_lie_explains(self, shares: int, *, searched_all: bool) -> bool:
        """Whether an honest dealer's secret would have been found, however the corrupt holders lied.

        Of the shares, all but `corrupt` are right. The decoder finds the secret if twice the lies are spare;
        a search of all subsets finds it as soon as one subset is free of lies.
        """
        return shares - self._threshold >= (self._corrupt if searched_all else 2 * self._corrupt)

    def _other_subsets(
        self, shares: Mapping[int, int], matches: Callable[[bytes], bool]
    ) -> tuple[bytes, set[int]] | None:
        """Beyond the decoder's radius: leave out few shares at a time and look at the commitment.

        The budget is one for the whole sum, so that liars cannot buy a search per dealer.
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
