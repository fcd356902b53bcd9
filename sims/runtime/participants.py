"""Participants of a simulation: some of them answer something else than an honest client would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from protocols.participant import Participant
from protocols.vocabulary import Query
from secagg.spec import Count


@runtime_checkable
class Liar(Protocol):
    """A learner whose client does not say what it has worked out: see `fl.attacks.updates`."""

    def answered(self, values: Mapping[str, Any], most: Mapping[str, int], sent: Any) -> Mapping[str, Any]:
        """What is answered in place of `values`."""
        ...


class SimulatedParticipant(Participant):
    """Answers what its learner says, where that is a liar. What it sends is encoded as everybody's is.

    Counts that add up to no more than a total, such as a place in a histogram, stay what they are: changed
    one by one, they would be no such counts any more.
    """

    def answer(
        self, kind: str, payload: bytes, *, round_number: int, invited: int
    ) -> Mapping[str, ArrayLike] | None:
        values = super().answer(kind, payload, round_number=round_number, invited=invited)
        if values is None or not isinstance(self.learner, Liar):
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
