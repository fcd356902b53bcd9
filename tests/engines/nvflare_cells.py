"""Cells of NVFlare in one process, for tests: the adapter's code at both ends, and no engine in between."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import new_cell_message

from protocols.run import RoundReport
from sims.engines.nvflare.carrier import CellCarrier, sites_of
from sims.engines.nvflare.cells import LETTER, serve_requests
from sims.engines.nvflare.job_server import serve_job
from sims.engines.nvflare.site_agent import SiteAgent, SiteOutcome
from tests.sims.training_site import SCENARIO, TrainingSite

JOB = "job-1"


@dataclass
class FakeCells:
    """Cells by name. Requests are answered in the thread of the sender."""

    handlers: dict[tuple[str, str], Callable[[Any], Any]] = field(default_factory=dict)  # by cell and topic
    requests: list[tuple[str, bytes]] = field(default_factory=list)
    replies: list[bytes] = field(default_factory=list)

    def cell(self, name: str) -> FakeCell:
        return FakeCell(self, name)

    def remove(self, name: str) -> None:
        """Let a cell end."""
        for place in [each for each in self.handlers if each[0] == name]:
            self.handlers.pop(place, None)


@dataclass
class FakeCell:
    cells: FakeCells
    name: str

    def get_fqcn(self) -> str:
        return self.name

    def register_request_cb(self, channel: str, topic: str, cb: Callable[[Any], Any]) -> None:
        assert channel == "secagg"
        self.cells.handlers[self.name, topic] = cb

    def send_request(self, *, target: str, topic: str, request: Any, **_more: Any) -> Any:
        handler = self.cells.handlers.get((target, topic))
        if isinstance(request.payload, bytes):
            self.cells.requests.append((target, request.payload))
        request.set_header(MessageHeaderKey.ORIGIN, self.name)  # as NVFlare does
        if handler is None:
            return new_cell_message({MessageHeaderKey.RETURN_CODE: ReturnCode.COMM_ERROR}, None)
        reply = handler(request)
        if (target, topic) not in self.cells.handlers:  # it has ended meanwhile
            return new_cell_message({MessageHeaderKey.RETURN_CODE: ReturnCode.TIMEOUT}, None)
        if isinstance(reply.payload, bytes):
            self.cells.replies.append(reply.payload)
            reply.payload = memoryview(reply.payload)  # as NVFlare hands out what it has streamed
        return reply


class NvflareSite(TrainingSite):
    """A server and sites 0 to `clients` - 1, called "site-0" and so on, over cells."""

    scenario_text = SCENARIO.replace('"127.0.0.1:{port}"', '"engine"')
    on_round: Callable[[RoundReport], None] = staticmethod(lambda _report: None)

    def __init__(self, directory: Path, **settings: Any) -> None:
        super().__init__(directory, **settings)
        self.cells = FakeCells()
        self.agents: dict[int, SiteAgent] = {}
        self.reports: list[RoundReport] = []
        self.aborted = threading.Event()
        self.results = directory / "results"

    def start(self, member: int) -> None:
        """Start a site, as its parent process does."""
        agent = self.agents[member] = SiteAgent(lambda: self / f"join-{member}.toml")
        serve_requests(self.cells.cell(f"site-{member}"), {LETTER: agent.answer})

    def kill(self, member: int) -> None:
        """End a site at once, as its process when it is killed: what it was about to send is lost."""
        self.cells.remove(f"site-{member}")
        self.agents.pop(member).close()

    def outcome(self, member: int) -> SiteOutcome | None:
        return self.agents[member].outcome(JOB, 60.0)

    def serve(self, job: str = JOB) -> bool:
        """Train to the end in this thread."""

        def carrier(members: Any) -> CellCarrier:
            server = self.cells.cell(f"server.{job}")
            return CellCarrier(server, job, sites_of(members, ["site-0"]), str)

        return serve_job(
            self / "train.toml",
            carrier,
            is_aborted=self.aborted.is_set,
            on_round=self._take,
            results=self.results,
        )

    def _take(self, report: RoundReport) -> None:
        self.reports.append(report)
        self.on_round(report)

    def run(self) -> bool:
        """Train with all sites to the end."""
        for member in self.clients:
            self.start(member)
        return self.serve()

    def end(self) -> None:
        """Whatever became of the test, nothing runs after it."""
        self.aborted.set()
        for member in list(self.agents):
            self.kill(member)
