"""The simplest use: sum vectors through the real machines, in one call."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from secagg.errors import InputError, ParameterError
from secagg.finder import GraphChoice
from secagg.local import LocalSession, Stage, local_machines
from secagg.params import SessionParams, largest_cohort
from secagg.registry import MAX_ID
from secagg.spec import Bound, Part, SumSpec, Table, Values
from secagg.thresholds import MAX_COMPLETE

_KIND = "sum"


@dataclass(frozen=True, eq=False)
class SecureSum:
    """The total of the clients that stayed, and the clients that were clipped, each with its factor.

    `sum_securely` returns it.

    >>> vectors = [[3.0, 4.0], [0.0, 1.0]]
    >>> params = SessionParams(trust="curious_server", corrupt=0)
    >>> sum_securely(vectors, bound=L2(1.0), bits=32, params=params).clipped
    {0: 0.2}
    """

    values: Values
    count: int
    clipped: Mapping[int, float]


def sum_securely(
    vectors: Mapping[int, ArrayLike] | Sequence[ArrayLike],
    *,
    bound: Bound,
    bits: int,
    params: SessionParams,
    missing: Collection[int] = (),
) -> SecureSum:
    """Sum one vector per client, each client a machine of its own in this process.

    The server machine sees uniformly random residues and their total. `missing` names clients that vanish
    after set-up, before they send their input; they are what drop-out handling is for, and
    `preflight(...).margin` says how many there may be. The sums, drop-out and graph of `params` are not used:
    they follow from the vectors. More than 1024 clients meet on a ring, which needs a `curious_server`.
    Raises `SpecError` if the total could wrap, `InputError` for a bad vector, `SumFailed` if too few remain.

    >>> vectors = {1: [1.0, 2.0], 2: [3.0, 4.0], 3: [5.0, 6.0]}
    >>> params = SessionParams(trust="malicious_server", corrupt=0)
    >>> total = sum_securely(vectors, bound=LInf(10.0), bits=32, params=params, missing=[3])
    >>> total.values.round(6), total.count
    (array([4., 6.]), 2)
    """
    named = _named(vectors)
    if not isinstance(missing, Collection) or not set(missing) <= set(named):
        raise InputError("missing must be a collection of ids of clients with a vector")
    size = _size_of(next(iter(named.values())))
    table = Table({_KIND: SumSpec(parts=(Part(name=_KIND, size=size, bits=bits, bound=bound),))})
    if len(named) > (most := largest_cohort(params.trust)):
        raise InputError(f"under {params.trust} a session takes at most {most} vectors, not {len(named)}")
    large = len(named) > MAX_COMPLETE
    server, clients = local_machines(
        table=table,
        params=replace(
            params,
            sums=1,
            dropout=Fraction(len(set(missing)), len(named)) if large else 0,  # a ring is drawn for these
            graph=GraphChoice.RING if large else GraphChoice.COMPLETE,
        ),
        members=tuple(named),
    )
    session = LocalSession(
        server,
        clients,
        lambda member, _asked: {_KIND: named[member]},
        absent=lambda member, stage, _sum: stage is Stage.MASK and member in missing,
    )
    session.open()
    total = session.ask(_KIND)
    session.end()
    clipped = {member: factors[_KIND] for (member, _), factors in session.clipped.items()}
    return SecureSum(total[_KIND], total.count, clipped)


def _named(vectors: Mapping[int, ArrayLike] | Sequence[ArrayLike]) -> dict[int, ArrayLike]:
    """Return the vectors by client id. The clients of a list are numbered from 0."""
    named = dict(vectors) if isinstance(vectors, Mapping) else dict(enumerate(vectors))
    if len(named) < 2:
        raise InputError("a secure sum needs at least two vectors")
    if not all(isinstance(member, int) and 0 <= member <= MAX_ID for member in named):
        raise ParameterError(f"the ids of clients must be whole numbers from 0 to {MAX_ID}")
    return named


def _size_of(vector: ArrayLike) -> int:
    """Return the length of the first vector, which all others must have."""
    try:
        shape = np.shape(vector)
    except ValueError:
        raise InputError("a vector must not have rows of different lengths") from None
    if len(shape) != 1 or shape[0] == 0:
        raise InputError(f"vectors must have one dimension and at least one element, not shape {shape}")
    return int(shape[0])
