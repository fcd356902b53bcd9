"""Ray, the process of an NVFlare site, and the figures that tests have measured, shown at the end."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest


@pytest.fixture(scope="session")
def ray() -> Iterator[None]:
    """A Ray on this machine, started once, to which the process is connected."""
    if find_spec("ray") is None:
        pytest.skip("ray is not installed")
    from sims.runtime.ray.cluster import connect, disconnect

    cluster = connect("local")
    yield
    disconnect(cluster)


@pytest.fixture
def nvflare_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that start the component of a site: it changes classes of NVFlare in its process, which are
    changed back. And sites answer letters soon, although they have nothing to send."""
    from nvflare.fuel.f3.cellnet.core_cell import CoreCell
    from nvflare.private.fed.client.admin import FedAdminAgent
    from nvflare.private.fed.client.client_engine import ClientEngine

    for kind, name in (
        (FedAdminAgent, "register_processor"),
        (FedAdminAgent, "_dispatch_request"),
        (ClientEngine, "_handle_aux_message"),
        (CoreCell, "process_message"),
    ):
        monkeypatch.setattr(kind, name, getattr(kind, name))
    monkeypatch.setattr("sims.engines.nvflare.site_agent.HOLD", 0.05)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests have given to `record_property`."""
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for name, figure in report.user_properties if report.when == "call" else ():
            terminalreporter.write_line(f"{report.nodeid}: {name}: {figure}")
