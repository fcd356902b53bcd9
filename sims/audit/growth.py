"""How the bytes of a round grow with the cohort: fitted to a m log2 m + b m d over the sizes there are.

That is what sums on a ring take, m clients of which each deals shares to some log m others and sends vectors
of d numbers; on the complete graph, shares grow with m^2 and the fit says so by its error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sims.audit.audit import Growth


@dataclass(frozen=True)
class Load:
    """Bytes of all clients in a round, both ways."""

    clients: int
    dim: int
    bytes: float


def growth(loads: Iterable[Load]) -> Growth | None:
    """None with fewer than two sizes: through one point goes every line."""
    means = _means(load for load in loads if load.clients > 1)
    if len({load.clients for load in means}) < 2:
        return None
    terms = np.array([[m.clients * math.log2(m.clients), m.clients * m.dim] for m in means], np.float64)
    measured = np.array([m.bytes for m in means])
    weights = 1 / measured  # relative errors count the same at every size
    found = np.linalg.lstsq(terms * weights[:, None], measured * weights, rcond=None)[0]
    errors = np.abs(terms @ found / measured - 1)
    return Growth(
        sizes=tuple(m.clients for m in means),
        dims=tuple(m.dim for m in means),
        log_coefficient=float(found[0]),
        size_coefficient=float(found[1]),
        worst=float(errors.max()),
    )


def _means(loads: Iterable[Load]) -> list[Load]:
    """One for each size."""
    found: dict[tuple[int, int], list[float]] = {}
    for load in loads:
        found.setdefault((load.clients, load.dim), []).append(load.bytes)
    return [Load(*size, sum(rows) / len(rows)) for size, rows in sorted(found.items())]
