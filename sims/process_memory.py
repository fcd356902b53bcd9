"""Reads the memory use of this process from the operating system."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path
from typing import Final

_STATUS: Final = Path("/proc/self/status")
RESIDENT: Final = "VmRSS"
PEAK: Final = "VmHWM"


def peak_bytes() -> int:
    """Return the peak of the resident memory since the process began, in bytes."""
    return status_bytes(PEAK)


def status_bytes(name: str) -> int:
    """Return the resident memory of this process in bytes: the current one if `name` is `RESIDENT`, and the
    peak if it is `PEAK`. On systems without /proc/self/status, return the peak for both."""
    try:
        status = _STATUS.read_text()
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    found = re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None  # Linux always has both lines.
    return int(found[1]) * 1024
