"""What terminals and pipes do to a command: they end, fill up, break off, or know few characters."""

import errno
import os
import sys
from collections.abc import Callable

WRITE_FAILED = 1
# What a shell reports for a process that a signal ended: 128, and the signal's number.
INTERRUPTED = 128 + 2
PIPE_CLOSED = 128 + 13

# A full disk, a quota, a file that may not grow, a terminal that is gone, an output that is not open.
_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})


def guarded(run: Callable[[], int]) -> int:
    """The status of `run`, or of what the terminal did to it. Errors of the program pass through."""
    _replace_unknown_characters()
    try:
        try:
            return run()
        finally:
            # Here and not at the interpreter's end, where nobody could catch the error.
            print(end="", flush=True)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return PIPE_CLOSED
    except OSError as error:
        # An error of opening a file names the file; one of writing to an open one does not.
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        _discard_output()
        print(f"secagg: cannot write the output: {error.strerror}", file=sys.stderr)
        return WRITE_FAILED


def _replace_unknown_characters() -> None:
    """A question mark in place of a bar is better than a traceback in place of a table."""
    # Whoever put another kind of stream there takes care of its characters; a closed output has none.
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")


def _discard_output() -> None:
    """Let what is still buffered go nowhere: the interpreter flushes it once more when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
