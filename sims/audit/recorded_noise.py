"""Compares the noise of a run that is over with what it could learn, from the records of its sums alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from sims.audit.audit_result import Audit, Release, SumKind
from sims.plan.signal_and_noise import NoisyVector, SignalAndNoise


def recorded_noise(audit: Audit) -> SignalAndNoise | None:
    """Return the noise of the released sums of the training; None if none of them has noise. Without the data
    of clients, the signal is the largest possible one: the run had more noise beside it than this says."""
    vectors = tuple(
        vector
        for kind in audit.kinds
        if not kind.extra
        for vector in _vectors(kind, [each for each in audit.releases if each.kind == kind.kind])
    )
    return SignalAndNoise(audit.subject.done, vectors) if vectors else None


def _vectors(kind: SumKind, released: Sequence[Release]) -> Iterator[NoisyVector]:
    for index, part in enumerate(kind.parts):
        noises = [
            math.sqrt(part.size) * sigma / release.contributors
            for release in released
            if len(release.sigmas) == len(kind.parts) and (sigma := release.sigmas[index]) is not None
        ]
        if noises and part.largest_norm is not None:
            yield NoisyVector(
                kind=kind.kind,
                part=part.name,
                size=part.size,
                clients=min(release.contributors for release in released),
                sums=len(noises),
                counts=part.counts,
                limit=part.largest_norm,
                noise=math.sqrt(math.fsum(noise**2 for noise in noises) / len(noises)),
            )
