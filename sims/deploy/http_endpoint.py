"""A minimal HTTP server for reports to an operator. It reads one request of bounded size from a connection,
answers GET and HEAD of a few known paths, and closes the connection. It has a bounded number of connections
and a deadline for each, so a client that is slow, silent or hostile costs little and delays no other.

On a loopback address, it answers only requests for an IP address or `localhost`. Otherwise a web page could
give its own name the address 127.0.0.1 (DNS rebinding), and read the reports through its visitor's browser.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, TypeAlias

import trio

from secagg.net.nursery_and_threads import background_nursery
from secagg.net.settings import Address

MAX_CONNECTIONS: Final = 16  # one more replaces the oldest
_MAX_REQUEST: Final = 8192  # bytes of the request line and all headers
_SECONDS: Final = 5.0  # for a request and its answer
_END: Final = b"\r\n\r\n"
_REQUEST_LINE: Final = re.compile(rb"([!-~]{1,32}) ([!-~]+) HTTP/1\.[0-9]\r\n")
_HOST_LINE: Final = re.compile(rb"\r\nhost:[ \t]*([^\r\n]*)", re.IGNORECASE)
_HOST: Final = re.compile(r"(?:\[([^\]]*)\]|([^:]*))(?::[0-9]*)?\s*")
_METHODS: Final = (b"GET", b"HEAD")
TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class Reply:
    """The answer to a request."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT

    @classmethod
    def bare(cls, status: HTTPStatus) -> Reply:
        """Return an answer whose body is only the phrase of `status`."""
        return cls(status, f"{status.phrase}\n".encode())

    def encode(self, *, with_body: bool) -> bytes:
        head = [
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
        ]
        if self.status is HTTPStatus.METHOD_NOT_ALLOWED:
            head.append("Allow: GET, HEAD")
        return "\r\n".join([*head, "", ""]).encode("ascii") + (self.body if with_body else b"")


Route: TypeAlias = Callable[[], Awaitable[Reply]]


class HttpEndpoint:
    """Answers requests for the paths in `routes`, each by calling its function. Others get status 404, and
    if `is_local`, requests for a host that is not this machine by name or number get status 421."""

    def __init__(self, routes: Mapping[str, Route], *, is_local: bool = False) -> None:
        self._is_local = is_local
        self._routes = {path.encode("ascii"): route for path, route in routes.items()}
        self._scopes: dict[trio.CancelScope, None] = {}  # of open connections, the oldest first

    async def handle_connection(self, stream: trio.abc.Stream) -> None:
        """Answer the request of a new connection, and close it. Raises nothing that a peer can cause."""
        self._limit_connections()
        with trio.move_on_after(_SECONDS) as scope:
            self._scopes[scope] = None
            try:
                await self._exchange(stream)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # the peer has gone
            finally:
                self._scopes.pop(scope, None)
                await trio.aclose_forcefully(stream)

    def _limit_connections(self) -> None:
        # The connection is removed at once. Otherwise two calls could end the same one.
        if len(self._scopes) >= MAX_CONNECTIONS:
            oldest = next(iter(self._scopes))
            del self._scopes[oldest]
            oldest.cancel()

    async def _exchange(self, stream: trio.abc.Stream) -> None:
        request = await _read_request(stream)
        if request is None:
            return
        reply = await self._reply(request)
        await stream.send_all(reply.encode(with_body=not request.startswith(b"HEAD ")))

    async def _reply(self, request: bytes) -> Reply:
        if _END not in request:
            return Reply.bare(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        line = _REQUEST_LINE.match(request)
        if line is None:
            return Reply.bare(HTTPStatus.BAD_REQUEST)
        if line[1] not in _METHODS:
            return Reply.bare(HTTPStatus.METHOD_NOT_ALLOWED)
        if self._is_local and not all(map(_is_local_host, _HOST_LINE.findall(request))):
            return Reply.bare(HTTPStatus.MISDIRECTED_REQUEST)
        route = self._routes.get(line[2].partition(b"?")[0])
        return Reply.bare(HTTPStatus.NOT_FOUND) if route is None else await route()


def _is_local_host(value: bytes) -> bool:
    """Return whether the header `Host` has no name that another party could give this machine."""
    found = _HOST.fullmatch(value.decode("latin-1"))
    if found is None:
        return False
    name = found[1] or found[2] or ""
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return name.lower() == "localhost"


async def _read_request(stream: trio.abc.Stream) -> bytes | None:
    """Return what a peer sends, up to the end of the headers or `_MAX_REQUEST` bytes. Return None if it ends
    the connection before."""
    request = b""
    while _END not in request and len(request) < _MAX_REQUEST:
        data = await stream.receive_some(_MAX_REQUEST - len(request))
        if not data:
            return None
        request += data
    return request


@asynccontextmanager
async def open_endpoint(listen: Address, routes: Mapping[str, Route]) -> AsyncIterator[Address]:
    """Serve `routes` at `listen` for as long as the block lasts, and yield the address, with the port that
    the system chose if that of `listen` is 0. Raise `OSError` if it cannot listen."""
    endpoint = HttpEndpoint(routes, is_local=listen.is_loopback)
    async with background_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(listen.port, host=listen.host)
        nursery.start_soon(trio.serve_listeners, endpoint.handle_connection, listeners)
        yield Address(listen.host, listeners[0].socket.getsockname()[1])
