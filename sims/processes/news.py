"""What a crew hears of its workers."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Final, TypeAlias

_NAMES: Final = {number.value: number.name for number in signal.Signals}


@dataclass(frozen=True)
class Said:
    """A worker sent a message."""

    index: int
    message: object = field(repr=False)  # It may hold a client's input.


@dataclass(frozen=True)
class Ended:
    """A worker's process is gone, and has been reaped; nothing more comes from it.

    Either `exitcode` or `signal` is set, or neither if nobody can tell any more, because the
    process that would have known was killed as well. Of an exception, `failure` has the type and the
    place. Its message stays in the worker that died of it, because it may hold a secret.
    """

    index: int
    exitcode: int | None = None
    signal: int | None = None
    failure: str = ""

    @property
    def cause(self) -> str:
        """The same in words."""
        if self.failure:
            return self.failure
        if self.signal is not None:
            return f"killed by {_NAMES.get(self.signal, self.signal)}"
        return "lost" if self.exitcode is None else f"exit {self.exitcode}"


News: TypeAlias = Said | Ended
