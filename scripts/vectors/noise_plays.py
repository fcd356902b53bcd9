"""Transcripts with noise.

Six clients play with removable noise: one never hears the first query, and one of the others not who
survived; nobody is missing in the second. Of the third, whose noise cannot be removed, one is missing, as its
promise allows. In the fourth, two are: enough for a threshold, but not for the promise, so it is closed.

Five clients play with so much noise that 20 bits look up a sample, while a word of the stream has 32.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from scripts.vectors.play import Play, Values
from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.sum_spec import L2, Count, LInf, Part, SumSpec, Table
from secagg.trust_levels import Trust

# One part has no noise, which streams have to skip. Blocks of the first begin with words of 32 bits, the
# others with words of 16.
_NOISE_TABLE: Final = Table(
    {
        "update": SumSpec(
            parts=(
                Part(
                    name="direction",
                    size=5,
                    bits=18,
                    bound=L2(1.5),
                    noise=Noise(scale=1000.25, variance=Fraction(1_000_000)),
                ),
                Part(name="examples", size=2, bits=10, bound=Count(80)),
                Part(
                    name="label",
                    size=3,
                    bits=13,
                    bound=Count(1, total=1),
                    noise=Noise(scale=64, variance=Fraction(20_000, 3)),
                ),
                Part(
                    name="extremes",
                    size=3,
                    bits=14,
                    bound=LInf(0.25),
                    noise=Noise(scale=400.5, variance=Fraction(5000)),
                ),
            ),
            promise=NoiseAssumptions(clients=40, dropouts=2, colluders=1, removable=True),
        ),
        "tally": SumSpec(
            parts=(
                Part(
                    name="votes",
                    size=2,
                    bits=9,
                    bound=Count(3, total=4),
                    noise=Noise(scale=20, variance=Fraction(2500, 7)),
                ),
            ),
            promise=NoiseAssumptions(clients=6, dropouts=1, colluders=1),
        ),
    }
)
_NOISE_UPDATES: Final[Mapping[int, Values]] = {
    1: {
        "direction": [0.5, -0.25, 0.125, -1.0, 0.0],
        "examples": [80, 0],
        "label": [1, 0, 0],
        "extremes": [0.1, -0.2, 0.25],
    },
    4: {
        "direction": [3.0, -4.0, 0.0, 0.0, 1e-3],  # clipped
        "examples": [7, 3],
        "label": [1, 0, 0],
        "extremes": [-0.3, 0.0, 1e-9],  # clipped
    },
    9: {
        "direction": [1.5, 0.0, 0.0, 0.0, 0.0],
        "examples": [1, 79],
        "label": [0, 0, 1],
        "extremes": [-0.25, -0.25, -0.25],
    },
    300: {
        "direction": [-0.1, -0.2, -0.3, -0.4, -0.5],
        "examples": [0, 0],
        "label": [0, 0, 0],
        "extremes": [0.03, 0.02, 0.01],
    },
    70000: {
        "direction": [0.0, 0.0, 0.0, 0.0, 0.0],
        "examples": [12, 34],
        "label": [0, 0, 1],
        "extremes": [0.0, 0.0, 0.0],
    },
    70001: {
        "direction": [0.7, -0.7, 0.7, -0.7, 0.5],
        "examples": [80, 80],
        "label": [1, 0, 0],
        "extremes": [0.25, -0.25, 0.125],
    },
}
# In a total, one of them is noise alone, below zero; the other is beyond half of the ring, and above zero.
_VOTES: Final[Mapping[int, Values]] = {
    1: {"votes": [3, 1]},
    4: {"votes": [0, 3]},
    9: {"votes": [0, 3]},
    300: {"votes": [0, 2]},
    70000: {"votes": [0, 3]},
    70001: {"votes": [0, 3]},
}
NOISE: Final = Play(
    name="noise",
    about="A session of six seeded clients with noise, under malicious_server; see README.md.",
    trust=Trust.MALICIOUS,
    members=(1, 4, 9, 300, 70000, 70001),
    corrupt=1,
    max_cohort=6,
    dropout=0.2,
    table=_NOISE_TABLE,
    values={"update": _NOISE_UPDATES, "tally": _VOTES},
    queries=(
        ("update", 0, b"a model"),
        ("update", 1, b"a better model"),
        ("tally", 0, b"a question"),
        ("tally", 1, b"another question"),
    ),
    lost={(0, "Query"): (9,), (0, "Survivors"): (70000,), (2, "Query"): (1,)},
    declined={3: (4,)},
    silent={3: (300,)},
    leavers=(9,),
)

# --- with much noise --------------------------------------------------------------------------------

# With all five, each adds two components: of variance 4,000,000, and of 1,000,000, which can be removed.
_WIDE_TABLE: Final = Table(
    {
        "vector": SumSpec(
            parts=(
                Part(
                    name="x",
                    size=24,
                    bits=24,
                    bound=LInf(1.0),
                    noise=Noise(scale=1000.0, variance=Fraction(15_000_000)),
                ),
            ),
            promise=NoiseAssumptions(clients=201, dropouts=1, colluders=1, removable=True),
        )
    }
)
_WIDE_MEMBERS: Final = (3, 4, 70, 300, 65536)
WIDE_NOISE: Final = Play(
    name="noise-wide",
    about="A session of five seeded clients with much noise, under curious_server; see README.md.",
    trust=Trust.CURIOUS,
    members=_WIDE_MEMBERS,
    corrupt=1,
    max_cohort=6,
    dropout=0.4,
    table=_WIDE_TABLE,
    values={
        "vector": {
            member: {"x": [(k * at % 9 - 4) / 4 for at in range(24)]}
            for k, member in enumerate(_WIDE_MEMBERS)
        }
    },
    # With these payloads, three samples depend on the bits of a word after the first 20.
    queries=(("vector", 0, b"model 18"), ("vector", 1, b"better model 18")),
    lost={(1, "Query"): (70,)},
)
