"""The noise on all parts of a sum, layer by layer: one that stays, and one for every removable component.

A layer is drawn from one stream, part after part, in the order of the spec. Everybody in a roster adds layers
of the same variances; the server removes the same layers from all survivors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from secagg.masks import KeyStream
from secagg.noise.gaussian import DiscreteGaussian, discrete_gaussian
from secagg.ring import Residues
from secagg.spec import SumSpec


class Layers:
    """Of `spec`, for a roster of so many clients. A spec without noise has none."""

    def __init__(self, spec: SumSpec, *, roster: int) -> None:
        self._spec = spec
        self._shares = spec.promise.components(roster) if spec.promise is not None else ()

    def add_to(self, residues: Sequence[Residues], streams: Sequence[KeyStream]) -> None:
        """Add every layer, each from a stream of its own. Without noise, streams are not read."""
        for layer in range(len(self._shares)):
            for part, law in self._laws(layer, residues):
                law.add_to(part, streams[layer])

    def remove(self, layer: int, residues: Sequence[Residues], stream: KeyStream) -> None:
        """Undo one client's layer."""
        for part, law in self._laws(layer, residues):
            law.subtract_from(part, stream)

    def _laws(self, layer: int, residues: Sequence[Residues]) -> Iterator[tuple[Residues, DiscreteGaussian]]:
        for part, values in zip(self._spec.parts, residues, strict=False):
            if part.noise is not None:
                yield values, discrete_gaussian(part.noise.variance * self._shares[layer])
