"""How much memory this process has come to hold, beyond what it held at the start of a measurement."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Final

from sims.process_memory import PEAK, RESIDENT, status_bytes

_CLEAR: Final = Path("/proc/self/clear_refs")
_RESET_PEAK: Final = "5"


class MemoryGrowth:
    """The peak of the resident set from now on, less what is resident now."""

    def __init__(self) -> None:
        gc.collect()
        _reset_peak()
        self._start = status_bytes(RESIDENT)

    def peak_bytes(self) -> int:
        return status_bytes(PEAK) - self._start


def _reset_peak() -> None:
    """Forget the memory that imports took briefly. Some sandboxes forbid it; then the peak includes it."""
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:
        return
