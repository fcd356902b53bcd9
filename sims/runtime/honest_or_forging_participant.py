"""Simulated clients of a run. They may forge answers, and record in which round their training diverged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from protocols.participant import Participant
from protocols.rounds import Query
from secagg.sum_spec import Count


@runtime_checkable
class ForgingLearner(Protocol):
    """The learner of an attacker that changes answers (see `fl.attacks.updates_and_answers`)."""

    def answered(self, values: Mapping[str, Any], most: Mapping[str, int], sent: Any) -> Mapping[str, Any]:
        """Return what to send instead of the honest answer `values`; both are by name of part. `most` has the
        largest allowed value of each part that holds counts; `sent` lists the query's vectors."""
        ...


class SimulatedParticipant(Participant):
    """A client's side of a run, which sends a forged answer if its learner is a `ForgingLearner`. Counts with
    a limit on their sum, as in a histogram, are not forged, because their sum could exceed that limit.
    `diverged` is the last round, counted from 0, in which the client had no answer because its training
    diverged, or -1. In a sum with noise it sends zeros instead, so its divergence is not recorded."""

    diverged = -1

    def answer(
        self, kind: str, payload: bytes, *, round_number: int, invited: int
    ) -> Mapping[str, ArrayLike] | None:
        values = super().answer(kind, payload, round_number=round_number, invited=invited)
        if values is None:
            self.diverged = round_number
        if values is None or not isinstance(self.learner, ForgingLearner):
            return values
        assert self._algorithm.table is not None  # there was a query
        bounds = {part.name: part.bound for part in self._algorithm.table[kind].parts}
        free = {name: values[name] for name, bound in bounds.items() if getattr(bound, "total", None) is None}
        most = {name: bound.limit for name, bound in bounds.items() if isinstance(bound, Count)}
        sent = _vectors(self._algorithm.query_decoder.decode(kind, payload)[1])
        return {**values, **self.learner.answered(free, most, sent)}


def _vectors(query: Query) -> list[Any]:
    values = (getattr(query, each.name) for each in fields(query))
    return [each for each in values if isinstance(each, np.ndarray)]
