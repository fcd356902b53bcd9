"""Kills a server by SIGKILL between confirmation and release; python imports it if it is on the path.

$SECAGG_TEST_KILL names the moment. It happens once, if there is a file "kill" in the working directory.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from secagg.events import SumReleased
from secagg.ledger import ServerLedger
from secagg.server import ServerMachine


def _die() -> None:
    if Path("kill").exists():
        Path("kill").unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def _dying(function: Callable[..., Any], *, on: Callable[..., bool] = lambda *_: True) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        if on(*arguments):
            _die()
        return function(*arguments)

    return call


match os.environ["SECAGG_TEST_KILL"]:
    case "confirmed":  # clients have signed the survivors, and revealed nothing
        ServerMachine._close_confirming = _dying(ServerMachine._close_confirming)  # type: ignore[method-assign]
    case "revealed":  # all shares are there
        ServerMachine._close_unmasking = _dying(ServerMachine._close_unmasking)  # type: ignore[method-assign]
    case "unmasked":  # the total is in memory, and nowhere else
        released = lambda _ledger, event: isinstance(event, SumReleased)  # noqa: E731
        ServerLedger.note = _dying(ServerLedger.note, on=released)  # type: ignore[method-assign]
