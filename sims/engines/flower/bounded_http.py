"""Sends the requests of a node to a SuperLink, and bounds what comes back.

Flower's own client reads a response whole, unpacks it, and follows redirects. A SuperLink is trusted with
nothing, so here the body of a response has a longest size and time, is not unpacked, and leads nowhere else.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from typing import Any, Final

import httpx

from secagg.net.tunnel_letters import MAX_DATA

PATIENCE: Final = 60.0  # seconds for the body of a response, and without a sign of its head
_MOST: Final = MAX_DATA + (1 << 16)  # bytes of an object, which may be a letter
_MOST_WITHOUT_OBJECT: Final = 1 << 16
_PULL_OBJECT: Final = "/v1/fleet/pull-object"


class TooMuch(httpx.TransportError):  # type: ignore[misc]  # httpx may not be installed
    """A response is longer, or takes longer, than any response of an honest SuperLink."""


class BoundedHttp:
    """The last interceptor of a client of Flower, which sends the request itself. `client` returns the HTTP
    client."""

    def __init__(self, client: Callable[[], httpx.Client], *, patience: float = PATIENCE) -> None:
        self._client = client
        self._patience = patience

    def intercept(self, context: Any, _call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        """Return the response to a request, with at most as many bytes as its kind may have."""
        request: httpx.Request = context.request
        request.headers["accept-encoding"] = "identity"
        until = time.monotonic() + self._patience
        response = self._client().send(request, stream=True, follow_redirects=False)
        try:
            content = _read(response, until)
        finally:
            response.close()
        return httpx.Response(response.status_code, content=content, request=request)


def _read(response: httpx.Response, until: float) -> bytes:
    most = _MOST if response.request.url.path == _PULL_OBJECT else _MOST_WITHOUT_OBJECT
    if response.headers.get("content-encoding", "identity") != "identity":
        raise TooMuch("the response is packed")
    content = bytearray()
    for chunk in response.iter_raw():  # as it arrives: chunks of one size would have to be waited for
        content += chunk
        if len(content) > most:
            raise TooMuch("the response is too long")
        if time.monotonic() > until:
            raise TooMuch("the response takes too long")
    return bytes(content)


def explained(error: httpx.HTTPError) -> str:
    """Return in words why a call failed, and what to do."""
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return (
                f"the SuperLink's certificate is not accepted ({cause.verify_message}): check "
                "--root-certificates and the name of the host"
            )
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        return "the SuperLink does not speak TLS at this port: check the port, and whether it has TLS"
    match error:
        case httpx.HTTPStatusError() if error.response.status_code == 404:
            return "no Fleet API of a SuperLink answers there (404): check the port"
        case httpx.HTTPStatusError():
            return f"the SuperLink answers {error.response.status_code}"
        case TooMuch():
            return f"the SuperLink breaks its protocol: {error}"
        case httpx.RemoteProtocolError():
            return (
                "the SuperLink does not speak HTTP at this port: check the port; if it has TLS, remove "
                "--insecure"
            )
        case _:
            return f"the SuperLink cannot be reached ({type(error).__name__})"


def _causes(error: BaseException | None) -> list[BaseException]:
    """Return an error, and what it came from."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found
