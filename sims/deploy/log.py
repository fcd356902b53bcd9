"""What an operator reads: one line for everything that happens.

In a file or a pipe it is JSON, for machines; on a terminal, a few words. A log that cannot be written does
not stop anybody: the first time, standard error says so.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TextIO, TypeAlias

from secagg.net.event_log import Fact
from sims.config_problems import ConfigError

Clock: TypeAlias = Callable[[], datetime]
_MODE: Final = 0o640
_SPECIAL: Final = "it is a special file, and a log needs an ordinary one"


def _now() -> datetime:
    return datetime.now(UTC)


class LogWriter:
    """A sink for `EventLog`."""

    def __init__(self, stream: TextIO, *, plain: bool, clock: Clock = _now) -> None:
        self._stream = stream
        self._format = _words if plain else _as_json
        self._clock = clock
        self._complained = False

    def __call__(self, event: str, facts: Mapping[str, Fact]) -> None:
        line = self._format(self._clock(), event, facts)
        try:
            print(line, file=self._stream, flush=True)
        except (OSError, ValueError) as error:  # a closed stream is a ValueError
            self._complain(error)

    def _complain(self, error: OSError | ValueError) -> None:
        if not self._complained:
            self._complained = True
            why = error.strerror if isinstance(error, OSError) else error
            print(f"secagg: the log cannot be written any more: {why}", file=sys.stderr)


@contextmanager
def open_log(path: Path | None) -> Iterator[LogWriter]:
    """The log in a file, which is appended to, or on standard output. Raises `ConfigError`."""
    if path is None:
        yield LogWriter(sys.stdout, plain=sys.stdout.isatty())
        return
    stream = _appending(path)
    try:
        yield LogWriter(stream, plain=False)
    finally:
        with suppress(OSError):  # what was lost was complained about
            stream.close()


def check_log(path: Path | None) -> None:
    """Raise `ConfigError` if there is no writing to it."""
    if path is not None:
        _appending(path).close()


def _appending(path: Path) -> TextIO:
    # Without O_NONBLOCK, to open a pipe would wait for its reader.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        handle = os.open(path, flags, _MODE)
    except OSError as error:
        why = _SPECIAL if error.errno == errno.ENXIO else error.strerror
        raise ConfigError(f"{path} cannot be written: {why}") from None
    mode = os.fstat(handle).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):
        os.close(handle)
        raise ConfigError(f"{path} cannot be written: {_SPECIAL}")
    os.set_blocking(handle, True)
    return os.fdopen(handle, "a", encoding="utf-8")


def _as_json(time: datetime, event: str, facts: Mapping[str, Fact]) -> str:
    moment = time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"time": moment, "event": event, **facts})


def _words(time: datetime, event: str, facts: Mapping[str, Fact]) -> str:
    """Local time, because a person looks at their own clock."""
    shown = "  ".join(f"{name} {_word(value)}" for name, value in facts.items())
    return f"{time.astimezone():%H:%M:%S}  {event:<14}  {shown}".rstrip()


def _word(value: Fact) -> str:
    """No control character of whatever a text may hold reaches a terminal."""
    text = str(value)
    return text if text.isprintable() else json.dumps(text)
