"""Computes noisy sums as the protocol does, but without masks, which is much faster.

Masks cancel in a total, so these totals have the same distribution as those of the protocol. Noise that is
needed only if more clients drop out is removed. A `Fault` can be simulated, to check that tests detect it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from secagg import residue_packing
from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.errors import SpecError
from secagg.input_encoding import Encoding
from secagg.mask_keystream import SEED_BYTES, KeyStream
from secagg.residue_packing import Residues
from secagg.sensitivity_and_headroom import bits_for_noise
from secagg.sum_spec import L2, Bound, Part, SumSpec, Total
from sims.noise_audit.faults import Fault, NoiseMemory, encoding_of
from sims.text_format import counted

_SEEDS_AT_ONCE: Final = 1024
_NO_ROTATION: Final = bytes(SEED_BYTES)

Values: TypeAlias = Callable[[int], Mapping[str, ArrayLike]]  # client -> part name -> vector
# Called with each client and its encoded parts, before surplus noise is removed.
OnEncoded: TypeAlias = Callable[[int, Sequence[Residues]], None]


def _ignore(_member: int, _residues: Sequence[Residues]) -> None:
    pass


class Seeds:
    """A callable that returns a new seed each time, derived from one seed so that sums can be repeated."""

    def __init__(self, seed: bytes) -> None:
        self._stream = KeyStream(seed)
        self._left: list[bytes] = []

    def __call__(self) -> bytes:
        if not self._left:
            data = self._stream.words(_SEEDS_AT_ONCE * SEED_BYTES // 8).tobytes()
            self._left = [data[at : at + SEED_BYTES] for at in range(0, len(data), SEED_BYTES)]
        return self._left.pop()


class UnmaskedSums:
    """Computes sums of `spec` without masks over `clients` clients, of which the last `dropped` drop out.
    Raise `SpecError` if the noise of `spec` is planned for fewer drop-outs. To save time, only the inputs of
    the first `present` clients are added up (None: of all that do not drop out), with the same noise each."""

    def __init__(
        self,
        spec: SumSpec,
        *,
        clients: int,
        dropped: int = 0,
        present: int | None = None,
        fault: Fault = Fault.NONE,
        seed: bytes = bytes(SEED_BYTES),
    ) -> None:
        assert spec.promise is not None  # A sum without noise cannot be audited.
        if dropped > spec.promise.dropouts:
            raise SpecError(
                f"{counted(dropped, 'drop-out')}, but the noise is planned for {spec.promise.dropouts}"
            )
        self.spec = spec
        self.clients = clients
        self.present = clients - dropped if present is None else min(present, clients - dropped)
        self._fault = fault
        self._memory = NoiseMemory()
        self._seeds = Seeds(seed)
        self.surplus = spec.promise.surplus(clients, clients - dropped)

    def variance(self, part: Part) -> float:
        """Return the variance that the noise in a part of the total should have, in grid points squared."""
        return self.present * self._of_client(part, without=self.surplus)

    def client_variance(self, part: Part) -> float:
        """Return the variance that the noise of one client should have before surplus noise is removed."""
        return self._of_client(part, without=())

    def layer_variance(self, part: Part, layer: int) -> float:
        """Return the variance that one component of a client's noise should have."""
        assert self.spec.promise is not None
        return float(self.spec.promise.components(self.clients)[layer] * _variance(part))

    def _of_client(self, part: Part, *, without: Sequence[int]) -> float:
        assert self.spec.promise is not None
        shares = self.spec.promise.components(self.clients)
        kept = sum(share for layer, share in enumerate(shares) if layer not in without)
        return float(kept * _variance(part))

    def run(
        self, values: Values, *, rotation: bytes = _NO_ROTATION, on_encoded: OnEncoded = _ignore
    ) -> tuple[Total, list[Residues]]:
        """Add up the vectors `values(client)` (part name -> vector) of all clients that do not drop out.
        Return the decoded total, and its residues (integers modulo 2^bits) for each part. `rotation` is the
        public seed of the random rotation. `on_encoded` is called with each client's encoded input."""
        server = Encoding(self.spec, cohort=self.clients, roster=self.clients, rotation=rotation)
        total = list(server.zeros())
        last: list[bytes] = []
        for member in range(self.present):
            encoding = encoding_of(
                self.spec,
                member,
                roster=self.clients,
                rotation=rotation,
                fault=self._fault,
                memory=self._memory,
            )
            seeds = [self._seeds() for _ in range(1 + self.spec.seeds)]
            if self._fault is Fault.REUSED and member == 1:
                seeds = last
            streams = [KeyStream(seed) for seed in seeds]
            encoded = encoding.encode(values(member), streams[0], noise=streams[1:])
            for part, residues in zip(total, encoded.residues, strict=True):
                part += residues
            on_encoded(member, encoded.residues[:-1])
            noise = encoding.noise()
            for layer in self.surplus:
                noise.remove(layer, total, KeyStream(seeds[layer]))
            last = seeds
        decoded = server.decode(total, contributors=self.present, invited=self.clients)
        return decoded, total[:-1]

    def removed(self, layer: int) -> list[Residues]:
        """Return what the server adds to a total to remove one component of a client's noise."""
        encoding = Encoding(self.spec, cohort=self.clients, roster=self.clients)
        residues = list(encoding.zeros())
        encoding.noise().remove(layer, residues, KeyStream(self._seeds()))
        return residues[:-1]


def _variance(part: Part) -> Fraction:
    return Fraction(0) if part.noise is None else part.noise.variance


def grid_points(part: Part, residues: Residues) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return residues modulo 2^b as integers from -2^(b - 1) to 2^(b - 1) - 1, where b is `part.bits`."""
    shift = 64 - part.bits
    wide = residues.astype(np.uint64)
    residue_packing.reduce(wide, part.bits)
    return (wide << np.uint64(shift)).view(np.int64) >> np.int64(shift)


PART: Final = "x"
CLIP: Final = 1.0
_LEAST_SIGMA: Final = 8.0  # least standard deviation of each component of noise, in grid points
_SPARE_BITS: Final = 3  # more than the noise needs


def audited_spec(
    *,
    size: int,
    promise: NoiseAssumptions,
    multiplier: float,
    least_scale: float = 1.0,
    clients: int | None = None,
    bound: Bound = L2(CLIP),  # noqa: B008
) -> SumSpec:
    """Return the specification of a sum, with noise, of one vector within `bound`. The noise has a
    standard deviation of `multiplier` times the largest norm of an encoded vector. The rounding grid has at
    least `least_scale` points per unit, and more if needed so that, in a sum of `clients` clients, every
    component of a client's noise has a standard deviation of at least `_LEAST_SIGMA` points."""
    least = float(min(promise.components(clients or promise.clients)))
    scale = max(least_scale, math.ceil(_LEAST_SIGMA / math.sqrt(least) / multiplier))
    trial = _part(size, 64, Noise(scale=scale, variance=Fraction(1)), bound)
    noise = Noise(scale=scale, variance=Fraction(multiplier) ** 2 * trial.norm2)
    bits = bits_for_noise(_part(size, 64, noise, bound), noise, promise, promise.clients) + _SPARE_BITS
    return SumSpec(parts=(_part(size, bits, noise, bound),), promise=promise)


def _part(size: int, bits: int, noise: Noise, bound: Bound) -> Part:
    return Part(name=PART, size=size, bits=bits, bound=bound, noise=noise)
