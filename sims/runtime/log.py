"""What an observer is told of sessions and sums, whatever carries them. No part of the system reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from secagg.errors import PeerError
from secagg.local import Stage


class Log(Protocol):
    """Hears of everything that is asked, once it is over, and of stages as they begin.

    `session(**facts)`  "session" (its number), "round", "members", "id" (by which a ledger knows it), "graph"
                        ("complete" or "ring"), "neighbours" and "threshold" (these four None if it failed),
                        "sums" and "seeds" (most sums of the session, removable components of noise of each),
                        "bytes_up", "bytes_down", "frames_up" and "frames_down" (by stage), "failure" (a text
                        or None).
    `sum(**facts)`      "session", "sum" (its index in the session, None if nobody was asked), "round",
                        "kind", "invited", "masked", "count" (of contributors, None if nothing was released),
                        "revealed", "around" (so many asked, so many of them survived: around how many clients
                        that revealed; empty where nothing is sent), the same four counts, "failure",
                        "refusals" (member, class of the error and sentence of each), "seconds".
    `stage(**facts)`    a stage that begins: "round", "sum" (within the round, -1 in set-up), "kind" ("" in
                        set-up), "stage".
    """

    def session(self, **facts: Any) -> None: ...
    def sum(self, **facts: Any) -> None: ...
    def stage(self, **facts: Any) -> None: ...


class _Nobody:
    def session(self, **facts: Any) -> None:
        pass

    def sum(self, **facts: Any) -> None:
        pass

    def stage(self, **facts: Any) -> None:
        pass


nobody_logs: Final = _Nobody()
_COUNTS: Final = ("bytes_up", "bytes_down", "frames_up", "frames_down")


@dataclass(frozen=True)
class Shape:
    """Who shares secrets with whom in a session, and how many of them can open one."""

    graph: str  # "complete" or "ring"
    neighbours: int
    threshold: int
    id: str = ""  # by which a ledger knows the session


@dataclass
class Course:
    """What became of a sum on its way. `index` is None as long as nobody was asked."""

    index: int | None = None
    invited: int = 0
    masked: int = 0
    revealed: int = 0
    around: list[list[int]] = field(default_factory=list)
    refusals: list[tuple[int, PeerError]] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        refusals = [[member, type(error).__name__, str(error)] for member, error in self.refusals]
        return {
            "sum": self.index,
            "invited": self.invited,
            "masked": self.masked,
            "revealed": self.revealed,
            "around": self.around,
            "refusals": refusals,
        }


class Carrier(Protocol):
    """Whatever counts what it carries, by stage."""

    bytes_up: Counter[Stage]
    bytes_down: Counter[Stage]
    frames_up: Counter[Stage]
    frames_down: Counter[Stage]


class Carried:
    """What a session has carried since this was made."""

    def __init__(self, session: Carrier) -> None:
        self._session = session
        self._before = self._now()

    @staticmethod
    def all(session: Carrier) -> dict[str, dict[str, int]]:
        """From its beginning."""
        return {name: by_stage(getattr(session, name)) for name in _COUNTS}

    def _now(self) -> dict[str, Counter[Stage]]:
        return {name: Counter(getattr(self._session, name)) for name in _COUNTS}

    def facts(self) -> dict[str, dict[str, int]]:
        return {name: by_stage(now - self._before[name]) for name, now in self._now().items()}


def by_stage(counts: Mapping[Stage, int]) -> dict[str, int]:
    """In the order of the protocol, without what is zero."""
    return {stage.value: counts[stage] for stage in Stage if counts.get(stage)}
