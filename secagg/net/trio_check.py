"""The check that trio's event loop runs in this thread, before a call fails deep inside trio."""

from __future__ import annotations

import trio

from secagg.errors import WrongEventLoop


def check_trio_runs(call: str) -> None:
    """Raise `WrongEventLoop`, which names `call`, unless a task of trio makes this call."""
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        raise WrongEventLoop(
            f"{call} must be called by a task of trio, and trio does not run in this thread: start it with "
            "trio.run(...), or use secagg.net.connect or secagg.net.listen, which need no event loop"
        ) from None
