"""The console on which commands draw."""

from __future__ import annotations

from typing import NoReturn

import rich.console


class Console(rich.console.Console):
    """Rich's, except that a closed pipe ends every command in the same way, with or without tables."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError
