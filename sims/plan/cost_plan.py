"""The cost of a run before it starts: sums, bytes, and what each sum reveals.

`sims.plan.completion_probability` computes the probability that all sums are released.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from fractions import Fraction
from math import sqrt
from typing import Any, Final, assert_never

import numpy as np

from protocols.algorithm import AnyAlgorithm, Sum
from protocols.queries import RoundInfo, encode_query
from protocols.serialisation import Vector, as_vector, vectors_of
from secagg.errors import ParameterError
from secagg.finder import GraphChoice
from secagg.messages import MAX_SUMS
from secagg.noise.accounting import sum_rho
from secagg.params import SessionParams
from secagg.preflight import Preflight, preflight
from secagg.spec import L2, Count, LInf, Part, Residue, SumSpec
from secagg.thresholds import Trust
from sims.plan.completion_probability import CompletionProbability


@dataclass(frozen=True)
class PartCost:
    """One part of a sum, and what its bound means in words.

    `sigma_total` is the standard deviation of the noise on each number of a total to which all contribute,
    in the part's own unit, `sigma_mean` that of a mean over all; None without noise.
    """

    name: str
    size: int
    bits: int
    meaning: str
    sigma_total: float | None
    sigma_mean: float | None


@dataclass(frozen=True)
class SumCost:
    """One kind of sum. Bits are those of one client's numbers, bytes up all that it sends for one sum.

    `broadcast_bytes` are those of the longest query of the kind, which every client receives. Over fewer than
    `least_clients` nothing is released.
    """

    kind: str
    times: int
    group: str
    parts: tuple[PartCost, ...]
    bits: int
    bytes_up: int
    broadcast_bytes: int
    least_clients: int
    reveals: str
    private: bool
    rho: float | None
    singles_out: bool  # where a malicious server could


@dataclass(frozen=True)
class GroupCost:
    """Sums over the same clients: the probability that all are released, and how many are on average.

    Both assume that all sums of the groups before it are released. With fewer than `needed`, the round is
    given up.
    """

    name: str
    sums: int
    needed: int
    completes: float
    expected: float


@dataclass(frozen=True)
class CostPlan:
    """All bytes are those that one client sends, except for the broadcast, which it receives.

    `round_completes` is the probability that a round has all the sums without which it is given up. On a
    ring, that holds if at most `margin` clients are lost.
    """

    clients: int
    dim: int
    trust: Trust
    threshold: int
    quorum: int
    margin: int
    ring: bool
    needs_all_clients: bool
    sums_per_round: int
    rounds_per_session: int
    setup_bytes: int
    round_bytes: int
    broadcast_bytes: int
    round_completes: float
    sums: tuple[SumCost, ...]
    groups: tuple[GroupCost, ...]
    unsafe: str  # why it is refused under a malicious server; empty if it is not


_UNCONDITIONAL: typing.Final = SessionParams(trust=Trust.CURIOUS, corrupt=0, sums=MAX_SUMS)


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The conditions of a run. The drop-out of its sessions follows from the two rates."""

    params: SessionParams = _UNCONDITIONAL
    dropout_training: Fraction = Fraction(0)
    dropout_sum: Fraction = Fraction(0)

    @property
    def dropout(self) -> Fraction:
        """The drop-out that a threshold must allow for: losses in training and in one sum."""
        return 1 - (1 - self.dropout_training) * (1 - self.dropout_sum)


