"""Computes, before a run starts, its sums and bytes, what they reveal, and how likely a round completes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from fractions import Fraction
from typing import Final, assert_never, get_type_hints

import numpy as np

from protocols.algorithm import AnyAlgorithm, Sum
from protocols.query_encoding import encode_query
from protocols.rounds import RoundInfo
from protocols.serialisation import as_vector, vectors_of
from secagg.errors import ParameterError
from secagg.graph_parameters import GraphChoice
from secagg.hybrid_keys import KeyAgreement
from secagg.messages import MAX_SUMS
from secagg.noise.zcdp_cost import sum_rho
from secagg.preflight import Preflight, preflight
from secagg.session_params import SessionParams
from secagg.sum_spec import L2, Count, LInf, Part, Residue, SumSpec
from secagg.trust_levels import Trust
from sims.plan.completion_probability import CompletionProbability
from sims.plan.signal_and_noise import SignalAndNoise, sigma_of_total, signal_and_noise
from sims.text_format import PLANNED_DIFFERENCING


@dataclass(frozen=True)
class PartCost:
    """One vector that a sum adds up: `size` numbers of `bits` bits. `meaning` says which values are allowed.
    If all clients contribute, `sigma_total` is the standard deviation of the noise on each number of the
    total, in the unit of the numbers, and `sigma_mean` that of the noise on the mean; None without noise."""

    name: str
    size: int
    bits: int
    meaning: str
    sigma_total: float | None
    sigma_mean: float | None


@dataclass(frozen=True)
class SumCost:
    """The cost of one kind of sum in a round, and what its total reveals to the server."""

    kind: str
    times: int  # most sums of this kind in a round
    group: str  # kinds of the same group are sums of the same private vectors
    parts: tuple[PartCost, ...]
    bits: int  # of one client's vectors
    bytes_up: int  # all bytes that one client sends for one sum
    broadcast_bytes: int  # payload bytes of the longest query of this kind, which every client receives
    least_clients: int  # a total over fewer clients is not released
    reveals: str  # what the server learns from the total, in words
    private: bool  # whether all parts have noise
    rho: float | None  # the privacy cost of one sum; None if a part has no noise
    singles_out: bool  # whether the server's choices can lower a client's weight in a total without noise


@dataclass(frozen=True)
class GroupCost:
    """A group of sums in a round, which must be over the same clients, and the chance that they succeed."""

    name: str
    sums: int  # most sums of the group
    needed: int  # with fewer sums, the round is given up
    completes: float  # the probability that all sums of this group and of the groups before it are released
    expected: float  # the mean number of released sums of the group, without those after a failed sum


@dataclass(frozen=True)
class CostPlan:
    """The planned cost of a run. One client sends `setup_bytes` in the set-up of a session and `round_bytes`
    in all sums of a round. `round_completes` is a lower bound of the probability that all sums which a round
    needs are released. It ignores a rare case on a ring: a client keeps too few neighbours."""

    clients: int
    dim: int  # number of model parameters
    trust: Trust
    key_agreement: KeyAgreement
    threshold: int  # number of shares that reconstruct a secret
    quorum: int  # fewest clients of any total that is released
    margin: int  # most clients that may drop out
    liars: int  # most clients that may lie, one after another, before too few are left
    ring: bool  # whether clients share secrets with their neighbours on a ring, and not with all others
    needs_all_clients: bool
    sums_per_round: int
    rounds_per_session: int
    setup_bytes: int  # of the set-up of a session
    round_bytes: int  # of all sums of a round, without set-up
    broadcast_bytes: int  # payload bytes of all queries of a round, which a client receives
    round_completes: float
    sums: tuple[SumCost, ...]
    groups: tuple[GroupCost, ...]
    unsafe: str  # why the algorithm is refused under a malicious server; empty if it is allowed
    cautions: tuple[str, ...] = ()  # what may end sums early, or limit how often they are repeated
    signal: SignalAndNoise | None = None  # the noise beside what can be learned; None without noise


_UNCONDITIONAL: Final = SessionParams(trust=Trust.CURIOUS, corrupt=0, sums=MAX_SUMS)


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What a plan assumes: drop-out probabilities, and session parameters (their `dropout` is ignored)."""

    params: SessionParams = _UNCONDITIONAL
    dropout_training: Fraction = Fraction(0)  # the probability that a client drops out of the training
    dropout_sum: Fraction = Fraction(0)  # the probability that a client drops out of a sum

    @property
    def dropout(self) -> Fraction:
        """The probability that a client drops out of the training or of the first sum."""
        return 1 - (1 - self.dropout_training) * (1 - self.dropout_sum)


