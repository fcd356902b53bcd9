"""What a round costs: in numbers as the lp-proj paper counts them, and in numbers, bits and bytes as sent.

"Personalized Federated Learning towards Communication Efficiency, Robustness and Fairness" speaks of bytes
and counts numbers: each that is read or written by a client is one, whatever its type. Its totals in Table 1
factor that way. Whoever trains reads, and only those drawn for the mean write; in lp-proj and LG-FedAvg all
clients train in every round, in the others only those drawn do.

What is really sent follows from the algorithm itself, which is built as the run had it, and from the plan
that `secagg plan` makes of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from protocols.algorithm import AnyAlgorithm, Sum
from protocols.catalogue import find
from protocols.lpproj import LpProj
from protocols.partial_personalisation import LGFedAvg
from protocols.quantised import Quantised
from protocols.sketched_sgd import SketchedSGD
from secagg.session_params import SessionParams
from secagg.trust_levels import Trust
from sims.plan.cost_plan import Conditions, plan_costs
from sims.sweep import Record

_FLOAT_BITS: Final = 32  # of a number, where the paper counts bits


@dataclass(frozen=True)
class Cost:
    """Of a round, for all clients together.

    `counted`     numbers by the paper's rule.
    `numbers`     that are sent, in either direction.
    `elements`    numbers that clients put into sums, and `payload` their bits: elements times bits of each.
    `bytes_up`    all that clients send for these sums, messages of the protocol included.
    `bytes_down`  of the queries that they are sent.
    `set_up`      bytes that clients send for keys and shares of a session, and for how many rounds it lasts.
    """

    counted: float
    numbers: int
    elements: int
    payload: int
    bytes_up: int
    bytes_down: int
    set_up: int
    lasts: int

    def sent(self, rounds: int) -> int:
        """Return the bytes that clients send in so many rounds, with these rounds' share of sessions."""
        return round(rounds * (self.bytes_up + self.set_up / self.lasts))


def cost_of(record: Record, *, drawn: int) -> Cost:
    """Return the cost of a run's rounds. `drawn` are the clients whose messages the paper would count."""
    everybody = len(record.result["samples"])
    asked: int = record.settings.get("cohort", {}).get("per_round", everybody)
    algorithm = built(record.settings["algorithm"], dim=record.result["dim"], clients=asked)
    if not algorithm.sums():
        return Cost(0, 0, 0, 0, 0, 0, 0, 1)
    # Who is drawn anew in every round cannot go on with the session of the round before.
    lasts = 1 if asked < everybody else 64 // algorithm.most_sums
    params = SessionParams(trust=Trust.CURIOUS, corrupt=0, sums=lasts * algorithm.most_sums)
    plan = plan_costs(algorithm, Conditions(params=params))
    elements = sum(written(one) for one in algorithm.sums())
    each = elements + sum(read(one, algorithm.dim) for one in algorithm.sums())
    payload = sum(one.times * one.bits for one in plan.sums)
    return Cost(
        counted=by_the_papers_rule(algorithm, training=asked, writing=min(asked, drawn)),
        numbers=asked * each,
        elements=asked * elements,
        payload=asked * payload,
        bytes_up=asked * plan.round_bytes,
        bytes_down=asked * plan.broadcast_bytes,
        set_up=asked * plan.setup_bytes,
        lasts=lasts,
    )


def built(section: Mapping[str, Any], *, dim: int, clients: int) -> AnyAlgorithm:
    """Return the algorithm of a scenario."""
    parameters = {name: value for name, value in section.items() if name != "name"}
    return find(section["name"]).build(dim=dim, clients=clients, **parameters)


def read(one: Sum, dim: int) -> int:
    """Return the numbers that a client receives with such a query; repeated ones are not counted."""
    vectors = [each.name for each in fields(one.query) if str(each.type).startswith("Vector")]
    return sum(one.lengths.get(name, dim) for name in vectors)


def written(one: Sum) -> int:
    return sum(part.size for part in one.spec.parts)


def by_the_papers_rule(algorithm: AnyAlgorithm, *, training: int, writing: int) -> float:
    """Return the numbers of a round: read by all clients that train, written by those drawn."""
    dim = algorithm.dim
    match algorithm:
        case LpProj():
            return (training + writing) * algorithm.space.size
        case LGFedAvg():
            return (training + writing) * algorithm.own.rest.size
        case SketchedSGD():
            asked = algorithm.p2 * algorithm.k
            return writing * (algorithm.sketch.size + asked + 2 * algorithm.k + asked)
        case Quantised():
            buckets = 1 if algorithm.bucket is None else math.ceil(dim / algorithm.bucket)
            level_bits = math.ceil(math.log2(algorithm.levels))
            return 2 * writing * (dim + _FLOAT_BITS * buckets + level_bits * dim) / _FLOAT_BITS
        case _:
            return 2 * writing * dim


# --- when a target is reached ---


def first_round(rounds: Sequence[int], values: Sequence[float], target: float) -> int | None:
    """Return the round after which the value was first at least the target."""
    return next((n for n, value in zip(rounds, values, strict=True) if n > 0 and value >= target), None)


def value_within(
    rounds: Sequence[int], values: Sequence[float], each: float, budget: float
) -> tuple[int, float] | None:
    """The last round that the budget pays for, if each costs so much, and the value after it; None if it does
    not pay for one. A run may have ended before."""
    paid = [(n, v) for n, v in zip(rounds, values, strict=True) if n > 0 and n * each <= budget]
    return paid[-1] if paid else None
