"""Checks that a Ray cluster answers, before this process connects to it.

`ray.init` itself tries for minutes if something else listens at the address, or if the token is wrong. So
another process asks the cluster first, and has limited time.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Final

_REACHED: Final = 10.0  # seconds in which a machine accepts a connection
_ANSWERED: Final = 20.0  # seconds in which a cluster answers, with the imports of the process that asks

# Prints the class and the text of the error that asking the cluster raises. If this release of Ray has no
# such client, it prints nothing, and `ray.init` has to find out.
_ASK: Final = """
import sys
try:
    from ray._private.services import canonicalize_bootstrap_address
    from ray._raylet import GcsClient
except ImportError:
    sys.exit()
try:
    where = canonicalize_bootstrap_address(sys.argv[1])
    GcsClient(address=where).internal_kv_get(b"CLUSTER_METADATA", namespace=b"cluster", timeout=10)
except (TypeError, AttributeError):
    pass
except Exception as error:
    print("failed", type(error).__name__, " ".join(str(error).split()), flush=True)
"""

_UNAUTHENTICATED: Final = (
    "it wants a token, which is missing or another one here: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to "
    "the token of its nodes"
)
_NOT_THERE: Final = "no Ray answers there (ray start --head starts one on that machine)"
_NONE_HERE: Final = 'no Ray runs on this machine (ray start --head starts one, and "local" needs none)'


def why_unreachable(address: str, *, answered: float = _ANSWERED) -> str | None:
    """Return why the cluster at `address` ("auto" or HOST:PORT) cannot be used; None if it answers."""
    if "://" in address:
        return None
    if refused := _refusal(address):
        return f"{_NOT_THERE}: {refused}"
    try:
        asked = subprocess.run(  # noqa: S603  # this interpreter, and a text of this module
            [sys.executable, "-c", _ASK, address],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=answered,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _NOT_THERE
    return _in_words(asked.stdout, address)


def _refusal(address: str) -> str | None:
    """Return why no connection to "host:port" can be opened, if none can."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        return None
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACHED).close()
    except (OSError, OverflowError) as error:
        return str(error)
    return None


def _in_words(said: str, address: str) -> str | None:
    _, failed, found = said.rpartition("failed ")
    if not failed:
        return None
    kind, _, text = found.strip().partition(" ")
    if kind == "AuthenticationError":
        return _UNAUTHENTICATED
    if kind == "ConnectionError" and address == "auto" and not os.environ.get("RAY_ADDRESS"):
        return _NONE_HERE
    return _NOT_THERE if kind == "RpcError" else text or kind
