"""The cost of encoding with noise, beside its parts, and beside numpy additions.

A vector with noise is clipped and rounded like one without, rotated by one transform, and gets one draw of
noise. All of it is timed in turns, several times in a row each, and the best is kept. So the ratios are
measured at the same time, and no measurement pays for the caches that another one filled.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from benchmarks.sum_setting import PART, SumSetting
from secagg.input_encoding import Encoding
from secagg.mask_keystream import SEED_BYTES, KeyStream
from secagg.noise.gaussian import discrete_gaussian
from secagg.noise.hadamard_rotation import walsh_hadamard
from secagg.sum_spec import SumSpec

_TURNS: Final = 5
_IN_A_ROW: Final = 3


@dataclass(frozen=True, kw_only=True)
class EncodingCosts:
    """The least CPU seconds of each, for one client's vector of `dim` elements.

    `transform_cpu_s`   of the padded vector.
    `noise_draw_cpu_s`  of `dim` samples, with the standard deviation of one client's noise.
    `add_cpu_s`         one addition of numpy, of two vectors of floats.
    """

    dim: int
    encode_noise_cpu_s: float
    plain_encode_cpu_s: float
    transform_cpu_s: float
    noise_draw_cpu_s: float
    add_cpu_s: float

    @property
    def encode_noise_over_parts(self) -> float:
        parts = self.plain_encode_cpu_s + self.transform_cpu_s + self.noise_draw_cpu_s
        return self.encode_noise_cpu_s / parts

    @property
    def transform_over_adds(self) -> float:
        """The transform relative to one addition for each bit of the dimension."""
        return self.transform_cpu_s / (max(1.0, math.log2(self.dim)) * self.add_cpu_s)

    def as_json(self) -> dict[str, Any]:
        ratios = ("encode_noise_over_parts", "transform_over_adds")
        return {**asdict(self), **{name: getattr(self, name) for name in ratios}}


def measure_encoding(setting: SumSetting) -> EncodingCosts:
    """Measure the encoding of a setting with noise."""
    best = _best_of(_chores(setting))
    return EncodingCosts(dim=setting.dim, **best)


def _chores(setting: SumSetting) -> dict[str, Callable[[], object]]:
    noisy, plain = setting.spec, replace(setting, noise=False).spec
    vector = np.random.default_rng(0).standard_normal(setting.dim)
    vector /= np.sqrt(np.square(vector).sum())
    (part,), promise = noisy.parts, noisy.promise
    assert part.noise is not None
    assert promise is not None
    law = discrete_gaussian(part.noise.variance * sum(promise.components(setting.clients)))
    stream, padded = KeyStream(bytes(SEED_BYTES)), np.zeros(part.width)
    other, total = vector.copy(), np.empty(setting.dim)

    def encode(spec: SumSpec) -> Callable[[], object]:
        encoding = Encoding(spec, cohort=setting.clients)
        return lambda: encoding.encode({PART: vector}, stream)

    return {
        "encode_noise_cpu_s": encode(noisy),
        "plain_encode_cpu_s": encode(plain),
        "transform_cpu_s": lambda: walsh_hadamard(padded),
        "noise_draw_cpu_s": lambda: law.sample(stream, setting.dim),
        "add_cpu_s": lambda: np.add(vector, other, out=total),
    }


def _best_of(chores: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    best = dict.fromkeys(chores, math.inf)
    for _ in range(_TURNS):
        for name, chore in chores.items():
            best[name] = min(best[name], *(_seconds(chore) for _ in range(_IN_A_ROW)))
    return best


def _seconds(chore: Callable[[], object]) -> float:
    started = time.thread_time()
    chore()
    return time.thread_time() - started
