"""What is played in the transcripts: who takes part, on which terms, what is asked, and what goes wrong.

Four clients play the same on a complete graph under either trust level: all four answer the first sum, and
one of them does not hear who survived; one never hears the second query, which opens a group; the third goes
on with the group of three; of the fourth, only two send inputs, so it is closed; then one client leaves and
the server says farewell.

Seven clients play on a ring of four neighbours each: one never hears the first query, and one of the others
not who survived; all seven answer the second; of the third, only five send inputs, one fewer than hold the
ring together, so it is closed.

Six clients play with noise: one never hears the first query, and one of the others not who survived; nobody
is missing in the second. Of the third, whose noise cannot be removed, one is missing, as its promise allows.
In the fourth, two are: enough for a threshold, but not for the promise, so it is closed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Final, TypeAlias

from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.identity_registry import Registry
from secagg.insecure_seeds import seeded_registry
from secagg.policy import Policy
from secagg.sum_spec import L2, Count, LInf, Part, Residue, SumSpec, Table
from secagg.trust_levels import Trust

SEED: Final = b"transcript"

Values: TypeAlias = Mapping[str, list[Any]]


@dataclass(frozen=True, kw_only=True)
class Play:
    """One session. `queries` are (kind, round, payload); the payload stands for a broadcast model."""

    name: str
    about: str
    trust: Trust
    members: tuple[int, ...]
    corrupt: int
    max_cohort: int
    dropout: float
    table: Table
    values: Mapping[str, Mapping[int, Values]]  # kind -> client -> what it answers in every sum of the kind
    queries: Sequence[tuple[str, int, bytes]]
    lost: Mapping[tuple[int, str], tuple[int, ...]]  # (sum, type of frame) -> whom it does not reach
    declined: Mapping[int, tuple[int, ...]]
    silent: Mapping[int, tuple[int, ...]]
    leavers: tuple[int, ...]
    graph: Mapping[str, Any] = field(default_factory=lambda: {"graph": "complete"})
    policy_changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sums(self) -> int:
        return len(self.queries)

    @property
    def limits(self) -> dict[str, Any]:
        """What the server and its clients agree on beforehand."""
        least = self.corrupt + 2
        sizes = {"min_cohort": least, "max_cohort": self.max_cohort, "min_contributors": least}
        return {"trust": self.trust, "corrupt": self.corrupt, **sizes}

    @property
    def policy(self) -> Policy:
        return Policy(**self.limits, max_sums=self.sums, unnoised_sums=10, **self.policy_changes)

    @property
    def registry(self) -> Registry | None:
        """One identity more than takes part; it expires in the year 2100."""
        if self.trust is Trust.CURIOUS:
            return None
        listed = [*self.members, self.members[-1] + 1]
        return replace(seeded_registry(SEED, listed, version=2), expires=4_102_444_800)


NOW: Final = 1_800_000_000  # seconds of Unix time: before the registries expire


# --- on a complete graph ----------------------------------------------------------------------------

TABLE: Final = Table(
    {
        "update": SumSpec(
            parts=(
                Part(name="direction", size=5, bits=20, bound=L2(1.5)),
                Part(name="extremes", size=3, bits=12, bound=LInf(0.25)),
                Part(name="examples", size=2, bits=9, bound=Count(80)),
                Part(name="parity", size=11, bits=1, bound=Residue()),
                Part(name="checksum", size=2, bits=64, bound=Residue()),
            )
        ),
        "center": SumSpec(
            parts=(
                Part(name="residual", size=3, bits=33, bound=L2(2.0)),
                Part(name="weight", size=1, bits=17, bound=LInf(4.0)),
            ),
            times=2,
            group="median",
        ),
    }
)

# The second client's direction exceeds its bound and is clipped, and so is one of its extremes.
_UPDATES: Final[Mapping[int, Values]] = {
    3: {
        "direction": [0.5, -0.25, 0.125, -1.0, 0.0],
        "extremes": [0.1, -0.2, 0.25],
        "examples": [80, 0],
        "parity": [1, 0, 1, 1, 0, 0, 1, 0, 1, 1, 1],
        "checksum": [2**64 - 1, 1],
    },
    7: {
        "direction": [3.0, -4.0, 0.0, 0.0, 1e-3],
        "extremes": [-0.3, 0.0, 1e-9],
        "examples": [7, 3],
        "parity": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        "checksum": [2**63, 2**32],
    },
    300: {
        "direction": [-0.1, -0.2, -0.3, -0.4, -0.5],
        "extremes": [-0.25, -0.25, -0.25],
        "examples": [1, 79],
        "parity": [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0],
        "checksum": [123456789012345678, 0],
    },
    70000: {
        "direction": [0.0, 0.0, 0.0, 0.0, 0.0],
        "extremes": [0.03, 0.02, 0.01],
        "examples": [0, 0],
        "parity": [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0],
        "checksum": [5, 2**64 - 5],
    },
}
_CENTERS: Final[Mapping[int, Values]] = {
    3: {"residual": [-1.0, -0.5, 0.25], "weight": [1.0]},
    300: {"residual": [-0.75, 0.5, 1e-6], "weight": [3.999]},
    70000: {"residual": [0.0, -1.25, -1.5], "weight": [0.001]},
}


def _complete(trust: Trust) -> Play:
    return Play(
        name=str(trust),
        about=f"A session of four seeded clients under {trust}; see README.md.",
        trust=trust,
        members=(3, 7, 300, 70000),  # ids of one, two and three significant bytes
        corrupt=1,
        max_cohort=6,
        dropout=0.25,
        table=TABLE,
        values={"update": _UPDATES, "center": _CENTERS},
        queries=(
            ("update", 0, b"a model"),
            ("center", 0, b"a center"),
            ("center", 0, b"a better center"),
            ("update", 1, bytes(range(40))),
        ),
        lost={(0, "Survivors"): (300,), (1, "Query"): (7,)},
        declined={3: (7,)},
        silent={3: (300,)},
        leavers=(70000,),
    )


# --- on a ring --------------------------------------------------------------------------------------

_RING_TABLE: Final = Table(
    {
        "step": SumSpec(
            parts=(
                Part(name="direction", size=3, bits=20, bound=L2(1.0)),
                Part(name="examples", size=1, bits=11, bound=Count(100)),
            )
        )
    }
)
_RING_MEMBERS: Final = (2, 5, 40, 41, 300, 65536, 70000)
_STEPS: Final[Mapping[int, Values]] = {
    2: {"direction": [0.5, -0.25, 0.125], "examples": [100]},
    5: {"direction": [3.0, -4.0, 0.0], "examples": [0]},  # clipped
    40: {"direction": [-0.125, -0.5, 0.25], "examples": [17]},
    41: {"direction": [0.0, 0.0, 0.0], "examples": [1]},
    300: {"direction": [-0.75, 0.5, 1e-6], "examples": [64]},
    65536: {"direction": [0.03, 0.02, -0.01], "examples": [99]},
    70000: {"direction": [-0.4, 0.0, 0.9], "examples": [5]},
}
RING: Final = Play(
    name="ring",
    about="A session of seven seeded clients on a ring, under curious_server; see README.md.",
    trust=Trust.CURIOUS,
    members=_RING_MEMBERS,
    corrupt=2,
    max_cohort=8,
    dropout=0.15,
    table=_RING_TABLE,
    values={"step": _STEPS},
    queries=(("step", 0, b"a model"), ("step", 1, b"a better model"), ("step", 2, b"the last model")),
    lost={(0, "Query"): (41,), (0, "Survivors"): (5,)},
    declined={2: (40,)},
    silent={2: (65536,)},
    leavers=(300,),
    graph={"graph": "ring", "security_bits": 20},
    policy_changes={"security_bits": 20},
)

# --- with noise -------------------------------------------------------------------------------------

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

PLAYS: Final[Mapping[str, Play]] = {
    play.name: play for play in (_complete(Trust.CURIOUS), _complete(Trust.MALICIOUS), RING, NOISE)
}