def plan_costs(algorithm: AnyAlgorithm, conditions: Conditions) -> CostPlan:
    """Return the plan. Raises `ParameterError` with all problems if it cannot work."""
    algorithm.check_trust(conditions.params.trust)
    if algorithm.table is None:
        return _alone(algorithm, conditions.params.trust)
    if algorithm.most_sums > conditions.params.sums:
        raise ParameterError(_too_many(algorithm, conditions.params.sums))
    session = preflight(
        algorithm.table, algorithm.clients, replace(conditions.params, dropout=conditions.dropout)
    )
    if session.problems or session.threshold is None:
        raise ParameterError("; ".join(session.problems))
    sums = tuple(_sum(each, session, algorithm) for each in algorithm.sums())
    completion = CompletionProbability(
        algorithm.clients, training=conditions.dropout_training, in_sum=conditions.dropout_sum
    )
    groups = _groups(algorithm, sums, completion)
    return CostPlan(
        clients=algorithm.clients,
        dim=algorithm.dim,
        trust=conditions.params.trust,
        threshold=session.threshold,
        quorum=min(each.least_clients for each in sums),
        margin=session.margin,
        ring=session.graph is GraphChoice.RING,
        needs_all_clients=algorithm.needs_all_clients,
        sums_per_round=algorithm.most_sums,
        rounds_per_session=conditions.params.sums // algorithm.most_sums,
        setup_bytes=session.setup_bytes_up,
        round_bytes=sum(each.times * each.bytes_up for each in sums),
        broadcast_bytes=sum(sum(query_bytes(each, algorithm.dim)) for each in algorithm.sums()),
        round_completes=_round_completes(algorithm, sums, groups, completion),
        sums=sums,
        groups=tuple(groups),
        unsafe=_unsafe(algorithm),
    )


def _alone(algorithm: AnyAlgorithm, trust: Trust) -> CostPlan:
    """Return the plan of clients that are never asked for anything."""
    return CostPlan(
        clients=algorithm.clients, dim=algorithm.dim, trust=trust, threshold=0, quorum=0, margin=0,
        ring=False, needs_all_clients=False, sums_per_round=0, rounds_per_session=0, setup_bytes=0,
        round_bytes=0, broadcast_bytes=0, round_completes=1.0, sums=(), groups=(), unsafe="",
    )  # fmt: skip


def _too_many(algorithm: AnyAlgorithm, session_sums: int) -> str:
    needed = algorithm.most_sums
    if needed <= MAX_SUMS:
        remedy = f"raise --session-sums to {needed}"
    else:
        names = [name for name in ("steps", "median_steps") if hasattr(algorithm, name)]
        remedy = f"set a smaller {names[-1]}" if names else "it cannot be had"
    return f"a round needs up to {needed} sums, but a session has {session_sums}: {remedy}"


def _unsafe(algorithm: AnyAlgorithm) -> str:
    try:
        algorithm.check_trust(Trust.MALICIOUS)
    except ParameterError as error:
        return str(error)
    return ""


def _sum(each: Sum, session: Preflight, algorithm: AnyAlgorithm) -> SumCost:
    spec, kind, clients = each.spec, each.query.kind, algorithm.clients
    steps = {row.part: row.resolution for row in session.parts if row.kind == kind}
    return SumCost(
        kind=kind,
        times=spec.times,
        group=spec.group or kind,
        parts=tuple(_part(part, spec, clients, steps[part.name]) for part in spec.parts),
        bits=sum(part.width * part.bits for part in spec.parts),
        bytes_up=session.sum_bytes_up[kind],
        broadcast_bytes=max(query_bytes(each, algorithm.dim)),
        least_clients=max(session.quorum, _least_with_noise(spec, clients)),
        reveals=each.reveals,
        private=spec.is_private,
        rho=sum_rho(spec, roster=clients) if spec.is_private else None,
        singles_out=each.least_weight < 1 and not spec.is_private,
    )


def _least_with_noise(spec: SumSpec, clients: int) -> int:
    """Return the fewest clients whose noise suffices: with more drop-outs than planned it does not."""
    promise = spec.promise
    return 0 if promise is None else max(clients - promise.dropouts, promise.least_roster)


def _part(part: Part, spec: SumSpec, clients: int, resolution: float | None) -> PartCost:
    total = None
    if part.noise is not None and spec.promise is not None:
        total = sqrt(clients * part.noise.variance * spec.promise.left(clients)) / part.noise.scale
    mean = None if total is None else total / clients
    return PartCost(part.name, part.size, part.bits, _meaning(part, resolution), total, mean)