def plan_costs(algorithm: AnyAlgorithm, conditions: Conditions) -> CostPlan:
    """Return the cost of running `algorithm`. Raise `ParameterError` if it cannot run under `conditions`."""
    algorithm.check_trust(conditions.params.trust)
    if algorithm.table is None:
        return _alone(algorithm, conditions.params)
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
        key_agreement=conditions.params.key_agreement,
        threshold=session.threshold,
        quorum=min(each.least_clients for each in sums),
        margin=session.margin,
        liars=session.liars,
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
        cautions=(*session.cautions, *_differencing(sums, conditions)),
        signal=signal_and_noise(algorithm),
    )


def _differencing(sums: tuple[SumCost, ...], conditions: Conditions) -> Iterator[str]:
    """Yield a caution if sums have no noise while drop-outs are expected."""
    kinds = ", ".join(each.kind for each in sums if not each.private)
    if kinds and conditions.dropout > 0:
        yield PLANNED_DIFFERENCING.format(kinds=kinds)


def _alone(algorithm: AnyAlgorithm, params: SessionParams) -> CostPlan:
    """Return the cost plan of an algorithm without sums: each client trains alone and sends nothing."""
    return CostPlan(
        clients=algorithm.clients, dim=algorithm.dim, trust=params.trust, key_agreement=params.key_agreement,
        threshold=0, quorum=0, margin=0, liars=0, ring=False, needs_all_clients=False, sums_per_round=0,
        rounds_per_session=0, setup_bytes=0, round_bytes=0, broadcast_bytes=0, round_completes=1.0, sums=(),
        groups=(), unsafe="",
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
    """Return how many of `clients` must be in a total so that its noise suffices; 0 if it has no noise."""
    promise = spec.promise
    return 0 if promise is None else max(clients - promise.dropouts, promise.least_roster)


def _part(part: Part, spec: SumSpec, clients: int, resolution: float | None) -> PartCost:
    total = sigma_of_total(part, spec, clients)
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


# --- probabilities ------------------------------------------------------------------------------------


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
    """Return a lower bound on the probability that all sums that a round needs are released. Of the last
    group (sums over the same clients) with needed sums, it demands these; of the groups before, all sums."""
    while groups and not groups[-1].needed:
        groups = groups[:-1]
    if not groups:
        return 1.0
    counts = [*(group.sums for group in groups[:-1]), groups[-1].needed]
    return completion.released(counts, _least_until(algorithm, sums, groups[-1].name))


def _least_until(algorithm: AnyAlgorithm, sums: tuple[SumCost, ...], group: str) -> int:
    """Return how many clients must stay so that all sums up to the last one of `group` are released."""
    if algorithm.needs_all_clients:
        return algorithm.clients
    last = max(place for place, each in enumerate(sums) if each.group == group)
    return max(each.least_clients for each in sums[: last + 1])


def as_json(plan: CostPlan) -> Mapping[str, object]:
    """Return the plan as a dictionary for JSON, with `needs_all_clients` under the key `needs_everybody`."""
    found = asdict(plan) | {"trust": str(plan.trust), "key_agreement": str(plan.key_agreement)}
    found["needs_everybody"] = found.pop("needs_all_clients")
    found["signal"] = None if plan.signal is None else plan.signal.as_json()
    return found


# Longer vectors are not encoded to find their size: each further number adds 8 bytes.
_ENOUGH: Final = 10_000
_NUMBER_BYTES: Final = 8
_EXAMPLES: Final[dict[object, object]] = {int: 0, float: 0.0, str: "", bool: False, bytes: b""}


def query_bytes(each: Sum, dim: int) -> list[int]:
    """Return the payload bytes of each query of a round for one kind of sum, with `dim` model parameters."""
    lengths = []
    for number in range(each.spec.times):
        left_out = {name for name, times in each.seldom.items() if number >= times}
        lengths.append(_length(each, left_out, dim))
    return lengths


def _length(asked: Sum, left_out: set[str], dim: int) -> int:
    hints = get_type_hints(asked.query)
    sizes = {each.name: asked.lengths.get(each.name, dim) for each in fields(asked.query)}
    vectors = {name: as_vector(np.zeros(min(size, _ENOUGH))) for name, size in sizes.items()}
    # A field whose type is not in `_EXAMPLES` is a vector, or an optional vector.
    values = {
        name: None if name in left_out else _EXAMPLES.get(hints[name], vector)
        for name, vector in vectors.items()
    }
    query = asked.query(**values)
    rest = sum(_NUMBER_BYTES * (sizes[name] - len(vector)) for name, vector in vectors_of(query).items())
    return len(encode_query(RoundInfo(), query)) + rest
