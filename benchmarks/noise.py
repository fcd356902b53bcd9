"""The cost of a sample of the discrete Gaussian, beside its key stream alone and beside OpenDP's sampler.

The three take turns in the same run, and the best of each counts: clocks drift, and other work on the machine
can only add. OpenDP is much slower and just as exact; it draws fewer samples, once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module, metadata
from importlib.util import find_spec
from math import log2
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from secagg.mask_keystream import KeyStream
from secagg.noise.gaussian import DiscreteGaussian
from sims.console_progress import OnProgress

RUNS: Final = 5
PEER: Final = "opendp"
_PEER_SIZE: Final = 20_000
_SEED: Final = bytes(32)
_BLOCK: Final = 1 << 17  # bytes of key stream at a time


@dataclass(frozen=True)
class NoiseSetting:
    """How wide the noise is, in the unit of its samples, and how many of them are drawn at once."""

    sigma: Fraction
    size: int


@dataclass(frozen=True)
class Peer:
    """OpenDP and its speed."""

    name: str  # with its version
    per_cpu_s: float


@dataclass(frozen=True, kw_only=True)
class NoiseReport:
    """Speeds are samples per second of CPU time.

    `samples_per_cpu_s`          into a new vector of 64-bit numbers.
    `added_per_cpu_s`            onto a vector of 32-bit residues, which is what an encoding does.
    `keystream_limit_per_cpu_s`  if there were nothing to do but to make the same key stream.
    `build_cpu_s`                what the first sample of a law costs besides.
    """

    setting: NoiseSetting
    samples_per_cpu_s: float
    added_per_cpu_s: float
    keystream_limit_per_cpu_s: float
    build_cpu_s: float
    stream_bytes: int
    total_variation: Fraction
    peer: Peer | None

    @property
    def stream_bytes_per_cpu_s(self) -> float:
        return self.keystream_limit_per_cpu_s * self.stream_bytes / self.setting.size

    @property
    def total_variation_log2(self) -> float:
        return log2(self.total_variation.numerator) - log2(self.total_variation.denominator)

    def as_json(self) -> dict[str, Any]:
        names = ("samples_per_cpu_s", "added_per_cpu_s", "keystream_limit_per_cpu_s", "build_cpu_s")
        more = ("stream_bytes", "stream_bytes_per_cpu_s", "total_variation_log2")
        return {
            "sigma": str(self.setting.sigma),
            "size": self.setting.size,
            **{name: getattr(self, name) for name in (*names, *more)},
            **self._of_peer(),
        }

    def _of_peer(self) -> dict[str, Any]:
        if self.peer is None:
            return {}
        ratio = self.samples_per_cpu_s / self.peer.per_cpu_s
        return {"peer": self.peer.name, "opendp_per_cpu_s": self.peer.per_cpu_s, "over_opendp": ratio}


class CountedStream:
    """A key stream that counts its bytes."""

    def __init__(self, seed: bytes) -> None:
        self._stream = KeyStream(seed)
        self.bytes = 0

    def fill(self, buffer: NDArray[np.uint8]) -> None:
        self._stream.fill(buffer)
        self.bytes += len(buffer)


def measure(setting: NoiseSetting, progress: OnProgress) -> NoiseReport:
    started = time.thread_time()
    law = DiscreteGaussian(setting.sigma**2)
    build = time.thread_time() - started
    progress("samples", 0, RUNS + 1)
    stream = CountedStream(_SEED)
    law.sample(stream, setting.size)
    residues = np.zeros(setting.size, np.uint32)
    costs = [float("inf")] * 3
    for run in range(RUNS):
        progress("samples", run, RUNS + 1)
        again = [
            cpu_seconds(lambda: law.sample(KeyStream(_SEED), setting.size)),
            cpu_seconds(lambda: law.add_to(residues, KeyStream(_SEED))),
            cpu_seconds(lambda: make_keystream(stream.bytes)),
        ]
        costs = [min(pair) for pair in zip(costs, again, strict=True)]
    progress("OpenDP", RUNS, RUNS + 1)
    return NoiseReport(
        setting=setting,
        samples_per_cpu_s=setting.size / costs[0],
        added_per_cpu_s=setting.size / costs[1],
        keystream_limit_per_cpu_s=setting.size / costs[2],
        build_cpu_s=build,
        stream_bytes=stream.bytes,
        total_variation=law.total_variation,
        peer=measure_peer(setting.sigma) if find_spec(PEER) else None,
    )


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds of this thread."""
    started = time.thread_time()
    work()
    return time.thread_time() - started


def make_keystream(length: int) -> None:
    """Make that many bytes of bare AES, in pieces that stay in the cache."""
    encryptor = Cipher(algorithms.AES128(_SEED[:16]), modes.CTR(_SEED[16:])).encryptor()
    zeros, buffer = memoryview(bytes(_BLOCK)), bytearray(_BLOCK)
    for start in range(0, length, _BLOCK):
        encryptor.update_into(zeros[: length - start], buffer)


def measure_peer(sigma: Fraction) -> Peer:
    """Measure OpenDP's mechanism on a vector of whole numbers, which adds the same noise."""
    opendp = import_module("opendp.prelude")
    opendp.enable_features("contrib")
    domain = opendp.vector_domain(opendp.atom_domain(T=int))
    noisy = opendp.m.make_gaussian(domain, opendp.l2_distance(T=float), scale=float(sigma))
    zeros = [0] * _PEER_SIZE
    return Peer(f"{PEER} {metadata.version(PEER)}", _PEER_SIZE / cpu_seconds(lambda: noisy(zeros)))
