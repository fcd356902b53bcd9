"""Tests the noise of sums over zeros, of which each client's encoded input is nothing but noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from secagg.residue_packing import Residues
from secagg.sum_spec import Part
from sims.console_progress import OnProgress, quiet
from sims.noise_audit.alarm_budget import NoiseTest
from sims.noise_audit.noise_statistics import NoiseStatistics, Repetitions, law_of
from sims.noise_audit.unmasked_sums import UnmaskedSums, grid_points

_TOTALS: Final = "noise of totals"
_REMOVED: Final = 8  # clients whose removable components are tested one by one


@dataclass(frozen=True)
class NoiseOfPart:
    """What was measured of the noise in the totals of one part. Variances: grid points squared."""

    part: str
    samples: int
    tests: tuple[NoiseTest, ...]

    def of_totals(self, name: str) -> NoiseTest:
        """Return the test of the totals with this name."""
        return next(each for each in self.tests if each.name == name and each.subject == _TOTALS)

    @property
    def variance(self) -> float:
        measured = self.of_totals("variance").measured
        assert measured is not None
        return measured

    @property
    def expected(self) -> float:
        expected = self.of_totals("variance").expected
        assert expected is not None
        return expected

    @property
    def ratio(self) -> float:
        return self.variance / self.expected


class _PartNoise:
    """Collects the noise of one part: of single clients, of totals, and of all totals together."""

    def __init__(self, part: Part, unmasked: UnmaskedSums, sums: int) -> None:
        self.part = part
        vectors, of_client = sums * unmasked.present, unmasked.client_variance(part)
        self._clients = NoiseStatistics("noise of single clients", part.width, of_client, vectors)
        self._totals = NoiseStatistics(_TOTALS, part.width, unmasked.variance(part), sums)
        self._all = np.zeros(part.width, np.int64)
        self._sums = sums

    def add_client(self, member: int, residues: Residues) -> None:
        self._clients.add(grid_points(self.part, residues), member)

    def add_total(self, residues: Residues) -> None:
        total = grid_points(self.part, residues)
        self._totals.add(total)
        self._all += total

    def result(self) -> NoiseOfPart:
        tests = [*self._clients.tests(), *self._totals.tests()]
        if self._sums > 1:
            over_sums = Repetitions(self.part.width)
            over_sums.add(self._all)
            tests += over_sums.tests("noise of all totals together", self._sums * self._totals.variance)
        return NoiseOfPart(self.part.name, self._totals.samples, tuple(tests))


def noise_of_sums(
    unmasked: UnmaskedSums, *, sums: int = 1, progress: OnProgress = quiet
) -> list[NoiseOfPart]:
    """Compute `sums` sums over zeros and test their noise. Return one result per part with noise."""
    spec = unmasked.spec
    zeros = {part.name: np.zeros(part.size, np.uint64 if part.counts else float) for part in spec.parts}
    collected = {
        number: _PartNoise(part, unmasked, sums)
        for number, part in enumerate(spec.parts)
        if part.noise is not None
    }

    def add_client(member: int, residues: Sequence[Residues]) -> None:
        for number, each in collected.items():
            each.add_client(member, residues[number])

    for done in range(sums):
        progress("zeros", done, sums)
        _, totals = unmasked.run(lambda _: zeros, on_encoded=add_client)
        for number, each in collected.items():
            each.add_total(totals[number])
    found = [each.result() for each in collected.values()]
    removed = list(_removable(unmasked))
    return [
        replace(each, tests=each.tests + tuple(test for name, test in removed if name == each.part))
        for each in found
    ]


def _removable(unmasked: UnmaskedSums) -> Iterator[tuple[str, NoiseTest]]:
    """Yield tests of each removable component, as the server computes it in order to remove it."""
    spec = unmasked.spec
    for layer in range(1, 1 + spec.seeds):
        drawn = [unmasked.removed(layer) for _ in range(_REMOVED)]
        for number, part in enumerate(spec.parts):
            if part.noise is not None:
                variance = unmasked.layer_variance(part, layer)
                vectors = [grid_points(part, residues[number]) for residues in drawn]
                yield part.name, law_of(f"removed component {layer}", np.concatenate(vectors), variance)
