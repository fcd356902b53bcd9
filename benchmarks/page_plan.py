"""The sums on the page of benchmarks: their sizes and repetitions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from benchmarks.peers import PeersSetting, runs_for
from benchmarks.primitives import Setting
from benchmarks.sum_setting import SumSetting
from secagg import Trust

TENTH: Final = Fraction(1, 10)
NARROW_BITS: Final = 20
SEVERAL: Final = 3
LARGE: Final = 1000  # clients; sums of more are not repeated


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Every sum of the page. Corrupt clients and drop-outs are a tenth of the cohort throughout.

    `lengths`     one cohort on a ring, for vectors of many lengths, beside Flower.
    `long_dim`    the one of them for which the limits are promised.
    `peer_dim`    the one of them for which a distance to Flower is promised.
    `crowd`       a large cohort with a vector of some length, whose server may not grow much.
    `cohorts`     cohorts of many sizes, on the graph that is chosen for them, for vectors of `cohort_dim`.
    `compared`    two of them, whose clients may not differ much.
    `packed`      elements that are packed at every number of bits.
    `primitives`  the sessions whose time is split by primitive.
    `most_runs`   of a sum, of which the median is reported.
    `turns`       of one process and of two: the clock also counts what others do on the machine, so it takes
                  more of them than CPU time does until one was left alone.
    `rehearsal`   whether it only shows that everything runs, and how the page looks.
    """

    lengths: PeersSetting
    long_dim: int
    peer_dim: int
    crowd: SumSetting
    cohorts: tuple[int, ...]
    cohort_dim: int
    compared: tuple[int, int]
    packed: int
    primitives: Setting
    most_runs: int
    turns: int
    rehearsal: bool = False

    @property
    def narrow(self) -> SumSetting:
        return replace(self.lengths.sum_of(self.long_dim), bits=NARROW_BITS)

    @property
    def noisy(self) -> SumSetting:
        return replace(self.lengths.sum_of(self.long_dim), noise=True)

    def in_processes(self, processes: int) -> SumSetting:
        return replace(self.lengths.sum_of(self.long_dim), processes=processes)

    def cohort(self, clients: int) -> SumSetting:
        return _sum(clients, self.cohort_dim)

    def runs_of(self, setting: SumSetting) -> int:
        often = runs_for(setting.dim) if setting.clients < LARGE else SEVERAL
        return min(self.most_runs, often if setting.clients <= LARGE else 1)


def _sum(clients: int, dim: int) -> SumSetting:
    """Return a sum of 32 bits, on the graph that is chosen for such a cohort."""
    return SumSetting(
        clients=clients, dim=dim, bits=32, corrupt=clients // 10, dropout=TENTH, trust=Trust.CURIOUS
    )


def _lengths(clients: int, neighbours: int, dims: tuple[int, ...]) -> PeersSetting:
    return PeersSetting(
        clients=clients, neighbours=neighbours, corrupt=clients // 10, dropout=TENTH, dims=dims
    )


FULL: Final = Plan(
    lengths=_lengths(50, 24, (1_000, 10_000, 100_000, 1_000_000)),
    long_dim=1_000_000,
    peer_dim=10_000,
    crowd=_sum(1000, 100_000),
    cohorts=(50, 100, 200, 500, 1000, 2000, 5000, 10_000),
    cohort_dim=1000,
    compared=(1000, 10_000),
    packed=1 << 20,
    primitives=Setting(clients=100, dim=1000, sums=3, bits=32),
    most_runs=5,
    turns=10,
)

LONG: Final = replace(FULL, lengths=_lengths(50, 24, (*FULL.lengths.dims, 10_000_000)))

QUICK: Final = Plan(
    lengths=_lengths(12, 6, (10, 100)),
    long_dim=100,
    peer_dim=10,
    crowd=_sum(14, 50),
    cohorts=(8, 16),
    cohort_dim=10,
    compared=(8, 16),
    packed=1000,
    primitives=Setting(clients=4, dim=5, sums=1, bits=32),
    most_runs=1,
    turns=1,
    rehearsal=True,
)
