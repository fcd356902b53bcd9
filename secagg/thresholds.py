"""Trust levels and the least threshold each of them needs on the complete graph.

With n members, of whom at most c collude with the server:

* `curious_server` follows the protocol and reads everything: c shares must not be enough, t > c
  (Bonawitz et al., Practical Secure Aggregation, 2017).
* `malicious_server` may tell different clients different things: two audiences that share only the
  colluders must not both reach t, 2t > n + c.
"""

from __future__ import annotations

from enum import StrEnum
from fractions import Fraction
from math import floor, isfinite
from typing import Final

from secagg.errors import ParameterError

# Every member deals every other one an envelope: beyond this the set-up outgrows the vectors.
MAX_COMPLETE: Final = 1024


class Trust(StrEnum):
    """What the server may do.

    `Trust.parse` raises `ParameterError` for any other name.

    >>> Trust.parse("malicious_server") is Trust.MALICIOUS
    True
    """

    CURIOUS = "curious_server"
    MALICIOUS = "malicious_server"

    @classmethod
    def parse(cls, name: str) -> Trust:
        """Return the level called `name`. Raises `ParameterError` with the possible names."""
        try:
            return cls(name)
        except ValueError:
            raise ParameterError(f"trust must be one of {', '.join(cls)}") from None

    def least_threshold(self, cohort: int, *, corrupt: int) -> int:
        """Return the smallest threshold that is safe against `corrupt` colluders; may exceed the cohort."""
        if self is Trust.MALICIOUS:
            return max(2, (cohort + corrupt) // 2 + 1)
        return max(2, corrupt + 1)

    def choose_threshold(self, cohort: int, *, corrupt: int, dropout: Fraction | float) -> int:
        """Return the threshold for a cohort that must survive `dropout`. Raises if there is none.

        Under `malicious_server` it is the least safe one. Under `curious_server` it is a majority if that
        many survive: this is more than c colluders need, and costs nothing.
        """
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
    """Return the number of clients in a fraction `dropout` of the cohort."""
    finite = not isinstance(dropout, float) or isfinite(dropout)
    # A float means the decimal number it is written as: 0.1 of 10 clients is one client.
    fraction = Fraction(str(dropout)) if finite else Fraction(1)
    if not 0 <= fraction < 1:
        raise ParameterError("the drop-out fraction must be at least 0 and below 1")
    return floor(fraction * cohort)


def liars_around(corrupt: int, threshold: int) -> int:
    """Return the most corrupt clients in one neighbourhood: a threshold of them could read any secret."""
    return min(corrupt, threshold - 1)
