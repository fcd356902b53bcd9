"""Compares the noise of a private run with what the run can learn, before it starts, and says it in words.

The server divides the total of n clients' vectors by n. The noise on this mean has a norm of about
sqrt(d) sigma / n, for d numbers and noise of standard deviation sigma on each number of the total. The mean
itself is at most as long as the bound of one client's vector (the clip), and shorter if vectors are shorter
than that or differ in direction. Over T sums, the steps of a model add up to T times the mean at most, and
independent noise to sqrt(T) times the noise of one sum. So what predicts whether a run learns is

    noise over the run = (norm of the noise on a mean / norm of the mean without noise) / sqrt(T)

The thresholds of `NoiseEffect` come from runs on the digits data: see "Will it learn?" in docs/scenarios.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final

from protocols.algorithm import AnyAlgorithm
from secagg.sum_spec import L2, Bound, Count, LInf, Part, SumSpec
from sims.text_format import short

# The noise over the run (see above) from which on an effect is expected.
COSTS_FROM: Final = 0.35
DOMINATES_FROM: Final = 1.0
HOPELESS_FROM: Final = 2.5
_SHORT_OF_BOUND: Final = 0.6  # of the bound: if all vectors are shorter, a lower bound is worth a hint
_AS_MUCH: Final = (0.85, 1.2)  # ratios that are called equal
_COUNTS_VISIBLE: Final = 0.25  # of the clients: noise on each count of a histogram up to which it is small


class NoiseEffect(StrEnum):
    """What noise is expected to do to the result of a training, from the least to the most."""

    HARDLY_SEEN = "hardly seen"
    COSTS_ACCURACY = "costs accuracy"
    DOMINATES = "dominates"
    WILL_NOT_LEARN = "will not learn"

    @classmethod
    def of(cls, over_run: float) -> NoiseEffect:
        """Return the effect of noise that is `over_run` times what the run can learn."""
        if over_run < COSTS_FROM:
            return cls.HARDLY_SEEN
        if over_run < DOMINATES_FROM:
            return cls.COSTS_ACCURACY
        return cls.DOMINATES if over_run < HOPELESS_FROM else cls.WILL_NOT_LEARN

    @property
    def warns(self) -> bool:
        """Whether a user should be warned before the run."""
        return self in (NoiseEffect.DOMINATES, NoiseEffect.WILL_NOT_LEARN)


# As an answer to the question whether a run will learn.
_ANSWERS: Final = {
    NoiseEffect.HARDLY_SEEN: "yes, the noise will hardly be seen in the result",
    NoiseEffect.COSTS_ACCURACY: "yes, but the noise will cost some accuracy",
    NoiseEffect.DOMINATES: "badly, as there is at least as much noise as there is to learn",
    NoiseEffect.WILL_NOT_LEARN: "no, this will not learn: there is far more noise than there is to learn",
}


@dataclass(frozen=True, kw_only=True)
class MeasuredVectors:
    """What clients would send without noise in the first rounds: norms, each the mean over all sums.

    `longest`  of the longest of the clients' vectors, after clipping.
    `mean`     of the mean of all clients' vectors.
    """

    longest: float
    mean: float


@dataclass(frozen=True, kw_only=True)
class NoisyVector:
    """One vector of a sum that has noise. `limit` and `noise` are norms of the mean over `clients` clients:
    `limit` the largest possible one, `noise` that of the noise. `sums` is how many such sums the run has."""

    kind: str
    part: str
    size: int
    clients: int
    sums: int
    counts: bool  # whether it is a histogram, which is not added to a model
    limit: float
    noise: float
    measured: MeasuredVectors | None = None

    @property
    def signal(self) -> float:
        """The norm of the mean without noise: as measured in trial rounds, else the largest possible."""
        return self.limit if self.measured is None else self.measured.mean

    @property
    def per_sum(self) -> float:
        """The noise of one sum, relative to the signal; infinite without a signal."""
        return self.noise / self.signal if self.signal > 0 else math.inf

    @property
    def over_run(self) -> float:
        """The noise of all sums, relative to what they add up to."""
        return self.per_sum / math.sqrt(self.sums)

    @property
    def effect(self) -> NoiseEffect:
        return NoiseEffect.of(self.over_run)

    @property
    def off_by(self) -> float:
        """The standard deviation of the noise on each number of a total, in the unit of the numbers."""
        return self.noise * self.clients / math.sqrt(self.size)


@dataclass(frozen=True)
class SignalAndNoise:
    """The vectors with noise of an algorithm's sums, of a run of `rounds` rounds."""

    rounds: int
    vectors: tuple[NoisyVector, ...]

    @property
    def decisive(self) -> NoisyVector | None:
        """The vector with the most noise of those that move a model; None if only histograms have noise."""
        moving = [each for each in self.vectors if not each.counts]
        return max(moving, key=lambda each: each.over_run, default=None)

    @property
    def effect(self) -> NoiseEffect:
        """What the noise does to the result. Noise on histograms alone was never seen to prevent learning."""
        found = self.decisive
        return NoiseEffect.HARDLY_SEEN if found is None else found.effect

    def with_measured(self, found: Mapping[tuple[str, str], MeasuredVectors]) -> SignalAndNoise:
        """Return a copy with what was measured, by kind of sum and name of the part."""
        vectors = (replace(each, measured=found.get((each.kind, each.part))) for each in self.vectors)
        return replace(self, vectors=tuple(vectors))

    def as_json(self) -> dict[str, Any]:
        vectors = [
            {**asdict(each), "per_sum": _finite(each.per_sum), "over_run": _finite(each.over_run)}
            for each in self.vectors
        ]
        return {"effect": self.effect.value, "rounds": self.rounds, "vectors": vectors}


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def signal_and_noise(algorithm: AnyAlgorithm, rounds: int | None = None) -> SignalAndNoise | None:
    """Return the noise of an algorithm's sums and the largest signals; None if no sum has noise. A run has
    `rounds` rounds; by default, as many as its privacy budget is for. It has more if no client is in all."""
    privacy = getattr(algorithm, "privacy", None)
    if privacy is None:
        return None
    rounds = privacy.rounds if rounds is None else rounds
    specs = {each.query.kind: each.spec for each in algorithm.sums()}
    vectors = (
        vector
        for kind, spec in specs.items()
        for vector in noisy_vectors(kind, spec, clients=algorithm.clients, sums=rounds * spec.times)
    )
    return SignalAndNoise(rounds, tuple(vectors))


