"""Transcripts on the complete graph, with either trust level and either key agreement.

Four clients play the same under either trust level: all four answer the first sum, and one of them does not
hear who survived; one never hears the second query, which opens a group; the third goes on with the group of
three; of the fourth, only two send inputs, so it is closed; then one client leaves and the server says
farewell.

With hybrid keys, four clients sign: in the first sum, one never hears the query; in the second, one does not
hear who survived; in the third, one does not hear who confirmed it. Six others do not sign: one of them never
hears the keys of the others, and one not what they dealt, so that it makes no deposits. Of the four that are
asked, one is missing in the first sum; in the second, one does not hear who survived.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from scripts.vectors.play import SET_UP, Play, Values
from secagg.hybrid_keys import KeyAgreement
from secagg.sum_spec import L2, Count, LInf, Part, Residue, SumSpec, Table
from secagg.trust_levels import Trust

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


def complete(trust: Trust) -> Play:
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


# --- with hybrid keys -------------------------------------------------------------------------------

_HYBRID_TABLE: Final = Table(
    {
        "step": SumSpec(
            parts=(
                Part(name="direction", size=3, bits=20, bound=L2(1.0)),
                Part(name="examples", size=1, bits=11, bound=Count(100)),
            )
        )
    }
)
_STEPS: Final[tuple[Values, ...]] = (
    {"direction": [0.5, -0.25, 0.125], "examples": [100]},
    {"direction": [3.0, -4.0, 0.0], "examples": [0]},  # clipped
    {"direction": [-0.125, -0.5, 0.25], "examples": [17]},
    {"direction": [0.0, 0.0, 0.0], "examples": [1]},
    {"direction": [-0.75, 0.5, 1e-6], "examples": [64]},
    {"direction": [0.03, 0.02, -0.01], "examples": [99]},
)


def _steps(members: tuple[int, ...]) -> dict[str, dict[int, Values]]:
    return {"step": dict(zip(members, _STEPS, strict=False))}


_SIGNERS: Final = (3, 7, 300, 70000)
HYBRID_SIGNED: Final = Play(
    name="hybrid-malicious",
    about="A session of four seeded clients with hybrid keys, under malicious_server; see README.md.",
    trust=Trust.MALICIOUS,
    key_agreement=KeyAgreement.HYBRID,
    members=_SIGNERS,
    corrupt=1,
    max_cohort=6,
    dropout=0.25,
    table=_HYBRID_TABLE,
    values=_steps(_SIGNERS),
    queries=(("step", 0, b"a model"), ("step", 1, b"a better model"), ("step", 2, b"the last model")),
    lost={(0, "Query"): (7,), (1, "Survivors"): (3,), (2, "Confirmations"): (300,)},
    leavers=(70000,),
)
_OTHERS: Final = (2, 5, 40, 41, 300, 65536)
HYBRID: Final = Play(
    name="hybrid-curious",
    about="A session of six seeded clients with hybrid keys, under curious_server; see README.md.",
    trust=Trust.CURIOUS,
    key_agreement=KeyAgreement.HYBRID,
    members=_OTHERS,
    corrupt=1,
    max_cohort=6,
    dropout=0.5,
    table=_HYBRID_TABLE,
    values=_steps(_OTHERS),
    queries=(("step", 0, b"a model"), ("step", 1, b"a better model")),
    lost={
        (SET_UP, "KeyList"): (5,),
        (SET_UP, "Delivery"): (300,),
        (0, "Query"): (41,),
        (1, "Survivors"): (2,),
    },
)
