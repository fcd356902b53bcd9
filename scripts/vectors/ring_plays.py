"""Transcripts on a ring.

Seven clients play on a ring of four neighbours each: one never hears the first query, and one of the others
not who survived; all seven answer the second; of the third, only five send inputs, one fewer than hold the
ring together, so it is closed.

The same clients are told the ids of all others in another session, because their policy is that two sums of a
kind are over sets that differ by two clients, or not at all. Two never hear the second query; all answer the
first and third.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from scripts.vectors.play import Play, Values
from secagg.sum_spec import L2, Count, Part, SumSpec, Table
from secagg.trust_levels import Trust

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
NAMED_RING: Final = Play(
    name="ring-named",
    about="A session of seven seeded clients on a ring that names its members; see README.md.",
    trust=Trust.CURIOUS,
    members=_RING_MEMBERS,
    corrupt=0,
    max_cohort=8,
    dropout=0.15,
    table=_RING_TABLE,
    values={"step": _STEPS},
    queries=(("step", 0, b"a model"), ("step", 1, b"a better model"), ("step", 2, b"the last model")),
    lost={(1, "Query"): (5, 300), (2, "Survivors"): (41,)},
    graph={"graph": "ring", "security_bits": 20, "name_members": True},
    policy_changes={"security_bits": 20, "min_difference": 2},
)
