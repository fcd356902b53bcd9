"""Hears of sessions and sums: writes them down, adds up what they cost, and says where a simulation is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sims.simulation.spending import Spending


class Ear:
    """The log of one conversation: see `sims.runtime.log.Log`.

    `write`   takes lines of the file of sums.
    `number`  gives every session of a run a number of its own, whichever conversation it is of.
    `watch`   takes what has changed about the moment.
    """

    def __init__(
        self,
        part: str,
        spending: Spending,
        *,
        write: Callable[[dict[str, Any]], None],
        number: Callable[[], int],
        watch: Callable[..., None],
    ) -> None:
        self._part = part
        self._spending = spending
        self._write = write
        self._number = number
        self._watch = watch
        self._session: int | None = None

    def session(self, **facts: Any) -> None:
        self._session = self._number()
        self._write({"entry": "session", **facts, "session": self._session, "part": self._part})

    def sum(self, **facts: Any) -> None:
        self._spending.note(facts)
        if self._session is not None:
            facts["session"] = self._session
        facts["seconds"] = round(facts["seconds"], 6)
        self._write({"entry": "sum", **facts, "part": self._part})
        sent = sum(facts["bytes_up"].values())
        self._watch(survivors=facts["count"], sent=sent)

    def stage(self, **facts: Any) -> None:
        self._watch(
            sum=facts["sum"] + 1 if facts["sum"] >= 0 else None,
            kind=facts["kind"] if self._part == "training" else self._part,
            stage=facts["stage"].value,
        )
