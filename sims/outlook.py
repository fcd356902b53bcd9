"""What a run of an algorithm will cost and show, before it is run: sums, bytes, what each sum reveals.

Let every client be lost while it trains, before it sends anything, with probability p, and within each sum
with probability q. Of n clients, m are left after training with the probability of m in a binomial of n and
1 - p. Sums of one group need the same clients every time; only in the last one may some be lost, as long as a
threshold t stays. So at least k sums of a group are released with probability

    sum over m of  P(m) * (1 - q)^(m (k - 1)) * P(at least t of m stay, each with 1 - q)

where m counts only if it reaches the quorum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import exp, lgamma, log, log1p

import numpy as np
from numpy.typing import NDArray

from protocols.algorithm import AnyAlgorithm, Sum
from protocols.record import Vector
from secagg.errors import ParameterError
from secagg.messages import MAX_SUMS
from secagg.noise.accounting import sum_rho
from secagg.preflight import Preflight, preflight
from secagg.spec import L2, Count, LInf, Part
from secagg.thresholds import Trust


@dataclass(frozen=True)
class PartOutlook:
    """One part of a sum, and what its bound means in words."""

    name: str
    size: int
    bits: int
    meaning: str


@dataclass(frozen=True)
class SumOutlook:
    """One kind of sum. Bits are those of one client's numbers, bytes all that it sends for one such sum."""

    kind: str
    times: int
    group: str
    parts: tuple[PartOutlook, ...]
    bits: int
    bytes_up: int
    reveals: str
    private: bool
    rho: float | None
    singles_out: bool  # where a malicious server could


@dataclass(frozen=True)
class GroupOutlook:
    """Sums over the same vectors: the chance that all of them are released, and how many are on average."""

    name: str
    sums: int
    completes: float
    expected: float


