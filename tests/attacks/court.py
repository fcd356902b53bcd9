"""A court: a session in which some clients lie, and what the server finds out about them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, Final

import numpy as np
import pytest

from secagg import errors
from secagg.client import ClientMachine
from secagg.errors import PeerError
from secagg.events import Convicted, Excluded
from secagg.evidence import Evidence
from secagg.evidence_examiner import examine
from secagg.local_session import LocalSession, Stage, local_machines
from secagg.session_params import SessionParams
from secagg.sum_spec import Count, Part, SumSpec, Table
from secagg.trust_levels import Trust
from tests.attacks.attackers.liars import corrupted

HYBRID: Final = "x25519+ml-kem-768"
TABLE: Final = Table({"sum": SumSpec(parts=(Part(name="x", size=5, bits=32, bound=Count(1 << 12)),))})
# Lies about what the server delivered: nobody else can judge them.
UNPROVEN: Final = (errors.UnreadableShares, errors.FalseReport)
Away = Collection[tuple[int, str]]  # (member, name of the stage) of the first sum


class Court:
    """A session of `size` clients with ids from 1 on, of whom some lie. It `opens`, or fails in set-up."""

    def __init__(
        self,
        trust: Trust,
        size: int,
        corrupt: int,
        liars: Mapping[int, tuple[type[ClientMachine], dict[str, Any]]],
        *,
        away: Away = (),
        opens: bool = True,
        **settings: Any,
    ) -> None:
        params = SessionParams(
            trust=trust, corrupt=corrupt, sums=3, max_cohort=size, **{"dropout": 0.1, **settings}
        )
        self.members, self.corrupt, self.liars = range(1, size + 1), corrupt, set(liars)
        self.server, clients = local_machines(table=TABLE, params=params, members=self.members)
        clients |= {k: corrupted(clients[k], kind, **lie) for k, (kind, lie) in liars.items()}

        def absent(member: int, stage: Stage, index: int) -> bool:
            return index == 0 and (member, stage.value) in away

        self.clients = clients
        self.session = LocalSession(self.server, clients, self._answer, absent=absent)
        self._round = -1
        if opens:
            self.session.open()
        else:
            with pytest.raises(errors.TooFewClients):
                self.session.open()

    def _answer(self, member: int, _: object) -> dict[str, Any]:
        return {"x": np.arange(5) * member}

    def ask(self) -> None:
        """Ask for the next sum. It is exact, or it raises."""
        self._round += 1
        total = self.session.ask("sum", b"%d" % self._round, round_number=self._round)
        assert (total["x"] == np.arange(5) * sum(self.session.contributors)).all()

    def ask_until_convicted(self) -> None:
        """Ask for a sum, which may fail, in which a liar is convicted."""
        with suppress(errors.SumFailed):
            self.ask()
        assert self.convicted

    def ask_all(self) -> None:
        """The next sum is exact and over all that are left, liars or not."""
        self.ask()
        assert set(self.session.contributors) == set(self.members) - self.excluded.keys()
        assert len(self.session.contributors) > 2

    @property
    def convicted(self) -> dict[int, type[PeerError]]:
        return {each.peer: type(each.error) for each in self.convictions}

    @property
    def convictions(self) -> list[Convicted]:
        return [event for event in self.session.events if isinstance(event, Convicted)]

    @property
    def excluded(self) -> dict[int, type[PeerError]]:
        found = [event for event in self.session.events if isinstance(event, Excluded)]
        return {event.peer: type(event.error) for event in found}

    def check_verdicts(self, *, unproven: Collection[type[PeerError]] = UNPROVEN) -> None:
        """Only liars are convicted, and each takes at most one honest client along. If messages are signed,
        there is evidence, except of the lies in `unproven`."""
        assert self.convicted.keys() <= self.liars
        assert self.convicted.items() <= self.excluded.items()
        assert len(self.excluded.keys() - self.liars) <= len(self.excluded.keys() & self.liars)
        registry = self.server._registry
        for each in self.convictions:
            if registry is None or type(each.error) in unproven:
                assert each.evidence is None
            else:
                assert each.evidence is not None
                kept = Evidence.decode(each.evidence.encode())
                assert kept == each.evidence
                assert kept.accused == each.peer
                examine(kept, registry=registry, table=TABLE, corrupt=self.corrupt)

    def check_costs_one_sum(self, error: type[errors.SumFailed]) -> None:
        """The first sum fails, the next is exact over all who are left, and so on."""
        with pytest.raises(error):
            self.ask()
        self.check_verdicts()
        self.ask_all()
        self.ask_all()

    def check_costs_nothing(self) -> None:
        """The first sum is exact in spite of the lie."""
        self.ask()
        self.check_verdicts()
        self.ask_all()


def one(kind: type[ClientMachine], member: int = 3, **lie: Any) -> dict[int, tuple[Any, dict[str, Any]]]:
    return {member: (kind, lie)}
