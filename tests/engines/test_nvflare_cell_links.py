"""What cells of NVFlare take from each other: real cells, and a site that sends what it likes."""

from __future__ import annotations

import gc
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from types import MethodType
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="the extra nvflare is not installed")

from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.message import Message

from sims.config_problems import ConfigError
from sims.engines.nvflare.cell_links import _process, bound_links, check_links
from tests.engines.nvflare_poc import free_port, wait_until

JOB = "0b5e3f9c-1c5e-4a8e-9d0e-3b8f6f6c2a11"
STREAMED = "streamed"  # a channel whose requests NVFlare streams
ORIGIN, CONN_URL = MessageHeaderKey.ORIGIN, MessageHeaderKey.CONN_URL
LONGEST = 20.0  # seconds
NO_DIAL = 1.0  # seconds in which a cell would have opened a connection

pytestmark = [
    pytest.mark.usefixtures("nvflare_process"),
    pytest.mark.filterwarnings(
        "ignore::pytest.PytestUnraisableExceptionWarning"
    ),  # NVFlare leaves sockets open
]


class Refusals(logging.Handler):
    """Counts the frames that cells have refused."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


class Federation:
    """A server, the sites 1 and 2, and their processes of a job, each with a cell of its own. `got` has the
    cells that requests have reached, and the sender that they have named; `refused` counts refused frames."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str]] = []
        self.refused = Refusals()
        self.url = f"tcp://127.0.0.1:{free_port()}"
        self.cells: dict[str, Cell] = {}
        for name in ("server", "site-1", "site-2"):
            self._add(name, root_url=self.url, create_internal_listener=True)
        for name in ("server", "site-1", "site-2"):
            parent = self.cells[name].core_cell.get_internal_listener_url()
            self._add(f"{name}.{JOB}", root_url=self.url, parent_url=parent)
        wait_until(self._is_ready, "all cells are connected", LONGEST, pause=0.02)

    def _is_ready(self) -> bool:
        return all(each.core_cell.is_backbone_ready() for each in self.cells.values()) and all(
            name in self["server"].agents for name in self.cells if name != "server"
        )

    def are_direct(self) -> bool:
        """Return whether the sites have a connection that is not through the server."""
        return "site-1" in self["site-2"].agents or "site-2" in self["site-1"].agents

    def __getitem__(self, name: str) -> CoreCell:
        return self.cells[name].core_cell

    def _add(self, name: str, **more: Any) -> None:
        cell = self.cells[name] = Cell(fqcn=name, secure=False, credentials={}, **more)
        CoreCell.ALL_CELLS.pop(name)  # or cells of the same process would call each other

        def take(request: Message) -> Message:
            self.got.append((name, request.get_header(ORIGIN)))
            return Message({MessageHeaderKey.RETURN_CODE: ReturnCode.OK}, "done")

        for channel in (CellChannel.CLIENT_MAIN, STREAMED):
            cell.register_request_cb(channel=channel, topic="*", cb=take)
        cell.core_cell.start()

    def close(self) -> None:
        for name in sorted(self.cells, reverse=True):
            self[name].stop()

    def ask(self, sender: str, target: str, channel: str = CellChannel.CLIENT_MAIN) -> str:
        """Send a request as NVFlare does. Return the code of the reply."""
        request = Message(payload="x")
        reply = self.cells[sender].send_request(
            channel=channel, target=target, topic="x", request=request, timeout=5.0
        )
        return str(reply.get_header(MessageHeaderKey.RETURN_CODE))

    def forge(self, sender: str, target: str, channel: str = CellChannel.CLIENT_MAIN, **headers: Any) -> bool:
        """Send a request whose headers are changed on their way out. Return whether `target` has taken it."""
        cell = self[sender]

        def send(endpoint: Any, message: Message) -> Any:
            message.headers.update(headers)
            return CoreCell._send_to_endpoint(cell, endpoint, message)

        def fire() -> None:
            self.cells[sender].fire_and_forget(
                channel=channel, topic="x", targets=target, message=Message(payload="x")
            )

        cell._send_to_endpoint = send
        try:
            return self.is_taken(target, fire)
        finally:
            del cell._send_to_endpoint

    def is_taken(self, target: str, fire: Callable[[], None]) -> bool:
        """Return whether `target` takes what `fire` sends. Otherwise, some cell refuses it."""
        took, refused = len(self.got), self.refused.count

        def taken() -> bool:
            return target in [name for name, _origin in self.got[took:]]

        fire()
        wait_until(lambda: taken() or self.refused.count > refused, "an end of it", LONGEST, pause=0.02)
        return taken()


@pytest.fixture(scope="module")
def started() -> Iterator[Federation]:
    with closing(Federation()) as made:
        yield made
    gc.collect()  # of the sockets that NVFlare leaves open, here and not in other tests


@pytest.fixture
def federation(started: Federation) -> Iterator[Federation]:
    log = logging.getLogger("sims.engines.nvflare.cell_links")
    log.addHandler(started.refused)
    yield started
    log.removeHandler(started.refused)
    for cell in started.cells.values():
        vars(cell.core_cell).pop("process_message", None)
        for name in list(cell.core_cell.adhoc_connectors):
            made = cell.core_cell.adhoc_connectors.pop(name)
            cell.core_cell.communicator.remove_connector(made.handle)
    wait_until(lambda: not started.are_direct(), "the sites have no connection", LONGEST, pause=0.02)


