"""Says why a server cannot listen at an address, and what to do about it."""

from __future__ import annotations

import errno
import socket
from typing import Final

from secagg.net.settings import Address

_HINTS: Final = {
    errno.EADDRINUSE: "; stop the program that listens there, or choose another port",
    errno.EACCES: "; ports below 1024 need a privilege: choose a higher one",
    errno.EADDRNOTAVAIL: "; name an address of this machine, or 0.0.0.0 for all of them",
}


def cannot_listen(address: Address, error: OSError | UnicodeError) -> str:
    """Return a sentence about `error`, which listening at `address` has raised. An impossible name of a host
    raises a `UnicodeError`."""
    if isinstance(error, UnicodeError):
        return f"cannot listen on {address}: it is not the name of a machine"
    unknown = isinstance(error, socket.gaierror)
    hint = _HINTS[errno.EADDRNOTAVAIL] if unknown else _HINTS.get(error.errno or 0, "")
    return f"cannot listen on {address}: {error.strerror or error}{hint}"
