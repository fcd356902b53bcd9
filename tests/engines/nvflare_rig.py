"""A site of NVFlare without NVFlare's processes, for tests: the component, and what it finds around it."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.registry import Registry
from nvflare.private.defs import CellChannelTopic
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.client_engine import ClientEngine

from secagg.net.tunnel_letters import Letter
from sims.engines.nvflare.cells import LETTER, ask
from sims.engines.nvflare.site import SecaggSite
from tests.engines.nvflare_cells import FakeCells

JOB = "0b5e"
LETTERS = [Letter(b"instance", number).encode() for number in (1, 2)]


class FakeContext:
    """The context of a component in NVFlare: an engine with a cell, and some names."""

    def __init__(self, cells: FakeCells, cell: str, **engine: Any) -> None:
        self.engine = SimpleNamespace(get_cell=lambda: cells.cell(cell), **engine)

    def get_engine(self) -> Any:
        return self.engine

    def get_identity_name(self) -> str:
        return "site-1"

    def get_job_id(self) -> str:
        return JOB

    def get_prop(self, key: str, default: Any = None) -> Any:
        return {FLContextKey.SIMULATE_MODE: False}.get(key, default)

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args, **_more: None


def new_engine(workspace: Path) -> ClientEngine:
    """Return an engine of NVFlare's parent process that runs no job, without its threads."""
    made = ClientEngine.__new__(ClientEngine)
    made.client = SimpleNamespace(client_name="site-1", components={})
    made.args = SimpleNamespace(workspace=str(workspace))
    made.client_executor = SimpleNamespace(run_processes={})
    made.client_executor.get_run_processes_keys = lambda: list(made.client_executor.run_processes)
    made.new_context = lambda: nullcontext(FLContext())
    return made


def new_agent(cell: str = "site-1", workspace: Path = Path("nowhere")) -> FedAdminAgent:
    """Return an agent of NVFlare whose cell has no connections, but calls it and its engine."""
    core = CoreCell.__new__(CoreCell)
    core.req_reg = Registry()
    made = FedAdminAgent.__new__(FedAdminAgent)
    made.processors, made.auditor, made.app_ctx = {}, None, new_engine(workspace)
    made.cell = SimpleNamespace(
        core_cell=core, get_fqcn=lambda: cell, register_request_cb=core.register_request_cb
    )
    made.register_cell_cb()
    made.app_ctx.initialize_comm(made.cell)
    return made


class FakeSite:
    """A started `SecaggSite`, and the reports of killed processes that it has sent."""

    def __init__(self, workspace: Path, cells: FakeCells, agent: FedAdminAgent | None = None) -> None:
        self.reports: list[Any] = []
        self.component = SecaggSite()
        context = FakeContext(
            cells,
            "site-1",
            args=SimpleNamespace(workspace=str(workspace)),
            admin_agent=agent or new_agent(),
            get_client_name=lambda: "site-1",
            client=SimpleNamespace(send_request_before_shutdown=self._report),
        )
        self.component.handle_event(EventType.SYSTEM_START, context)
        self._context = context

    def _report(self, *, topic: str, request: Any, **_more: Any) -> None:
        assert topic == CellChannelTopic.REPORT_JOB_FAILURE
        self.reports.append(request.payload)

    def stop(self) -> None:
        self.component.handle_event(EventType.SYSTEM_END, self._context)


def make_workspace(directory: Path, *, deployed: float | None) -> None:
    for name in ("startup", "local"):
        (directory / name).mkdir(parents=True)
    if deployed is not None:
        (directory / JOB).mkdir()
        (directory / JOB / "meta.json").write_text("{}")
        os.utime(directory / JOB / "meta.json", (deployed, deployed))


def send_letter(cells: FakeCells, letter: bytes = LETTERS[0], *, job: str = JOB) -> bool:
    """Send a letter to a site as the server's process of a job does. Return whether it was answered."""
    return ask(cells.cell(f"server.{job}"), "site-1", LETTER, letter, job=job, seconds=1.0)[0]


def write_kit(directory: Path, permissions: Any = None, **changes: Any) -> None:
    (directory / "local").mkdir(parents=True)
    resources = {"components": [{"id": "resource_manager"}], "class_allow_list": ["nvflare.A"], **changes}
    (directory / "local" / "resources.json.default").write_text(json.dumps(resources))
    permissions = permissions or {
        "project_admin": "any",
        "lead": {"submit_job": "any", "byoc": "any"},
        "member": {"view": "any"},
    }
    authorisation = {"format_version": "1.0", "permissions": permissions}
    (directory / "local" / "authorization.json.default").write_text(json.dumps(authorisation))
