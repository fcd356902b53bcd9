"""Locks on open files, which the operating system releases when their process ends (`flock`).

The module `fcntl` is imported when a lock is needed, because Windows does not have it. There, sums in one
process and clients without a ledger still work.
"""

from __future__ import annotations

from types import ModuleType

from secagg.errors import LedgerError


def _fcntl() -> ModuleType:
    try:
        import fcntl
    except ImportError:
        raise LedgerError(
            "ledgers, run directories and changes of registries need file locks, which this operating system "
            "does not have (fcntl); use Linux or macOS, or a memory that ends with the process "
            "(VolatileMemory)"
        ) from None
    return fcntl


def check_file_locks() -> None:
    """Raise `LedgerError` if this operating system has no file locks."""
    _fcntl()


def lock_file(handle: int) -> None:
    """Wait for the lock of an open file. Raises `OSError`, or `LedgerError` if there are no file locks."""
    fcntl = _fcntl()
    fcntl.flock(handle, fcntl.LOCK_EX)


def try_lock_file(handle: int) -> bool:
    """Lock an open file without waiting. Return False if it is locked. Raises the same as `lock_file`."""
    fcntl = _fcntl()
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock_file(handle: int) -> None:
    fcntl = _fcntl()
    fcntl.flock(handle, fcntl.LOCK_UN)
