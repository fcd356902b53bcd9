"""Learners by the ids of their clients, and how they train together, if they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


class Cohort(Mapping[int, Any]):
    """`learners`, and how those who made them let them train together; None if they know nothing of it.

    Learners that train at the same time are a mapping with a callable `together`, which runs jobs of many
    clients. Whoever puts wrappers around such learners has to hand it on: a plain dict would lose it, and
    they would train one by one.
    """

    def __init__(self, learners: Mapping[int, Any], together: Callable[..., Any] | None = None) -> None:
        self._learners = dict(learners)
        self.together = together

    @classmethod
    def of(cls, learners: Mapping[int, Any], change: Callable[[int, Any], Any]) -> Cohort:
        """`change(client, learner)` of every client in `learners`, which train together as those do."""
        changed = {client: change(client, learner) for client, learner in learners.items()}
        return cls(changed, getattr(learners, "together", None))

    def __getitem__(self, client: int) -> Any:
        return self._learners[client]

    def __iter__(self) -> Iterator[int]:
        return iter(self._learners)

    def __len__(self) -> int:
        return len(self._learners)

    def __repr__(self) -> str:
        return f"Cohort({len(self)} clients)"