def bound(cell: CoreCell) -> None:
    """Bound the links of one cell, as `bound_links` does of all cells of a process."""
    cell.process_message = MethodType(_process, cell)


CHANNELS = [CellChannel.CLIENT_MAIN, STREAMED]


@pytest.mark.parametrize("channel", CHANNELS)
def test_what_nvflare_sends_arrives(federation: Federation, channel: str) -> None:
    for cell in federation.cells.values():
        bound(cell.core_cell)
    job, site_job = f"server.{JOB}", f"site-1.{JOB}"
    to_sites = [
        ("server", "site-1"),
        ("server", "site-2"),
        (job, "site-1"),
        (job, site_job),
        ("server", site_job),
    ]
    to_server = [
        ("site-1", "server"),
        ("site-2", "server"),
        ("site-1", job),
        (site_job, job),
        (site_job, "server"),
    ]
    others = [
        ("server", "server"),
        ("server", job),
        (job, "server"),
        ("site-1", site_job),
        (site_job, "site-1"),
    ]
    for sender, target in (*to_sites, *to_server, *others, (f"site-2.{JOB}", site_job)):
        assert federation.ask(sender, target, channel) == ReturnCode.OK, (sender, target)
        assert federation.got[-1] == (target, sender)


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize(
    "origin", ["server", f"server.{JOB}", "site-1", f"site-1.{JOB}", "admin", "site-2\n", ""]
)
def test_a_site_sends_in_its_own_name_only(federation: Federation, channel: str, origin: str) -> None:
    """Through the server, the token of which it has, as far as NVFlare checks it."""
    attack = {"sender": "site-2", "target": "site-1", "channel": channel, ORIGIN: origin}
    if origin:  # NVFlare itself drops a frame without a sender
        assert federation.forge(**attack)
    bound(federation["server"])
    assert not federation.forge(**attack)
    assert federation.forge(**{**attack, ORIGIN: "site-2"})


def test_the_process_of_a_job_sends_in_the_name_of_its_site_only(federation: Federation) -> None:
    attack = {"sender": f"site-1.{JOB}", "target": "site-2", ORIGIN: "server"}
    assert federation.forge(**attack)
    bound(federation["server"])
    assert not federation.forge(**attack)


@pytest.mark.parametrize("channel", CHANNELS)
def test_other_sites_have_nothing_to_ask_of_the_parent_process(federation: Federation, channel: str) -> None:
    assert federation.forge("site-2", "site-1", channel)
    bound(federation["site-1"])
    assert not federation.forge("site-2", "site-1", channel)
    assert federation.forge("server", "site-1", channel)


def test_nor_in_bulk(federation: Federation) -> None:
    """NVFlare unpacks a request that names another channel inside."""

    def send() -> None:
        federation["site-2"].queue_message(
            channel=CellChannel.CLIENT_MAIN, topic="x", targets="site-1", message=Message(payload="x")
        )

    assert federation.is_taken("site-1", send)
    bound(federation["site-1"])
    assert not federation.is_taken("site-1", send)


@pytest.mark.parametrize("target", ["site-1", f"site-1.{JOB}"])
def test_a_site_opens_no_connection_to_where_a_frame_says(federation: Federation, target: str) -> None:
    def dials(seconds: float) -> bool:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(seconds)
            url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
            sender = {ORIGIN: f"server.{JOB}", CONN_URL: url}  # whose frames the site takes
            assert federation.forge("site-2", target, **sender)
            try:
                listener.accept()[0].close()
            except TimeoutError:
                return False
            return True

    bound(federation[target])
    assert not dials(NO_DIAL)
    del federation[target].process_message
    assert dials(LONGEST)


@pytest.mark.parametrize("origin", ["server", f"server.{JOB}"])
@pytest.mark.parametrize("channel", CHANNELS)
def test_the_server_is_believed_on_its_own_link_only(
    federation: Federation, channel: str, origin: str
) -> None:
    """The attacker has a direct connection to the site, however it was made."""
    attacker, site = federation["site-2"], federation["site-1"]
    url = f"tcp://127.0.0.1:{free_port()}"
    attacker._create_external_listener(url)
    site._add_adhoc_connector("site-2", url)
    wait_until(
        lambda: "site-1" in attacker.agents and "site-2" in site.agents,
        "they are connected",
        LONGEST,
        pause=0.02,
    )
    assert federation.forge("site-2", "site-1", channel, **{ORIGIN: origin})
    bound(site)
    assert not federation.forge("site-2", "site-1", channel, **{ORIGIN: origin})
    assert federation.ask(origin, "site-1", channel) == ReturnCode.OK


def test_cells_that_take_more_are_noticed() -> None:
    bound_links()
    cell = CoreCell.__new__(CoreCell)
    check_links(cell)
    cell.process_message = lambda *_all: None
    with pytest.raises(ConfigError, match="in the name of its server"):
        check_links(cell)
