"""What a server or client tells its operator: one structured entry for everything that happens.

An entry is a name and a few facts, none of them a secret. Whoever is hostile chooses how often something
happens, so what a peer can repeat is written once and counted from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

Fact: TypeAlias = str | int | float | bool | None
Sink: TypeAlias = Callable[[str, Mapping[str, Fact]], None]

_REMEMBERED: Final = 4096  # different things; of more, only their number is known
_logger: Final = logging.getLogger("secagg.net")


def to_log(event: str, facts: Mapping[str, Fact]) -> None:
    """The default sink: the standard library's log, facts as `key=value`."""
    _logger.info("%s", " ".join([event, *(f"{key}={value}" for key, value in facts.items())]))


class Journal:
    """Writes entries to a sink.

    >>> journal = Journal(lambda event, facts: print(event, dict(facts)))
    >>> journal.note("connected", member=5)
    connected {'member': 5}
    """

    def __init__(self, sink: Sink = to_log) -> None:
        self._sink = sink
        self._seen: dict[tuple[str, tuple[tuple[str, Fact], ...]], int] = {}  # and how often
        self._surplus = 0

    def note(self, event: str, **facts: Fact) -> None:
        self._sink(event, facts)

    def once(self, event: str, **facts: Fact) -> None:
        """Write it the first time; the same thing again is only counted."""
        key = (event, tuple(facts.items()))
        if key in self._seen:
            self._seen[key] += 1
        elif len(self._seen) < _REMEMBERED:
            self._seen[key] = 1
            self._sink(event, facts)
        else:
            self._surplus += 1

    def repeated(self) -> None:
        """Write how often things were repeated, and begin anew."""
        for (event, facts), times in self._seen.items():
            if times > 1:
                self._sink("repeated", {"what": event, "times": times, **dict(facts)})
        if self._surplus:
            self._sink("repeated", {"what": "more than could be told apart", "entries": self._surplus})
        self._seen.clear()
        self._surplus = 0
