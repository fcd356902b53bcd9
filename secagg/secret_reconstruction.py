"""`Reconstruction`, which finds clients' secrets from revealed Shamir shares although some may be wrong."""

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
    """Reconstructs the clients' secrets of one sum from revealed shares, of which some may be wrong. If a
    holder has revealed a wrong share, its other shares are used only if there are too few from others."""

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
        """Return the secret of `dealer` from `shares` (point -> value): the one for which `matches` is true.
        `holders[x - 1]` is the client that holds the share at point x. `answered` is the number of holders
        that revealed shares of any dealer. Raises `CorruptDealer` if no matching secret is found."""
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
        """Return the secret for which `matches` is true, although some shares are wrong, and the points of
        the wrong shares. Raises `CorruptDealer`, for `dealer`, if no such secret is found."""
        found = shamir.correct_errors(shares, self._threshold)
        if found is None or not matches(found[0]):
            found = self._other_subsets(shares, matches)
        if found is None:
            proven = self._no_lie_explains(len(shares), searched_all=self._subsets_left > 0)
            raise CorruptDealer(dealer, "its shares do not open its commitment", proven=proven)
        return found

    def _no_lie_explains(self, shares: int, *, searched_all: bool) -> bool:
        """Return whether the dealer must be corrupt if no secret was found from this many shares. Shares of
        an honest dealer have at most `corrupt` errors. The search of all subsets then succeeds if there are
        at least `corrupt` shares beyond the threshold, and the decoder if there are at least 2 `corrupt`."""
        return shares - self._threshold >= (self._corrupt if searched_all else 2 * self._corrupt)

    def _other_subsets(
        self, shares: Mapping[int, int], matches: Callable[[bytes], bool]
    ) -> tuple[bytes, set[int]] | None:
        """Try subsets of the shares, for the case that more are wrong than the decoder can correct. Return
        the first secret for which `matches` is true, and the points of the wrong shares, or None. The number
        of subsets is limited for the whole sum, so that corrupt clients cannot cause long searches."""
        for points in combinations(shares, self._threshold):
            if self._subsets_left == 0:
                return None
            self._subsets_left -= 1
            secret = shamir.interpolate(shamir.lagrange_weights(points), [shares[x] for x in points])
            if secret is not None and matches(secret):
                agreed = {x: shares[x] for x in points}
                return secret, shamir.off_polynomial(agreed, shares)
        return None
