"""The log of a server or client: one line for each event, as JSON in a file or a pipe, as text on a terminal.
If it cannot be written, the program continues, and reports the first failure on standard error."""

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
from threading import Lock
from typing import Final, Protocol, TextIO, TypeAlias

from secagg.net.event_log import EventLog, Fact
from sims.config_problems import ConfigError

Clock: TypeAlias = Callable[[], datetime]
_MODE: Final = 0o640
_SPECIAL: Final = "it is a special file, and a log needs an ordinary one"


class LogSection(Protocol):
    """A table of a configuration that may name a log."""

    @property
    def log(self) -> Path | None: ...

    @property
    def model_fields_set(self) -> set[str]: ...


def _now() -> datetime:
    return datetime.now(UTC)


class LogWriter:
    """Writes the events of an `EventLog` to a stream, as text if `plain`, else as JSON. Several threads may
    call it: their lines do not mix."""

    def __init__(self, stream: TextIO, *, plain: bool, clock: Clock = _now) -> None:
        self._stream = stream
        self._format = _words if plain else _as_json
        self._clock = clock
        self._reported = False
        self._lock = Lock()

    def __call__(self, event: str, facts: Mapping[str, Fact]) -> None:
        line = self._format(self._clock(), event, facts)
        try:
            with self._lock:
                self._stream.write(f"{line}\n")
                self._stream.flush()
        except (OSError, ValueError) as error:  # A closed stream raises ValueError.
            self._report_once(error)

    def _report_once(self, error: OSError | ValueError) -> None:
        if not self._reported:
            self._reported = True
            why = error.strerror if isinstance(error, OSError) else error
            print(f"secagg: the log cannot be written any more: {why}", file=sys.stderr)


@contextmanager
def open_log(path: Path | None) -> Iterator[LogWriter]:
    """Yield a writer to the log `path` (None: standard output). Raise `ConfigError` if opening it fails. If
    the process was started without a standard output, say so on standard error, and write the log nowhere."""
    if path is None and sys.stdout is not None:
        yield LogWriter(sys.stdout, plain=sys.stdout.isatty())
        return
    if path is None:
        print("secagg: there is no log: standard output is closed; name a file as log", file=sys.stderr)
    stream = _appending(path or Path(os.devnull))
    try:
        yield LogWriter(stream, plain=False)
    finally:
        with suppress(OSError):  # `LogWriter` has reported the failure.
            stream.close()


@contextmanager
def event_log_of(section: LogSection) -> Iterator[EventLog]:
    """Yield the log that `section` names, else Python's logging. The log None is standard output, and also
    the default of a section, which suits commands but neither programs nor engines."""
    if "log" not in section.model_fields_set:
        yield EventLog()
        return
    with open_log(section.log) as writer:
        yield EventLog(writer)


def check_log(path: Path | None) -> None:
    """Create the log file if it does not exist, unless `path` is None. Raise `ConfigError` if this fails."""
    if path is not None:
        _appending(path).close()


def _appending(path: Path) -> TextIO:
    # Without O_NONBLOCK, opening a pipe would wait for its reader.
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
    stamp = time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"time": stamp, "event": event, **facts})


def _words(time: datetime, event: str, facts: Mapping[str, Fact]) -> str:
    """Return an event and its facts as a line of text that begins with the local time."""
    shown = "  ".join(f"{name} {_word(value)}" for name, value in facts.items())
    return f"{time.astimezone():%H:%M:%S}  {event:<14}  {shown}".rstrip()


def _word(value: Fact) -> str:
    """Return a value as text; as a JSON string if control characters in it could affect a terminal."""
    text = str(value)
    return text if text.isprintable() else json.dumps(text)
