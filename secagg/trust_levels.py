"""Trust levels, and the least secret-sharing threshold t for each of them on the complete graph.

Of n members, at most c collude with the server (Bonawitz et al., Practical Secure Aggregation, 2017).

* A `curious_server` follows the protocol, but reads everything. The shares of c colluders must not be enough:
  t > c.
* A `malicious_server` may send different clients different messages. Two groups of clients that have only the
  colluders in common must not both reach t: 2t > n + c.
"""

from __future__ import annotations

from enum import StrEnum
from fractions import Fraction
from math import floor, isfinite
from typing import Final

from secagg.argument_checks import one_of
from secagg.errors import ParameterError

# Most members of a complete graph. With more, the shares between all pairs take more bytes than the vectors.
MAX_COMPLETE: Final = 1024


class Trust(StrEnum):
    """The assumption about the server: it is only curious, or it may break the protocol.

    >>> Trust.parse("malicious_server") is Trust.MALICIOUS
    True
    """

    CURIOUS = "curious_server"
    MALICIOUS = "malicious_server"

    @classmethod
    def parse(cls, name: str) -> Trust:
        """Return the level called `name`. Raise `ParameterError`, which lists all names, if there is none."""
        return one_of(cls, name, "trust")

    def least_threshold(self, cohort: int, *, corrupt: int) -> int:
        """Return the smallest secret-sharing threshold that is safe against `corrupt` colluders in a complete
        graph of `cohort` clients. It may exceed `cohort`."""
        if self is Trust.MALICIOUS:
            return max(2, (cohort + corrupt) // 2 + 1)
        return max(2, corrupt + 1)

    def choose_threshold(self, cohort: int, *, corrupt: int, dropout: Fraction | float) -> int:
        """Return a safe secret-sharing threshold for a complete graph of `cohort` clients, of which the
        fraction `dropout` may drop out. Under `malicious_server`, it is the smallest safe one. Under
        `curious_server`, it is a majority of the cohort; more if that is not safe, or fewer if too few
        clients would be left. Raises `ParameterError` if none is safe, or if an argument is out of range."""
        if not 2 <= cohort <= MAX_COMPLETE:
            raise ParameterError(
                f"the complete graph takes from 2 to {MAX_COMPLETE} clients, not {cohort}: a larger cohort "
                "needs a ring, and a ring a curious_server"
            )
        if corrupt < 0:
            raise ParameterError("corrupt must not be negative")
        if corrupt >= cohort:
            raise ParameterError(f"{corrupt} colluders in a cohort of {cohort} leave no client to protect")
        least = self.least_threshold(cohort, corrupt=corrupt)
        survivors = cohort - dropouts_allowed(cohort, dropout)
        if least > survivors:
            raise ParameterError(
                f"{cohort} clients with {corrupt} colluders under {self} need {least} survivors, "
                f"but a drop-out of {dropout} leaves {survivors}"
            )
        if self is Trust.MALICIOUS:
            return least
        return min(max(least, cohort // 2 + 1), survivors)


def dropouts_allowed(cohort: int, dropout: Fraction | float) -> int:
    """Return the fraction `dropout` of `cohort` as a number of clients, rounded down. Raises `ParameterError`
    unless the fraction is at least 0 and below 1."""
    finite = not isinstance(dropout, float) or isfinite(dropout)
    # A float means the decimal number it is written as: 0.1 of 10 clients is one client.
    fraction = Fraction(str(dropout)) if finite else Fraction(1)
    if not 0 <= fraction < 1:
        raise ParameterError("the drop-out fraction must be at least 0 and below 1")
    return floor(fraction * cohort)


def liars_around(corrupt: int, threshold: int) -> int:
    """Return the most corrupt clients that one neighbourhood can have: `corrupt`, but fewer than `threshold`,
    because a graph with `threshold` corrupt clients in a neighbourhood is not safe. It is at least 1: if one
    client contradicts another, one of them lies after all, and only one of them need be a liar."""
    return max(1, min(corrupt, threshold - 1))
