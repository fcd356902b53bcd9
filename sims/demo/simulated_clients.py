"""Simulated clients of the demo: private vectors, answers, drop-outs; and a test that residues look uniform.

All of it follows from a seed, so a run can be repeated. The machines' keys and masks do not follow from it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chisquare

from secagg import L2, Count, LInf, Part, Stage, SumSpec, Table
from secagg.ring import Residues

MEAN: Final = "mean"
MEDIAN: Final = "median"
BITS: Final = 32
_CAP: Final = 1000  # no client counts for more examples than this
_NU: Final = 0.1  # smoothing of the geometric median

Vector: TypeAlias = NDArray[np.float64]
Absences: TypeAlias = Mapping[tuple[int, Stage], frozenset[int]]  # (sum, stage) -> who is missing


def demo_table(dim: int, steps: int) -> Table:
    """A mean of updates, and a geometric median: `steps` sums of one and the same private vector."""
    mean = SumSpec(
        parts=(
            Part(name="update", size=dim, bits=BITS, bound=LInf(1.0)),
            Part(name="examples", size=1, bits=24, bound=Count(_CAP)),
        )
    )
    median = SumSpec(
        parts=(
            Part(name="influence", size=dim, bits=BITS, bound=L2(1.0)),
            Part(name="weight", size=1, bits=BITS, bound=LInf(1 / _NU)),
        ),
        times=steps,
    )
    return Table({MEAN: mean, MEDIAN: median})


class SimulatedClients:
    """`clients` clients with a vector of `dim` elements and a number of examples each."""

    def __init__(self, *, clients: int, dim: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        centre = self._rng.uniform(-0.5, 0.5, dim)
        noise = self._rng.normal(0, 0.15, (clients, dim))
        self.vectors: NDArray[np.float64] = np.clip(centre + noise, -1, 1)
        self.examples = self._rng.integers(1, _CAP, clients, endpoint=True)

    def answer(self, member: int, kind: str, payload: bytes) -> dict[str, Vector]:
        """What a client adds to a sum. The payload of a median is its current centre."""
        if kind == MEAN:
            examples = self.examples[member : member + 1]
            return {"update": self.vectors[member] * (examples / _CAP), "examples": examples}
        residual = self.vectors[member] - np.frombuffer(payload, "<f8")
        distance = max(_NU, float(np.linalg.norm(residual)))
        return {"influence": residual / distance, "weight": np.array([1 / distance])}

    def plain_sum(self, members: Collection[int], kind: str, payload: bytes) -> dict[str, Vector]:
        """The same total in floating point, from the plain values of all clients."""
        answers = [self.answer(member, kind, payload) for member in members]
        return {name: np.sum([answer[name] for answer in answers], axis=0) for name in answers[0]}

    def absences(self, sums: int, too_many: int) -> Absences:
        """Who drops out where: in the mean, in the first and last step of the median, and at the end.

        A drop-out in the middle of the median would end it, so there are none there.
        """
        few, fewer = max(1, len(self.vectors) // 16), max(1, len(self.vectors) // 25)
        rows = {
            **self._absent(0, mask=few, reveal=fewer),
            **self._absent(1, mask=few, reveal=fewer if sums == 2 else 0),
            **self._absent(sums, mask=too_many),
        }
        if sums > 2:
            gone = rows[1, Stage.MASK]
            rows |= self._absent(sums - 1, reveal=fewer, never=gone)
        return rows

    def _absent(
        self, number: int, *, mask: int = 0, reveal: int = 0, never: Collection[int] = ()
    ) -> dict[tuple[int, Stage], frozenset[int]]:
        present = [member for member in range(len(self.vectors)) if member not in never]
        drawn = [int(member) for member in self._rng.choice(present, mask + reveal, replace=False)]
        return {
            (number, Stage.MASK): frozenset(drawn[:mask]),
            (number, Stage.REVEAL): frozenset(drawn[mask:]),
        }


BUCKETS: Final = 32
_BARS: Final = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Histogram:
    """How many residues fell into each of `BUCKETS` equal ranges."""

    counts: tuple[int, ...]

    @classmethod
    def of(cls, residues: Residues, bits: int) -> Histogram:
        """Buckets by the leading five of `bits` bits."""
        buckets = residues.astype(np.uint64) >> np.uint64(bits - BUCKETS.bit_length() + 1)
        return cls(tuple(int(n) for n in np.bincount(buckets.astype(np.int64), minlength=BUCKETS)))

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def bars(self) -> str:
        """One character per bucket, the fullest one as a full block."""
        most = max(self.counts)
        return "".join(_BARS[round(count / most * (len(_BARS) - 1))] for count in self.counts)

    @property
    def chi_square(self) -> float:
        """Distance from equal counts; about `BUCKETS - 1` for uniform residues."""
        return float(chisquare(self.counts).statistic)

    @property
    def p_value(self) -> float:
        """How often uniform residues would be at least that far off."""
        return float(chisquare(self.counts).pvalue)
