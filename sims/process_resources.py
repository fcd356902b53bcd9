"""The resources of this process: limits of core dumps and open files, and its memory use."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path
from typing import Final

from secagg.errors import ParameterError

_STATUS: Final = Path("/proc/self/status")
RESIDENT: Final = "VmRSS"
PEAK: Final = "VmHWM"


def forbid_core_dumps() -> None:
    """Disable core dumps, which would write keys and values to disk."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def raise_open_file_limit(wanted: int) -> None:
    """Increase the soft limit of open files to `wanted` if it is lower and the hard limit is finite. Raise
    `ParameterError` if the hard limit is lower than `wanted`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY in (soft, hard) or wanted <= soft:
        return
    if wanted > hard:
        raise ParameterError(
            f"this takes about {wanted} open files, and the system allows {hard}; raise the limit (ulimit -n)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


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