@dataclass(frozen=True)
class Outlook:
    """All bytes are those that one client sends."""

    clients: int
    dim: int
    trust: Trust
    threshold: int
    quorum: int
    sums_per_round: int
    rounds_per_session: int
    setup_bytes: int
    round_bytes: int
    sums: tuple[SumOutlook, ...]
    groups: tuple[GroupOutlook, ...]
    unsafe: str  # why it is refused under a malicious server; empty if it is not


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Under which a run is looked at. `session_sums` are the most sums of one session."""

    trust: Trust = Trust.CURIOUS
    corrupt: int = 0
    dropout_training: Fraction = Fraction(0)
    dropout_sum: Fraction = Fraction(0)
    session_sums: int = MAX_SUMS

    @property
    def dropout(self) -> Fraction:
        """What a threshold has to allow for: losses in training and in one sum."""
        return 1 - (1 - self.dropout_training) * (1 - self.dropout_sum)


def look_ahead(algorithm: AnyAlgorithm, conditions: Conditions) -> Outlook:
    """Raises `ParameterError` with all problems if it cannot work."""
    algorithm.check_trust(conditions.trust)
    if algorithm.table is None:
        return Outlook(algorithm.clients, algorithm.dim, conditions.trust, 0, 0, 0, 0, 0, 0, (), (), "")
    if algorithm.most_sums > conditions.session_sums:
        raise ParameterError(
            f"a round needs up to {algorithm.most_sums} sums, but a session has {conditions.session_sums}: "
            "take fewer steps"
        )
    session = preflight(
        algorithm.table,
        clients=algorithm.clients,
        trust=conditions.trust,
        corrupt=conditions.corrupt,
        dropout=conditions.dropout,
        sums=conditions.session_sums,
    )
    if session.problems or session.threshold is None:
        raise ParameterError("; ".join(session.problems))
    sums = tuple(_sum(each, session, algorithm.clients) for each in algorithm.sums())
    groups = tuple(_groups(algorithm, session, conditions))
    return Outlook(
        clients=algorithm.clients,
        dim=algorithm.dim,
        trust=conditions.trust,
        threshold=session.threshold,
        quorum=session.quorum,
        sums_per_round=algorithm.most_sums,
        rounds_per_session=conditions.session_sums // algorithm.most_sums,
        setup_bytes=session.setup_bytes_up,
        round_bytes=sum(each.times * each.bytes_up for each in sums),
        sums=sums,
        groups=groups,
        unsafe=_unsafe(algorithm),
    )


def _unsafe(algorithm: AnyAlgorithm) -> str:
    try:
        algorithm.check_trust(Trust.MALICIOUS)
    except ParameterError as error:
        return str(error)
    return ""


def _sum(each: Sum, session: Preflight, clients: int) -> SumOutlook:
    spec, kind = each.spec, each.query.kind
    steps = {row.part: row.resolution for row in session.parts if row.kind == kind}
    return SumOutlook(
        kind=kind,
        times=spec.times,
        group=spec.group or kind,
        parts=tuple(
            PartOutlook(part.name, part.size, part.bits, _meaning(part, steps[part.name]))
            for part in spec.parts
        ),
        bits=sum(part.width * part.bits for part in spec.parts),
        bytes_up=session.sum_bytes_up[kind],
        reveals=each.reveals,
        private=spec.is_private,
        rho=sum_rho(spec, roster=clients) if spec.is_private else None,
        singles_out=each.least_weight < 1 and not spec.is_private,
    )


def _meaning(part: Part, resolution: float | None) -> str:
    noise = ", with noise" if part.noise is not None else ""
    match part.bound:
        case L2(limit):
            rule = f"a norm of at most {limit:g}; longer ones are scaled down"
        case LInf(limit):
            rule = f"every number within +-{limit:g}; others are clipped"
        case Count(limit):
            rule = f"whole numbers from 0 to {limit:,}; others are refused"
        case _:
            rule = "residues, which wrap around"
    fine = "" if resolution is None else f"; rounded to steps of {resolution:.2g}"
    return rule + fine + noise


# --- chances ------------------------------------------------------------------------------------------


def _groups(algorithm: AnyAlgorithm, session: Preflight, conditions: Conditions) -> list[GroupOutlook]:
    assert session.threshold is not None
    counts: dict[str, int] = {}
    for each in algorithm.sums():
        name = each.spec.group or each.query.kind
        counts[name] = counts.get(name, 0) + each.spec.times
    chances = _Chances(
        algorithm.clients,
        quorum=session.quorum,
        threshold=session.threshold,
        training=float(conditions.dropout_training),
        in_sum=float(conditions.dropout_sum),
    )
    return [
        GroupOutlook(name, sums, chances.at_least(sums), sum(map(chances.at_least, range(1, sums + 1))))
        for name, sums in counts.items()
    ]


class _Chances:
    """Of a cohort in which everybody may be lost, independently of all others."""

    def __init__(self, clients: int, *, quorum: int, threshold: int, training: float, in_sum: float) -> None:
        self._left = np.arange(quorum, clients + 1)  # after training
        arrive = [_binomial(clients, int(left), 1 - training) for left in self._left]
        self._released = np.array(arrive) * _tails(self._left, threshold, 1 - in_sum)
        self._stays = log1p(-in_sum)

    def at_least(self, sums: int) -> float:
        """That so many sums of a group are released."""
        chance = float(np.sum(self._released * np.exp(self._left * (sums - 1) * self._stays)))
        return min(chance, 1.0)


def _tails(trials: NDArray[np.int64], least: int, chance: float) -> Vector:
    """For each of these consecutive numbers of trials, the probability of `least` hits or more."""
    tail = sum(_binomial(int(trials[0]), hits, chance) for hits in range(least, int(trials[0]) + 1))
    tails = []
    for count in trials:
        tails.append(tail)
        tail += chance * _binomial(int(count), least - 1, chance)  # the next trial hits, and was needed
    return np.array(tails)


def _binomial(trials: int, hits: int, chance: float) -> float:
    """The probability of exactly so many hits."""
    if chance in (0.0, 1.0):
        return float(hits == trials * chance)
    ways = lgamma(trials + 1) - lgamma(hits + 1) - lgamma(trials - hits + 1)
    return exp(ways + hits * log(chance) + (trials - hits) * log1p(-chance))


def as_json(outlook: Outlook) -> Mapping[str, object]:
    """For a program; names are those of the fields."""
    return asdict(outlook) | {"trust": str(outlook.trust)}
