"""Addresses: one way to write each, and no sum in the clear beyond this machine."""

from __future__ import annotations

import ssl

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.errors import ParameterError
from secagg.net.connection import host_of
from secagg.net.settings import Address, check_secure
from tests.secagg.net.rig import Line, run, run_live

hosts = st.one_of(
    st.from_regex(r"[a-z][a-z0-9-]{0,20}(\.[a-z0-9-]{1,9}){0,3}\.?", fullmatch=True),
    st.just("münchen.example"),
    st.ip_addresses().map(str),
)


@settings(max_examples=40)
@given(hosts, st.integers(0, 65535))
def test_an_address_comes_back(host: str, port: int) -> None:
    address = Address(host, port)
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", "host", ":80", "host:", "host:-1", "host:65536", "host:8o", "host:٣", "[]:80", "host: 80"),
        *("::1", "::1:80", "[::1]", "[::1:80", "::1]:80", "host:80:80", "host:" + "1" * 5000),
        *("a..example:80", ".example:80", f"{'a' * 64}.example:80", "a host:80", "host\0:80", "ho\nst:80"),
    ],
)
def test_anything_else_is_no_address(text: str) -> None:
    with pytest.raises(ParameterError, match="is no address"):
        Address.parse(text)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_address_is_no_url(scheme: str) -> None:
    with pytest.raises(ParameterError, match=f"is no address: write host:port, without {scheme}://$"):
        Address.parse(f"{scheme}://localhost:7443")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_this_machine(host: str) -> None:
    assert Address(host, 1).is_loopback
    check_secure(Address(host, 1), None, insecure_plain_tcp=True)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "localhost.example", "1270.0.0.1"])  # noqa: S104
def test_other_machines_need_tls(host: str) -> None:
    assert not Address(host, 1).is_loopback
    with pytest.raises(ParameterError, match="not on this machine"):
        check_secure(Address(host, 1), None, insecure_plain_tcp=True)
    check_secure(Address(host, 1), ssl.create_default_context(), insecure_plain_tcp=False)


def test_plain_text_is_asked_for_by_name_and_never_together_with_tls() -> None:
    address = Address("127.0.0.1", 1)
    with pytest.raises(ParameterError, match="insecure_plain_tcp=True"):
        check_secure(address, None, insecure_plain_tcp=False)
    with pytest.raises(ParameterError, match="not both"):
        check_secure(address, ssl.create_default_context(), insecure_plain_tcp=True)


def test_where_a_connection_comes_from() -> None:
    async def main() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        async with listener, await trio.open_tcp_stream("127.0.0.1", port) as near:
            assert host_of(near) == "127.0.0.1"
        assert host_of(near) == "nowhere"

    run_live(main)


def test_a_connection_in_memory_comes_from_there() -> None:
    async def main() -> None:
        assert host_of(Line().far) == "memory"

    run(main)