def _meaning(part: Part, resolution: float | None) -> str:
    match part.bound:
        case L2(limit):
            rule = f"a norm of at most {limit:g}; longer ones are scaled down"
        case LInf(limit):
            rule = f"every number within +-{limit:g}; others are clipped"
        case Count(limit):
            rule = f"whole numbers from 0 to {limit:,}; others are refused"
        case Residue():
            rule = "residues, which wrap around"
        case _:
            assert_never(part.bound)
    fine = "" if resolution is None else f"; rounded to steps of {resolution:.2g}"
    return rule + fine


# --- chances ------------------------------------------------------------------------------------------


def _groups(
    algorithm: AnyAlgorithm, sums: tuple[SumCost, ...], completion: CompletionProbability
) -> list[GroupCost]:
    counts: dict[str, int] = {}
    needed: dict[str, int] = {}
    for each, seen in zip(algorithm.sums(), sums, strict=True):
        must = seen.times if each.needed is None else each.needed
        counts[seen.group] = counts.get(seen.group, 0) + seen.times
        needed[seen.group] = needed.get(seen.group, 0) + must
    found: list[GroupCost] = []
    for name, count in counts.items():
        before = [group.sums for group in found]
        least = _least_until(algorithm, sums, name)
        chance = [completion.released([*before, taken], least) for taken in range(1, count + 1)]
        found.append(GroupCost(name, count, needed[name], chance[-1], sum(chance)))
    return found


def _round_completes(
    algorithm: AnyAlgorithm,
    sums: tuple[SumCost, ...],
    groups: list[GroupCost],
    completion: CompletionProbability,
) -> float:
    """Ignore groups after all that is needed; of the last needed group, only some sums count.

    Groups before that one count with all their sums, which is more than they may need.
    """
    while groups and not groups[-1].needed:
        groups = groups[:-1]
    if not groups:
        return 1.0
    counts = [*(group.sums for group in groups[:-1]), groups[-1].needed]
    return completion.released(counts, _least_until(algorithm, sums, groups[-1].name))


def _least_until(algorithm: AnyAlgorithm, sums: tuple[SumCost, ...], group: str) -> int:
    """Return what the sums up to the last one of that group need."""
    if algorithm.needs_all_clients:
        return algorithm.clients
    last = max(place for place, each in enumerate(sums) if each.group == group)
    return max(each.least_clients for each in sums[: last + 1])


def as_json(outlook: CostPlan) -> Mapping[str, object]:
    """Return the plan as JSON. Keys are the field names, except for the published key `needs_everybody`."""
    found = asdict(outlook) | {"trust": str(outlook.trust)}
    found["needs_everybody"] = found.pop("needs_all_clients")
    return found


# Beyond this, a vector only adds its own bytes: lengths take no more of them.
_ENOUGH: Final = 10_000
_NUMBER_BYTES: Final = 8
_EXAMPLES: Final[dict[object, object]] = {int: 0, float: 0.0, str: "", bool: False, bytes: b""}


def query_bytes(each: Sum, dim: int) -> list[int]:
    """Return the payload bytes of all queries of that kind in the first round."""
    lengths = []
    for number in range(each.spec.times):
        left_out = {name for name, times in each.seldom.items() if number >= times}
        lengths.append(_length(each, left_out, dim))
    return lengths


def _length(asked: Sum, left_out: set[str], dim: int) -> int:
    hints = typing.get_type_hints(asked.query)
    sizes = {each.name: asked.lengths.get(each.name, dim) for each in fields(asked.query)}
    values = {
        name: None if name in left_out else _example(hints[name], as_vector(np.zeros(min(size, _ENOUGH))))
        for name, size in sizes.items()
    }
    query = asked.query(**values)
    rest = sum(_NUMBER_BYTES * (sizes[name] - len(vector)) for name, vector in vectors_of(query).items())
    return len(encode_query(RoundInfo(), query)) + rest


def _example(hint: Any, vector: Vector) -> object:
    if hint in _EXAMPLES:
        return _EXAMPLES[hint]
    return vector  # or an optional one
