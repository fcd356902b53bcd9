"""The simplest use: sum vectors through the real machines, in one call."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from secagg.errors import InputError
from secagg.local import LocalSession, Stage, local_machines
from secagg.spec import Bound, Part, SumSpec, Table, Values
from secagg.thresholds import Trust

_KIND = "sum"


@dataclass(frozen=True, eq=False)
class SecureSum:
    """The total of the clients that stayed, and who was clipped, by which factor."""

    values: Values
    count: int
    clipped: Mapping[int, float]


def sum_securely(
    vectors: Mapping[int, ArrayLike] | Sequence[ArrayLike],
    *,
    bound: Bound,
    bits: int,
    trust: Trust | str,
    corrupt: int,
    missing: Collection[int] = (),
) -> SecureSum:
    """Sum one vector per client, each client a machine of its own in this process.

    The server machine sees uniformly random residues and their total. `missing` names clients that
    vanish after set-up, before they send their input; they are what drop-out handling is for. Raises
    `SpecError` if the total could wrap, `InputError` for a bad vector, `SumFailed` if too few remain.
    """
    named = dict(vectors) if isinstance(vectors, Mapping) else dict(enumerate(vectors))
    if len(named) < 2:
        raise InputError("a secure sum needs at least two vectors")
    first = np.shape(next(iter(named.values())))
    if len(first) != 1:
        raise InputError(f"vectors must have one dimension, not shape {first}")
    table = Table({_KIND: SumSpec(parts=(Part(name=_KIND, size=first[0], bits=bits, bound=bound),))})
    server, clients = local_machines(
        table=table, trust=Trust.parse(trust), members=tuple(named), corrupt=corrupt, dropout=0, sums=1
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
