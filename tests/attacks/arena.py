"""An arena: a real server, and clients one of which is bad."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from secagg.client import ClientMachine
from secagg.errors import (
    PeerError,
)
from secagg.events import Convicted, Excluded, SumReleased
from secagg.local_session import LocalSession, Stage
from secagg.server import ServerMachine
from secagg.session_params import SessionParams
from secagg.trust_levels import Trust
from tests.attacks.rig import PART, Rig, residue_table

BAD = 0  # first in every order: its shares are the first ones tried
CLIENTS = 7
BITS = 32


class Arena:
    """A real server and seven clients, one of them bad, of whom two may be corrupt or missing."""

    def __init__(self, trust: Trust, bad: type[ClientMachine], *, bits: int = BITS) -> None:
        self.rig = rig = Rig(CLIENTS, trust, corrupt=1, table=residue_table(3, bits=bits))
        self.modulus = 1 << bits
        self.client = rig.machines[BAD] = bad(
            member=BAD,
            table=rig.table,
            policy=rig.policy,
            memory=rig.memories[BAD],
            identity=rig.identity(BAD) if rig.registry else None,
            registry=rig.registry,
        )
        self.server = ServerMachine(
            table=rig.table,
            params=SessionParams(
                trust=trust,
                sums=rig.sums,
                corrupt=1,
                dropout=0,
                min_cohort=3,
                max_cohort=CLIENTS,
                min_contributors=3,
            ),
            registry=rig.registry,
        )

    def session(self, *, absent: bool = False, silent: Collection[int] = ()) -> LocalSession:
        """Set-up is done; in the first sum the bad client is `absent`, and `silent` ones do not reveal."""

        def away(member: int, stage: Stage, index: int) -> bool:
            left = absent and member == BAD and stage is Stage.MASK
            return index == 0 and (left or (member in silent and stage is Stage.REVEAL))

        session = LocalSession(
            self.server, self.rig.machines, lambda member, _: {PART: self.vector(member)}, absent=away
        )
        session.open()
        return session

    def vector(self, member: int) -> NDArray[np.uint64]:
        return self.rig.vectors[member].astype(np.uint64) % np.uint64(self.modulus)

    def sum_of(self, members: Sequence[int]) -> NDArray[np.uint64]:
        total = sum((self.vector(member) for member in members), np.zeros(3, np.uint64))
        return np.asarray(total % np.uint64(self.modulus))

    @property
    def everyone(self) -> NDArray[np.uint64]:
        return self.sum_of(range(CLIENTS))

    @property
    def others(self) -> NDArray[np.uint64]:
        return self.sum_of([k for k in range(CLIENTS) if k != BAD])


def excluded(session: LocalSession) -> dict[int, PeerError]:
    return {event.peer: event.error for event in session.events if isinstance(event, Excluded)}


def convicted(session: LocalSession) -> dict[int, PeerError]:
    return {event.peer: event.error for event in session.events if isinstance(event, Convicted)}


def contributors(session: LocalSession) -> tuple[int, ...]:
    return next(event.contributors for event in reversed(session.events) if isinstance(event, SumReleased))
