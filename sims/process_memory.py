"""How much memory this process has come to hold, beyond what it held at the start."""

from __future__ import annotations

import gc
import re
import resource
import sys
from pathlib import Path
from typing import Final

_STATUS: Final = Path("/proc/self/status")
_CLEAR: Final = Path("/proc/self/clear_refs")
_RESET_PEAK: Final = "5"


class MemoryGrowth:
    """The peak of the resident set from now on, less what is resident now."""

    def __init__(self) -> None:
        gc.collect()
        _reset_peak()
        self._start = _resident("VmRSS")

    def peak_bytes(self) -> int:
        return _resident("VmHWM") - self._start


def peak_bytes() -> int:
    """The peak of the resident set since the process began."""
    return _resident("VmHWM")


def _reset_peak() -> None:
    """Forget what importing took for a moment. Some sandboxes forbid it: then that is what is reported."""
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:
        return


def _resident(name: str) -> int:
    """Bytes of one line of the process's status.

    Where there is none, both now and at its peak it is `ru_maxrss`, which a process may have inherited.
    """
    try:
        status = _STATUS.read_text()
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    found = re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None  # every Linux has both lines
    return int(found[1]) * 1024
