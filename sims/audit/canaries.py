"""Scores of sums with and without a canary: one client whose vector is as long as it may be, or zero.

That is the pair of neighbours that the privacy of a sum is stated for (zero-out), and the others send zeros,
so that nothing else hides the canary.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from secagg import LocalSession, local_machines
from secagg.masks import SEED_BYTES
from secagg.spec import SumSpec, Table
from sims.audit.rehearsal import Fault, Rehearsal
from sims.audit.specs import CLIP, PART
from sims.bench.progress import Progress, quiet

THRESHOLD = CLIP / 2


def rehearsed_scores(
    spec: SumSpec,
    *,
    clients: int,
    runs: int,
    fault: Fault = Fault.NONE,
    seed: bytes = bytes(SEED_BYTES),
    progress: Progress = quiet,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(with the canary, without), each of `runs` sums that are encoded, added and decoded."""
    rehearsal = Rehearsal(spec, clients=clients, fault=fault, seed=seed)
    return _both(spec, runs, progress, lambda vector: rehearsal.run(vector)[0][PART][0])


def secure_scores(
    spec: SumSpec, *, clients: int, runs: int, progress: Progress = quiet
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The same through a server and clients, each sum a session of its own."""

    def total(vector: Callable[[int], dict[str, NDArray[np.float64]]]) -> float:
        server, machines = local_machines(
            table=Table({"sum": spec}),
            trust="curious_server",
            members=range(clients),
            corrupt=0,
            dropout=0,
            sums=1,
        )
        session = LocalSession(server, machines, lambda member, _: vector(member))
        session.open()
        return float(session.ask("sum")[PART][0])

    return _both(spec, runs, progress, total)


def _both(
    spec: SumSpec,
    runs: int,
    progress: Progress,
    score: Callable[[Callable[[int], dict[str, NDArray[np.float64]]]], float],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    size = spec.parts[0].size
    zeros, canary = np.zeros(size), np.zeros(size)
    canary[0] = CLIP
    present, absent = np.empty(runs), np.empty(runs)
    for run in range(runs):
        # The client that other faults spare is the last one: its own noise is known to be there.
        present[run] = score(lambda member: {PART: zeros if member else canary})
        absent[run] = score(lambda _: {PART: zeros})
        progress("canaries", run + 1, runs)
    return present, absent
