"""Negative vectors of a client with noise: rosters that it was not planned for, too few who stay, its budget.

Six clients, a threshold of three. Noise is planned for four or five of them, of whom one may drop out and two
collude; three would be enough for everything else. One sum costs a little more than half of what a client
ever spends.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any, Final

import numpy as np

from scripts.vectors.recorder import ROUND, Book, Recorder
from secagg.client_budget import sum_charge
from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.policy import Policy
from secagg.query_context import content_digest
from secagg.sum_spec import Count, Part, SumSpec, Table
from secagg.trust_levels import Trust
from tests.attacks.rig import PART

SIZE: Final = 6
THRESHOLD: Final = 3
MAX_RHO: Final = 1.0
PLANNED: Final = range(5)  # most clients that the noise is for
PROMISE: Final = NoiseAssumptions(clients=len(PLANNED), dropouts=1, colluders=2)


def _spec(variance: int) -> SumSpec:
    noise = Noise(scale=8, variance=Fraction(variance))
    return SumSpec(parts=(Part(name=PART, size=2, bits=12, bound=Count(3), noise=noise),), promise=PROMISE)


TABLE: Final = Table({"noisy": _spec(1000), "dear": _spec(100)})


class NoiseSession:
    """An honest session up to where a case wants to cheat."""

    def __init__(self) -> None:
        changes = {"max_rho": MAX_RHO}
        self.rig = Recorder(Trust.CURIOUS, clients=SIZE, name="noise", table=TABLE, policy_changes=changes)
        self.rig.vectors = {k: np.array([k % 4, 3 - k % 4], np.uint32) for k in range(SIZE)}
        self.cohort = self.rig.set_up(threshold=THRESHOLD, nonce=b"noise".ljust(32, b"\0"))

    def query(self, index: int = 0, roster: Iterable[int] = PLANNED, kind: str = "noisy") -> bytes:
        settings: dict[str, Any] = {"payload": b"query %d" % index, "round_number": ROUND + index}
        return self.rig.query(self.cohort, index, list(roster), kind=kind, **settings)

    def mask(self) -> NoiseSession:
        for member in PLANNED:
            self.rig.send(member, self.query())
            self.rig.answer(member)
        return self

    def reveal(self) -> NoiseSession:
        self.mask()
        for member in PLANNED:
            self.rig.send(member, self.survivors(PLANNED))
        return self

    def survivors(self, members: Iterable[int]) -> bytes:
        return self.rig.survivors(self.cohort, 0, list(members))


def noise_refusals(book: Book) -> None:
    _rosters(book)
    _budgets(book)
    _survivors(book)


def _rosters(book: Book) -> None:
    session = NoiseSession()
    start = book.start("ready, with noise", session.rig)
    few, all_of_them = session.query(roster=range(3)), session.query(roster=range(SIZE))
    book.case("query: too few clients for the noise", start, few, "FewContributors")
    book.case("query: more clients than the noise is planned for", start, all_of_them, "LargeCohort")


def _budgets(book: Book) -> None:
    session, error = NoiseSession(), "BudgetExceeded"
    start = book.start("ready, with noise", session.rig)
    dear = session.query(kind="dear")
    book.case("query: a sum that costs more privacy than is left", start, dear, error)
    memory = _remembered(session.rig.policy)
    start = book.start("ready, with noise, half the budget is spent", session.rig, memory=memory)
    book.case("query: too dear after an earlier session", start, session.query(), error)
    spent = NoiseSession().reveal()
    start = book.start("revealed, with noise", spent.rig)
    book.case("query: too dear after an earlier sum", start, spent.query(1), error)


def _remembered(policy: Policy) -> dict[str, Any]:
    """An answer to a sum of the same kind."""
    charge = sum_charge(TABLE["noisy"], roster=len(PLANNED), adjacency=policy.adjacency)
    content = content_digest("noisy", b"an earlier query").hex()
    return {"answers": [{"group": "noisy", "round": 0, "content": content, "charge": charge}]}


def _survivors(book: Book) -> None:
    session = NoiseSession().mask()
    start = book.start("masked, with noise", session.rig)
    few = session.survivors(range(len(PLANNED) - PROMISE.dropouts - 1))
    book.case("survivors: more drop-outs than the noise allows", start, few, "FewContributors")
