"""No process of a crew outlives the one that opened it, however that one dies.

Three mechanisms hold, each enough by itself wherever it exists:

* The fork server has one end of a socket whose other end only the crew has. At its end of file, it
  kills and reaps every process below it, and exits.
* A pipe, the lifeline, whose writing end only the crew has. In every worker a thread reads it, and
  end of file ends the worker. This needs no kernel feature, and no fork server that works, but a
  moment without a C call that keeps Python's lock.
* On Linux, the kernel sends a signal to a process when its parent dies: SIGTERM to the fork server,
  which then ends as above, and SIGKILL to the workers. This cannot be ignored, needs no lock, and holds
  even if a process forked elsewhere in the program has a copy of the crew's ends.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_LOST_LIFELINE: Final = 70  # the exit code of a worker whose crew has died; nobody is left to see it


def signal_on_death_of_parent(number: int) -> None:
    """Have the kernel send this signal when the parent dies, more precisely the parent's thread that
    started this process. Whoever calls this must then see whether the parent still lives."""
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_descendants() -> None:
    """Become the parent of all processes below this one that lose theirs, to be able to end them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hold(lifeline: int) -> None:
    """End this process as soon as the lifeline does."""
    threading.Thread(target=_hold, args=(lifeline,), name="lifeline", daemon=True).start()


def _hold(lifeline: int) -> None:
    os.read(lifeline, 1)  # Nothing is ever written to it.
    os._exit(_LOST_LIFELINE)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value))
