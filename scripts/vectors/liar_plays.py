"""A transcript with liars.

Eleven clients, of whom three may lie, sign what they say. One puts 5 on the hidden count of the first sum,
which fails. Another one has dealt shares of a decoy for the second sum, which fails, and its envelope for one
client does not open: one report is not enough to convict anybody. In the third sum, one reveals a wrong
share; the others are enough for the exact total.
"""

from __future__ import annotations

from typing import Final

from scripts.vectors.play import FalseCount, FalseDealing, Play, WrongShare
from secagg.insecure_seeds import SeededRandom
from secagg.sum_spec import Count, Part, SumSpec, Table
from secagg.trust_levels import Trust

_MEMBERS: Final = (1, 4, 9, 16, 25, 36, 49, 64, 300, 70000, 70001)
LIARS: Final = Play(
    name="liars",
    about="A session of eleven seeded clients, three of whom lie, under malicious_server; see README.md.",
    trust=Trust.MALICIOUS,
    members=_MEMBERS,
    corrupt=3,
    max_cohort=11,
    dropout=0.25,
    table=Table({"count": SumSpec(parts=(Part(name="x", size=2, bits=10, bound=Count(90)),))}),
    values={"count": {member: {"x": [number, 90 - 7 * number]} for number, member in enumerate(_MEMBERS)}},
    queries=tuple(("count", number, b"question %d" % number) for number in range(3)),
    lost={},
    lies={
        9: FalseCount(index=0, count=5),
        300: WrongShare(index=2, dealer=16),
        70000: FalseDealing(index=1, decoy=SeededRandom(b"decoy")(32), unreadable=36),
    },
)
