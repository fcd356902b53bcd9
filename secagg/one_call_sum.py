"""The simplest interface: sum vectors securely in one call, with server and clients in this process."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from secagg.errors import InputError, ParameterError
from secagg.graph_parameters import GraphChoice
from secagg.identity_registry import MAX_ID
from secagg.local_session import LocalSession, Stage, local_machines
from secagg.session_params import SessionParams, largest_cohort
from secagg.sum_spec import Bound, Part, SumSpec, Table, Values
from secagg.trust_levels import MAX_COMPLETE

_KIND = "sum"


@dataclass(frozen=True, eq=False)
class SecureSum:
    """The result of `sum_securely`: `values` is the sum over the `count` clients that did not drop out.
    `clipped` maps the id of each client with a vector beyond the bound to the factor, below 1, that scaled it
    (`L2`) or its largest element (`LInf`).

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
    """Return the sum of one vector per client. Each client is a machine of its own in this process.

    The server machine sees only uniformly random residues and their total. `missing` are the ids of clients
    that drop out after set-up, before they send their input; `preflight(...).margin` is the most that may.
    `sums`, `dropout` and `graph` of `params` are replaced by values that suit the vectors. More than 1024
    clients use a ring, which needs a `curious_server`. Raises `SpecError` if the total could wrap around,
    `InputError` or `ParameterError` for a bad argument, and `SumFailed` if too few clients remain.

    >>> vectors = {1: [1.0, 2.0], 2: [3.0, 4.0], 3: [5.0, 6.0]}
    >>> params = SessionParams(trust="malicious_server", corrupt=0)
    >>> total = sum_securely(vectors, bound=LInf(10.0), bits=32, params=params, missing=[3])
    >>> total.values.round(6), total.count
    (array([4., 6.]), 2)
    """
    named = _by_id(vectors)
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
            dropout=Fraction(len(set(missing)), len(named)) if large else 0,  # a ring must withstand these
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


def _by_id(vectors: Mapping[int, ArrayLike] | Sequence[ArrayLike]) -> dict[int, ArrayLike]:
    """Return the vectors by client id. If `vectors` is a sequence, ids count from 0. Raises `InputError` if
    there are fewer than two, and `ParameterError` if an id is invalid."""
    named = dict(vectors) if isinstance(vectors, Mapping) else dict(enumerate(vectors))
    if len(named) < 2:
        raise InputError("a secure sum needs at least two vectors")
    if not all(isinstance(member, int) and 0 <= member <= MAX_ID for member in named):
        raise ParameterError(f"the ids of clients must be whole numbers from 0 to {MAX_ID}")
    return named


def _size_of(vector: ArrayLike) -> int:
    """Return the length of `vector`. Raise `InputError` if it is empty or not one-dimensional."""
    try:
        shape = np.shape(vector)
    except ValueError:
        raise InputError("a vector must not have rows of different lengths") from None
    if len(shape) != 1 or shape[0] == 0:
        raise InputError(f"vectors must have one dimension and at least one element, not shape {shape}")
    return int(shape[0])
