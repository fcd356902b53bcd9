"""The growth of the memory of this process since the start of a measurement."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Final

from sims.process_resources import PEAK, RESIDENT, status_bytes

_CLEAR: Final = Path("/proc/self/clear_refs")
_RESET_PEAK: Final = "5"


class MemoryGrowth:
    """The peak of the resident set from now on, minus what is resident now."""

    def __init__(self) -> None:
        gc.collect()
        _reset_peak()
        self._start = status_bytes(RESIDENT)

    def peak_bytes(self) -> int:
        return status_bytes(PEAK) - self._start


def _reset_peak() -> None:
    """Reset the peak, which imports raised. Some sandboxes forbid it; then the peak includes them."""
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:
        return