def noisy_vectors(kind: str, spec: SumSpec, *, clients: int, sums: int) -> Iterator[NoisyVector]:
    """Yield the parts of a sum over `clients` clients that have noise and can be compared with a bound."""
    for part in spec.parts:
        limit = largest_norm(part.bound, part.size)
        sigma = sigma_of_total(part, spec, clients)
        if limit is not None and sigma is not None:
            yield NoisyVector(
                kind=kind,
                part=part.name,
                size=part.size,
                clients=clients,
                sums=sums,
                counts=part.counts,
                limit=limit,
                noise=math.sqrt(part.size) * sigma / clients,
            )


def sigma_of_total(part: Part, spec: SumSpec, clients: int) -> float | None:
    """Return the standard deviation of the noise on each number of a total over all of `clients` clients, in
    the unit of the numbers; None if the part has no noise."""
    if part.noise is None or spec.promise is None:
        return None
    return math.sqrt(clients * part.noise.variance * spec.promise.left(clients)) / part.noise.scale


def largest_norm(bound: Bound, size: int) -> float | None:
    """Return the largest Euclidean norm of one client's vector of `size` numbers; None for residues, which
    have none."""
    match bound:
        case L2(limit):
            return limit
        case LInf(limit):
            return limit * math.sqrt(size)
        case Count(limit, total):
            return limit * math.sqrt(size) if total is None else float(total)
        case _:
            return None


# --- in words ---


def verdict(found: SignalAndNoise) -> str:
    """Return an answer in words to the question whether the run will learn, and what to change if not."""
    vector = found.decisive
    if vector is None:
        return "yes, only histograms have noise: what moves the model has none"
    what = "what is learned" if vector.measured is not None else "the most that can be learned"
    over = f"{_ANSWERS[vector.effect]} (noise adds up to {_times(vector.over_run)} {what})"
    if vector.effect.warns:
        return f"{over}. It takes {remedy(vector)}"
    return over


def described(vector: NoisyVector) -> str:
    """Return in words how large the noise of one sum is, beside what the sum is about."""
    if vector.counts:
        small = vector.off_by <= _COUNTS_VISIBLE * vector.clients
        return (
            f"noise moves each of {vector.size:,} counts by about {short(vector.off_by)}, of "
            f"{vector.clients:,} clients in all" + ("" if small else ": little is left of the histogram")
        )
    return (
        f"noise on the mean of {vector.clients:,} clients has a norm of {short(vector.noise)}, "
        f"{_times(vector.per_sum)} {_signal(vector)}"
    )


def _signal(vector: NoisyVector) -> str:
    if vector.measured is None:
        return f"the largest possible mean ({short(vector.limit)}); shorter vectors make it weigh more"
    return f"the mean in trial rounds without noise ({short(vector.signal)}, at most {short(vector.limit)})"


def _times(ratio: float) -> str:
    """Return a ratio in words, such as "9 times" or "12 % of"."""
    if not math.isfinite(ratio):
        return "infinitely many times"
    if ratio >= _AS_MUCH[1]:
        return f"{ratio:.2g} times" if ratio < 10 else f"{ratio:,.0f} times"
    return "about as much as" if ratio >= _AS_MUCH[0] else f"{100 * ratio:.2g} % of"


def remedy(vector: NoisyVector) -> str:
    """Return in words what would lower the noise over the run to where it only costs some accuracy."""
    factor = vector.over_run / COSTS_FROM
    if not math.isfinite(factor):
        return "clients that send something else than zeros"
    found, measured = [], vector.measured
    if measured is not None and measured.longest < _SHORT_OF_BOUND * vector.limit:
        found.append(
            f"a bound (clip) near {short(measured.longest)} instead of {short(vector.limit)}, as no client's "
            "vector is longer, or all clients counting the same (weighted = false)"
        )
    found.append(f"{math.ceil(factor)} times as many clients, or a larger epsilon")
    return "; or ".join(found)
